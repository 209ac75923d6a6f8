"""Keeps metrics in the lake: computes what the `metrics` table lacks, and only that.

`pico metrics compute` and `Lake.compute_metrics` call `compute`. What is missing is an anti-join of
the tensors' keys and content hashes with the `metrics` rows, metric version included, so that a
second call computes nothing; a note in the log spares it even the anti-join (see `covers`). An
`Engine` reads each tensor once, from its own row group, and computes its spectrum once for all
metrics; a tensor equal to one that was computed before, at whatever step or run, gets that one's
values. Results are committed in batches: a kill loses at most one. Values of tensors that a resumed
run has withdrawn meanwhile are taken away again (see `stale`).

Values are computed from the tensor's own bytes. They equal those of the SQL functions, which see
float32, for every type that float32 holds exactly (not float64 and large integers).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from pico import schema
from pico.compute import covers, pairs, stale, tasks
from pico.compute.asked import Label, Reference, choose
from pico.compute.equals import Elsewhere
from pico.compute.missing import Question, Work, plan
from pico.compute.stored import DETAILS, IDENTITY
from pico.compute.summary import Summary
from pico.compute.tasks import Engine, Threads, Values
from pico.errors import MetricError, SchemaError, did_you_mean
from pico.lake.commit import Stream
from pico.lake.log import LogReader
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from pico.lake.table import write_rows

__all__ = ["Summary", "compute"]

BATCH_ROWS = 4096
"""Metric values after which a commit is made, …"""
BATCH_SECONDS = 30.0
"""… and the time after which it is made with fewer."""

Progress: TypeAlias = Callable[[int, int], None]


def compute(
    storage: Storage,
    run: str | None = None,
    metrics: str | Iterable[str] | None = None,
    table: str | Iterable[str] = "weights",
    progress: Progress | None = None,
    workers: int | None = None,
    reference_step: int | str | None = None,
    reference_run: str | None = None,
    dry_run: bool = False,
    engine: Engine | None = None,
) -> Summary:
    """Compute the metrics of stored tensors that the lake does not hold yet, and keep them.

    Args:
        storage: the lake, open for writing.
        run: one run; by default all.
        metrics: names of metrics, `subspace_overlap(k=4)` with arguments; by default those of one
            tensor.
        table: a tensor table, or several.
        progress: called with the numbers of tensors done and to do, after each different tensor.
        workers: threads that compute; by default one per core.
        reference_step: for metrics of two tensors: the step to compare with, or `last`.
        reference_run: likewise: the run to compare with, by default the run itself.
        dry_run: only say what is missing; nothing is written.
        engine: runs the tasks, by default threads of this process.

    Raises:
        MetricError: for an unknown metric, or one of two tensors without a reference.
        RunNameError: for a run that the lake does not have.
        SchemaError: for a table that holds no tensors.
        LeaseError: when another process computes metrics of the same run.
        CorruptError: for a damaged file; what was committed before it stays.
    """
    reference = Reference.of(reference_run, reference_step)
    singles, couples = choose(metrics, reference)
    chosen = [(tuple(singles), None), (tuple(couples), reference)]
    tables = _check_tables(table)
    call = _Call(storage, engine or Threads(workers), progress)
    runs = call.runs(run, reference)
    questions = [
        Question(name, kind, asked, against and pairs.resolve(call.snapshot, name, kind, against))
        for kind in tables
        for asked, against in chosen
        if asked
        for name in runs
    ]
    _check_reference(call.snapshot, questions)
    return call.told(questions) if dry_run else call.filled(questions)


class _Call:
    """One call of `compute`: what it has read of the log, and how far it is."""

    def __init__(self, storage: Storage, engine: Engine, progress: Progress | None) -> None:
        self._storage, self._engine, self._progress = storage, engine, progress
        self._reader = LogReader(storage)
        self.snapshot = Snapshot.take(storage, self._reader)
        self._done = self._n_tensors = 0

    def runs(self, run: str | None, reference: Reference | None) -> list[str]:
        """Return the runs that are asked for."""
        if reference is not None and reference.run is not None:
            self.snapshot.check_run(reference.run)
        if run is not None:
            return [self.snapshot.check_run(run)]
        found = self.snapshot.runs()
        if reference is not None and reference.step is None:
            found.remove(str(reference.run))  # which at the same step is itself
        return found

    def told(self, questions: Sequence[Question]) -> Summary:
        """Say what is missing."""
        total, state = Summary(), covers.State.of(self.snapshot)
        elsewhere: dict[tuple[Label, ...], Elsewhere] = {}
        for question in questions:
            covered = covers.found(state, question)
            if covered is None:
                beside = elsewhere.setdefault(question.labels, Elsewhere(question.labels))
                work = plan(self.snapshot, question, beside)
                covered = work.summary
                if work.n_tensors:
                    covered += Summary(lacks=(work.lack(beside),))
            total += covered
        return total

    def filled(self, questions: Sequence[Question]) -> Summary:
        """Compute and keep what is missing."""
        total, lacking = Summary(), []
        state, gone = covers.State.of(self.snapshot), stale.gone_steps(self.snapshot)
        for question in questions:
            covered = covers.found(state, question)
            if covered is None:
                if any((run, question.table) in gone for run in question.runs):
                    stale.heal(self._storage, self._reader, question.table, *question.runs)
                    self.snapshot = Snapshot.take(self._storage, self._reader)
                    state = covers.State.of(self.snapshot)
                # Only counted: what lies in memory at a time is the plan of one run.
                work = plan(self.snapshot, question)
                covered = work.summary
                if work.n_tensors:
                    self._n_tensors += work.n_tensors
                    lacking.append(question)
                    continue
            total += covered
        elsewhere: dict[tuple[Label, ...], Elsewhere] = {}
        for question in lacking:
            beside = elsewhere.setdefault(question.labels, Elsewhere(question.labels))
            total += self._fill(question, beside)
        return total

    def _fill(self, question: Question, elsewhere: Elsewhere) -> Summary:
        """Compute and keep what one run lacks."""
        run = question.run
        with Stream(self._storage, f"derive.{run}.metrics") as stream:
            n_withdrawals = stale.n_withdrawals(self._reader, *question.runs)

            def look_again() -> None:
                if stale.n_withdrawals(self._reader, *question.runs) != n_withdrawals:
                    # A run went back meanwhile.
                    stale.heal(self._storage, self._reader, question.table, *question.runs)

            # Under the lease: what another process has computed meanwhile is not missing any
            # more, and an identical tensor of the run before is known.
            now = Snapshot.take(self._storage, self._reader)
            work = plan(now, question, elsewhere)
            keeper = _Keeper(stream, work, covers.State.of(now), self._report, look_again)
            for tensor_hash in keeper.known:
                keeper.take(tensor_hash, {})
            for done in self._engine(
                self._storage, tasks.cut(work.jobs(), min(tasks.TASK_VALUES, BATCH_ROWS))
            ):
                for tensor_hash, values in done:
                    keeper.take(tensor_hash, values)
            keeper.finish()
            elsewhere.note(run, work.known.hashes)
            return keeper.summary + work.summary

    def _report(self) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, max(self._done, self._n_tensors))


class _Keeper:
    """Makes rows of values, and commits them in batches."""

    def __init__(
        self,
        stream: Stream,
        work: Work,
        state: covers.State,
        report: Callable[[], None],
        after_commit: Callable[[], None],
    ) -> None:
        self._stream, self._work, self._state = stream, work, state
        self._report, self._after_commit = report, after_commit
        self._labels = {label: n for n, label in enumerate(work.question.labels)}
        self._place = {text: n for n, text in enumerate(work.known.hashes.to_pylist())}
        order = np.argsort(work.at, kind="stable")
        self._rows = np.split(order, np.searchsorted(work.at[order], range(1, work.n_tensors)))
        self._pending: list[tuple[int, int, float]] = []
        self._committed_at = time.monotonic()
        self._computed = self._reused = 0
        self._n_left = work.n_tensors

    @property
    def known(self) -> list[str]:
        """The hashes of which nothing has to be computed."""
        lacking = set(np.flatnonzero(self._work.to_compute.any(axis=1)).tolist())
        return [text for text, n in self._place.items() if n not in lacking]

    @property
    def summary(self) -> Summary:
        """What was taken so far."""
        return Summary(computed=self._computed, reused=self._reused)

    def take(self, tensor_hash: str, values: Values) -> None:
        """Make the rows of all tensors with this content; commit when a batch is full."""
        place = self._place[tensor_hash]
        every = np.array(self._work.known.values[place])
        for label, value in values.items():
            every[self._labels[label]] = value
        n_before = len(self._pending)
        for row in self._rows[place].tolist():
            for number in np.flatnonzero(self._work.lacks[row]).tolist():
                self._pending.append((row, number, float(every[number])))
        self._computed += len(values)
        self._reused += len(self._pending) - n_before - len(values)
        self._n_left -= 1
        self._report()
        waited = time.monotonic() - self._committed_at
        is_full = len(self._pending) >= BATCH_ROWS or waited > BATCH_SECONDS
        if is_full and self._n_left:  # the last batch waits for its note
            self._commit(None)

    def finish(self) -> None:
        """Commit the rest, with the note that now everything is there."""
        self._commit(covers.note(self._state, self._work))

    def _commit(self, extra: str | None) -> None:
        if self._pending:
            transaction = self._stream.begin()
            partition = {"run": self._work.question.run}
            write_rows(transaction, "metrics", partition, self._batch(), extra)
            transaction.commit()
            self._after_commit()
        self._pending, self._committed_at = [], time.monotonic()

    def _batch(self) -> pa.Table:
        """Return the pending values as rows of the table."""
        rows, labels, values = zip(*self._pending, strict=True)
        question, at = self._work.question, pa.array(rows, pa.int64())
        own = self._work.own.rows.take(at)
        asked = question.labels
        columns = {name: own[name] for name in (*IDENTITY, *DETAILS)} | {
            "run_id": [question.run] * len(rows),
            "table_name": [question.table] * len(rows),
            "metric": [asked[n][0] for n in labels],
            "args": [asked[n][1] for n in labels],
            "metric_version": [asked[n][2] for n in labels],
            "value": list(values),
            "tensor_hash": self._work.hashes.take(at),
        }
        if self._work.other is not None and question.reference is not None:
            other = self._work.other.rows.take(at)
            columns["ref_run"] = [question.reference.run] * len(rows)
            columns["ref_step"], columns["ref_name"] = other["global_step"], other["name"]
        return schema.table("metrics").batch(columns)


def _check_tables(tables: str | Iterable[str]) -> list[str]:
    asked = [tables] if isinstance(tables, str) else list(dict.fromkeys(tables))
    known = [name for name, spec in schema.tables().items() if spec.kind == "tensor"]
    for table in asked:
        if table not in known:
            raise SchemaError(
                f"no tensor table {table!r}.{did_you_mean(table, known)} Tables: {', '.join(known)}"
            )
    return asked


def _check_reference(snapshot: Snapshot, questions: Sequence[Question]) -> None:
    """Refuse a step of reference that no run has."""
    steps = {q.reference.step for q in questions if q.reference is not None}
    for step in steps - {None, -1}:
        asked = [(q.table, q.reference) for q in questions if q.reference is not None]
        if not any(snapshot.files(t, [str(r.run)], [int(step)]) for t, r in asked):  # type: ignore[arg-type]
            raise MetricError(
                f"there are no tensors at the reference step {step}; pico runs tells the steps"
            )
