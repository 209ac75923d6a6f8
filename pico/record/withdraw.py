"""Going back to a checkpoint: which files of a run no longer count, and withdrawing them.

`runs.open_stream` calls `after` when a run is resumed, under the lease of its training stream. What
training wrote goes by its place in the log: everything committed after the checkpoint's commit (a
file that compaction or migration made has the place of what it stands for). What derives from the
run goes row by row, see `lake.derived`. One commit does it all; a compaction that commits meanwhile
is void if it merged something of it (see `lake.live`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from pico.errors import RecordError
from pico.lake import derived
from pico.lake.commit import Stream, Transaction
from pico.lake.log import Entry, LogReader
from pico.lake.snapshot import Snapshot, partition
from pico.lake.storage import Storage

_OF_BATCHES = ("batches", "param_groups", "gradients")


def after(stream: Stream, run: str, step: int) -> int:
    """Withdraw what came after a run's checkpoint; returns the number of steps that it took back.

    Args:
        stream: the run's training stream, open.
        run: name of the run.
        step: the checkpoint to go back to.

    Raises:
        RecordError: if there is no checkpoint at `step`; it lists those that there are.
        CorruptError: if a file that has to be read is damaged.
    """
    files = _Files.of(stream.storage, run)
    later = files.after(step)
    transaction = stream.begin()
    try:
        transaction.take_away(later, withdraw=True)
        for entry in files.derived:
            _withdraw_rows(transaction, files, entry, run, step, bool(later))
        transaction.commit()
    except BaseException:
        transaction.rollback()
        raise
    return _reached(later, step) - step


def n_steps_after(storage: Storage, run: str, step: int) -> int:
    """Return how many steps going back to the checkpoint at `step` would take back.

    Raises:
        RecordError: if there is no checkpoint at `step`; it lists those that there are.
    """
    return _reached(_Files.of(storage, run).after(step), step) - step


@dataclass(frozen=True)
class _Files:
    """The live files of a run, and where in the log each came from."""

    run: str
    trained: list[Entry]
    """What the training stream wrote, …"""
    derived: list[Entry]
    """… and what other streams did."""
    origins: dict[str, tuple[str, str]]
    """By path the stream and transaction that first committed what a file holds."""
    positions: dict[str, int]
    """Places of the training stream's transactions in its history."""

    @classmethod
    def of(cls, storage: Storage, run: str) -> _Files:
        reader = LogReader(storage)
        stream = f"train.{run}"
        snapshot = Snapshot(storage, reader.rows())
        live = [e for e in snapshot.all_files() if partition(e.path).get("run") == run]
        origins = derived.origins(reader, run, live)
        trained = [entry for entry in live if origins[entry.path][0] == stream]
        others = [entry for entry in live if origins[entry.path][0] != stream]
        history = [txn for txn, _ in reader.history(stream)]
        return cls(run, trained, others, origins, {txn: at for at, txn in enumerate(history)})

    def after(self, step: int) -> list[Entry]:
        """Return what training committed after the checkpoint at `step`."""
        at = [e for e in self.trained if e.table == "checkpoints"]
        found = [entry for entry in at if entry.max_step == step]
        if not found:
            steps = sorted({e.max_step for e in at if e.max_step is not None})
            raise RecordError(
                f"run {self.run!r} has no checkpoint at step {step}; {listing(steps)}"
            )
        last = max(self._position(entry) for entry in found)
        return [entry for entry in self.trained if self._position(entry) > last]

    def _position(self, entry: Entry) -> int:
        return self.positions[self.origins[entry.path][1]]


def listing(steps: Sequence[int]) -> str:
    """Return words for the checkpoints that there are.

    >>> listing([0, 5])
    'there are checkpoints at 0, 5'
    """
    shown = ", ".join(map(str, steps if len(steps) <= 20 else [*steps[:5], "…", *steps[-14:]]))
    return f"there are checkpoints at {shown}" if steps else "it has none"


def _withdraw_rows(
    transaction: Transaction, files: _Files, entry: Entry, run: str, step: int, is_back: bool
) -> None:
    """Withdraw the rows of a derived file that its run's going back to `step` outdates."""
    lowest, highest = entry.min_step, entry.max_step
    if lowest is not None and lowest > step:
        transaction.take_away([entry], withdraw=True)
        return
    if not derived.can_be_outdated(entry, step):
        return
    if not is_back and highest is not None and highest < step:
        return  # nothing that it could have been compared with is taken back
    columns = derived.deciding(entry.table)
    rule = functools.partial(derived.outdated, table=entry.table, run=run, step=step)
    derived.take_away(transaction, entry, files.origins[entry.path], columns, rule, withdraw=True)


def _reached(later: Sequence[Entry], step: int) -> int:
    """Return the step at which the run stood, told by the files committed after `step`."""
    steps = [
        entry.max_step + (entry.table in _OF_BATCHES)
        for entry in later
        if entry.max_step is not None
    ]
    return max(steps, default=step)
