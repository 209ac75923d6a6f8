"""`pico verify`: is everything there that was committed, and nothing else?

`Lake.verify` calls `verify`. It changes nothing, works on any store, and may run while others
write: files are listed before leases and log are read, and what looks wrong is looked at again at
the end. Damage is a finding (`report.KINDS` lists them), never an exception.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from pico import schema
from pico.errors import NotALakeError, PicoError, one_line
from pico.lake.log import Entry
from pico.lake.snapshot import Snapshot, partition
from pico.lake.storage import Storage
from pico.upkeep import filecheck, historycheck, inventory, logcheck, places
from pico.upkeep.report import Finding, Report, sort

__all__ = ["Finding", "Report", "verify"]

_READERS = 4

Progress = Callable[[int, int], None]


def verify(
    storage: Storage,
    *,
    run: str | None = None,
    deep: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Check a lake against its log, its schemas and its runs' own plans.

    Args:
        storage: the lake's place.
        run: check the files, the log and the history of this run only.
        deep: read every page and compare each tensor with its content hash and its statistics.
        progress: called with the files checked and the files to check.

    Returns:
        The findings, and counts of what was looked at.

    Raises:
        NotALakeError: if there is no log.
        RunNameError: if the lake has no such run.
    """
    return _Check(storage, run, deep, progress).report()


class _Check:
    """One look at a lake."""

    def __init__(
        self, storage: Storage, run: str | None, deep: bool, progress: Progress | None
    ) -> None:
        self._storage, self._run, self._deep = storage, run, deep
        self._progress = progress or (lambda done, total: None)
        self._inventory = inventory.take(storage)
        self._log = logcheck.check(storage, self._wants_stream)
        if not self._log.n_streams:
            raise NotALakeError(f"no lake at {storage.url!r}; name another with --lake")
        self._snapshot = Snapshot(storage, self._log.entries)
        if run is not None:
            self._snapshot.check_run(run)
        self._links = inventory.symlinks(storage)
        self._live = [e for e in self._snapshot.all_files() if self._wants(e.path)]
        self._n_tensors = self._done = 0
        self._total = len(self._live)
        if deep:
            self._total += sum(_is_tensor_file(entry) for entry in self._live)

    def report(self) -> Report:
        """Look at everything."""
        runs = self._snapshot.runs() if self._run is None else [self._run]
        found = list(self._files())
        damaged = {item.path for item in found}
        sound = [e for e in self._live if e.path not in damaged and e.path not in self._links]
        found += filecheck.repeated_keys(self._storage, sound)
        unclear = {item.run for item in found} | {inventory.owner(s) for s in self._log.lost}
        readable = Snapshot(self._storage, sound)
        for run in runs:
            if run not in unclear:
                found += self._history(readable, run)
        if self._deep:
            found += self._tensors(sound)
        counts = {
            "runs": len(runs),
            "commits": self._log.n_commits,
            "files": len(self._live),
            "rows": sum(entry.rows for entry in self._live),
            "bytes": sum(entry.bytes for entry in self._live),
        }
        if self._deep:
            counts["tensors"] = self._n_tensors
        return Report(tuple(sort([*self._log.findings, *self._confirmed(found)])), counts)

    def _wants_stream(self, stream: str) -> bool:
        return self._run is None or inventory.owner(stream) == self._run

    def _wants(self, path: str) -> bool:
        return self._run is None or partition(path).get("run") == self._run

    def _step(self, n: int = 1) -> None:
        self._done += n
        self._progress(self._done, self._total)

    def _files(self) -> Iterator[Finding]:
        """Check each live file by itself, a few at a time."""
        listed = {path: file.size for path, file in self._inventory.files.items()}
        entries = [entry for entry in self._live if entry.path not in self._links]
        with ThreadPoolExecutor(_READERS) as pool:
            checks = pool.map(
                lambda e: filecheck.check(self._storage, e, listed.get(e.path), self._deep), entries
            )
            for finding in checks:
                self._step()
                if finding is not None:
                    yield finding

    def _history(self, readable: Snapshot, run: str) -> list[Finding]:
        try:
            return list(historycheck.check(readable, run))
        except PicoError as error:
            live = {e.path for e in Snapshot.take(self._storage).all_files()}
            if any(e.path not in live for e in readable.all_files()):
                return []  # taken away and collected while it was read
            return [Finding("file.unreadable", one_line(error), run=run)]

    def _tensors(self, sound: Sequence[Entry]) -> Iterator[Finding]:
        """Compare stored tensors with their hashes and statistics, a run at a time."""
        there = {entry.path for entry in sound}
        files = [entry for entry in self._live if _is_tensor_file(entry)]
        for run, of_run in places.by(files, lambda e: partition(e.path)["run"]).items():
            described = filecheck.descriptions(self._storage, self._statistics(sound, run))
            for entries in places.by(of_run, lambda e: e.path.rpartition("/")[0]).values():
                readable = [entry for entry in entries if entry.path in there]
                is_whole = len(readable) == len(entries)
                found = filecheck.tensors(self._storage, readable, described, is_whole)
                for finding in found if readable else ():
                    self._n_tensors += 1
                    if finding is not None:
                        yield finding
                self._step(len(entries))

    def _statistics(self, sound: Sequence[Entry], run: str) -> list[Entry]:
        return [
            e for e in sound if e.table == "tensor_stats" and partition(e.path).get("run") == run
        ]

    def _confirmed(self, found: Sequence[Finding]) -> list[Finding]:
        """Look again: leave out what a writer, a resumed run or gc has changed meanwhile."""
        strays = self._strays(self._inventory, self._log, self._snapshot)
        if not strays and not any(item.path for item in found):
            return list(found)
        now = inventory.take(self._storage)
        both = {path: file for path, file in now.files.items() if path in self._inventory.files}
        state = logcheck.check(self._storage, self._wants_stream)
        snapshot = Snapshot(self._storage, state.entries)
        live = {entry.path for entry in snapshot.all_files()}
        kept = [item for item in found if item.path is None or item.path in live]
        return kept + self._strays(replace(now, files=both), state, snapshot)

    def _strays(
        self, found: inventory.Inventory, state: logcheck.LogState, snapshot: Snapshot
    ) -> list[Finding]:
        named = {entry.path for entry in state.entries}
        live = {entry.path for entry in snapshot.all_files()}
        strays = places.strays(found, named, live, state.lost, self._links)
        return [item for item in strays if self._run is None or item.run == self._run]


def _is_tensor_file(entry: Entry) -> bool:
    spec = schema.tables().get(entry.table)
    return spec is not None and spec.kind == "tensor"
