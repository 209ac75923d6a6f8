"""Finds which metrics of which stored tensors the lake does not hold yet.

`materialize` calls `plan`. It is an anti-join of the tensors' keys and content hashes with the rows
of the `metrics` table, metric version included; it reads keys and hashes, never a value of a
tensor. Values that the lake holds of an identical tensor are found along the way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import duckdb
import pyarrow as pa

from pico import schema
from pico.lake.snapshot import Snapshot
from pico.metrics import registry
from pico.sql import session, statements

QUALIFIERS = ("site", "state", "stage", "probe")
"""Columns that tell apart tensors of one name; NULL where a table does not have them."""
DETAILS = ("layer", "component", "param")
"""Columns that describe a tensor and are copied to its metrics."""

Keys: TypeAlias = tuple[Any, ...]
"""What tells a stored tensor from the others of its run and table: step, name, qualifiers."""


@dataclass(frozen=True)
class Summary:
    """What a call of `compute` found and did, in metric values."""

    computed: int = 0
    """Computed from a tensor."""
    reused: int = 0
    """Taken from an identical tensor of another step, run or name."""
    present: int = 0
    """There already."""
    skipped: int = 0
    """Not defined: a metric of matrices for a vector, or complex numbers."""

    def __str__(self) -> str:
        """Say it in a line, for people."""
        return (
            f"{self.computed} values computed, {self.reused} taken from identical tensors, "
            f"{self.present} there already, {self.skipped} not defined for their tensor"
        )

    def __add__(self, other: Summary) -> Summary:
        """Add up the counts of two runs."""
        return Summary(
            self.computed + other.computed,
            self.reused + other.reused,
            self.present + other.present,
            self.skipped + other.skipped,
        )


@dataclass
class Row:
    """A stored tensor, and the metrics of it that are missing."""

    keys: Keys
    details: Keys
    tensor_hash: str
    missing: list[str]


@dataclass
class Work:
    """What one run lacks in one table."""

    run: str
    table: str
    rows: list[Row]
    known: dict[str, dict[str, float]]
    """Values of identical tensors elsewhere in the lake, by hash and metric."""
    summary: Summary

    @property
    def n_tensors(self) -> int:
        """Number of different tensors among the rows."""
        return len({row.tensor_hash for row in self.rows})


_TENSORS = """
CREATE OR REPLACE TEMP TABLE asked AS
SELECT step, name, {qualifiers}, layer, component, param, content_hash AS tensor_hash, metric,
    dtype NOT LIKE 'complex%' AND (len(shape) >= 2 OR NOT needs_matrix) AS defined
FROM {table}, wanted
WHERE run = $run AND part = 0
"""
_KEPT = """
CREATE TEMP TABLE kept AS
SELECT run, step, table_name, name, site, state, stage, probe, metric, tensor_hash, value
FROM metrics SEMI JOIN wanted
    ON metrics.metric = wanted.metric AND metrics.metric_version = wanted.version
WHERE head IS NULL AND args IS NULL AND ref_run IS NULL AND ref_step IS NULL AND ref_name IS NULL
"""
_MISSING = """
CREATE OR REPLACE TEMP TABLE missing AS
SELECT step, name, site, state, stage, probe, layer, component, param, tensor_hash,
    list(metric ORDER BY metric) AS metrics
FROM asked ANTI JOIN kept
    ON kept.run = $run
    AND kept.table_name = $table
    AND kept.step = asked.step
    AND kept.name = asked.name
    AND kept.site IS NOT DISTINCT FROM asked.site
    AND kept.state IS NOT DISTINCT FROM asked.state
    AND kept.stage IS NOT DISTINCT FROM asked.stage
    AND kept.probe IS NOT DISTINCT FROM asked.probe
    AND kept.metric = asked.metric
    AND kept.tensor_hash = asked.tensor_hash
WHERE defined
GROUP BY ALL
"""
_KNOWN = """
SELECT tensor_hash, metric, any_value(value)
FROM kept SEMI JOIN missing USING (tensor_hash)
WHERE value IS NOT NULL
GROUP BY ALL
"""
_COUNTS = "SELECT count(*) FILTER (WHERE defined), count(*) FILTER (WHERE NOT defined) FROM asked"


def plan(
    snapshot: Snapshot, runs: Sequence[str], table: str, chosen: Sequence[registry.Metric]
) -> list[Work]:
    """Find what is missing; reads keys and hashes, never a value of a tensor."""
    columns = schema.table(table).column_names
    qualifiers = [q if q in columns else f"CAST(NULL AS VARCHAR) AS {q}" for q in QUALIFIERS]
    wanted = pa.table(
        {
            "metric": pa.array([metric.name for metric in chosen], pa.string()),
            "version": pa.array([metric.version for metric in chosen], pa.int32()),
            "needs_matrix": pa.array([metric.needs_matrix for metric in chosen], pa.bool_()),
        }
    )
    connection = session.connect(snapshot)
    found = []
    with contextlib.closing(connection), statements.guarded():
        connection.register("wanted", wanted)
        connection.execute(_KEPT)
        for run in runs:
            tensors = _TENSORS.format(qualifiers=", ".join(qualifiers), table=table)
            connection.execute(tensors, {"run": run})
            connection.execute(_MISSING, {"run": run, "table": table})
            found.append(_work(connection, run, table))
    return found


def _work(connection: duckdb.DuckDBPyConnection, run: str, table: str) -> Work:
    """Collect what `plan` has found for one run."""
    rows = [
        Row(tuple(row[:6]), tuple(row[6:9]), row[9], list(row[10]))
        for row in connection.execute("FROM missing ORDER BY ALL").fetchall()
    ]
    known: dict[str, dict[str, float]] = {}
    for tensor_hash, metric, value in connection.execute(_KNOWN).fetchall():
        known.setdefault(tensor_hash, {})[metric] = value
    ((n_defined, n_undefined),) = connection.execute(_COUNTS).fetchall()
    n_missing = sum(len(row.missing) for row in rows)
    return Work(
        run, table, rows, known, Summary(present=n_defined - n_missing, skipped=n_undefined)
    )
