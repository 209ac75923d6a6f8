"""The recorder: three lines in any torch loop, and the run's history is in a lake.

    recorder = pico.Recorder("my-lake", run="tiny", model=model, optimizer=optimizer, record={...})
    for batch in loader:
        loss = ...; loss.backward(); optimizer.step(); optimizer.zero_grad()
        recorder.step(loss=loss.item())
    recorder.close()

Step s lasts from the state at s to `recorder.step()`. The state at s (weights, optimizer, probe
activations) is committed before anything of batch s; what batch s causes (gradients, training
activations, batch ids, scalars) goes together into a later commit. Tensors are copied when they are
taken and written by a background thread; commits happen in the order of the steps.
"""

from __future__ import annotations

import atexit
import logging
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import torch
from torch import nn

from pico.errors import RecordError
from pico.lake.commit import Transaction
from pico.lake.table import write_rows, write_tensors
from pico.record import plan as plans
from pico.record import probes as probe_store
from pico.record import rows, runs
from pico.record.capture import Capture
from pico.record.measure import Measurer, Taken
from pico.record.probes import Probe
from pico.record.rows import BatchNotes, RowBuffer
from pico.record.scorer import Scorer
from pico.record.writer import QUEUE_BYTES, BackgroundWriter


class Recorder:
    """Writes what a training loop does into a lake; use it as a context manager or `close` it."""

    def __init__(
        self,
        lake: Any,
        run: str,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        record: Mapping[str, Any] | None = None,
        *,
        info: Mapping[str, Any] | None = None,
        probes: Sequence[Probe] = (),
        scheduler: Any = None,
        max_steps: int | None = None,
        resume_from: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
        queue_bytes: int = QUEUE_BYTES,
    ) -> None:
        """Open the run for writing and record its state at the first step.

        Args:
            lake: URL of the lake (made if there is none) or an open `pico.Lake`.
            run: name of the run; new, unless `resume_from` is given.
            model: the model, its first weights in place.
            optimizer: if given, gradients are taken just before its `step` (unless
                `before_optimizer_step` was called), and its settings and state can be recorded.
            record: what to write and when; see `pico.record.plan`.
            info: columns of the `runs` table that only the caller knows, such as `dataset`,
                `seq_len`, `seed_init`, `config`; `init`: how each parameter was initialised.
            probes: fixed inputs whose activations `record` asks for.
            scheduler: its `state_dict` goes into checkpoints.
            max_steps: the run's length, if known; otherwise `close` records the last state.
            resume_from: the checkpoint that the model was restored from; everything that was
                committed after it is withdrawn.
            storage_options: for the store, never written anywhere.
            queue_bytes: tensor bytes that may wait for the writer before training waits.

        Raises:
            ConfigError: if `record` is wrong.
            RunNameError: if the name is malformed or taken.
            LeaseError: if another process is recording this run.
            RecordError: for sites that the model does not have.
        """
        self.run = run
        self.step_number = resume_from or 0
        """The current step s: the number of optimizer updates applied so far."""
        self._plan = plans.parse(record)
        self._optimizer, self._scheduler, self._max_steps = optimizer, scheduler, max_steps
        self._tokens_per_step = (info or {}).get("tokens_per_step")
        self._measurer, is_resumed = Measurer(), resume_from is not None
        self._capture = Capture(self._plan, model, optimizer, probes, is_resumed, self._measurer)
        self._scorer = Scorer(self._plan, model, probes)
        self._rows, self._of_tensors = RowBuffer(run), RowBuffer(run)
        self._notes = BatchNotes()
        self._checkpoint_at = self._resumed_at = resume_from
        self._closed = False
        self._is_between_calls = False
        storage = runs.storage_of(lake, storage_options)
        runs.check_free(storage, run, or_resumed=is_resumed)
        for probe in probes:
            probe_store.store(storage, probe)
        self._stream, self.n_withdrawn = runs.open_stream(storage, run, resume_from)
        self._writer = BackgroundWriter(self._stream, queue_bytes)
        self._handle = (
            None
            if optimizer is None
            else optimizer.register_step_pre_hook(lambda *_: self.before_optimizer_step())
        )
        try:
            self._begin(model, info or {})
        except BaseException:
            self.abort()
            raise
        self._is_between_calls = True
        atexit.register(self._close_at_exit)

    def _begin(self, model: nn.Module, info: Mapping[str, Any]) -> None:
        """Record what a new run begins with, and prepare for the first batch."""
        if self._resumed_at is None:
            parameters = list(self._capture.parameters.values())
            first = runs.describe(self.run, model, parameters, self._optimizer, info)
            self._writer.put(lambda transaction: rows.write(transaction, self.run, first))
            if not self._record_state():
                self._commit()
        self._capture.open_step(self.step_number, self._is_last_batch)

    def __enter__(self) -> Recorder:
        """Return the recorder itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """Close; after an exception, keep the complete steps and drop the one under way."""
        if error is None:
            self.close()
        else:
            self.abort()

    def batch(
        self,
        sequence_ids: Sequence[int],
        dataset: str | None = None,
        losses: Sequence[float] | None = None,
        micro_step: int = 0,
        rank: int = 0,
    ) -> None:
        """Say which sequences a forward pass of this step saw, and their losses if known.

        Args:
            sequence_ids: `(batch,)`, in the order of the input's rows.
            dataset: the data set that the ids belong to.
            losses: `(batch,)`, mean loss per token of each sequence, in nats.
            micro_step: index of the accumulation step.
            rank: rank of the process.
        """
        added = rows.batch_rows(sequence_ids, dataset, losses, micro_step, rank)
        if any((b["rank"], b["micro_step"]) == (rank, micro_step) for b in self._notes.batches):
            raise RecordError(
                f"step {self.step_number} has a batch of micro_step {micro_step} already; "
                "count them: recorder.batch(…, micro_step=1)"
            )
        self._notes.sequence_ids += [row["sequence_id"] for row in added]
        self._notes.dataset = dataset
        self._notes.batches += added

    def log(self, **scalars: Any) -> None:
        """Add named numbers, or tensors of one element, to this step's `scalars`."""
        self._notes.scalars.update({name: rows.scalar(name, v) for name, v in scalars.items()})

    def before_optimizer_step(self) -> None:
        """Take the averaged, unscaled gradients before clipping; a second call does nothing."""
        if self._notes.gradients_seen or self._closed:
            return
        self._notes.gradients_seen = True
        groups = [] if self._optimizer is None else self._optimizer.param_groups
        self._notes.param_groups = [runs.group_row(i, group) for i, group in enumerate(groups)]
        self._capture.take_gradients(self.step_number, self._is_last_batch, "raw")

    def after_clipping(self) -> None:
        """Take the gradients again as stage `clipped`, where the plan asks for it."""
        self._capture.take_gradients(self.step_number, self._is_last_batch, "clipped")

    def step(self, **scalars: Any) -> None:
        """End step s: the optimizer has made state s + 1; record what is due.

        Args:
            scalars: named numbers that batch s caused, such as `loss`.

        Raises:
            PicoError: the writer's error, if writing to the lake has failed.
        """
        if self._closed:
            raise RecordError(f"the recorder of run {self.run!r} is closed")
        self.log(**scalars)
        self._is_between_calls = False
        self._capture.check_complete(self.step_number, self._is_last_batch)
        notes, self._notes = self._notes, BatchNotes()
        taken = self._capture.close_step(notes.dataset, notes.sequence_ids)
        has_tensors = self._put(taken)
        self._keep(notes)
        self.step_number += 1
        due = has_tensors or self.step_number % self._plan.commit_every == 0
        if not self._record_state() and due:
            self._commit()
        self._capture.open_step(self.step_number, self._is_last_batch)
        self._is_between_calls = True

    def checkpoint(self) -> None:
        """Record the whole state now, outside the schedule, so that training can resume here."""
        if self._checkpoint_at != self.step_number:
            self._record_state(unplanned=True)

    def flush(self) -> None:
        """Wait until everything recorded so far is in the lake."""
        self._writer.flush()

    def close(self) -> None:
        """Record the last state where a schedule wants it, commit, and let the run go."""
        if self._closed:
            return
        try:
            if self._max_steps is None:
                self._record_state(is_last=True)
            self._keep(self._notes)
            self._commit()
            self._writer.flush()
        except BaseException:
            self.abort()
            raise
        self._let_go(discard=False)

    def abort(self) -> None:
        """Let the run go: complete steps are committed, the one under way is dropped."""
        if self._closed:
            return
        try:
            if self._is_between_calls:
                self._commit()
            self._let_go(discard=not self._is_between_calls)
        except Exception:  # the error that led here is the one to show
            if not self._closed:
                self._let_go(discard=True)

    def _close_at_exit(self) -> None:
        """Save a run whose script ended without `close`."""
        logging.getLogger("pico").warning(
            "the recorder of run %r was not closed; its complete steps are kept", self.run
        )
        self.abort()

    def _let_go(self, discard: bool) -> None:
        self._closed = True
        atexit.unregister(self._close_at_exit)
        self._capture.close()
        if self._handle is not None:
            self._handle.remove()
        try:
            self._writer.close(discard)
        finally:
            self._stream.close()

    @property
    def metrics_seconds(self) -> float:
        """Seconds spent so far on computing what `record.metrics` asks for."""
        return self._measurer.seconds

    @property
    def _is_last_batch(self) -> bool:
        return self._max_steps is not None and self.step_number == self._max_steps - 1

    def _record_state(self, is_last: bool = False, unplanned: bool = False) -> bool:
        """Take and commit what is due of the state at the current step; says whether any was."""
        step = self.step_number
        if step == self._resumed_at:  # the checkpoint holds it
            return False
        is_last = is_last or step == self._max_steps
        whole = unplanned or self._plan.checkpoints.wants(step, is_last)
        has_any = self._put(self._capture.state(step, is_last, whole))
        has_any = self._put_scores(is_last) or has_any
        if whole and self._checkpoint_at != step:
            self._checkpoint_at = step
            tokens = None if self._tokens_per_step is None else self._tokens_per_step * step
            row = runs.checkpoint_row(
                tokens, not unplanned, self._scheduler, self._optimizer is not None
            )
            self._rows.add("checkpoints", step, [row])
        elif not has_any:
            return False
        self._commit()
        return True

    def _put_scores(self, is_last: bool) -> bool:
        """Queue what is due of the scores of probes; says whether anything is."""
        step = self.step_number
        tokens, heads = self._scorer.take(self.run, step, is_last)

        def job(transaction: Transaction) -> None:
            write_rows(transaction, "token_scores", {"run": self.run}, tokens)
            self._of_tensors.add("metrics", step, heads)

        if tokens or heads:
            self._writer.put(job, sum(rows.nbytes for rows in tokens))
        return bool(tokens or heads)

    def _keep(self, notes: BatchNotes) -> None:
        """Keep the rows of the batch that `notes` tells of for the next commit."""
        scalars = [{"name": name, "value": value} for name, value in notes.scalars.items()]
        if self._plan.scalars:
            self._rows.add("scalars", self.step_number, scalars)
            self._rows.add("param_groups", self.step_number, notes.param_groups)
        if self._plan.batches:
            self._rows.add("batches", self.step_number, notes.batches)

    def _put(self, taken: Mapping[str, list[Taken]]) -> bool:
        """Queue tensors of the current step by table; says whether any of them is stored."""
        for table, tensors in taken.items():
            self._put_table(table, tensors)
        return any(row.wanted.stored for tensors in taken.values() for row in tensors)

    def _put_table(self, table: str, tensors: list[Taken]) -> None:
        step = self.step_number
        partition = {"run": self.run, "step": step}

        def job(transaction: Transaction) -> None:
            stored = [row for row in tensors if row.wanted.stored]
            if stored:
                write_tensors(transaction, table, partition, stored)
            stats = [rows.stats_row(table, r, r.wanted.stored) for r in tensors if r.wanted.counted]
            self._of_tensors.add("tensor_stats", step, stats)
            self._of_tensors.add("metrics", step, self._measurer.rows(table, tensors))

        self._writer.put(job, sum(row.tensor.data.nbytes for row in tensors))

    def _commit(self) -> None:
        caused = self._rows.take()

        def job(transaction: Transaction) -> None:
            rows.write(transaction, self.run, caused)
            rows.write(transaction, self.run, self._of_tensors.take())

        self._writer.put(job)
        self._writer.commit()
