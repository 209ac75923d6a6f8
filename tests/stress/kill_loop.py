"""`python -m tests.stress.kill_loop --kills 200`: kill -9 a trainer again and again, with a reader.

Training processes resume one run after the other in one lake and are killed at random moments
(seeded; every other one after a commit of its own, however slow the machine); a reader in a process
of its own takes snapshots all the time and reads them, through the API and with plain DuckDB. After
each kill: is every commit there that the trainer was told of, and is what the lake shows the state
after a whole number of commits?
"""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import time
from dataclasses import asdict, dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

import duckdb

from pico.lake.log import LogReader
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from tests.stress import figures, forks, small_run
from tests.stress.small_run import Shown

STEPS = 10


@dataclass
class Tally:
    """What a kill loop counted."""

    kills: int = 0
    runs_finished: int = 0
    commits_told: int = 0
    commits_lost: int = 0
    partial_states: int = 0
    snapshots_read: int = 0
    sql_reads: int = 0
    reader_errors: int = 0

    def __str__(self) -> str:
        return "\n".join(f"{name.replace('_', ' '):<16}{n:>8}" for name, n in asdict(self).items())


def kill_loop(n_kills: int, seed: int = 0) -> Tally:
    """Kill a trainer `n_kills` times; returns the counts."""
    folder = Path(tempfile.mkdtemp(prefix="pico-kill-"))
    try:
        seconds, wanted = forks.call(uninterrupted, folder)
        reading = forks.start(read_on, folder, wanted)
        try:
            tally = _kill(folder, n_kills, seconds, wanted, random.Random(seed))
        finally:
            (folder / "stop").touch()
            read = forks.answer(*reading)
        tally.snapshots_read, tally.sql_reads, errors = read
        tally.reader_errors = len(errors)
        for error in errors[:3]:
            print(error)
        return tally
    finally:
        shutil.rmtree(folder)


def _kill(
    folder: Path, n_kills: int, seconds: float, wanted: list[Shown], draw: random.Random
) -> Tally:
    storage, tally = Storage(str(folder / "lake")), Tally()
    while tally.kills < n_kills:
        run, told = f"r{tally.runs_finished}", folder / f"told-r{tally.runs_finished}"
        (folder / "now").write_text(run)
        process, pipe = forks.start(train, folder, run)
        if tally.kills % 2:
            _wait_for_a_commit(process, told)
        process.join(draw.uniform(0.0, seconds))
        if process.is_alive():
            process.kill()
            process.join()
            pipe.close()
            tally.kills += 1
        else:
            forks.answer(process, pipe)
            tally.runs_finished += 1
            tally.commits_told += len(small_run.commits_told(told))
            is_whole = small_run.shown(Snapshot.take(storage), run).rows == wanted[-1].rows
            tally.partial_states += not is_whole
            continue
        there = {entry.txn for entry in LogReader(storage).stream(f"train.{run}")}
        tally.commits_lost += len(set(small_run.commits_told(told)) - there)
        tally.partial_states += not is_a_state(storage, run, wanted)
    tally.commits_told += len(small_run.commits_told(told))
    return tally


def _wait_for_a_commit(process: BaseProcess, told: Path) -> None:
    """Wait until a trainer was told of one more commit: slow machines get on with a run, too."""
    before = len(small_run.commits_told(told))
    while process.is_alive() and len(small_run.commits_told(told)) == before:
        process.join(0.01)


def uninterrupted(folder: Path) -> tuple[float, list[Shown]]:
    """Train once to the end; returns how long it takes, and what each commit shows."""
    storage = Storage(str(folder / "whole"))
    began = time.monotonic()
    small_run.train(storage, folder / "told-whole", "whole", STEPS)
    return time.monotonic() - began, small_run.prefixes(storage, "whole")


def train(folder: Path, run: str) -> None:
    """Train a run of the lake from where it stands."""
    small_run.train(Storage(str(folder / "lake")), folder / f"told-{run}", run, STEPS)


def is_a_state(storage: Storage, run: str, wanted: list[Shown]) -> bool:
    """Whether the lake shows of a run what a whole number of commits left."""
    rows = small_run.shown(Snapshot.take_or_empty(storage), run).rows
    return any(rows == state.rows for state in wanted)


def read_on(folder: Path, wanted: list[Shown]) -> tuple[int, int, list[str]]:
    """Read the run under way until told to stop; returns snapshots, SQL reads and errors."""
    storage, errors, n_snapshots, n_sql = Storage(str(folder / "lake")), [], 0, 0
    while not (folder / "stop").exists():
        try:
            run = (folder / "now").read_text() if (folder / "now").exists() else ""
            snapshot = Snapshot.take_or_empty(storage)
            if run not in snapshot.runs():
                continue
            rows = small_run.shown(snapshot, run).rows
            if not any(rows == state.rows for state in wanted):
                raise AssertionError(f"no state of run {run} after a whole number of commits")
            n_snapshots += 1
            n_sql += _ask_sql(snapshot, run)
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")
    return n_snapshots, n_sql, errors


def _ask_sql(snapshot: Snapshot, run: str) -> int:
    """Count rows of a snapshot's files with plain DuckDB; returns the number of tables asked."""
    tables = {entry.table for entry in snapshot.all_files()}
    with duckdb.connect() as con:
        for table in sorted(tables):
            files = snapshot.files(table, [run])
            paths = [str(snapshot.storage.folder / entry.path) for entry in files]
            if paths:
                found = con.execute("SELECT count(*) FROM read_parquet(?)", [paths]).fetchone()[0]
                assert found == sum(entry.rows for entry in files), table
    return len(tables)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    tally = kill_loop(asked.kills, asked.seed)
    print(tally)
    note(tally)
    raise SystemExit(bool(tally.commits_lost or tally.partial_states or tally.reader_errors))


def note(tally: Tally) -> None:
    """Keep the counts for the report."""
    figures.note("kill loop", kind="kill -9 at random moments", **asdict(tally))


if __name__ == "__main__":
    main()
