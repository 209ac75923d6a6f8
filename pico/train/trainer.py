"""The training loop, read downward: set up, fit, one step, the held-out loss.

    order ──► loader ──► micro-batch ──► loss ──► backward ──► (accumulate)
                                                                  │
    recorder ◄── gradients before clipping ◄──────────────────────┤
    recorder ◄── gradients after clipping  ◄── clip ◄─────────────┘
    recorder ◄── state at s + 1 ◄── optimizer step

`Lake.train` and the demo call it. It uses `pico.Recorder` as any other loop would. Ctrl-C (or
SIGTERM) finishes the step under way, writes a checkpoint and returns; a run resumed from any
checkpoint continues bit for bit.
"""

from __future__ import annotations

import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor, nn

from pico import config as configs
from pico import models
from pico.config import RunConfig
from pico.data import corpus, order
from pico.data.loader import Loader, SequenceReader
from pico.errors import ConfigError
from pico.lake.names import check_name
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from pico.models import initialisation
from pico.models.loss import IGNORED
from pico.record import plan, withdraw
from pico.record.recorder import Recorder
from pico.train import batches, checkpoint, device, optim, probing
from pico.train.checkpoint import Resume

CHECKPOINT_EVERY = 1000
"""Steps between checkpoints where the `record` section does not say."""
Rows: TypeAlias = np.ndarray[Any, Any]
METRICS_SHARE = 0.2
"""Share of the time beyond which it is told what the metrics of `record` took."""


@dataclass(frozen=True)
class Progress:
    """Where a run stands after a step; what a progress bar shows."""

    step: int
    max_steps: int
    loss: float
    heldout_loss: float | None
    tokens_per_second: float


@dataclass(frozen=True)
class Outcome:
    """How `fit` ended."""

    run: str
    steps: int
    """Optimizer updates applied in the run so far."""
    resumed_from: int | None
    interrupted: bool
    heldout_loss: float | None
    """The last one measured in this session; None if none was."""
    withdrawn: int = 0
    """Steps that going back to `resumed_from` has taken back."""
    remarks: tuple[str, ...] = ()
    """What somebody should know: text that was replaced or skipped, a loss that is not finite,
    metrics that took much of the time."""


class Trainer:
    """Trains one run into a lake."""

    def __init__(
        self,
        storage: Storage,
        run: str,
        config: RunConfig,
        on_step: Callable[[Progress], None] = lambda progress: None,
        on_data: Callable[[str, int, int | None], None] | None = None,
    ) -> None:
        """Check the name and the `record` section; nothing is read or written before `fit`.

        Args:
            storage: the lake's place.
            run: name of the run.
            config: the resolved config.
            on_step: called after every step.
            on_data: called while the data set is made, with a message, and done and total.
        """
        self._record = {"checkpoints": {"every": CHECKPOINT_EVERY}, **config.record}
        self._plan = plan.parse(self._record)
        probing.check(self._plan)
        self._storage, self._run, self._config = storage, check_name(run), config
        self._on_step, self._on_data = on_step, on_data
        self._stop = False
        self._heldout_loss: float | None = None
        self._loss_now = 0.0

    def fit(self, resume: Resume = "auto") -> Outcome:
        """Train until `max_steps`, or until interrupted.

        Args:
            resume: `auto` goes on from the run's last checkpoint, or begins a new run; `never`
                refuses a run that is in the lake already; a number goes back to the checkpoint at
                that step and withdraws what came after, metrics included.

        Raises:
            ConfigError: if the run was begun with another config.
            DataError: if the text cannot be used.
            LeaseError: if another process trains this run.
            RecordError: if the run has no checkpoint at the step asked for; it lists them.
            RunNameError: if the name is malformed, or taken.
        """
        batches.check(self._storage, self._config.data.workers)
        start = checkpoint.starting_step(self._storage, self._run, resume)
        if start is not None:
            checkpoint.check_config(self._storage, self._run, self._config)
        if start is not None and self._is_finished(start, is_asked=resume == start):
            return Outcome(self._run, start, start, False, None)
        began = time.perf_counter()
        self._fabric = device.quiet_fabric(self._config)
        self._set_up()
        if start is not None:
            checkpoint.check_dataset(self._storage, self._run, self._corpus.dataset)
            checkpoint.restore(self._storage, self._run, start, self._model, self._optimizer)
        with self._recorder(start) as recorder, self._finish_step_on_signal():
            self._tell_withdrawn(recorder.n_withdrawn, start)
            if start is None or self._is_due(start):
                self._evaluate(recorder)
            self._train(recorder)
            if self._stop:
                recorder.checkpoint()
        steps, n_withdrawn = recorder.step_number, recorder.n_withdrawn
        remarks = self._remarks(recorder.metrics_seconds, time.perf_counter() - began)
        return Outcome(
            self._run, steps, start, self._stop, self._heldout_loss, n_withdrawn, remarks
        )

    def _train(self, recorder: Recorder) -> None:
        first, stop = recorder.step_number, self._config.max_steps
        with batches.Batches(self._loader, first, stop, self._config.data.workers) as coming:
            while recorder.step_number < stop and not self._stop:
                self._train_step(recorder, coming)

    def _tell_withdrawn(self, n_withdrawn: int, start: int | None) -> None:
        if n_withdrawn and self._on_data is not None:
            self._on_data(f"going on from step {start}, {n_withdrawn} steps withdrawn", 0, None)

    def _remarks(self, metrics_seconds: float, seconds: float) -> tuple[str, ...]:
        remarks = list(self._corpus.remarks)
        if not math.isfinite(self._loss_now):
            remarks.append(f"the loss is {self._loss_now}")
        if metrics_seconds > METRICS_SHARE * seconds:
            remarks.append(
                f"record.metrics took {metrics_seconds:.1f} s of {seconds:.1f} s; a larger every, "
                "or fewer names, takes less"
            )
        return tuple(remarks)

    def _is_finished(self, start: int, is_asked: bool) -> bool:
        """Whether nothing is left to do: neither a step, nor the held-out loss of the last state.

        A run can be killed between its last checkpoint and the commit that tells that loss.

        Raises:
            ConfigError: if the run shall go back to a step beyond its end.
        """
        if is_asked and withdraw.n_steps_after(self._storage, self._run, start):
            if start > self._config.max_steps:
                raise ConfigError(
                    f"run {self._run!r} cannot go on from step {start} to max_steps "
                    f"{self._config.max_steps}; raise max_steps"
                )
            return False
        if start != self._config.max_steps or not self._config.data.heldout_fraction:
            return start >= self._config.max_steps
        return checkpoint.is_evaluated(self._storage, self._run, start)

    def _set_up(self) -> None:
        config = self._config
        self._corpus = corpus.prepare(self._storage, config.data, self._on_data)
        snapshot = Snapshot.take(self._storage)
        training = SequenceReader(snapshot, self._corpus.dataset)
        self._loader = Loader(training, order.SHUFFLED, config.seeds.data, config.batch.size)
        self._heldout, self._heldout_counted = self._heldout_rows(snapshot)
        self._model = models.build(
            config.model, self._corpus.tokenizer.vocab_size, config.seeds.init
        )
        optimizer = optim.build(self._model, config.optimizer)
        self._loss, self._optimizer = cast(
            tuple[nn.Module, torch.optim.Optimizer],
            self._fabric.setup(device.ModelWithLoss(self._model), optimizer),
        )
        self._fabric.seed_everything(config.seeds.dropout, verbose=False)

    def _heldout_rows(self, snapshot: Snapshot) -> tuple[Rows | None, Rows | None]:
        if self._corpus.heldout is None:
            return None, None
        reader = SequenceReader(snapshot, self._corpus.heldout)
        ids = list(range(min(self._config.evaluate.n_sequences, reader.n_sequences)))
        return reader.rows(ids), reader.counted(ids)

    def _recorder(self, start: int | None) -> Recorder:
        config, made = self._config, self._corpus
        info = {
            "family": config.model.architecture,
            "seq_len": config.data.seq_len,
            "batch_size": config.batch.size,
            "tokens_per_step": config.batch.size * config.data.seq_len,
            "seed_init": config.seeds.init,
            "seed_data": config.seeds.data,
            "seed_dropout": config.seeds.dropout,
            "dataset": made.dataset,
            "tokenizer": made.tokenizer.name,
            "config": json.dumps(configs.as_mapping(config)),
            "extra": json.dumps({"order": order.SHUFFLED}),
            "init": initialisation.declared(self._model.config, self._model),
        }
        return Recorder(
            self._storage,
            self._run,
            self._model,
            self._optimizer,
            self._record,
            info=info,
            probes=probing.built_in(self._storage, self._plan, config, made),
            max_steps=config.max_steps,
            resume_from=start,
        )

    def _train_step(self, recorder: Recorder, coming: batches.Batches) -> None:
        config, step = self._config, recorder.step_number
        began = time.perf_counter()
        rate = optim.learning_rate(config.optimizer, step, config.max_steps)
        optim.set_learning_rate(self._optimizer, rate)
        self._loss.train()
        mean_loss = self._loss_now = self._accumulate(recorder, *coming.at(step))
        recorder.before_optimizer_step()
        grad_norm = self._clip()
        recorder.after_clipping()
        self._optimizer.step()
        self._optimizer.zero_grad()
        tokens = config.batch.size * config.data.seq_len
        seconds = time.perf_counter() - began
        recorder.step(
            loss=mean_loss,
            grad_norm=grad_norm,
            lr=rate,
            tokens=tokens,
            seconds=seconds,
        )
        heldout = self._evaluate(recorder) if self._is_due(recorder.step_number) else None
        self._on_step(
            Progress(recorder.step_number, config.max_steps, mean_loss, heldout, tokens / seconds)
        )

    def _accumulate(self, recorder: Recorder, ids: list[int], rows: Rows) -> float:
        """Add up the averaged gradient over the micro-steps; returns the batch's mean loss."""
        size, n_micro = (
            self._config.batch.micro,
            self._config.batch.size // self._config.batch.micro,
        )
        counted = self._loader.counted(ids)
        total = 0.0
        for micro_step in range(n_micro):
            part = slice(micro_step * size, (micro_step + 1) * size)
            inputs, targets = self._split(rows[part], None if counted is None else counted[part])
            loss, sequence_losses = self._loss(inputs, targets)
            if counted is not None:  # a micro-batch weighs as much as it has targets that count
                loss = loss * (n_micro * counted[part].sum() / counted.sum())
            self._fabric.backward(loss / n_micro)
            recorder.batch(ids[part], self._corpus.dataset, sequence_losses.tolist(), micro_step)
            total += loss.item()
        return total / n_micro

    def _clip(self) -> float:
        """Clip the gradient if asked to; returns its norm before clipping."""
        parameters = [p for p in self._model.parameters() if p.grad is not None]
        limit = self._config.optimizer.max_grad_norm
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        if limit is not None:
            torch.nn.utils.clip_grads_with_norm_(parameters, limit, norm)
        return float(norm)

    def _split(self, rows: Rows, counted: Rows | None) -> tuple[Tensor, Tensor]:
        """Return inputs and targets; those that do not count become `IGNORED`."""
        tokens = self._fabric.to_device(torch.from_numpy(rows))
        if counted is None:
            return tokens[:, :-1], tokens[:, 1:]
        targets = np.where(counted, rows[:, 1:], IGNORED)
        return tokens[:, :-1], self._fabric.to_device(torch.from_numpy(targets))

    def _is_due(self, step: int) -> bool:
        every = self._config.evaluate.every
        return step == self._config.max_steps or (every > 0 and step % every == 0)

    def _evaluate(self, recorder: Recorder) -> float | None:
        """Log the mean loss over the held-out rows for the state at the current step."""
        if self._heldout is None:
            return None
        self._loss.eval()
        rows, counted = self._heldout, self._heldout_counted
        size, losses = self._config.batch.micro, []
        with torch.no_grad():
            for start in range(0, len(rows), size):
                part = slice(start, start + size)
                masks = None if counted is None else counted[part]
                _, sequence_losses = self._loss(*self._split(rows[part], masks))
                losses += sequence_losses.tolist()
        weights = None if counted is None else counted.sum(axis=1)
        self._heldout_loss = float(np.average(losses, weights=weights))
        recorder.log(heldout_loss=self._heldout_loss)
        return self._heldout_loss

    @contextmanager
    def _finish_step_on_signal(self) -> Iterator[None]:
        """Let SIGINT and SIGTERM end training after the step under way; a second one at once."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def stop(number: int, frame: Any) -> None:
            if self._stop:
                raise KeyboardInterrupt
            self._stop = True
            if self._on_data is not None:
                self._on_data("finishing the step; press Ctrl-C again to stop at once", 0, None)

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
