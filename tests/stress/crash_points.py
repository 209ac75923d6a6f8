"""One crash point after the other: train, stop there, look, resume to the end, compare.

Each function here runs in a process of its own (`tests.stress.forks`). What must hold:

- what the trainer was told is committed is there, and what is there is a whole number of commits,
  row for row and hash for hash what an uninterrupted run had after as many;
- every file that lies in a table is whole, even for a reader that only globs;
- after resuming to the end, rows and files equal those of the uninterrupted run, and nothing lies
  about that the log does not name.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from pico.lake.log import LogReader
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from tests.lake.steps import data_files
from tests.stress import figures, forks, small_run
from tests.stress.crash_shim import CRASHED, Shim
from tests.stress.small_run import RUN, Shown

KILL, LOST = None, "lost"


def reference(has_links: bool = True) -> dict[str, Any]:
    """Train without interruption; returns what each prefix of the commits shows, and counts."""
    folder = Path(tempfile.mkdtemp(prefix="pico-crash-"))
    try:
        (folder / "disk").mkdir()
        shim = Shim(folder / "disk", has_links=has_links)
        storage = Storage(str(folder / "disk" / "lake"))
        with shim.installed():
            small_run.train(storage, folder / "told")
        return {
            "prefixes": small_run.prefixes(storage),
            "n": shim.n_done,
            "kinds": shim.kinds,
            "audited": shim.audited,
        }
    finally:
        shutil.rmtree(folder)


def one_crash(
    number: int, power: str | int | None, wanted: list[Shown], has_links: bool = True
) -> None:
    """Crash at one operation; then look, resume and compare."""
    folder = Path(tempfile.mkdtemp(prefix="pico-crash-"))
    try:
        (folder / "disk").mkdir()
        assert forks.crash(_train, folder, number, power, has_links) == CRASHED
        storage = Storage(str(folder / "disk" / "lake"))
        n_there = len(transactions(storage, folder / "told"))
        assert n_there < len(wanted)
        assert_whole(storage)
        assert shows(storage, wanted[n_there]), _difference(storage, wanted[n_there])
        finish(storage, folder, wanted)
    finally:
        shutil.rmtree(folder)


def two_crashes(first: int, second: int, powers: tuple[Any, Any], wanted: list[Shown]) -> bool:
    """Crash, resume, crash again while doing so; says whether the second crash came about."""
    folder = Path(tempfile.mkdtemp(prefix="pico-crash-"))
    try:
        (folder / "disk").mkdir()
        assert forks.crash(_train, folder, first, powers[0]) == CRASHED
        before = _newest_checkpoint(folder)
        code = forks.crash(_train, folder, second, powers[1])
        assert code in (0, CRASHED)
        storage = Storage(str(folder / "disk" / "lake"))
        transactions(storage, folder / "told")
        fitting = [n for n, prefix in enumerate(wanted) if shows(storage, prefix)]
        assert fitting, f"no prefix of the run's commits: {_difference(storage, wanted[-1])}"
        assert _newest_checkpoint(folder) >= before
        finish(storage, folder, wanted)
        return code == CRASHED
    finally:
        shutil.rmtree(folder)


def _train(folder: Path, stop_at: int, power: str | int | None, has_links: bool = True) -> None:
    shim = Shim(folder / "disk", stop_at, power, folder / "durable", has_links)
    with shim.installed():
        small_run.train(Storage(str(folder / "disk" / "lake")), folder / "told")


def _newest_checkpoint(folder: Path) -> int:
    snapshot = Snapshot.take_or_empty(Storage(str(folder / "disk" / "lake")))
    return max(snapshot.read("checkpoints", ["global_step"])["global_step"].to_pylist(), default=-1)


def transactions(storage: Storage, told: Path) -> list[str]:
    """Return the run's commits, of which none that the trainer was told of may be missing."""
    there = list(dict.fromkeys(e.txn for e in LogReader(storage).stream(f"train.{RUN}")))
    lost = set(small_run.commits_told(told)) - set(there)
    assert not lost, f"{len(lost)} commits lost"
    return there


def assert_whole(storage: Storage) -> None:
    for path in data_files(storage):
        with storage.open(path) as file:
            pq.ParquetFile(file, page_checksum_verification=True).read()


def shows(storage: Storage, wanted: Shown) -> bool:
    return small_run.shown(Snapshot.take_or_empty(storage)).rows == wanted.rows


def _difference(storage: Storage, wanted: Shown) -> str:
    return small_run.shown(Snapshot.take_or_empty(storage)).difference(wanted)


def finish(storage: Storage, folder: Path, wanted: list[Shown], **options: Any) -> None:
    """Resume to the end and compare with the uninterrupted run."""
    small_run.train(storage, folder / "told", **options)
    snapshot = Snapshot.take(storage)
    found = small_run.shown(snapshot)
    assert found == wanted[-1], found.difference(wanted[-1]) or "files differ in content"
    named = {entry.path for entry in LogReader(storage).entries()}
    assert set(data_files(storage)) <= named, "files that the log does not name"
    own = f".staging/train.{RUN}"
    assert not [f.path for f in storage.list(own)], "staging was not cleared"


def survive(
    kind: str, function: Callable[..., Any], cases: Sequence[tuple[Any, ...]], at_once: int = 1
) -> list[Any]:
    """Try all cases; notes the count for the report and returns what the function returned.

    Raises:
        AssertionError: telling of each case that failed.
    """
    values, failures = [], []
    for case, value in forks.each(function, cases, at_once):
        if isinstance(value, BaseException):
            failures.append(f"{case[:2]}: {value!s}")
        values.append(value)
    assert not failures, f"{len(failures)} of {len(cases)}\n" + "\n".join(failures[:3])
    figures.note("crash points", kind=kind, tried=len(cases), survived=len(cases))
    return values
