"""Which tensors to take from the model at the current step: the plan applied to a live model.

`Recorder` asks it; it answers with copies and knows nothing of the lake's files. One `Capture`
belongs to one run; it remembers what it took at which step, so that nothing is taken twice.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
from torch import nn

from pico.errors import ConfigError, RecordError
from pico.lake.table import TensorRow
from pico.models import architecture
from pico.record import hooks
from pico.record.hooks import TapPoint, Taps
from pico.record.plan import ActivationPlan, RecordPlan
from pico.record.probes import Probe

STATE_TABLES = ("weights", "optimizer")


class Capture:
    """Takes the tensors that a plan wants from a model and its optimizer."""

    def __init__(
        self,
        plan: RecordPlan,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        probes: Sequence[Probe],
        resumed: bool,
    ) -> None:
        """Resolve the plan's sites on the model.

        Raises:
            ConfigError: for a probe that the caller did not give, or a site asked for twice.
            RecordError: for a site that the model does not have.
        """
        self.parameters = {info.name: info for info in architecture.parameters(model)}
        self._plan, self._model, self._optimizer = plan, model, optimizer
        self._probes = {probe.name: probe for probe in probes}
        self._points = [self._resolve(item) for item in plan.activations]
        self._refuse_twins()
        self._refuse_idle_patterns()
        self._taken_at: dict[str, int] = {}
        embeddings = [i.name for i in self.parameters.values() if i.component == "embed"]
        self._reader = embeddings[0].rpartition(".")[0] if embeddings else ""
        once = plan.frozen == "once"
        self._frozen = {i.name for i in self.parameters.values() if once and not i.trainable}
        self._stored_once = set(self._frozen) if resumed else set()
        self._taps: Taps | None = None
        self._gradients: list[TensorRow] = []
        self._stages_seen: set[str] = set()

    def state(self, step: int, is_last: bool, whole: bool) -> dict[str, list[TensorRow]]:
        """Return the state's tensors that are due at `step`, by table; all of them if `whole`."""
        taken = {table: self._state_table(table, step, is_last, whole) for table in STATE_TABLES}
        if self._taken_at.get("activations") != step:
            taken["activations"] = self._probe_activations(step, is_last)
            self._taken_at["activations"] = step
        return {table: rows for table, rows in taken.items() if rows}

    def _state_table(self, table: str, step: int, is_last: bool, whole: bool) -> list[TensorRow]:
        wants = self._plan.weights if table == "weights" else self._plan.optimizer
        due = wants.schedule.wants(step, is_last)
        if table == "weights" and self._plan.pairs and step > 0:
            due = due or wants.schedule.wants(step - 1)
        already = self._taken_at.get(table) == step
        if not (due or whole) or already:
            return []
        self._taken_at[table] = step
        rows = self._take(table, lambda name: whole or wants.matches(name))
        if table == "weights":
            self._stored_once |= {row.keys["name"] for row in rows} & self._frozen
        return rows

    def _take(self, table: str, wanted: Callable[[str], bool]) -> list[TensorRow]:
        if table == "weights":
            thawed = {n for n, p in self._model.named_parameters() if p.requires_grad}
            self._frozen -= thawed
            settled = self._frozen & self._stored_once
            return hooks.weights(
                self._model, self.parameters, lambda n: wanted(n) and n not in settled
            )
        if table == "gradients":
            return hooks.gradients(self._model, self.parameters, wanted)
        if self._optimizer is None:
            return []
        return hooks.optimizer_state(self._optimizer, self._model, self.parameters, wanted)

    def _probe_activations(self, step: int, is_last: bool) -> list[TensorRow]:
        rows = []
        for probe in self._probes.values():
            points = self._due_points(probe.name, step, is_last)
            if points:
                taps = Taps(self._model, points, self._reader)
                self._run_probe(probe, taps)
                rows += taps.rows(probe.name, probe.dataset, probe.sequence_ids)
        return rows

    def _run_probe(self, probe: Probe, taps: Taps) -> None:
        """Run a probe through the model without leaving a trace on it."""
        device = next(self._model.parameters()).device
        modes = {module: module.training for module in self._model.modules()}
        self._model.eval()
        try:
            with torch.no_grad():
                self._model(torch.from_numpy(probe.tokens).to(device))
        finally:
            taps.remove()
            for module, was_training in modes.items():
                module.training = was_training

    def open_step(self, step: int, is_last: bool) -> None:
        """Set the hooks that the coming batch needs."""
        points = self._due_points(None, step, is_last)
        if points or self._plan.gradients.schedule.wants(step, is_last):
            self._taps = Taps(self._model, points, self._reader, is_training=True)

    def take_gradients(self, step: int, is_last: bool, stage: str) -> None:
        """Copy the gradients if they are due at this stage."""
        self._stages_seen.add(stage)
        wants = self._plan.gradients
        if stage in wants.stages and wants.schedule.wants(step, is_last):
            self._gradients += _staged(self._take("gradients", wants.matches), stage)

    def check_complete(self, step: int, is_last: bool) -> None:
        """Refuse to end a step whose gradients were asked for and not taken.

        Raises:
            RecordError: naming the call that is missing.
        """
        wants = self._plan.gradients
        if not wants.schedule.wants(step, is_last):
            return
        calls = {"raw": "before_optimizer_step", "clipped": "after_clipping"}
        missing = [stage for stage in wants.stages if stage not in self._stages_seen]
        if missing:
            raise RecordError(
                f"gradients of stage {missing[0]!r} are asked for at step {step} and were not "
                f"taken; call recorder.{calls[missing[0]]}() before optimizer.step()"
            )

    def close_step(
        self, dataset: str | None, sequence_ids: Sequence[int]
    ) -> dict[str, list[TensorRow]]:
        """Remove the hooks; return the gradients and activations of the batch, by table."""
        taken: dict[str, list[TensorRow]] = {"gradients": self._gradients}
        if self._taps is not None:
            self._taps.remove()
            seen = {"input_hash": self._taps.input_hash}
            taken["gradients"] = [
                TensorRow({**row.keys, **seen}, row.tensor) for row in self._gradients
            ]
            taken["activations"] = self._taps.rows(None, dataset, sequence_ids)
        self._taps, self._gradients = None, []
        self._stages_seen.clear()
        return {table: rows for table, rows in taken.items() if rows}

    def close(self) -> None:
        """Leave no hook on the model."""
        if self._taps is not None:
            self._taps.remove()
            self._taps = None

    def for_statistics(
        self, table: str, step: int, is_last: bool, counted: Collection[str]
    ) -> list[TensorRow]:
        """Return tensors whose statistics alone are due at `step`; not those of names `counted`."""
        wants = self._plan.tensor_stats.get(table)
        if wants is None or not wants.schedule.wants(step, is_last):
            return []
        if table == "gradients":
            counted = {row.keys["name"] for row in self._gradients}
        rows = self._take(table, lambda name: wants.matches(name) and name not in counted)
        return _staged(rows, "raw") if table == "gradients" else rows

    def _resolve(self, item: ActivationPlan) -> list[TapPoint]:
        if item.probe is not None and item.probe not in self._probes:
            known = ", ".join(self._probes) or "none"
            raise ConfigError(f"record.activations: no probe {item.probe!r}; there are: {known}")
        points = hooks.resolve(self._model, item.sites, item.layers)
        return [TapPoint(point, item.positions) for point in points]

    def _refuse_twins(self) -> None:
        seen = set()
        for item, points in zip(self._plan.activations, self._points, strict=True):
            for tap in points:
                if (item.probe, tap.point) in seen:
                    raise ConfigError(
                        f"record.activations asks twice for site {tap.point.site!r} of "
                        f"{item.probe or 'the training batch'}; join the two"
                    )
                seen.add((item.probe, tap.point))

    def _refuse_idle_patterns(self) -> None:
        """Refuse name patterns that fit no tensor, and optimizer state without an optimizer."""
        names = [*self._model.state_dict(), *self.parameters]
        for table in ("weights", "gradients", "optimizer"):
            wants = getattr(self._plan, table)
            if not wants.schedule.is_never and not any(wants.matches(name) for name in names):
                raise ConfigError(
                    f"record.{table}.names: no tensor of the model fits {list(wants.names)}; "
                    f"its names are like {names[0] if names else '(none)'!r}"
                )
        if not self._plan.optimizer.schedule.is_never and self._optimizer is None:
            raise ConfigError("record.optimizer needs the optimizer; pass it to the recorder")

    def _due_points(self, probe: str | None, step: int, is_last: bool) -> list[TapPoint]:
        return [
            tap
            for item, points in zip(self._plan.activations, self._points, strict=True)
            if item.probe == probe and item.schedule.wants(step, is_last)
            for tap in points
        ]


def _staged(rows: list[TensorRow], stage: str) -> list[TensorRow]:
    return [TensorRow({**row.keys, "stage": stage}, row.tensor) for row in rows]
