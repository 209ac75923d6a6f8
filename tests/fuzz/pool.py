"""Worker processes for fuzzing: what kills, hangs or fills one is named, and the rest goes on.

A worker makes its bench once and then takes case after case; its address space is bounded, so that
a length out of a damaged file cannot fill the machine. A case is a target's name and a seed:
`python -m tests.fuzz.pool "log files" 17` repeats one.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import sys
import tempfile
import warnings
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path

SECONDS = 120.0
"""Fifty cases that take longer hang; a whole file is read in milliseconds."""
MEMORY = 2 << 30
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.fuzz.targets"])


def failures(target: str, seeds: range, n_workers: int = 2, seconds: float = SECONDS) -> list[str]:
    """Run the cases of a target; return a line per case that did what it must not.

    Args:
        target: its name.
        seeds: a case each.
        n_workers: processes.
        seconds: a chunk of cases that takes longer hangs, and is charged to the case it is at.
    """
    os.environ["OMP_NUM_THREADS"] = "1"
    found: list[str] = []
    todo = iter(_chunks(seeds, 50))
    running: dict[Connection, tuple[int, _Worker]] = {}
    idle = [_Worker(target) for _ in range(n_workers)]
    try:
        for worker in idle:
            worker.wait_until_ready()
        while True:
            while idle and (chunk := next(todo, None)) is not None:
                worker = idle.pop()
                worker.pipe.send((chunk.start, chunk.stop))
                running[worker.pipe] = (chunk.stop, worker)
            if not running:
                return found
            ready = wait(list(running), seconds)
            for pipe in ready or list(running):
                stop, worker = running.pop(pipe)  # type: ignore[index]
                again = worker.collect(found, bool(ready))
                if again is None:
                    idle.append(worker)
                else:
                    fresh = _Worker(target)
                    fresh.wait_until_ready()
                    if again < stop:
                        fresh.pipe.send((again, stop))
                        running[fresh.pipe] = (stop, fresh)
                    else:
                        idle.append(fresh)
    finally:
        for worker in [*idle, *(worker for _, worker in running.values())]:
            worker.stop()


class _Worker:
    """A process, and which case it is at: a number in shared memory survives its death."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.pipe, theirs = _CONTEXT.Pipe()
        self.at = _CONTEXT.Value("q", -1, lock=False)
        self.process = _CONTEXT.Process(target=_work, args=(target, theirs, self.at), daemon=True)
        self.process.start()
        theirs.close()

    def wait_until_ready(self) -> None:
        """Wait until the bench stands, so that a busy machine is not taken for a hang."""
        assert self.pipe.poll(600), f"no bench for {self.target}"
        assert self.pipe.recv() == "ready"

    def collect(self, found: list[str], is_ready: bool) -> int | None:
        """Take a chunk's failures; after a death or a hang return the case to go on with."""
        if is_ready:
            try:
                found += self.pipe.recv()
                return None
            except EOFError:
                pass
        seed = self.at.value
        self.stop()
        what = f"died with {self.process.exitcode}" if is_ready else "hung"
        found.append(f"{self.target}, seed {seed}: {what}")
        return seed + 1

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _chunks(seeds: range, size: int) -> Iterator[range]:
    for start in range(seeds.start, seeds.stop, size):
        yield range(start, min(start + size, seeds.stop))


def _work(target: str, pipe: Connection, at: object) -> None:
    warnings.simplefilter("ignore")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)  # panics of native readers print themselves
    with tempfile.TemporaryDirectory() as folder:
        cases = _Cases(target, Path(folder))
        pipe.send("ready")
        while True:
            try:
                start, stop = pipe.recv()
            except EOFError:
                return
            found = []
            for seed in range(start, stop):
                at.value = seed  # type: ignore[attr-defined]
                if said := cases.run(seed):
                    found.append(f"{target}, seed {seed}: {said}")
            pipe.send(found)


class _Cases:
    """The cases of one target, in this process."""

    def __init__(self, target: str, folder: Path) -> None:
        from tests.fuzz.targets import PLANTED, TARGETS, Bench

        os.fsync = lambda _: None  # type: ignore[assignment]
        self.target = {**TARGETS, **PLANTED}[target]
        self.bench = Bench(folder)
        self.files = self.target.files(self.bench)
        self.paths = list(self.files)
        self.whole = {}
        for path, data in self.files.items():
            path.write_bytes(data)
            self.whole[path] = self.target.read(self.bench, path)
        with open("/proc/self/statm") as statm:
            now = int(statm.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, now + MEMORY))

    def run(self, seed: int) -> str | None:
        """Return what is wrong with a case; None if it went as it must."""
        import numpy as np

        from pico.errors import PicoError
        from tests.fuzz.targets import put

        random = np.random.default_rng(seed)
        path = self.paths[random.integers(len(self.paths))]
        other = self.files[self.paths[random.integers(len(self.paths))]]
        data = self.target.mutate(self.files[path], random, other)
        put(path, data)
        try:
            answer = self.target.read(self.bench, path)
        except PicoError as error:
            return None if "\n" not in str(error) else f"an error of several lines: {error!r}"
        except self.target.may_raise:
            return None
        except BaseException as error:
            return f"{type(error).__module__}.{type(error).__name__}: {str(error)[:300]}"
        finally:
            put(path, self.files[path])
        if self.target.is_exact and answer != self.whole[path]:
            return "a wrong answer without an error"
        return None


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(_Cases(sys.argv[1], Path(folder)).run(int(sys.argv[2])))
