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
      probes: {text: {n_sequences: 16}, repeat: {n_sequences: 8}}
      commit_every: 50

`Recorder` calls `parse`; all problems are raised at once. Whatever is recorded at all is recorded
at the last step too, so that every history ends where the run ends. `metrics: [per, gini]` measures
weights and gradients every 100 steps. Activations are measured at the sites under `activations`; an
item there with `schedule: never` stores none of them.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pico.errors import ConfigError, MetricError, did_you_mean
from pico.metrics import registry
from pico.record import schedule
from pico.record.schedule import NEVER, Schedule

STAGES = ("raw", "clipped")
TABLES = ("weights", "gradients", "optimizer")
MEASURED = (*TABLES, "activations")
METRICS_EVERY = 100
"""Steps between two measurements where `metrics` has no schedule."""
PROBES = ("text", "repeat")


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
    probes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
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
    readers = {
        "checkpoints": lambda spec, where: _ends(schedule.parse(spec, where)),
        **dict.fromkeys(TABLES, _tensors),
        "activations": _activations,
        "tensor_stats": _stats,
        "metrics": _metrics,
        **dict.fromkeys(("scalars", "batches", "pairs"), _flag),
        "frozen": _frozen,
        "probes": _probes,
        "commit_every": _count,
    }
    for key, spec in (record or {}).items():
        if key not in readers:
            problems.append(f"unknown config key 'record.{key}'.{did_you_mean(str(key), readers)}")
            continue
        try:
            values[key] = readers[key](spec, f"record.{key}")
        except ConfigError as error:
            problems.append(str(error))
    if not problems:
        plan = RecordPlan(**values)
        problems += _missing_probes(plan) + _missing_sites(plan)
    if problems:
        raise ConfigError("; ".join(problems))
    return plan


def _missing_probes(plan: RecordPlan) -> list[str]:
    wanted = {item.probe for item in plan.activations if item.probe}
    return [
        f"record.probes: probe {name!r} cannot take settings; built in: {', '.join(PROBES)}"
        for name in plan.probes
        if name not in PROBES and name not in wanted
    ]


def _missing_sites(plan: RecordPlan) -> list[str]:
    if plan.activations or not any("activations" in item.tables for item in plan.metrics):
        return []
    return [
        "record.metrics measures activations at the sites of record.activations, and there are "
        "none; list some there (with schedule: never they are not stored)"
    ]


def _ends(when: Schedule) -> Schedule:
    """Let a schedule that wants anything want the last step too."""
    return when if when.is_never else when | Schedule(last=True)


def _split(spec: Any, options: Sequence[str], where: str) -> tuple[Any, dict[str, Any]]:
    """Part a spec into its schedule and its options: `{every: 50, names: […]}`."""
    if not isinstance(spec, Mapping):
        return spec, {}
    given = {str(key): value for key, value in spec.items()}
    unknown = [key for key in given if key not in (*options, *schedule.KEYS, "schedule")]
    if unknown:
        hint = did_you_mean(unknown[0], [*options, *schedule.KEYS, "schedule"])
        raise ConfigError(f"unknown config key '{where}.{unknown[0]}'.{hint}")
    when = {key: given.pop(key) for key in schedule.KEYS if key in given}
    if when and "schedule" in given:
        raise ConfigError(f"{where}: give either schedule or {', '.join(when)}, not both")
    return given.pop("schedule", when or True), given


def _tensors(spec: Any, where: str) -> TensorPlan:
    when, options = _split(spec, ("names", "stages"), where)
    return TensorPlan(
        _ends(schedule.parse(when, where)),
        _strings(options.get("names", ["*"]), f"{where}.names"),
        _words(options.get("stages", ["raw"]), STAGES, "stage", f"{where}.stages"),
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
    when, options = _split(spec, ("names", "tables", "tensors", "stages"), where)
    if not any(key in spec for key in (*schedule.KEYS, "schedule")):
        when = {"every": METRICS_EVERY}
    names = _strings(options.get("names", []), f"{where}.names")
    if not names:
        raise ConfigError(f"{where} needs names, for example names: [per, gini]")
    _check_metrics(names, f"{where}.names")
    wants = TensorPlan(
        _ends(schedule.parse(when, where)),
        _strings(options.get("tensors", ["*"]), f"{where}.tensors"),
        _words(options.get("stages", ["raw"]), STAGES, "stage", f"{where}.stages"),
    )
    tables = options.get("tables", MetricsPlan.tables)
    return MetricsPlan(names, wants, _words(tables, MEASURED, "table", f"{where}.tables"))


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


def _words(spec: Any, known: Sequence[str], what: str, where: str) -> tuple[str, ...]:
    """Read a list of words of which all are known."""
    words = _strings(spec, where)
    for word in words:
        if word not in known:
            hint = did_you_mean(word, known)
            raise ConfigError(f"{where}: no {what} {word!r}.{hint} Use {', '.join(known)}")
    return words


def _activations(spec: Any, where: str) -> tuple[ActivationPlan, ...]:
    if spec in (None, False):
        return ()
    items = spec if isinstance(spec, Sequence) and not isinstance(spec, str) else [spec]
    return tuple(_activation(item, f"{where}[{index}]") for index, item in enumerate(items))


def _activation(spec: Any, where: str) -> ActivationPlan:
    if not isinstance(spec, Mapping):
        raise ConfigError(f"{where} must be a mapping with sites and a schedule, not {spec!r}")
    when, options = _split(spec, ("probe", "sites", "layers", "positions"), where)
    if "sites" not in options:
        raise ConfigError(f"{where} needs sites, for example sites: [resid.post]")
    layers, positions = options.get("layers"), options.get("positions", "last")
    if positions not in ("last", "all"):
        positions = _integers(positions, f"{where}.positions")
    probe = options.get("probe")
    if probe is not None and not isinstance(probe, str):
        raise ConfigError(f"{where}.probe must be the name of a probe, not {probe!r}")
    return ActivationPlan(
        _ends(schedule.parse(when, where)),
        _strings(options["sites"], f"{where}.sites"),
        probe,
        None if layers is None else _integers(layers, f"{where}.layers"),
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


def _probes(spec: Any, where: str) -> dict[str, dict[str, int]]:
    if not isinstance(spec, Mapping):
        raise ConfigError(f"{where} must map probes to their settings, not {spec!r}")
    known = ("n_sequences", "seq_len", "seed")
    settings: dict[str, dict[str, int]] = {}
    for name, options in spec.items():
        if not isinstance(options, (Mapping, type(None))):
            raise ConfigError(f"{where}.{name} must be a mapping, not {options!r}")
        for key in options or {}:
            if key not in known:
                raise ConfigError(
                    f"unknown config key '{where}.{name}.{key}'.{did_you_mean(key, known)}"
                )
        settings[str(name)] = {
            key: _count(value, f"{where}.{name}.{key}", 0 if key == "seed" else 1)
            for key, value in (options or {}).items()
        }
    return settings


def _flag(spec: Any, where: str) -> bool:
    if not isinstance(spec, bool):
        raise ConfigError(f"{where} must be true or false, not {spec!r}")
    return spec


def _frozen(spec: Any, where: str) -> str:
    if spec not in ("once", "always"):
        raise ConfigError(f"{where} must be once or always, not {spec!r}")
    return str(spec)


def _count(spec: Any, where: str, least: int = 1) -> int:
    if not isinstance(spec, int) or isinstance(spec, bool) or spec < least:
        raise ConfigError(f"{where} must be a whole number of at least {least}, not {spec!r}")
    return spec


def _strings(spec: Any, where: str) -> tuple[str, ...]:
    items = [spec] if isinstance(spec, str) else spec
    if not isinstance(items, Sequence) or not all(isinstance(item, str) for item in items):
        raise ConfigError(f"{where} must be a list of words, not {spec!r}")
    return tuple(items)


def _integers(spec: Any, where: str) -> tuple[int, ...]:
    items = [spec] if isinstance(spec, int) else spec
    whole = isinstance(items, Sequence) and all(
        isinstance(item, int) and not isinstance(item, bool) for item in items
    )
    if not whole:
        raise ConfigError(f"{where} must be a list of whole numbers, not {spec!r}")
    return tuple(items)
