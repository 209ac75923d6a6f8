"""Names that become path keys and log streams, and the rules that keep them safe.

Called wherever a name enters the lake. A name that passes is one path segment on every store, is
not read as a number, a date or a null by any Parquet reader's type guessing, and cannot leave the
lake's folder.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from pico.errors import CorruptError, RunNameError

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,127}")
_TYPE_CAST = {"true", "false", "null", "none", "nan", "inf", "infinity", "nat", "epoch"}
_MONTHS = "jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec"
_DATE = re.compile(rf"(?:{_MONTHS})[a-z]*[-._]?\d{{1,4}}(?:[-._]\d{{1,4}})?", re.IGNORECASE)


def check_name(name: str, what: str = "run") -> str:
    """Return `name` if it may name a run, a data set or a tokenizer.

    Raises:
        RunNameError: with the rule that it breaks.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise RunNameError(
            f"{name!r} cannot name a {what}: start with a letter, then at most 127 letters, "
            "digits, dots, dashes or underscores"
        )
    if name.lower() in _TYPE_CAST or _DATE.fullmatch(name):
        raise RunNameError(
            f"{name!r} cannot name a {what}: readers would take it for a value; "
            f"try {what + '-' + name!r}"
        )
    return name


def check_path(path: str) -> str:
    """Return a path found in the log if it stays inside the lake, else raise `CorruptError`."""
    parts = PurePosixPath(path).parts
    escapes = path.startswith(("/", "~")) or "\\" in path or "\0" in path or ":" in path
    if not parts or escapes or ".." in parts or not path.endswith(".parquet"):
        raise CorruptError(f"the log names {path!r}, which is no data file of a lake")
    return path


def path_key(key: str, value: object) -> str:
    """Return one hive path segment: `run=tiny`, `step=100`."""
    return f"{key}={value}"
