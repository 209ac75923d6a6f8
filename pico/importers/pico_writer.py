"""Writes the checkpoints of a run of pico-train into transactions, one after the other.

`pico_train` decides which; this knows what belongs into the commit of each: the state at s, and
what batches since the checkpoint before caused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pico.errors import RunNameError
from pico.importers import pico_rows
from pico.importers.pico_folder import RunFolder, StepFolder
from pico.importers.pico_model import PicoModel
from pico.importers.pico_tensors import StepTensors, Tables
from pico.importers.present import Present
from pico.importers.ptfile import PtReader
from pico.lake.commit import Transaction
from pico.lake.snapshot import Snapshot
from pico.lake.table import write_tensors
from pico.record import rows

Counts = dict[str, int]


class Writer:
    """Makes the rows of one run; `present` tells what its lake has, and is kept up to date."""

    def __init__(
        self, run: str, folder: RunFolder, devices: int | None, reader: PtReader, present: Present
    ) -> None:
        """Read what holds for all checkpoints.

        Raises:
            DataError: if the config or a log is broken.
        """
        self._run, self._folder, self._devices = run, folder, devices
        self.present = present
        self._model = PicoModel(folder)
        self._tensors = StepTensors(folder, self._model, devices, reader)
        self._scalars = pico_rows.scalars(folder)
        self._steps = {step.step: step for step in folder.steps}

    def check_same(self, snapshot: Snapshot) -> None:
        """Refuse a folder whose weights are not those that the lake has under this name.

        Raises:
            RunNameError: naming the step at which they differ.
        """
        both = self.present.steps & self._steps.keys()
        if not both:
            return
        step = max(both)
        there = snapshot.read("weights", ["name", "content_hash"], [self._run], [step])
        known = dict(zip(*(there[name].to_pylist() for name in there.column_names), strict=True))
        for row in self._tensors.weights(self._steps[step]):
            if known.get(row.keys["name"]) != row.tensor.content_hash:
                raise RunNameError(
                    f"run {self._run!r} has other weights at step {step} than "
                    f"{self._folder.path}; choose another name with --as"
                )

    def checkpoint(self, transaction: Transaction, step: StepFolder) -> Counts:
        """Write what the commit of a checkpoint holds; returns the tensors by table."""
        buffer = rows.RowBuffer(self._run)
        state, schedule = self._tensors.state(step)
        row = pico_rows.checkpoint(step, self._model, schedule, "optimizer" in state)
        buffer.add("checkpoints", step.step, [row])
        buffer.add("evaluations", step.step, pico_rows.evaluations(step, self._folder, self._model))
        if not self.present.steps:
            dtypes = {row.keys["name"]: row.tensor.dtype for row in state["weights"]}
            begin = pico_rows.of_run(self._run, self._folder, self._model, dtypes, self._devices)
            rows.write(transaction, self._run, begin)
        counts = self._write(transaction, step.step, state, buffer)
        self._caused(transaction, step.step, buffer, counts)
        rows.write(transaction, self._run, buffer.take())
        return counts

    def rest(self, transaction: Transaction) -> Counts:
        """Write what the batch of the last checkpoint caused, where it is not there yet."""
        buffer, counts = rows.RowBuffer(self._run), Counts()
        self._caused(transaction, self._later, buffer, counts)
        rows.write(transaction, self._run, buffer.take())
        return counts

    def has_rest(self) -> bool:
        """Whether `rest` would write anything."""
        waiting = any(self.present.last_scalar < step < self._later for step in self._scalars)
        return waiting or self._captured(self.present.last) is not None

    def committed(self, step: StepFolder) -> None:
        """Note that a checkpoint is in the lake now."""
        before = [n for n in self._scalars if n < step.step]
        self.present.last_scalar = max([self.present.last_scalar, *before])
        self.present.is_last_caused = False
        self.present.steps.add(step.step)

    @property
    def _later(self) -> float:
        """The checkpoint of the folder that comes next, infinity after the last."""
        return min((step for step in self._steps if step > self.present.last), default=math.inf)

    def _captured(self, step: int) -> StepFolder | None:
        """Return the checkpoint at `step` if its captures of the training batch lack."""
        found = self._steps.get(step)
        has_any = found is not None and any(
            (pico_rows.TRAIN, kind) in found.captures for kind in ("activations", "gradients")
        )
        return found if has_any and not self.present.is_last_caused else None

    def _caused(
        self, transaction: Transaction, stop: float, buffer: rows.RowBuffer, counts: Counts
    ) -> None:
        """Write what batches after the last checkpoint that is there, and before `stop`, caused."""
        captured = self._captured(self.present.last)
        if captured is not None:
            made = self._write(transaction, captured.step, self._tensors.caused(captured), buffer)
            for table, n in made.items():
                counts[table] = counts.get(table, 0) + n
        for step, items in self._scalars.items():
            if self.present.last_scalar < step < stop:
                buffer.add("scalars", step, items)

    def _write(
        self, transaction: Transaction, step: int, tables: Tables, buffer: rows.RowBuffer
    ) -> Counts:
        partition: dict[str, Any] = {"run": self._run, "step": step}
        for table, tensors in tables.items():
            write_tensors(transaction, table, partition, tensors)
            stats: Sequence[Any] = [rows.stats_row(table, row, stored=True) for row in tensors]
            buffer.add("tensor_stats", step, stats)
        return {table: len(tensors) for table, tensors in tables.items()}
