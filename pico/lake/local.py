"""Durable file operations on a local disk: what must be on the platter, in which order.

Called by `storage` only. Each function is one step of the commit protocol (DESIGN: full file under
a staging name, fsync, rename into place, fsync of the folder; put-if-absent by a hard link, or
under a file lock where there are none).
"""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # Windows, whose file system has hard links
    fcntl = None  # type: ignore[assignment]

_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
_DISK_FAILURES = {errno.EIO, errno.ENOSPC, errno.EDQUOT}
_REMEMBERED = 4096
_durable: set[Path] = set()
"""Folders whose entries, up to the root, this process has made durable."""


def names_below(root: Path, prefix: str) -> Iterator[str]:
    """Yield the path (relative to `root`) of every file in `root/prefix`, however deep.

    What vanishes meanwhile is left out; any other trouble is raised, never taken for emptiness.
    """
    return (path for path, _ in _below(root, prefix))


def files_below(root: Path, prefix: str) -> Iterator[tuple[str, int, float]]:
    """Yield path, size and time of last change of every file, as `names_below` finds them."""
    for path, item in _below(root, prefix):
        try:
            found = item.stat()
        except FileNotFoundError:
            continue
        yield path, found.st_size, found.st_mtime


def _below(root: Path, prefix: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    try:
        with os.scandir(root / prefix) as listing:
            items = list(listing)
    except (FileNotFoundError, NotADirectoryError):
        return
    for item in items:
        path = f"{prefix}/{item.name}" if prefix else item.name
        if item.is_dir(follow_symlinks=False):
            yield from _below(root, path)
            continue
        try:
            is_file = item.is_file()
        except FileNotFoundError:
            continue
        if is_file:
            yield path, item


def make_folder(folder: Path) -> None:
    """Create a folder and its parents; each entry is made durable in its parent.

    A folder that is there already may have been made by a process that was killed before its
    fsync; what is written into it would be gone with it after a power cut. So each process makes
    every folder that it uses durable once.
    """
    doubtful = []
    while folder not in _durable or not folder.exists():
        doubtful.append(folder)
        if folder.parent == folder:
            break
        folder = folder.parent
    for item in reversed(doubtful):
        if not item.exists():
            item.mkdir(exist_ok=True)
        sync_folder(item.parent)
        if len(_durable) >= _REMEMBERED:
            _durable.clear()
        _durable.add(item)


def sync_folder(folder: Path) -> None:
    """Make the entries of a folder durable, where the platform lets a folder be opened.

    Raises:
        OSError: if the disk fails; then the entries may be gone after a power cut.
    """
    try:
        handle = os.open(folder, os.O_RDONLY)
    except (FileNotFoundError, PermissionError):
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno in _DISK_FAILURES:
            raise
        # some file systems refuse fsync on a folder; their renames are synchronous
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


@contextmanager
def _staged(data: bytes, staging: Path) -> Iterator[Path]:
    """Write `data` durably to a new staging file; whatever is left of it at the end is deleted."""
    make_folder(staging)
    staged = staging / f"{uuid.uuid4().hex}.inprogress"
    try:
        with staged.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        yield staged
    finally:
        staged.unlink(missing_ok=True)


def put_new(final: Path, data: bytes, staging: Path) -> bool:
    """Create `final` with `data` unless it exists; exclusive among all processes.

    Returns:
        False when the file was there already; its content is then untouched.
    """
    make_folder(final.parent)
    with _staged(data, staging) as staged:
        try:
            os.link(staged, final)
        except FileExistsError:
            sync_folder(final.parent)  # a writer that finds its own file may rely on it
            return False
        except OSError as error:
            if error.errno not in _NO_HARD_LINKS:
                raise
            return _put_locked(staged, final, staging)
        sync_folder(final.parent)
        return True


def _put_locked(staged: Path, final: Path, staging: Path) -> bool:
    """Put-if-absent where hard links do not exist: a look and a rename under a file lock.

    The kernel drops the lock of a process that dies, so that a crash blocks nobody; a claim by
    `O_EXCL` would stay.
    """
    if fcntl is None:
        raise OSError(errno.ENOTSUP, "this file system has no hard links; use another folder")
    with (staging / "lock").open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if final.exists():
            sync_folder(final.parent)
            return False
        os.replace(staged, final)
        sync_folder(final.parent)
        return True


def replace(final: Path, data: bytes, staging: Path) -> None:
    """Write `data` to `final`, whole or not at all, over what was there."""
    with _staged(data, staging) as staged:
        move(staged, final)
