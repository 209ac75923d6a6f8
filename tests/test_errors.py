import inspect
import re

import pytest

from pico import errors
from pico.errors import MissingExtraError, PicoError, did_you_mean, one_line

ERRORS = [
    item
    for _, item in inspect.getmembers(errors, inspect.isclass)
    if issubclass(item, BaseException)
]


def test_the_tree_in_the_docstring_is_the_tree_of_classes():
    drawn: dict[str, str | None] = {}
    parents: list[tuple[int, str]] = []
    for line in errors.__doc__.splitlines():
        found = re.match(r"( {4}[ │├└─]*)(\w+Error)  +\S", line)
        if not found:
            continue
        depth, name = len(found[1]), found[2]
        while parents and parents[-1][0] >= depth:
            parents.pop()
        drawn[name] = parents[-1][1] if parents else None
        parents.append((depth, name))
    classes = {item.__name__: item for item in ERRORS}
    assert drawn.keys() == classes.keys()
    for name, parent in drawn.items():
        assert classes[name].__bases__[0].__name__ == (parent or "Exception")


@pytest.mark.parametrize("error", ERRORS)
def test_every_error_is_a_pico_error_with_its_message(error):
    assert issubclass(error, PicoError)
    made = error("s3fs", "s3") if error is MissingExtraError else error("what; way out")
    assert str(made) in (
        "what; way out",
        "s3fs is not installed; this needs it: pip install 'pico-lake[s3]'",
    )


def test_errors_can_be_caught_as_the_built_in_ones():
    assert issubclass(errors.ConfigError, ValueError)
    assert issubclass(errors.StorageError, OSError)
    assert issubclass(errors.MissingExtraError, ImportError)
    assert not issubclass(errors.CorruptError, (OSError, ValueError))


def test_did_you_mean():
    assert did_you_mean("wieghts", ["weights", "gradients"]) == " Did you mean 'weights'?"
    assert (
        did_you_mean("zzz", ["weights"]) == did_you_mean("a", []) == did_you_mean("", ["a"]) == ""
    )


def test_one_line():
    assert one_line(ValueError("a\n  b\t c")) == "a b c"
    assert one_line(KeyboardInterrupt()) == "KeyboardInterrupt"
