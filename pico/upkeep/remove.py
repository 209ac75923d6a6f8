"""`pico rm RUN`: a run's files stop counting, all at once.

`Lake.remove` calls `remove`. It holds the run's stream and those of everything derived from it, so
that nobody writes to the run meanwhile, and takes all live files away in one commit: before it the
lake has the run, after it the run's name is free. `gc` deletes the files once no reader of an older
snapshot can need them. Data sets stay.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from pico.errors import CorruptError, SchemaError
from pico.lake import log
from pico.lake.commit import Stream
from pico.lake.log import Entry
from pico.lake.snapshot import Snapshot, partition
from pico.lake.storage import Storage
from pico.upkeep import inventory, places, usage

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Removal:
    """What was taken away, or would be, and what is left that leaned on it."""

    run: str
    files: int
    bytes: int
    children: tuple[str, ...] = ()
    """Runs that branched from it; their `parent_run` now names no run of the lake."""
    unused_datasets: tuple[str, ...] = ()
    """Data sets that the run used and no other run uses; they stay."""
    dry_run: bool = False

    @property
    def warnings(self) -> tuple[str, ...]:
        """What whoever removes a run may want to know, a sentence each."""
        told = []
        if self.children:
            told.append(f"{', '.join(self.children)} branched from {self.run!r}")
        if self.unused_datasets:
            told.append(f"no run uses data set {', '.join(self.unused_datasets)} any more")
        return tuple(told)

    def __str__(self) -> str:
        """Say it in a line, and in one more for each warning."""
        done = "would remove" if self.dry_run else "removed"
        told = f"{done} run {self.run!r}: {self.files:,} files ({places.size(self.bytes)})"
        if not self.dry_run:
            told += "; pico gc deletes them once they are old enough"
        return "\n".join([told, *(f"warning: {item}" for item in self.warnings)])


def remove(
    storage: Storage, run: str, *, dry_run: bool = False, progress: Progress | None = None
) -> Removal:
    """Take a run away: its rows and tensors no longer show, its name is free.

    Args:
        storage: the lake's place.
        run: name of the run.
        dry_run: only say what would be removed.
        progress: called with the files taken away and the files to take away.

    Raises:
        NotALakeError: if there is no lake.
        RunNameError: if the lake has no such run, with the nearest name.
        LeaseError: if the run is being trained, evaluated or looked after, naming by whom.
    """
    snapshot = Snapshot.take(storage)
    snapshot.check_run(run)
    if dry_run:
        return _told(snapshot, run, dry_run=True)
    with ExitStack() as held:
        train = held.enter_context(Stream(storage, f"train.{run}"))
        for name in _derive_streams(storage, run):
            held.enter_context(Stream(storage, name))
        snapshot = Snapshot.take(storage)
        snapshot.check_run(run)
        told = _told(snapshot, run, dry_run=False)
        transaction = train.begin()
        transaction.take_away(_files(snapshot, run), withdraw=False)
        transaction.commit()
    if progress is not None:
        progress(told.files, told.files)
    return told


def _derive_streams(storage: Storage, run: str) -> list[str]:
    """Return the streams of everything that writes or wrote what derives from a run."""
    leased = {path.split("/")[1] for path in storage.paths(inventory.LEASES)}
    streams = leased.union(log.by_stream(storage.paths(log.ROOT)))
    return sorted(s for s in streams if s.startswith("derive.") and inventory.owner(s) == run)


def _files(snapshot: Snapshot, run: str) -> list[Entry]:
    return [entry for entry in snapshot.all_files() if partition(entry.path).get("run") == run]


def _told(snapshot: Snapshot, run: str, dry_run: bool) -> Removal:
    files = _files(snapshot, run)
    others = [name for name in snapshot.runs() if name != run]
    left: frozenset[str] = frozenset()
    children: tuple[str, ...] = ()
    with contextlib.suppress(CorruptError, SchemaError):  # a damaged run can be removed as well
        children = usage.children(snapshot, run)
        left = usage.used(snapshot, [run]).datasets - usage.used(snapshot, others).datasets
    return Removal(
        run,
        len(files),
        sum(entry.bytes for entry in files),
        children,
        tuple(sorted(left)),
        dry_run,
    )
