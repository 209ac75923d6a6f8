"""What the processes of `tests/lake/test_races.py` do; each function runs in one of its own."""

from __future__ import annotations

import errno
import os
import signal
import time
from pathlib import Path
from typing import Any

from pico import schema
from pico.errors import LeaseError, PicoError
from pico.lake import lease, log, table
from pico.lake.commit import Stream
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from pico.upkeep.gc import gc
from tests.lake.steps import add_step, commit_step
from tests.stress import kill_loop, small_run
from tests.stress.small_run import Shown


def wait_for(*paths: Path, seconds: float = 60) -> None:
    """Wait until all files exist."""
    end = time.monotonic() + seconds
    while not all(path.exists() for path in paths):
        if time.monotonic() > end:
            raise AssertionError(f"waited in vain for {[p.name for p in paths if not p.exists()]}")
        time.sleep(0.002)


def train(
    url: str, folder: Path, run: str, n_steps: int, gate: tuple[Path, Path] | None = None
) -> None:
    """Train a run; with a gate, say when the run is held and wait there to go on."""
    if gate is not None:
        opened = Stream.__init__

        def open_and_wait(self: Stream, storage: Storage, name: str) -> None:
            opened(self, storage, name)
            gate[0].touch()
            wait_for(gate[1])

        Stream.__init__ = open_and_wait
    small_run.train(Storage(url), folder / f"told-{run}", run, n_steps)


def derive(url: str, run: str, name: str, n_commits: int, start: Path) -> int:
    """Commit rows of `metrics` or `evaluations` of a run, one commit each."""
    wait_for(start)
    with Stream(Storage(url), f"derive.{run}.{name}") as stream:
        for number in range(n_commits):
            transaction = stream.begin()
            rows = schema.table(name).batch(_derived(name, run, number))
            table.write_rows(transaction, name, {"run": run}, rows)
            transaction.commit()
    return n_commits


def _derived(name: str, run: str, number: int) -> dict[str, Any]:
    shared = {"run_id": [run], "global_step": [number], "metric": [name], "value": [1.0]}
    spec = schema.table(name)
    fixed = {
        column.name: [0 if "int" in column.type else "x"]
        for column in spec.columns
        if not column.nullable and column.name not in shared
    }
    return {**fixed, **shared}


def refused(url: str, run: str) -> str:
    """Try to train a run that another process holds; returns the error's words."""
    try:
        small_run.train(Storage(url), Path(os.devnull), run)
    except PicoError as error:
        return f"{type(error).__name__}: {error}"
    return "not refused"


def claim(url: str, options: dict[str, Any], name: int, n: int, links: bool, start: float):
    """Put `n` commit files if absent, at the same moments as others; returns those won."""
    if not links:

        def refuse(*_: Any, **__: Any) -> None:
            raise OSError(errno.EPERM, "Operation not permitted")

        os.link = refuse
    storage, won = Storage(url, options), []
    for seq in range(n):
        while time.time() < start + seq * 0.01:
            pass
        if storage.put_new(log.commit_path("train.r", seq), f"process {name}".encode()):
            won.append(seq)
    return won


def hold(url: str, folder: Path, moment: str, time_to_live: float) -> str:
    """Hold a stream, stop at a moment of the second commit; woken up, say how it ended."""
    lease.TIME_TO_LIVE = time_to_live
    storage = Storage(url)
    stream = Stream(storage, "train.r")
    commit_step(stream, 0)
    late = stream.begin()
    add_step(late, 1)
    if moment == "before the log":
        put_new = storage.put_new

        def stop_first(path: str, data: bytes) -> bool:
            (folder / "held").touch()
            os.kill(os.getpid(), signal.SIGSTOP)
            return put_new(path, data)

        storage.put_new = stop_first
    else:
        (folder / "held").touch()
        os.kill(os.getpid(), signal.SIGSTOP)
    try:
        late.commit()
    except PicoError as error:
        ended = f"{type(error).__name__}: {error}"
    else:
        ended = "committed"
    stream.close()
    return ended


def collect(url: str, older_than: float) -> list[str]:
    """Collect garbage; returns the paths of what was deleted."""
    return [item.path for item in gc(Storage(url), older_than=older_than).items]


def die_before_the_log(url: str, run: str) -> None:
    """Write the files of a commit into their tables, and be killed before the log names them."""
    stream = Stream(Storage(url), f"train.{run}")
    transaction = stream.begin()
    add_step(transaction, 0, run)
    log.encode = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    transaction.commit()


def take_over(url: str, step: int, time_to_live: float) -> int:
    """Wait for a stream to be free, commit a step, return the epoch."""
    lease.TIME_TO_LIVE = time_to_live
    end = time.monotonic() + 60
    while True:
        try:
            stream = Stream(Storage(url), "train.r")
            break
        except LeaseError:
            assert time.monotonic() < end, "the lease never expired"
            time.sleep(0.05)
    with stream:
        commit_step(stream, step)
        return stream.lease.epoch


def read_all(url: str, wanted: list[Shown], stop: Path) -> tuple[int, list[str]]:
    """Read every run of a lake until told to stop; returns reads and what was wrong."""
    storage, wrong, n_reads = Storage(url), [], 0
    while not stop.exists():
        try:
            for run in Snapshot.take_or_empty(storage).runs():
                if not kill_loop.is_a_state(storage, run, wanted):
                    wrong.append(f"a part of {run}")
                n_reads += 1
        except Exception as error:
            wrong.append(f"{type(error).__name__}: {error}")
    return n_reads, wrong
