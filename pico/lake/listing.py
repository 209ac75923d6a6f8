"""Files as a store lists them, and what its words for them mean; `storage` returns them."""

from __future__ import annotations

import datetime
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_WORDS = ("mtime", "LastModified", "modified", "last_modified", "created")


@dataclass(frozen=True)
class StoredFile:
    """A file as the store lists it: path relative to the lake, size in bytes, last change."""

    path: str
    size: int
    modified: float
    """POSIX seconds, by the store's clock."""


def listed(path: str, info: Mapping[str, Any]) -> StoredFile:
    """Return a file of which a store told `info`; each has a word of its own for the time."""
    times = (info.get(word) for word in _WORDS)
    when = next((t for t in times if isinstance(t, (datetime.datetime, int, float))), None)
    if isinstance(when, datetime.datetime):
        when = when.timestamp()
    # Where nothing is told, a file counts as new: too young to be cleared away.
    return StoredFile(path, int(info.get("size") or 0), time.time() if when is None else when)
