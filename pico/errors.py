"""Every error that `pico` raises on purpose, and the helpers that word them.

    PicoError                    what the command line catches: one line, exit code 2
    ├── ConfigError              a config file, an override or a `record` mapping is wrong
    ├── DataError                a text source, a tokenizer or a data set cannot be used
    ├── SchemaError              rows do not fit their table, or a schema version is unknown
    ├── LakeError                the lake on storage
    │   ├── NotALakeError        the URL holds no lake
    │   ├── RunNameError         a run's name is malformed, taken, or unknown
    │   ├── CorruptError         a file of the lake is damaged
    │   ├── LeaseError           another writer holds the stream, or took it over
    │   └── StorageError         the store refused an operation
    ├── MetricError              an unknown metric, or a tensor that it is not defined for
    ├── QueryError               an unknown query, a bad parameter, SQL that does not run
    ├── ClusterError             a Ray cluster or a device is not to be had, or its workers die
    ├── RecordError              the recorder was used or configured wrongly, or its writer failed
    └── MissingExtraError        an optional dependency is not installed

Messages say what happened, with the value, and then the way out. An internal invariant is an
`assert`; a user's mistake never is.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

STEERING = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufff9-\ufffb]"
)
"""Control characters, line separators and marks of writing direction."""


class PicoError(Exception):
    """The root of every error that `pico` raises on purpose."""


class ConfigError(PicoError, ValueError):
    """A config file, an override or a `record` mapping is wrong."""


class DataError(PicoError, ValueError):
    """A text source, a tokenizer or a data set cannot be used."""


class SchemaError(PicoError, ValueError):
    """Rows do not fit their table, or a file's schema version is not known here."""


class LakeError(PicoError):
    """Something about the lake on storage."""


class NotALakeError(LakeError):
    """The URL holds no lake."""


class RunNameError(LakeError, ValueError):
    """A run's name is malformed, already taken, or not in the lake."""


class CorruptError(LakeError):
    """A file of the lake is damaged: its bytes are not what the log says."""


class LeaseError(LakeError):
    """Another writer holds the stream, or has taken it over."""


class StorageError(LakeError, OSError):
    """The store refused an operation."""


class MetricError(PicoError, ValueError):
    """An unknown metric, or a tensor for which the metric is not defined."""


class QueryError(PicoError, ValueError):
    """An unknown query, a bad parameter, or SQL that does not run."""


class RecordError(PicoError, RuntimeError):
    """The recorder was used or configured wrongly, or its writer failed."""


class ClusterError(PicoError):
    """A Ray cluster or a device cannot be had, or its workers die."""


class MissingExtraError(PicoError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        """Name the absent package and the extra of `pico-lake` that brings it."""
        super().__init__(
            f"{package} is not installed; this needs it: pip install 'pico-lake[{extra}]'"
        )


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for the nearest known name, or an empty string.

    >>> did_you_mean("ginni", ["gini", "hoyer"])
    " Did you mean 'gini'?"
    """
    nearest = difflib.get_close_matches(name, sorted(known), n=1)
    return f" Did you mean {nearest[0]!r}?" if nearest else ""


def one_line(error: BaseException) -> str:
    """Return an error's message as one printable line, whatever library it came from."""
    return printable(" ".join(str(error).split())) or type(error).__name__


def printable(text: str) -> str:
    """Return text with the characters that steer a terminal spelled as escapes.

    Names and values of a lake are input: a terminal obeys control characters in them, line breaks
    make rows that are none, and marks of writing direction show other text than there is.

    >>> print(printable("a\\x1b[31mred\\n"))
    a\\x1b[31mred\\n
    """
    return STEERING.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
