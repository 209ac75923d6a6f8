"""Symbolic links inside a lake: refused, because they lead to files that are not the lake's.

`storage` calls it before it opens a local file, and `sql` before DuckDB or Polars open files of a
snapshot by themselves. Links on the way to the lake's own folder are the owner's business.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from pico.errors import CorruptError


def refuse(folder: Path, paths: Iterable[str]) -> None:
    """Raise unless every path leads from the lake's folder to its file without a link.

    Args:
        folder: the lake's folder.
        paths: relative to it; each folder on the way is looked at once.

    Raises:
        CorruptError: naming the link.
    """
    checked: set[str] = set()
    for path in paths:
        parts = path.split("/")
        for end in range(1, len(parts) + 1):
            part = "/".join(parts[:end])
            if part not in checked:
                _check(folder, part)
            checked.add(part)


def _check(folder: Path, part: str) -> None:
    try:
        mode = os.lstat(f"{folder}/{part}").st_mode
    except OSError:
        return  # whoever opens it will say so
    if stat.S_ISLNK(mode):
        raise CorruptError(
            f"{part} is a symbolic link, and a lake follows none: put the files themselves in its "
            "place"
        )
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # reading a pipe would wait for ever
        raise CorruptError(f"{part} is neither a file nor a folder; a lake has nothing else")
