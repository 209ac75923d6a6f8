"""Kept metrics of tensors that are no longer live: found, and taken away.

A run that goes back withdraws the metrics that it finds. A writer that computed from a snapshot of
before may commit afterwards, or be killed just then; its rows are of tensors that nobody sees any
more, beside those of the tensors that took their place. So are the rows of another run that
compares itself with one that went back. `materialize` looks before it computes and after each
commit. Rows of tensors that this lake never held (a lake of metrics alone) stay, and so do rows of
heads, whose hash is of several tensors, and what training itself committed (`record.metrics`),
whose tensors need not be stored: it is withdrawn by its place in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from pico import schema
from pico.lake import derived, waiting
from pico.lake.commit import Stream
from pico.lake.log import LogReader
from pico.lake.snapshot import Snapshot, partition
from pico.lake.storage import Storage

_KEPT = ("metrics", "spectra")
_QUALIFIERS = ("site", "state", "stage", "probe")
_KEY = ("global_step", "name", *_QUALIFIERS)
_REFERENCE = ("ref_run", "ref_step", "ref_name")
_PATIENCE = 600.0

Steps: TypeAlias = dict[tuple[str, str], set[int]]


def n_withdrawals(reader: LogReader, run: str, reference: str | None = None) -> int:
    """Return how many files two runs' training withdrew so far: it grows when one goes back."""
    names = {run, reference or run}
    actions = [reader.rows(f"train.{name}")["action"] for name in names]
    return sum(int(pc.sum(pc.equal(each, "withdraw")).as_py() or 0) for each in actions)


def gone_steps(snapshot: Snapshot) -> Steps:
    """Return the steps at which tensors were taken away, by run and table; reads the log alone."""
    tensor_tables = {name for name, spec in schema.tables().items() if spec.kind == "tensor"}
    found: Steps = {}
    for entry in snapshot.taken_away():
        if entry.table in tensor_tables:
            place = partition(entry.path).get("run", ""), entry.table
            steps = range(entry.min_step or 0, (entry.max_step or 0) + 1)
            found.setdefault(place, set()).update(steps)
    return found


def heal(
    storage: Storage, reader: LogReader, table: str, run: str, reference: str | None = None
) -> int:
    """Take the kept values of a run's withdrawn tensors away; returns how many.

    Args:
        storage: the lake.
        reader: a reader of its log.
        table: the tensor table that the values are of.
        run: name of the run.
        reference: another run that this one is compared with.

    Raises:
        LeaseError: if another process holds the upkeep of the run for minutes.
        CorruptError: if a file that has to be read is damaged.
    """
    n_gone = 0
    runs = [run] if reference is None or reference == run else [run, reference]
    while _take_away(storage, reader, runs, table, None):
        # Replacements of a run's files are made under one lease, that of its upkeep.
        def attempt() -> tuple[int]:
            with Stream(storage, f"derive.{run}.upkeep") as stream:
                return (_take_away(storage, reader, runs, table, stream),)

        n_gone += waiting.wait_for(attempt, _PATIENCE, pause=0.5)[0]
    return n_gone


def _take_away(
    storage: Storage, reader: LogReader, runs: list[str], table: str, stream: Stream | None
) -> int:
    """Replace files of the first run that hold stale rows; without a stream, only count those."""
    snapshot = Snapshot.take(storage, reader)
    gone = gone_steps(snapshot)
    steps = {run: gone[run, table] for run in runs if (run, table) in gone}
    if not steps:
        return 0
    # What was compared with a step of old may be of any step.
    files = [entry for kept in _KEPT for entry in snapshot.files(kept, runs[:1])]
    origins = derived.origins(reader, runs[0], files)
    files = [entry for entry in files if origins[entry.path][0] != f"train.{runs[0]}"]
    if not files:
        return 0
    live = {run: _live(snapshot, run, table, steps[run]) for run in steps}
    rule = _rule(runs[0], table, steps, live)
    if stream is None:
        return sum(derived.n_rows(storage, e, _columns(e.table), rule) for e in files)
    transaction = stream.begin()
    n_gone = sum(
        derived.take_away(
            transaction, entry, origins[entry.path], _columns(entry.table), rule, withdraw=False
        )
        for entry in files
    )
    transaction.commit()
    return n_gone


def _columns(table: str) -> list[str]:
    wanted = ["table_name", "tensor_hash", "head", *_KEY, *_REFERENCE]
    known = schema.table(table).column_names
    return [name for name in wanted if name in known]


def _live(snapshot: Snapshot, run: str, table: str, steps: set[int]) -> set[tuple[Any, ...]]:
    """Return identity and hash of every live tensor of a run at these steps."""
    present = [name for name in _KEY if name in schema.table(table).column_names]
    rows = snapshot.read(table, [*present, "content_hash"], [run], steps)
    return {(*(row.get(name) for name in _KEY), row["content_hash"]) for row in rows.to_pylist()}


def _rule(
    run: str,
    table: str,
    steps: Mapping[str, set[int]],
    live: Mapping[str, set[tuple[Any, ...]]],
) -> Callable[[pa.Table], pa.Array]:
    """Return what says of each row whether a tensor that it is about, or refers to, is gone."""

    def is_gone(of: str, step: int | None, *rest: Any) -> bool:
        return of in steps and step in steps[of] and (step, *rest) not in live[of]

    def is_stale(row: dict[str, Any]) -> bool:
        own, _, other = row["tensor_hash"].partition(":")
        qualifiers = [row.get(name) for name in _QUALIFIERS]
        return is_gone(run, row["global_step"], row["name"], *qualifiers, own) or (
            bool(other)
            and is_gone(
                row.get("ref_run") or run, row["ref_step"], row["ref_name"], *qualifiers, other
            )
        )

    def rule(rows: pa.Table) -> pa.Array:
        asked = pc.and_(pc.equal(rows["table_name"], table), pc.is_valid(rows["tensor_hash"]))
        asked = pc.fill_null(pc.and_(asked, pc.is_null(rows["head"])), False)
        concerned = pc.is_in(rows["global_step"], value_set=pa.array(sorted(steps.get(run, ()))))
        if "ref_run" in rows.column_names:
            concerned = pc.or_(concerned, pc.is_valid(rows["ref_step"]))
        asked = pc.and_(asked, concerned)
        if not pc.any(asked, min_count=0).as_py():
            return asked
        found = zip(asked.to_pylist(), rows.to_pylist(), strict=True)
        return pa.array([is_asked and is_stale(row) for is_asked, row in found])

    return rule
