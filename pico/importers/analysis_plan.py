"""Which numbers an analysis asks of a run: a config of pico-analyze, resolved on a lake.

`analysis` calls `Plan`. Only keys and hashes are read here, never a value of a tensor. What a run
does not have at a step is counted as absent; a layer or a module that its model does not have is an
error.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

import xxhash

from pico import schema
from pico.errors import ConfigError
from pico.importers.analysis_config import AnalysisConfig, ComponentConfig, MetricConfig
from pico.importers.output_sites import OUTPUT_SITES
from pico.lake.snapshot import Snapshot
from pico.metrics import registry

Numbers = Literal["both", "ours", "pico"]
Form = Literal["tensor", "ov_circuit", "ov_activation", "vo_product", "ov_gradient_pico"]
Whose = Literal["ours", "pico"]
_FORMS: Mapping[str, Mapping[Whose, Form]] = {
    "weights": {"ours": "ov_circuit", "pico": "vo_product"},
    "gradients": {"ours": "ov_gradient_pico", "pico": "ov_gradient_pico"},
    "activations": {"ours": "ov_activation", "pico": "ov_activation"},
}
"""What an OV circuit is: to us, and to pico-analyze."""
QUALIFIERS = ("site", "stage", "probe")


@dataclass(frozen=True)
class Part:
    """A stored tensor."""

    table: str
    step: int
    name: str
    site: str | None
    stage: str | None
    probe: str | None
    content_hash: str
    input_hash: str | None
    sub_batch: int | None = None
    """Where the import put activations right that pico-train had scrambled: its sub-batch."""

    @property
    def identity(self) -> tuple[Any, ...]:
        """What tells it from the other tensors of its table."""
        return self.step, self.name, self.site, self.stage, self.probe


@dataclass(frozen=True)
class Measured:
    """What a metric is computed of: a stored tensor, or a head's circuit made of several."""

    form: Form
    parts: tuple[Part, ...]
    name: str
    layer: int
    component: str | None
    param: str | None
    head: int | None = None
    n_heads: int = 0
    n_kv_heads: int = 0
    is_scrambled: bool = False
    """Whether activations are taken as pico-train stored them, which pico-analyze does."""

    @cached_property
    def tensor_hash(self) -> str:
        """The tensor's hash, or one over those of the parts."""
        hashes = [part.content_hash for part in self.parts]
        if self.form == "tensor" and not self.is_scrambled:
            return hashes[0]
        joined = "\n".join([self.form, str(self.is_scrambled), *hashes])
        return xxhash.xxh3_128_hexdigest(joined.encode())


@dataclass(frozen=True)
class Value:
    """One number: a metric of something, or of something and a reference."""

    metric: str
    of: Measured
    reference: Measured | None

    def row(self, run: str) -> dict[str, Any]:
        """Return its row of the table `metrics`, the value excepted."""
        first, other = self.of.parts[0], self.reference
        tensor_hash = self.of.tensor_hash
        return {
            "run_id": run,
            "global_step": first.step,
            "table_name": first.table,
            "name": self.of.name,
            "layer": self.of.layer,
            "component": self.of.component,
            "param": self.of.param,
            "head": self.of.head,
            "site": first.site,
            "stage": first.stage,
            "probe": first.probe,
            "metric": self.metric,
            "ref_run": None if other is None else run,
            "ref_step": None if other is None else other.parts[0].step,
            "ref_name": None if other is None else other.name,
            "tensor_hash": tensor_hash if other is None else f"{tensor_hash}:{other.tensor_hash}",
            "metric_version": registry.get(self.metric).version,
        }


@dataclass(frozen=True)
class Entry:
    """A component of a metric of the config, and the numbers that it asks for."""

    metric: MetricConfig
    component: ComponentConfig
    values: list[Value]
    n_absent: int
    """Layers and steps at which the run does not have the tensors."""


Things: TypeAlias = dict[Whose, list[Measured]]


class Plan:
    """Resolves a config on one run of a lake."""

    def __init__(self, snapshot: Snapshot, run: str, numbers: Numbers = "both") -> None:
        """Read what the run's model is made of.

        Raises:
            RunNameError: if the lake has no such run.
        """
        self.run = snapshot.check_run(run)
        self._snapshot = snapshot
        self._whose: list[Whose] = ["ours", "pico"] if numbers == "both" else [numbers]
        self._steps: list[int] = []
        self._parameters = snapshot.read("parameters", runs=[run]).to_pylist()
        self._tables: dict[str, dict[tuple[int, int | None], list[dict[str, Any]]]] = {}

    def entries(self, config: AnalysisConfig) -> list[Entry]:
        """Return what each component of each metric asks for.

        Raises:
            ConfigError: for a layer, a module, a probe or a target that the run does not have.
        """
        targets = [item.target_checkpoint for item in config.metrics]
        self._steps = sorted({*config.steps, *(t for t in targets if t is not None)})
        return [
            self._entry(metric, part, config.steps)
            for metric in config.metrics
            for part in metric.parts
        ]

    def _entry(
        self, metric: MetricConfig, component: ComponentConfig, steps: Sequence[int]
    ) -> Entry:
        values: dict[Value, None] = {}
        n_absent = 0
        for layer in component.layer_numbers:
            targets: Things = {}
            if metric.target_checkpoint is not None:
                targets = self._things(metric, component, layer, metric.target_checkpoint)
                if not targets:
                    raise ConfigError(self._no_target(metric, component, layer))
            for step in steps:
                things = self._things(metric, component, layer, step)
                n_absent += not things
                for whose, found in things.items():
                    name = metric.ours if whose == "ours" else metric.theirs
                    others = targets.get(whose, [None] * len(found))
                    pairs = zip(found, others, strict=True)
                    values |= dict.fromkeys(Value(name, thing, other) for thing, other in pairs)
        return Entry(metric, component, list(values), n_absent)

    def _things(
        self, metric: MetricConfig, component: ComponentConfig, layer: int, step: int
    ) -> Things:
        """Return what a component is at a layer and step; nothing where the run lacks it."""
        split = self._probe(metric.data_split)
        found = [self._parameter(layer, suffix) for suffix in component.modules]
        kind: str = component.data_type
        captured = [self._row(kind, step, item, split) for item in found]
        if component.component_name == "simple":
            rows = [(kind, captured[0])]
        else:
            weights = [("weights", self._row("weights", step, item, None)) for item in found]
            rows = {
                "weights": weights,
                "gradients": [*((kind, row) for row in captured), *weights],
                "activations": [(kind, captured[0]), weights[1]],
            }[kind]
        parts = tuple(_part(table, row) for table, row in rows if row is not None)
        if len(parts) < len(rows):
            return {}
        if component.component_name == "simple":
            return {whose: [self._simple(whose, parts[0], found[0])] for whose in self._whose}
        return {w: list(self._heads(_FORMS[kind][w], w, parts, *found)) for w in self._whose}

    def _simple(self, whose: Whose, part: Part, parameter: Mapping[str, Any]) -> Measured:
        is_scrambled = whose == "pico" and part.sub_batch is not None
        return Measured(
            "tensor",
            (part,),
            f"{part.name}.scrambled" if is_scrambled else part.name,
            parameter["layer"],
            parameter["component"],
            None if part.table == "activations" else parameter["param"],
            is_scrambled=is_scrambled,
        )

    def _heads(
        self,
        form: Form,
        whose: Whose,
        parts: tuple[Part, ...],
        v: Mapping[str, Any],
        o: Mapping[str, Any],
    ) -> Iterator[Measured]:
        """Yield the circuit of each head."""
        n_heads, n_kv_heads = o["n_heads"], v["n_kv_heads"]
        if not n_heads or not n_kv_heads:
            raise ConfigError(f"run {self.run!r} does not tell how many heads {o['name']} has")
        is_scrambled = whose == "pico" and parts[0].sub_batch is not None
        word: str = "ov_circuit" if form == "ov_activation" else form
        word += ".scrambled" * is_scrambled
        name = f"{_module(o).rpartition('.')[0]}.{word}"
        for head in range(n_heads):
            yield Measured(
                form, parts, name, o["layer"], word, None, head, n_heads, n_kv_heads, is_scrambled
            )

    def _parameter(self, layer: int, suffix: str) -> dict[str, Any]:
        """Return the parameter of a layer whose module's name ends so."""
        ending = f".{layer}.{suffix}"
        for row in self._parameters:
            if row["layer"] == layer and f".{_module(row)}".endswith(ending):
                return row  # type: ignore[no-any-return]
        layers = sorted({row["layer"] for row in self._parameters if row["layer"] is not None})
        if layer not in layers:
            has = f"layers {layers[0]} to {layers[-1]}" if layers else "no layers"
            raise ConfigError(f"run {self.run!r} has {has}, and the config asks for {layer}")
        there = sorted(
            _module(row).split(f"{layer}.", 1)[-1]
            for row in self._parameters
            if row["layer"] == layer and row["param"] != "bias"
        )
        raise ConfigError(
            f"run {self.run!r} has no module {suffix!r} in layer {layer}; it has {', '.join(there)}"
        )

    def _row(
        self, table: str, step: int, parameter: Mapping[str, Any], probe: str | None
    ) -> dict[str, Any] | None:
        """Return the key columns of a parameter's tensor in a table at a step."""
        rows = self._index(table).get((step, parameter["layer"]), [])
        if table == "weights":
            found = [row for row in rows if row["name"] == parameter["name"]]
        elif table == "gradients":
            mine = [r for r in rows if r["name"] == parameter["name"] and r["probe"] == probe]
            stages = {row["stage"]: row for row in mine}
            found = [stages[stage] for stage in ("raw", "summed") if stage in stages]
        else:
            site = OUTPUT_SITES.get(parameter["component"] or "", "")
            sites = (site, f"{_module(parameter)}.out")
            found = [row for row in rows if row["site"] in sites and row["probe"] == probe]
        return found[0] if found else None

    def _index(self, table: str) -> dict[tuple[int, int | None], list[dict[str, Any]]]:
        """Return the stored tensors of a table by step and layer."""
        if table not in self._tables:
            wanted = ["global_step", "name", "layer", "component", "content_hash", "part"]
            known = schema.table(table).column_names
            wanted += [name for name in (*QUALIFIERS, "input_hash", "extra") if name in known]
            index: dict[tuple[int, int | None], list[dict[str, Any]]] = {}
            for row in self._snapshot.read(table, wanted, [self.run], self._steps).to_pylist():
                if row["part"] == 0:
                    index.setdefault((row["global_step"], row["layer"]), []).append(row)
            self._tables[table] = index
        return self._tables[table]

    def _probe(self, split: str) -> str | None:
        """Return the probe of a split, None for the training batch."""
        if split == "train":
            return None
        probes = self._probes
        if split in probes or split != "val":
            if probes and split not in probes:
                raise ConfigError(
                    f"run {self.run!r} has no probe {split!r} for data_split; it has train, "
                    f"{', '.join(sorted(probes))}"
                )
            return split
        return "text" if "text" in probes else split  # what pico train holds out

    @cached_property
    def _probes(self) -> Collection[str]:
        found: set[str] = set()
        for table in ("activations", "gradients"):
            found |= set(self._snapshot.read(table, ["probe"], [self.run])["probe"].to_pylist())
        return {probe for probe in found if probe is not None}

    def _no_target(self, metric: MetricConfig, component: ComponentConfig, layer: int) -> str:
        table = component.data_type
        files = self._snapshot.files(table, [self.run])
        steps = sorted({e.min_step for e in files if e.min_step is not None})
        has = ", ".join(map(str, steps[:20])) or "none"
        return (
            f"run {self.run!r} has no {table} of layer {layer} at target_checkpoint "
            f"{metric.target_checkpoint} for data_split {metric.data_split}; steps with {table}: "
            f"{has}"
        )


def _module(parameter: Mapping[str, Any]) -> str:
    return str(parameter["name"]).removesuffix(".weight")


def _part(table: str, row: Mapping[str, Any]) -> Part:
    note = json.loads(row.get("extra") or "{}") if table == "activations" else {}
    note = note.get("pico-train", {}) if isinstance(note, dict) else {}
    return Part(
        table=table,
        step=row["global_step"],
        name=row["name"],
        site=row.get("site"),
        stage=row.get("stage"),
        probe=row.get("probe"),
        content_hash=row["content_hash"],
        input_hash=row.get("input_hash"),
        sub_batch=note.get("sub_batch") if note.get("unscrambled") is True else None,
    )
