"""Keeps metrics in the lake: computes what the `metrics` table lacks, and only that.

`pico metrics compute` and `Lake.compute_metrics` call `compute`. What is missing is an anti-join of
the tensors' keys and content hashes with the `metrics` rows, metric version included, so that a
second call computes nothing. Each tensor is read once (from its own row group) and its spectrum is
computed once for all metrics; a tensor equal to one that was computed before, at whatever step or
run, gets that one's values. Results are committed in batches: a kill loses at most one.

Values are computed from the tensor's own bytes. They equal those of the SQL functions, which see
float32, for every type that float32 holds exactly (not float64 and large integers).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeAlias

import duckdb
import pyarrow as pa

from pico import metrics as tensor_metrics
from pico import schema
from pico.errors import MetricError, SchemaError, did_you_mean
from pico.lake.commit import Stream
from pico.lake.log import LogReader
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from pico.lake.table import TensorRow, read_tensors, write_rows
from pico.metrics import registry
from pico.sql import session, statements

BATCH_ROWS = 4096
"""Metric values after which a commit is made, …"""
BATCH_SECONDS = 30.0
"""… and the time after which it is made with fewer."""

Progress: TypeAlias = Callable[[int, int], None]
_Keys: TypeAlias = tuple[Any, ...]  # step, name, and the qualifiers

_QUALIFIERS = ("site", "state", "stage", "probe")
_DETAILS = ("layer", "component", "param")


@dataclass(frozen=True)
class Summary:
    """What a call of `compute` found and did, in metric values."""

    computed: int = 0
    """Summary from a tensor."""
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


def compute(
    storage: Storage,
    run: str | None = None,
    metrics: Sequence[str] | None = None,
    table: str = "weights",
    progress: Progress | None = None,
    workers: int | None = None,
) -> Summary:
    """Compute the metrics of stored tensors that the lake does not hold yet, and keep them.

    Args:
        storage: the lake, open for writing.
        run: one run; by default all.
        metrics: names of metrics of one tensor; by default all of them.
        table: a tensor table.
        progress: called with the numbers of tensors done and to do, after each different tensor.
        workers: threads that compute; by default one per core.

    Raises:
        MetricError: for an unknown metric, or one that compares two tensors.
        RunNameError: for a run that the lake does not have.
        SchemaError: for a table that holds no tensors.
        LeaseError: when another process computes metrics of the same run.
        CorruptError, QueryError: for a damaged file; what was committed before it stays.
    """
    chosen = _choose(metrics)
    _check_table(table)
    reader = LogReader(storage)
    snapshot = Snapshot.take(storage, reader)
    runs = snapshot.runs() if run is None else [snapshot.check_run(run)]
    total, done = Summary(), 0
    planned = _plan(snapshot, runs, table, chosen)
    n_tensors = sum(work.n_tensors for work in planned)
    for work in planned:
        if not work.rows:
            total += work.summary
            continue

        def report(n: int, before: int = done) -> None:
            if progress is not None:
                progress(before + n, n_tensors)

        with Stream(storage, f"derive.{work.run}.metrics") as stream:
            # Under the lease: what another process has computed meanwhile is not missing any more,
            # and an identical tensor of the run before is known.
            now = Snapshot.take(storage, reader)
            (current,) = _plan(now, [work.run], table, chosen)
            total += _Worker(stream, current, report).run(now, workers or os.cpu_count() or 1)
        done += work.n_tensors
    return total


@dataclass
class _Row:
    """A stored tensor, and the metrics of it that are missing."""

    keys: _Keys
    details: _Keys
    tensor_hash: str
    missing: list[str]


@dataclass
class _Work:
    """What one run lacks in one table."""

    run: str
    table: str
    rows: list[_Row]
    known: dict[str, dict[str, float]]
    """Values of identical tensors elsewhere in the lake, by hash and metric."""
    summary: Summary

    @property
    def n_tensors(self) -> int:
        """Number of different tensors among the rows."""
        return len({row.tensor_hash for row in self.rows})


def _choose(names: Sequence[str] | None) -> list[registry.Metric]:
    if names is None:
        found = [registry.get(name) for name in registry.names()]
        return [metric for metric in found if metric.kind != "pair"]
    chosen = [registry.get(name) for name in dict.fromkeys(names)]
    pair = next((metric.name for metric in chosen if metric.kind == "pair"), None)
    if pair is not None:
        raise MetricError(
            f"metric {pair!r} compares two tensors; ask for it in SQL: {pair}(a.tensor, b.tensor)"
        )
    return chosen


def _check_table(table: str) -> None:
    tensor_tables = [name for name, spec in schema.tables().items() if spec.kind == "tensor"]
    if table not in tensor_tables:
        raise SchemaError(
            f"no tensor table {table!r}.{did_you_mean(table, tensor_tables)} "
            f"Tables: {', '.join(tensor_tables)}"
        )


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


def _plan(
    snapshot: Snapshot, runs: Sequence[str], table: str, chosen: Sequence[registry.Metric]
) -> list[_Work]:
    """Find what is missing; reads keys and hashes, never a value of a tensor."""
    columns = schema.table(table).column_names
    qualifiers = [q if q in columns else f"CAST(NULL AS VARCHAR) AS {q}" for q in _QUALIFIERS]
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


def _work(connection: duckdb.DuckDBPyConnection, run: str, table: str) -> _Work:
    """Collect what `_plan` has found for one run."""
    rows = [
        _Row(tuple(row[:6]), tuple(row[6:9]), row[9], list(row[10]))
        for row in connection.execute("FROM missing ORDER BY ALL").fetchall()
    ]
    known: dict[str, dict[str, float]] = {}
    for tensor_hash, metric, value in connection.execute(_KNOWN).fetchall():
        known.setdefault(tensor_hash, {})[metric] = value
    ((n_defined, n_undefined),) = connection.execute(_COUNTS).fetchall()
    n_missing = sum(len(row.missing) for row in rows)
    return _Work(
        run, table, rows, known, Summary(present=n_defined - n_missing, skipped=n_undefined)
    )


class _Worker:
    """Computes what one run lacks, and commits it in batches."""

    def __init__(self, stream: Stream, work: _Work, report: Callable[[int], None]) -> None:
        self._stream, self._work, self._report = stream, work, report
        self._equal: dict[str, list[_Row]] = {}
        for row in work.rows:
            self._equal.setdefault(row.tensor_hash, []).append(row)
        self._pending: list[dict[str, Any]] = []
        self._committed_at = time.monotonic()
        self._computed = self._reused = self._done = 0

    def run(self, snapshot: Snapshot, n_workers: int) -> Summary:
        """Do the work; returns what was done and what needed nothing."""
        to_read: dict[_Keys, list[str]] = {}
        for tensor_hash, rows in self._equal.items():
            known = self._work.known.get(tensor_hash, {})
            names = sorted({name for row in rows for name in row.missing} - known.keys())
            if names:
                to_read[rows[0].keys] = names
            else:
                self._take(tensor_hash, {})
        with ThreadPoolExecutor(n_workers) as pool:
            for tensor_hash, values in _in_order(pool, self._tensors(snapshot, to_read), n_workers):
                self._take(tensor_hash, values)
        self._commit()
        done = Summary(computed=self._computed, reused=self._reused)
        return done + self._work.summary

    def _tensors(
        self, snapshot: Snapshot, to_read: Mapping[_Keys, list[str]]
    ) -> Iterator[tuple[TensorRow, list[str]]]:
        """Read the tensors that must be computed, one at a time, each from its row group."""
        steps = {keys[0] for keys in to_read}
        files = snapshot.files(self._work.table, [self._work.run], steps) if steps else []
        wanted = lambda keys: _identity(keys) in to_read  # noqa: E731
        for row in read_tensors(snapshot.storage, files, wanted):
            yield row, to_read[_identity(row.keys)]

    def _take(self, tensor_hash: str, values: Mapping[str, float]) -> None:
        """Make the rows of all tensors with this content; commit when a batch is full."""
        self._computed += len(values)
        self._reused -= len(values)  # one of the rows made below is the computed one
        every = {**self._work.known.get(tensor_hash, {}), **values}
        for row in self._equal[tensor_hash]:
            self._reused += len(row.missing)
            self._pending += [self._metric_row(row, name, every[name]) for name in row.missing]
        self._done += 1
        self._report(self._done)
        waited = time.monotonic() - self._committed_at
        if len(self._pending) >= BATCH_ROWS or waited > BATCH_SECONDS:
            self._commit()

    def _metric_row(self, row: _Row, metric: str, value: float) -> dict[str, Any]:
        step, name, *qualifiers = row.keys
        return {
            "run_id": self._work.run,
            "global_step": step,
            "table_name": self._work.table,
            "name": name,
            **dict(zip(_QUALIFIERS, qualifiers, strict=True)),
            **dict(zip(_DETAILS, row.details, strict=True)),
            "metric": metric,
            "value": value,
            "tensor_hash": row.tensor_hash,
            "metric_version": registry.get(metric).version,
        }

    def _commit(self) -> None:
        if self._pending:
            columns = {key: [row[key] for row in self._pending] for key in self._pending[0]}
            transaction = self._stream.begin()
            rows = schema.table("metrics").batch(columns)
            write_rows(transaction, "metrics", {"run": self._work.run}, rows)
            transaction.commit()
        self._pending, self._committed_at = [], time.monotonic()


def _in_order(
    pool: ThreadPoolExecutor, tasks: Iterator[tuple[TensorRow, list[str]]], n_workers: int
) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield hash and values of each tensor; a few are in memory at a time."""
    running: deque[tuple[str, Future[dict[str, float]]]] = deque()
    for row, names in tasks:
        values = pool.submit(tensor_metrics.compute, row.tensor.to_numpy(), names)
        running.append((row.keys["content_hash"], values))
        if len(running) > n_workers:
            tensor_hash, oldest = running.popleft()
            yield tensor_hash, oldest.result()
    for tensor_hash, rest in running:
        yield tensor_hash, rest.result()


def _identity(keys: Mapping[str, Any]) -> _Keys:
    """Return what tells a stored row from the others of its run and table, as `_Row.keys`."""
    return (keys["global_step"], keys["name"], *(keys.get(name) for name in _QUALIFIERS))
