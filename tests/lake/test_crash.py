"""A small write, stopped at each of its file operations in turn; then the lake is opened again."""

import errno
import os
import pathlib
from contextlib import suppress

import pyarrow.parquet as pq
import pytest

from pico.lake.commit import Stream
from pico.lake.storage import Storage
from tests.lake.steps import commit_step, data_files, expire, live_files, steps

OPERATIONS = ("replace", "link", "fsync", "mkdir", "unlink", "remove", "rmdir")


class Crash(BaseException):
    """The process ends here; nothing that a `finally` does reaches the disk any more."""


class Switch:
    """Counts file operations; fails the chosen one and, if it is a crash, all later ones."""

    def __init__(self, monkeypatch, error=Crash):
        self.left, self.n_done, self._error = None, 0, error
        for name in OPERATIONS:
            monkeypatch.setattr(os, name, self._guard(getattr(os, name)))
        monkeypatch.setattr(pathlib.Path, "open", self._guard(pathlib.Path.open))

    def _guard(self, operation):
        def guarded(*args, **kwargs):
            if self.left is not None:
                if self.left == 0 or (self.left < 0 and self._error is Crash):
                    self.left -= 1
                    raise self._error()
                self.left -= 1
            self.n_done += 1
            return operation(*args, **kwargs)

        return guarded


def no_hard_links(*_):
    raise OSError(errno.EPERM, "Operation not permitted")


def write(storage: Storage, opened: list[Stream]) -> None:
    opened.append(Stream(storage, "train.r"))
    commit_step(opened[-1], 1)
    opened[-1].close()


@pytest.mark.parametrize("has_links", [True, False], ids=["hard links", "no hard links"])
@pytest.mark.parametrize("before", [[], [0]], ids=["first commit", "second commit"])
def test_a_crash_at_any_operation_leaves_the_old_or_the_new_state(
    tmp_path, monkeypatch, before, has_links
):
    if not has_links:
        monkeypatch.setattr(os, "link", no_hard_links)
    switch = Switch(monkeypatch)

    def begin(number: int) -> Storage:
        storage = Storage(str(tmp_path / str(number)))
        for step in before:
            with Stream(storage, "train.r") as stream:
                commit_step(stream, step)
        return storage

    seen = set()
    for number in range(200):
        storage, opened = begin(number), []
        switch.left = number
        try:
            write(storage, opened)
        except Crash:
            pass
        else:
            break
        finally:
            switch.left = None
        for stream in opened:
            stream.lease._stop.set()
        with suppress(IndexError):
            expire(storage)

        found = steps(storage)
        assert found in ((before, before), ([*before, 1], [*before, 1])), number
        seen.add(len(found[0]))
        for path in data_files(storage):
            assert pq.read_table(storage.folder / path, partitioning=None).num_rows == 1, number

        with Stream(storage, "train.r") as stream:
            assert not storage.list(".staging/train.r"), number
            assert data_files(storage) == live_files(storage), number
            commit_step(stream, 5)
        assert steps(storage) == ([*found[0], 5], [*found[1], 5]), number
    assert 20 < number < 199
    assert seen == {len(before), len(before) + 1}


def test_one_failing_operation_is_an_error_and_leaves_the_old_or_the_new_state(
    tmp_path, monkeypatch
):
    def refuse():
        return OSError(errno.EIO, "Input/output error")

    switch = Switch(monkeypatch, error=refuse)
    write(Storage(str(tmp_path / "dry")), [])
    n_errors = 0
    for number in range(switch.n_done):
        storage, opened = Storage(str(tmp_path / str(number))), []
        switch.left = number
        try:
            write(storage, opened)
        except OSError as error:
            assert "Input/output error" in str(error), number
            n_errors += 1
        switch.left = None
        for stream in opened:
            stream.close()
        if storage.list(".leases"):
            expire(storage)
        found = steps(storage)
        assert found in (([], []), ([1], [1])), number
        with Stream(storage, "train.r") as stream:
            commit_step(stream, 5)
            assert not storage.list(".staging/train.r"), number
        assert data_files(storage) == live_files(storage), number
        assert steps(storage) == ([*found[0], 5], [*found[1], 5]), number
    assert n_errors > 10
