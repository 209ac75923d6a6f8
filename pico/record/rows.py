"""Rows of the row tables, gathered between two commits.

`Recorder` adds batch-caused rows on the training thread and takes them when it commits; the
writer's thread adds the statistics and metrics of the tensors that it gets. The two never mix:
each has its own `RowBuffer`, so that a commit holds exactly the rows of its steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pico import schema
from pico.errors import RecordError
from pico.lake.commit import Transaction
from pico.lake.table import TensorRow, write_rows
from pico.record.stats import summarize

_STATS_KEYS = ("name", "layer", "component", "param", "expert", "stage", "state", "site", "probe")

Rows = dict[str, list[dict[str, Any]]]


@dataclass
class BatchNotes:
    """What the training loop says about the batch under way."""

    dataset: str | None = None
    sequence_ids: list[int] = field(default_factory=list)
    batches: list[dict[str, Any]] = field(default_factory=list)
    scalars: dict[str, float] = field(default_factory=dict)
    param_groups: list[dict[str, Any]] = field(default_factory=list)
    gradients_seen: bool = False


class RowBuffer:
    """Rows by table, of one run, waiting for a commit."""

    def __init__(self, run: str) -> None:
        """Start with no rows for run `run`."""
        self._run = run
        self._rows: Rows = {}

    def add(self, table: str, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows of one step to a table; run and step are filled in."""
        filled = [{"run_id": self._run, "global_step": step, **row} for row in rows]
        self._rows.setdefault(table, []).extend(filled)

    def take(self) -> Rows:
        """Return all rows and start anew."""
        rows, self._rows = self._rows, {}
        return rows


def stats_row(table: str, row: TensorRow, stored: bool) -> dict[str, Any]:
    """Return the `tensor_stats` row of a tensor; `stored` says that the lake holds the tensor."""
    array = row.tensor.to_numpy()
    stats = summarize(abs(array) if array.dtype.kind == "c" else array)
    return {
        **{key: row.keys[key] for key in _STATS_KEYS if key in row.keys},
        "table_name": table,
        "content_hash": row.tensor.content_hash if stored else None,
        **vars(stats),
    }


def batch_rows(
    sequence_ids: Sequence[int],
    dataset: str | None,
    losses: Sequence[float] | None,
    micro_step: int,
    rank: int,
) -> list[dict[str, Any]]:
    """Return the `batches` rows of one forward pass.

    Raises:
        RecordError: when there are not as many losses as sequences, or an id is negative.
    """
    if losses is not None and len(losses) != len(sequence_ids):
        raise RecordError(f"{len(losses)} losses do not fit {len(sequence_ids)} sequences")
    ids = [int(sequence_id) for sequence_id in sequence_ids]
    if any(sequence_id < 0 for sequence_id in ids):
        raise RecordError(f"sequence ids are numbers from 0, not {min(ids)}")
    return [
        {
            "rank": rank,
            "micro_step": micro_step,
            "position": position,
            "dataset": dataset,
            "sequence_id": sequence_id,
            "loss": None if losses is None else float(losses[position]),
        }
        for position, sequence_id in enumerate(ids)
    ]


def scalar(name: str, value: Any) -> float:
    """Return a number, or a tensor of one element, as a float.

    Raises:
        RecordError: for anything else.
    """
    try:
        return float(value.detach() if hasattr(value, "detach") else value)
    except (TypeError, ValueError, RuntimeError):
        raise RecordError(f"scalar {name!r} must be one number, not {value!r:.60}") from None


def write(transaction: Transaction, run: str, rows: Rows) -> None:
    """Write gathered rows of one run into a transaction, a file per table."""
    for table, items in rows.items():
        if not items:
            continue
        spec = schema.table(table)
        names = [name for name in spec.column_names if any(name in item for item in items)]
        columns = {name: [item.get(name) for item in items] for name in names}
        write_rows(transaction, table, {"run": run}, spec.batch(columns))
