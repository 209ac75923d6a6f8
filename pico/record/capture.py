"""Which tensors to take from the model at the current step: the plan applied to a live model.

`Recorder` asks it; it answers with copies and knows nothing of the lake's files. One `Capture`
belongs to one run; it remembers what it took at which step, so that nothing is taken twice.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import nn

from pico.errors import ConfigError, RecordError
from pico.lake.table import TensorRow
from pico.models import architecture
from pico.record import hooks, passes
from pico.record.due import Due, Ledger, Wanted
from pico.record.hooks import Live, TapPoint, Taps
from pico.record.measure import Measurer, Taken
from pico.record.plan import STAGES, TABLES, ActivationPlan, MetricsPlan, RecordPlan
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
        measurer: Measurer,
    ) -> None:
        """Resolve the plan's sites on the model.

        Raises:
            ConfigError: for a probe that the caller did not give, or a site asked for twice.
            RecordError: for a site that the model does not have.
        """
        self.parameters = {info.name: info for info in architecture.parameters(model)}
        self._plan, self._model, self._optimizer = plan, model, optimizer
        self._measurer = measurer
        self._probes = {probe.name: probe for probe in probes}
        self._points = [self._resolve(item) for item in plan.activations]
        self._refuse_twins()
        self._refuse_idle_patterns()
        self._ledger = Ledger()
        embeddings = [i.name for i in self.parameters.values() if i.component == "embed"]
        self._reader = embeddings[0].rpartition(".")[0] if embeddings else ""
        once = plan.frozen == "once"
        self._frozen = {i.name for i in self.parameters.values() if once and not i.trainable}
        self._stored_once = set(self._frozen) if resumed else set()
        self._taps: Taps | None = None
        self._tapped: dict[TapPoint, Wanted] = {}
        self._gradients: list[Taken] = []
        self._stages_seen: set[str] = set()

    def state(self, step: int, is_last: bool, whole: bool) -> dict[str, list[Taken]]:
        """Return what is due of the state at `step`, by table; all is stored if `whole`.

        What was taken at this step before is left out.
        """
        taken = {}
        for table in STATE_TABLES:
            due = Due.of_table(self._plan, table, step, is_last, whole=whole)
            taken[table] = self._take(table, step, due)
        taken["activations"] = self._probe_activations(step, is_last)
        return {table: rows for table, rows in taken.items() if rows}

    def _take(self, table: str, step: int, due: Due, stage: str | None = None) -> list[Taken]:
        """Copy what is due of a table."""
        if not due:
            return []
        settled = self._settled() if table == "weights" else set()
        wanted: dict[str, Wanted] = {}

        def is_wanted(name: str) -> bool:
            asked = due.of(name)
            if name in settled:
                asked = Wanted(metrics=asked.metrics)
            wanted[name] = self._ledger.remaining(step, (table, name, stage), asked)
            return bool(wanted[name])

        taken = []
        for keys, tensor in self._live(table, is_wanted):
            if stage is not None:
                keys["stage"] = stage
            taken.append(self._measurer.take(table, keys, tensor, wanted[keys["name"]]))
        if table == "weights":
            stored = {row.keys["name"] for row in taken if row.wanted.stored}
            self._stored_once |= stored & self._frozen
        return taken

    def _settled(self) -> set[str]:
        """Return the names of frozen parameters that are stored already."""
        self._frozen -= {name for name, p in self._model.named_parameters() if p.requires_grad}
        return self._frozen & self._stored_once

    def _live(self, table: str, wanted: Callable[[str], bool]) -> Iterator[Live]:
        if table == "weights":
            return hooks.weights(self._model, self.parameters, wanted)
        if table == "gradients":
            return hooks.gradients(self._model, self.parameters, wanted)
        if self._optimizer is None:
            return iter(())
        return hooks.optimizer_state(self._optimizer, self._model, self.parameters, wanted)

    def _probe_activations(self, step: int, is_last: bool) -> list[Taken]:
        rows = []
        for probe in self._probes.values():
            points = self._due_points(probe.name, step, is_last)
            if points:
                rows += _taken(passes.activations(self._model, probe, list(points)), points)
        return rows

    def open_step(self, step: int, is_last: bool) -> None:
        """Set the hooks that the coming batch needs."""
        self._tapped = self._due_points(None, step, is_last)
        if self._tapped or self._plan.gradients.schedule.wants(step, is_last):
            self._taps = Taps(self._model, list(self._tapped), self._reader, is_training=True)

    def take_gradients(self, step: int, is_last: bool, stage: str) -> None:
        """Copy what is due of the gradients at this stage."""
        self._stages_seen.add(stage)
        due = Due.of_table(self._plan, "gradients", step, is_last, stage)
        self._gradients += self._take("gradients", step, due, stage)

    def check_complete(self, step: int, is_last: bool) -> None:
        """Refuse to end a step whose gradients were asked for and not taken.

        Raises:
            RecordError: naming the call that is missing.
        """
        calls = {"raw": "before_optimizer_step", "clipped": "after_clipping"}
        for stage in STAGES:
            due = Due.of_table(self._plan, "gradients", step, is_last, stage)
            if due.is_stored_or_measured and stage not in self._stages_seen:
                raise RecordError(
                    f"gradients of stage {stage!r} are asked for at step {step} and were not "
                    f"taken; call recorder.{calls[stage]}() before optimizer.step()"
                )

    def close_step(
        self, dataset: str | None, sequence_ids: Sequence[int]
    ) -> dict[str, list[Taken]]:
        """Remove the hooks; return the gradients and activations of the batch, by table."""
        taken = {"gradients": self._gradients}
        if self._taps is not None:
            self._taps.remove()
            seen = {"input_hash": self._taps.input_hash}
            taken["gradients"] = [
                dataclasses.replace(row, keys={**row.keys, **seen}) for row in self._gradients
            ]
            taken["activations"] = _taken(
                self._taps.rows(None, dataset, sequence_ids), self._tapped
            )
        self._taps, self._gradients = None, []
        self._stages_seen.clear()
        return {table: rows for table, rows in taken.items() if rows}

    def close(self) -> None:
        """Leave no hook on the model."""
        if self._taps is not None:
            self._taps.remove()
            self._taps = None

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
        sites = [tap.point.module_name for points in self._points for tap in points]
        plans = [(f"record.{table}.names", getattr(self._plan, table), names) for table in TABLES]
        for item in self._plan.metrics:
            known = [*(names if {*TABLES} & {*item.tables} else []), *_measured_sites(item, sites)]
            plans.append(("record.metrics.tensors", item.wants, known))
        for where, wants, known in plans:
            if not wants.schedule.is_never and not any(wants.matches(name) for name in known):
                raise ConfigError(
                    f"{where}: no tensor of the model fits {list(wants.names)}; "
                    f"its names are like {known[0] if known else '(none)'!r}"
                )
        measured = any("optimizer" in item.tables for item in self._plan.metrics)
        if self._optimizer is None and (measured or not self._plan.optimizer.schedule.is_never):
            where = "record.metrics of optimizer" if measured else "record.optimizer"
            raise ConfigError(f"{where} needs the optimizer; pass it to the recorder")

    def _due_points(self, probe: str | None, step: int, is_last: bool) -> dict[TapPoint, Wanted]:
        """Return the points of one input, or of the batch, at which something is due."""
        found = {}
        for item, points in zip(self._plan.activations, self._points, strict=True):
            due = Due.of_sites(self._plan, item, step, is_last)
            for tap in points if due and item.probe == probe else ():
                key = ("activations", tap.point, probe)
                asked = due.of(tap.point.module_name)
                wanted = self._ledger.remaining(step, key, asked)
                if wanted:
                    found[tap] = wanted
        return found


def _measured_sites(item: MetricsPlan, sites: Sequence[str]) -> Sequence[str]:
    return sites if "activations" in item.tables else ()


def _taken(rows: Sequence[TensorRow], wanted: Mapping[TapPoint, Wanted]) -> list[Taken]:
    """Add to activations what is wanted of them."""
    by_site = {(tap.point.module_name, tap.point.site): it for tap, it in wanted.items()}
    return [
        Taken(row.keys, row.tensor, by_site[row.keys["name"], row.keys["site"]]) for row in rows
    ]
