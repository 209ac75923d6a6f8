"""A disk that refuses: full from some operation on, or with one operation that fails.

Used by `tests/lake/test_disk_full.py`. Unlike `Shim`, which it extends, the process lives on: what
counts is the error that it is given, and what it leaves behind.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pico.errors import PicoError
from pico.lake.storage import Storage
from tests.stress import crash_points, forks, small_run
from tests.stress.crash_shim import Shim
from tests.stress.small_run import Shown

TAKES_SPACE = {"open", "write", "mkdir", "link", "rename"}
CHANGES = {*TAKES_SPACE, "fsync", "unlink", "rmdir"}


class FailingDisk(Shim):
    """Fails its `fail_at`-th operation of the given kinds, and the later ones if it is full."""

    def __init__(self, root: Path, fail_at: int, error: int) -> None:
        super().__init__(root)
        self._left, self._error = fail_at, error
        self._is_full = error in (errno.ENOSPC, errno.EROFS)
        self._kinds = TAKES_SPACE if error == errno.ENOSPC else CHANGES
        self.n_failed = 0

    def _step(self, kind: str, act: Callable[[], Any], torn: Callable[[], Any] | None = None):
        with self._lock:
            if kind in self._kinds:
                self._left -= 1
                if self._left == -1 or (self._left < 0 and self._is_full):
                    self.n_failed += 1
                    if torn is not None:
                        torn()
                    raise OSError(self._error, os.strerror(self._error))
            return super()._step(kind, act)


def count(error: int) -> int:
    """Return how many operations of an uninterrupted run could fail so."""
    folder = Path(tempfile.mkdtemp(prefix="pico-full-"))
    try:
        (folder / "disk").mkdir()
        disk = FailingDisk(folder / "disk", 10**9, error)
        with disk.installed():
            small_run.train(Storage(str(folder / "disk" / "lake")), folder / "told")
        return 10**9 - disk._left
    finally:
        shutil.rmtree(folder)


def one_failure(number: int, error: int, wanted: list[Shown]) -> str:
    """Train on a failing disk; then look, resume on a sound one and compare.

    Returns:
        the error's words; empty if the failure did not matter.
    """
    folder = Path(tempfile.mkdtemp(prefix="pico-full-"))
    try:
        (folder / "disk").mkdir()
        storage, words = Storage(str(folder / "disk" / "lake")), ""
        disk = FailingDisk(folder / "disk", number, error)
        with disk.installed():
            try:
                small_run.train(storage, folder / "told")
            except PicoError as failure:
                words = str(failure)
        assert disk.n_failed, "nothing failed"
        if words:
            assert os.strerror(error) in words, words
            assert "\n" not in words, words
        there = crash_points.transactions(storage, folder / "told")
        crash_points.assert_whole(storage)
        assert crash_points.shows(storage, wanted[len(there)])
        crash_points.finish(storage, folder, wanted)
        return words
    finally:
        shutil.rmtree(folder)


def on_small_disk(mount: Path, leave: int, wanted: list[Shown]) -> str:
    """Train on a file system with `leave` bytes free; then free some, resume and compare."""
    ballast, storage = mount / "ballast", Storage(str(mount / "lake"))
    told = Path(tempfile.mkdtemp(prefix="pico-full-")) / "told"
    free = shutil.disk_usage(mount).free
    with ballast.open("xb") as file:
        os.posix_fallocate(file.fileno(), 0, max(free - leave, 1))
    try:
        code = forks.crash(_train_until_full, storage, told)
        words = (told.parent / "words").read_text()
        assert code == 0, words
        there = crash_points.transactions(storage, told)
        crash_points.assert_whole(storage)
        if there:
            assert crash_points.shows(storage, wanted[len(there)])
        ballast.unlink()
        crash_points.finish(storage, told.parent, wanted)
        return words
    finally:
        shutil.rmtree(told.parent)


def _train_until_full(storage: Storage, told: Path) -> None:
    words = "finished"
    try:
        small_run.train(storage, told)
    except PicoError as failure:
        words = str(failure)
    finally:
        (told.parent / "words").write_text(words)
