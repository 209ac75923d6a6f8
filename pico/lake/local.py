"""Durable file operations on a local disk: what must be on the platter, in which order.

Called by `storage` only. Each function is one step of the commit protocol (DESIGN: full file under
a staging name, fsync, rename into place, fsync of the folder; put-if-absent by a hard link).
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import BinaryIO


def make_folder(folder: Path) -> None:
    """Create a folder and its parents; each new entry is made durable in its parent."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for item in reversed(missing):
        item.mkdir(exist_ok=True)
        sync_folder(item.parent)


def sync_folder(folder: Path) -> None:
    """Make the entries of a folder durable, where the platform lets a folder be opened."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass  # some file systems refuse fsync on a folder; their renames are synchronous
    finally:
        os.close(handle)


def finish(file: BinaryIO) -> None:
    """Flush and fsync an open file, then close it."""
    file.flush()
    os.fsync(file.fileno())
    file.close()


def move(staged: Path, final: Path) -> None:
    """Move a finished staging file into place."""
    make_folder(final.parent)
    os.replace(staged, final)
    sync_folder(final.parent)


def put_new(final: Path, data: bytes, staging: Path) -> bool:
    """Create `final` with `data` unless it exists; exclusive among all processes.

    Returns:
        False when the file was there already; its content is then untouched.
    """
    make_folder(staging)
    make_folder(final.parent)
    staged = staging / f"{uuid.uuid4().hex}.inprogress"
    try:
        with staged.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(staged, final)
        except FileExistsError:
            return False
        except OSError:
            return _claim(staged, final)
        sync_folder(final.parent)
        return True
    finally:
        staged.unlink(missing_ok=True)


def _claim(staged: Path, final: Path) -> bool:
    """Put-if-absent where hard links do not exist: an exclusive claim, then a rename."""
    claim = final.with_name(final.name + ".claim")
    try:
        os.close(os.open(claim, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    if final.exists():
        return False
    os.replace(staged, final)
    sync_folder(final.parent)
    return True


def replace(final: Path, data: bytes, staging: Path) -> None:
    """Write `data` to `final`, whole or not at all, over what was there."""
    make_folder(staging)
    staged = staging / f"{uuid.uuid4().hex}.inprogress"
    with staged.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    move(staged, final)
