"""Keeps metrics in the lake: computes what the `metrics` table lacks, and only that.

`pico metrics compute` and `Lake.compute_metrics` call `compute`. What is missing is an anti-join of
the tensors' keys and content hashes with the `metrics` rows, metric version included, so that a
second call computes nothing. Each tensor is read once (from its own row group) and its spectrum is
computed once for all metrics; a tensor equal to one that was computed before, at whatever step or
run, gets that one's values. Results are committed in batches: a kill loses at most one. Values of
tensors that a resumed run has withdrawn meanwhile are taken away again (see `stale`).

Values are computed from the tensor's own bytes. They equal those of the SQL functions, which see
float32, for every type that float32 holds exactly (not float64 and large integers).
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeAlias

from pico import metrics as tensor_metrics
from pico import schema
from pico.errors import MetricError, SchemaError, did_you_mean
from pico.lake.commit import Stream
from pico.lake.log import LogReader
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from pico.lake.table import TensorRow, read_tensors, write_rows
from pico.metrics import registry
from pico.sql import stale
from pico.sql.missing import DETAILS, QUALIFIERS, Keys, Row, Summary, Work, plan

__all__ = ["Summary", "compute"]

BATCH_ROWS = 4096
"""Metric values after which a commit is made, …"""
BATCH_SECONDS = 30.0
"""… and the time after which it is made with fewer."""

Progress: TypeAlias = Callable[[int, int], None]


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
    if sum(stale.heal(storage, reader, name, table) for name in runs):
        snapshot = Snapshot.take(storage, reader)
    total, done = Summary(), 0
    planned = plan(snapshot, runs, table, chosen)
    n_tensors = sum(work.n_tensors for work in planned)
    for work in planned:
        if not work.rows:
            total += work.summary
            continue

        def report(n: int, before: int = done) -> None:
            if progress is not None:
                progress(before + n, n_tensors)

        total += _fill(storage, reader, work, chosen, report, workers or os.cpu_count() or 1)
        done += work.n_tensors
    return total


def _fill(
    storage: Storage,
    reader: LogReader,
    work: Work,
    chosen: Sequence[registry.Metric],
    report: Callable[[int], None],
    n_workers: int,
) -> Summary:
    """Compute and keep what one run lacks."""
    run, table = work.run, work.table
    with Stream(storage, f"derive.{run}.metrics") as stream:
        n_withdrawals = stale.n_withdrawals(reader, run)

        def look_again() -> None:
            if stale.n_withdrawals(reader, run) != n_withdrawals:  # the run went back meanwhile
                stale.heal(storage, reader, run, table)

        # Under the lease: what another process has computed meanwhile is not missing any more,
        # and an identical tensor of the run before is known.
        now = Snapshot.take(storage, reader)
        (current,) = plan(now, [run], table, chosen)
        return _Worker(stream, current, report, look_again).run(now, n_workers)


def _choose(names: Sequence[str] | None) -> list[registry.Metric]:
    if names is None:
        found = [registry.get(name) for name in registry.names()]
        return [metric for metric in found if metric.kind != "pair" and not metric.on_request]
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


class _Worker:
    """Computes what one run lacks, and commits it in batches."""

    def __init__(
        self,
        stream: Stream,
        work: Work,
        report: Callable[[int], None],
        after_commit: Callable[[], None],
    ) -> None:
        self._stream, self._work, self._report = stream, work, report
        self._after_commit = after_commit
        self._equal: dict[str, list[Row]] = {}
        for row in work.rows:
            self._equal.setdefault(row.tensor_hash, []).append(row)
        self._pending: list[dict[str, Any]] = []
        self._committed_at = time.monotonic()
        self._computed = self._reused = self._done = 0

    def run(self, snapshot: Snapshot, n_workers: int) -> Summary:
        """Do the work; returns what was done and what needed nothing."""
        to_read: dict[Keys, list[str]] = {}
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
        self, snapshot: Snapshot, to_read: Mapping[Keys, list[str]]
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

    def _metric_row(self, row: Row, metric: str, value: float) -> dict[str, Any]:
        step, name, *qualifiers = row.keys
        return {
            "run_id": self._work.run,
            "global_step": step,
            "table_name": self._work.table,
            "name": name,
            **dict(zip(QUALIFIERS, qualifiers, strict=True)),
            **dict(zip(DETAILS, row.details, strict=True)),
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
            self._after_commit()
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


def _identity(keys: Mapping[str, Any]) -> Keys:
    """Return what tells a stored row from the others of its run and table, as `Row.keys`."""
    return (keys["global_step"], keys["name"], *(keys.get(name) for name in QUALIFIERS))
