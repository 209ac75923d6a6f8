"""What a `record` mapping asks for, checked and resolved.

    record:
      checkpoints: {every: 100}            # weights, optimizer and RNG: what resuming needs
      weights: pythia
      gradients: {every: 50, names: ["*.o_proj.*"], stages: [raw, clipped]}
      optimizer: never
      activations:
        - {probe: text, schedule: pythia, sites: [resid.post, z], layers: [0, 3], positions: last}
        - {schedule: {every: 50}, sites: [attn.out], positions: all}  # without a probe: the batch
      tensor_stats: {weights: {every: 1}, gradients: {every: 1}}
      metrics:                             # numbers of tensors that need not be stored
        - {names: [per, gini], every: 20, tables: [weights, gradients], tensors: ["*.o_proj.*"]}
        - {names: frobenius_norm, tables: [activations]}  # at the sites above, every 100 steps
      scalars: true
      batches: true
      pairs: true                          # weights at s and at s + 1
      frozen: once                         # tensors that are not trained: once, or always
      probes:                              # sizes, and what is said of each token and head
        text: {n_sequences: 16, every: 50, record: [token_scores], layer_scores: true}
        repeat: {n_sequences: 8, every: 50, record: [token_scores, attention]}
      commit_every: 50

`Recorder` calls `parse`; all problems are raised at once. Whatever is recorded at all is recorded
at the last step too, so that every history ends where the run ends. `metrics: [per, gini]` measures
weights and gradients every 100 steps. Activations are measured at the sites under `activations`; an
item there with `schedule: never` stores none of them.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pico.errors import ConfigError, MetricError, did_you_mean
from pico.metrics import registry
from pico.record import probeplan, readers, schedule
from pico.record.probeplan import ProbePlan
from pico.record.schedule import NEVER, Schedule

STAGES = ("raw", "clipped")
TABLES = ("weights", "gradients", "optimizer")
MEASURED = (*TABLES, "activations")
METRICS_EVERY = 100
"""Steps between two measurements where `metrics` has no schedule."""


@dataclass(frozen=True)
class TensorPlan:
    """When to record a table's tensors, and which."""

    schedule: Schedule = NEVER
    names: tuple[str, ...] = ("*",)
    stages: tuple[str, ...] = ("raw",)

    def matches(self, name: str) -> bool:
        """Say whether one of the name patterns (shell style) fits."""
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.names)


NOTHING = TensorPlan()
"""The plan that wants no tensor."""


@dataclass(frozen=True)
class MetricsPlan:
    """Which metrics to compute of which tensors, when."""

    names: tuple[str, ...]
    wants: TensorPlan
    tables: tuple[str, ...] = ("weights", "gradients")


@dataclass(frozen=True)
class ActivationPlan:
    """Which activations to record of which input, when, at which positions."""

    schedule: Schedule
    sites: tuple[str, ...]
    probe: str | None = None
    layers: tuple[int, ...] | None = None
    positions: Literal["last", "all"] | tuple[int, ...] = "last"


@dataclass(frozen=True)
class RecordPlan:
    """Everything that a recorder writes, and when."""

    checkpoints: Schedule = NEVER
    weights: TensorPlan = field(default_factory=TensorPlan)
    gradients: TensorPlan = field(default_factory=TensorPlan)
    optimizer: TensorPlan = field(default_factory=TensorPlan)
    activations: tuple[ActivationPlan, ...] = ()
    tensor_stats: Mapping[str, TensorPlan] = field(default_factory=dict)
    metrics: tuple[MetricsPlan, ...] = ()
    scalars: bool = True
    batches: bool = True
    pairs: bool = False
    frozen: Literal["once", "always"] = "once"
    probes: Mapping[str, ProbePlan] = field(default_factory=dict)
    commit_every: int = 50


def parse(record: Mapping[str, Any] | None) -> RecordPlan:
    """Read a `record` mapping.

    Raises:
        ConfigError: with every problem found, one per sentence.
    """
    if record is not None and not isinstance(record, Mapping):
        raise ConfigError(f"record must be a mapping, not {record!r}")
    problems: list[str] = []
    values: dict[str, Any] = {}
    parsers: dict[str, Callable[[Any, str], Any]] = {
        "checkpoints": lambda spec, where: readers.ends(schedule.parse(spec, where)),
        **dict.fromkeys(TABLES, _tensors),
        "activations": _activations,
        "tensor_stats": _stats,
        "metrics": _metrics,
        **dict.fromkeys(("scalars", "batches", "pairs"), readers.flag),
        "frozen": _frozen,
        "probes": probeplan.parse,
        "commit_every": readers.count,
    }
    for key, spec in (record or {}).items():
        if key not in parsers:
            problems.append(f"unknown config key 'record.{key}'.{did_you_mean(str(key), parsers)}")
            continue
        try:
            values[key] = parsers[key](spec, f"record.{key}")
        except ConfigError as error:
            problems.append(str(error))
    if not problems:
        plan = RecordPlan(**values)
        named = {item.probe for item in plan.activations if item.probe}
        problems += probeplan.unknown(plan.probes, named) + _missing_sites(plan)
    if problems:
        raise ConfigError("; ".join(problems))
    return plan


def _missing_sites(plan: RecordPlan) -> list[str]:
    if plan.activations or not any("activations" in item.tables for item in plan.metrics):
        return []
    return [
        "record.metrics measures activations at the sites of record.activations, and there are "
        "none; list some there (with schedule: never they are not stored)"
    ]


def _tensors(spec: Any, where: str) -> TensorPlan:
    when, options = readers.split(spec, ("names", "stages"), where)
    return TensorPlan(
        readers.ends(schedule.parse(when, where)),
        readers.strings(options.get("names", ["*"]), f"{where}.names"),
        readers.words(options.get("stages", ["raw"]), STAGES, "stage", f"{where}.stages"),
    )


def _metrics(spec: Any, where: str) -> tuple[MetricsPlan, ...]:
    if spec in (None, False):
        return ()
    if isinstance(spec, Mapping):
        return (_metric(spec, where),)
    items = [spec] if isinstance(spec, str) else spec
    if isinstance(items, Sequence) and items:
        if all(isinstance(item, str) for item in items):
            return (_metric({"names": items}, where),)
        if all(isinstance(item, Mapping) for item in items):
            return tuple(_metric(item, f"{where}[{index}]") for index, item in enumerate(items))
    raise ConfigError(
        f"{where} must be names of metrics, a mapping with names, or a list of such mappings, "
        f"not {spec!r}"
    )


def _metric(spec: Mapping[str, Any], where: str) -> MetricsPlan:
    when, options = readers.split(spec, ("names", "tables", "tensors", "stages"), where)
    if not any(key in spec for key in (*schedule.KEYS, "schedule")):
        when = {"every": METRICS_EVERY}
    names = readers.strings(options.get("names", []), f"{where}.names")
    if not names:
        raise ConfigError(f"{where} needs names, for example names: [per, gini]")
    _check_metrics(names, f"{where}.names")
    wants = TensorPlan(
        readers.ends(schedule.parse(when, where)),
        readers.strings(options.get("tensors", ["*"]), f"{where}.tensors"),
        readers.words(options.get("stages", ["raw"]), STAGES, "stage", f"{where}.stages"),
    )
    tables = options.get("tables", MetricsPlan.tables)
    return MetricsPlan(names, wants, readers.words(tables, MEASURED, "table", f"{where}.tables"))


def _check_metrics(names: Sequence[str], where: str) -> None:
    for name in names:
        try:
            metric = registry.get(name)
        except MetricError as error:
            raise ConfigError(f"{where}: {error}") from None
        if metric.kind == "pair":
            raise ConfigError(
                f"{where}: {name!r} compares two tensors, and training has one at a time; store "
                f"them and compute it later: pico metrics compute --metrics {name} "
                "--reference-step last"
            )


def _activations(spec: Any, where: str) -> tuple[ActivationPlan, ...]:
    if spec in (None, False):
        return ()
    items = spec if isinstance(spec, Sequence) and not isinstance(spec, str) else [spec]
    return tuple(_activation(item, f"{where}[{index}]") for index, item in enumerate(items))


def _activation(spec: Any, where: str) -> ActivationPlan:
    if not isinstance(spec, Mapping):
        raise ConfigError(f"{where} must be a mapping with sites and a schedule, not {spec!r}")
    when, options = readers.split(spec, ("probe", "sites", "layers", "positions"), where)
    if "sites" not in options:
        raise ConfigError(f"{where} needs sites, for example sites: [resid.post]")
    layers, positions = options.get("layers"), options.get("positions", "last")
    if positions not in ("last", "all"):
        positions = readers.integers(positions, f"{where}.positions")
    probe = options.get("probe")
    if probe is not None and not isinstance(probe, str):
        raise ConfigError(f"{where}.probe must be the name of a probe, not {probe!r}")
    return ActivationPlan(
        readers.ends(schedule.parse(when, where)),
        readers.strings(options["sites"], f"{where}.sites"),
        probe,
        None if layers is None else readers.integers(layers, f"{where}.layers"),
        positions,
    )


def _stats(spec: Any, where: str) -> dict[str, TensorPlan]:
    if spec in (None, False):
        return {}
    if spec is True:
        spec = dict.fromkeys(("weights", "gradients"), True)
    if not isinstance(spec, Mapping):
        raise ConfigError(f"{where} must map tables to schedules, not {spec!r}")
    for table in spec:
        if table not in TABLES:
            raise ConfigError(
                f"unknown config key '{where}.{table}'.{did_you_mean(str(table), TABLES)}"
            )
    return {table: _tensors(item, f"{where}.{table}") for table, item in spec.items()}


def _frozen(spec: Any, where: str) -> str:
    if spec not in ("once", "always"):
        raise ConfigError(f"{where} must be once or always, not {spec!r}")
    return str(spec)
