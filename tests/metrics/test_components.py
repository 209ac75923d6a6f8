"""The registry of components: what a signature says, and what it refuses."""

from collections.abc import Sequence

import pytest

import pico.metrics
from pico.errors import MetricError
from pico.metrics import components


def test_built_in_components_are_public_and_documented():
    assert {"ov_circuit", "qk_spectrum", "reshape", "vo_product"} <= set(components.names())
    for name in components.names():
        item = components.get(name)
        assert item.function is getattr(pico.metrics, name)
        assert item.summary and item.version == 1
    item = components.get("ov_spectrum")
    assert item.tensors == ("v", "o")
    assert [(a.name, a.kind, a.is_optional) for a in item.arguments] == [
        ("n_heads", "int", False),
        ("n_kv_heads", "int", False),
        ("head", "int", False),
    ]
    assert (item.returns, item.n_required) == ("vector", 3)


def test_an_unknown_name_is_answered_with_the_nearest():
    with pytest.raises(MetricError) as caught:
        components.get("ov_circut")
    wanted = "no component 'ov_circut'. Did you mean 'ov_circuit'? List them: pico functions"
    assert str(caught.value) == wanted


def test_signatures():
    def every(a, b: "np.ndarray", n: int, x: "float", words: Sequence[int], which="q", on=True):  # noqa: F821
        """Do something.

        More.
        """

    item = components.of_function(every)
    assert item.tensors == ("a", "b")
    kinds = [(a.name, a.kind) for a in item.arguments]
    wanted = [("n", "int"), ("x", "float"), ("words", "int list"), ("which", "str"), ("on", "bool")]
    assert kinds == wanted
    assert item.n_required == 3
    assert [a.default for a in item.arguments[3:]] == ["q", True]
    assert item.summary == "Do something."


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda n=3: None, "takes no tensor"),
        (lambda *tensors: None, r"takes \*tensors, and SQL hands over by position"),
        (lambda a, *, k=3: None, "takes k=3, and SQL"),
        (lambda a, k=1, *, j: None, "takes j, and SQL"),
        (lambda a, b=None: None, "tensor 'b' after an argument or with a default"),
    ],
)
def test_signatures_that_are_refused(function, message):
    with pytest.raises(MetricError, match=message):
        components.of_function(function)


def test_a_taken_name_is_refused():
    with pytest.raises(MetricError, match="'reshape' is registered already"):
        components.register()(pico.metrics.reshape)
