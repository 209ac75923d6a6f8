"""Names that become path keys and log streams, and the rules that keep them safe.

Called wherever a name enters the lake. A name that passes is one path segment on every store, is
not read as a number, a date or a null by any Parquet reader's type guessing, and cannot leave the
lake's folder.
"""

from __future__ import annotations

import numbers
import re

from pico.errors import CorruptError, RunNameError

_SEGMENT = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,239}")
PATH = re.compile(r"[A-Za-z][A-Za-z0-9._-]*(?:/[A-Za-z0-9][A-Za-z0-9._=-]*)*\.parquet")
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
    if _is_type_cast(name):
        raise RunNameError(
            f"{name!r} cannot name a {what}: readers would take it for a value; "
            f"try {what + '-' + name!r}"
        )
    return name


def check_path(path: str) -> str:
    """Return a path found in the log if it can be a data file of a lake.

    Only the characters of names and path keys pass, and no segment begins with a dot: so a path
    can neither leave the lake's folder nor be read as a pattern or as SQL.

    Raises:
        CorruptError: with the path.
    """
    if not PATH.fullmatch(path):
        raise CorruptError(f"the log names {path!r}, which is no data file of a lake")
    return path


def path_key(key: str, value: object) -> str:
    """Return one hive path segment: `run=tiny`, `step=100`.

    Raises:
        RunNameError: for a value that could leave the folder or be read back as another.
    """
    fits = (
        bool(_SEGMENT.fullmatch(value)) and not _is_type_cast(value)
        if isinstance(value, str)
        else isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) >= 0
    )
    if not fits:
        raise RunNameError(f"{value!r} cannot stand in a path as {key}=")
    return f"{key}={value}"


def _is_type_cast(name: str) -> bool:
    return name.lower() in _TYPE_CAST or _DATE.fullmatch(name) is not None
