"""Kept metrics of tensors that are no longer live: found, and taken away.

A run that goes back withdraws the metrics that it finds. A writer that computed from a snapshot of
before may commit afterwards, or be killed just then; its rows are of tensors that nobody sees any
more, beside those of the tensors that took their place. `materialize` looks before it computes and
after each commit. Rows of tensors that this lake never held (a lake of metrics alone) stay.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pico import schema
from pico.lake import derived, waiting
from pico.lake.commit import Stream
from pico.lake.log import LogReader
from pico.lake.snapshot import Snapshot, partition
from pico.lake.storage import Storage

_KEPT = ("metrics", "spectra")
_KEY = ("global_step", "name", "site", "state", "stage", "probe")
_PATIENCE = 600.0


def n_withdrawals(reader: LogReader, run: str) -> int:
    """Return how many files a run's training has withdrawn so far: it grows when it goes back."""
    return int(pc.sum(pc.equal(reader.rows(f"train.{run}")["action"], "withdraw")).as_py() or 0)


def heal(storage: Storage, reader: LogReader, run: str, table: str) -> int:
    """Take the kept values of a run's withdrawn tensors away; returns how many.

    Args:
        storage: the lake.
        reader: a reader of its log.
        run: name of the run.
        table: the tensor table that the values are of.

    Raises:
        LeaseError: if another process holds the upkeep of the run for minutes.
        CorruptError: if a file that has to be read is damaged.
    """
    if not _steps(Snapshot.take(storage, reader), run, table):
        return 0
    n_gone = 0
    while _take_away(storage, reader, run, table, None):
        # Replacements of a run's files are made under one lease, that of its upkeep.
        def attempt() -> tuple[int]:
            with Stream(storage, f"derive.{run}.upkeep") as stream:
                return (_take_away(storage, reader, run, table, stream),)

        n_gone += waiting.wait_for(attempt, _PATIENCE, pause=0.5)[0]
    return n_gone


def _take_away(
    storage: Storage, reader: LogReader, run: str, table: str, stream: Stream | None
) -> int:
    """Replace the files that hold stale rows; without a stream, only count those rows."""
    snapshot = Snapshot.take(storage, reader)
    steps = _steps(snapshot, run, table)
    files = [entry for kept in _KEPT for entry in snapshot.files(kept, [run], steps)]
    if not files:
        return 0
    rule = _rule(snapshot, run, table, steps)
    columns = ["table_name", "tensor_hash", *_KEY]
    if stream is None:
        return sum(derived.n_rows(storage, entry, columns, rule) for entry in files)
    origins = derived.origins(reader, run, files)
    transaction = stream.begin()
    n_gone = sum(
        derived.take_away(transaction, entry, origins[entry.path], columns, rule, withdraw=False)
        for entry in files
    )
    transaction.commit()
    return n_gone


def _steps(snapshot: Snapshot, run: str, table: str) -> set[int]:
    """Return the steps at which tensors of a run were taken away."""
    return {
        step
        for entry in snapshot.taken_away()
        if entry.table == table and partition(entry.path).get("run") == run
        for step in range(entry.min_step or 0, (entry.max_step or 0) + 1)
    }


def _rule(
    snapshot: Snapshot, run: str, table: str, steps: Collection[int]
) -> Callable[[pa.Table], pa.Array]:
    columns = schema.table(table).column_names
    present = [name for name in _KEY if name in columns]
    rows = snapshot.read(table, [*present, "content_hash"], [run], steps)
    live = {_identity(row, "content_hash") for row in rows.to_pylist()}

    def is_stale(rows: pa.Table) -> pa.Array:
        asked = pc.and_(
            pc.equal(rows["table_name"], table),
            pc.is_in(rows["global_step"], value_set=pa.array(sorted(steps), pa.int64())),
        )
        wanted = pc.fill_null(pc.and_(asked, pc.is_valid(rows["tensor_hash"])), False)
        if not pc.any(wanted).as_py():
            return wanted
        found = zip(wanted.to_pylist(), rows.to_pylist(), strict=True)
        return pa.array([w and _identity(row, "tensor_hash") not in live for w, row in found])

    return is_stale


def _identity(row: dict[str, Any], hash_column: str) -> tuple[Any, ...]:
    return (*(row.get(name) for name in _KEY), row[hash_column])
