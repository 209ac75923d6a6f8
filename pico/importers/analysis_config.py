"""pico-analyze's configs: what to measure, of which parts of a model, at which steps.

    analysis_name: tiny-ov
    metrics:
      - metric_name: cka                # or condition_number, gini, hoyer, norm, per, pwcca
        target_checkpoint: 50_000       # what cka and pwcca compare with
        data_split: val                 # or train
        components:
          - component_name: ov_circuit  # or simple
            data_type: activations      # or weights, gradients
            layer_suffixes: {output_layer: attention.o_proj, value_layer: attention.v_proj}
            layers: [0, 1]
    steps: {start: 0, end: 50_000, step: 5000}   # or a list
    monitoring: {…}                     # read, without effect: results go into the lake

`analysis` calls `load`. All problems of a config are raised at once. Where pico-analyze reads the
same words otherwise, this does what they say: a range of steps ends at `end` (theirs goes on to the
next multiple when `end` is none), and metrics of one name are all computed (theirs keeps the last).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from pico import conversion
from pico.errors import ConfigError, did_you_mean, one_line
from pico.metrics import pico_analyze, registry

NORMS = {"frobenius": "frobenius_norm", "nuclear": "nuclear_norm", "inf": "max_abs"}
"""`norm_type`: our metric of that norm."""
_PLAIN = ("condition_number", "gini", "hoyer", "per", "cka", "pwcca")
_MOST_STEPS = 1_000_000


@dataclass(frozen=True)
class ComponentConfig:
    """Of what a metric is computed."""

    component_name: Literal["simple", "ov_circuit"] = "simple"
    data_type: Literal["weights", "gradients", "activations"] = "weights"
    layer_suffixes: object = None
    """The end of a module's name; of a circuit `output_layer` and `value_layer`."""
    layers: object = None

    @property
    def modules(self) -> tuple[str, ...]:
        """The ends of the modules' names: the one, or value layer and output layer."""
        if isinstance(self.layer_suffixes, Mapping):
            return tuple(str(self.layer_suffixes[key]) for key in ("value_layer", "output_layer"))
        return (str(self.layer_suffixes),)

    @property
    def layer_numbers(self) -> tuple[int, ...]:
        """The layers, each once."""
        assert isinstance(self.layers, list)
        return tuple(dict.fromkeys(self.layers))


@dataclass(frozen=True)
class MetricConfig:
    """One metric, and what it is computed of."""

    metric_name: str = ""
    data_split: str = "val"
    """`train` is the training batch, anything else a probe."""
    norm_type: str | None = None
    target_checkpoint: int | None = None
    components: object = ()

    @property
    def parts(self) -> Sequence[ComponentConfig]:
        """The components."""
        assert isinstance(self.components, tuple)
        return self.components

    @property
    def ours(self) -> str:
        """Our metric."""
        return NORMS[str(self.norm_type)] if self.metric_name == "norm" else self.metric_name

    @property
    def theirs(self) -> str:
        """The metric that gives pico-analyze's own number; ours, where that is the same."""
        name = f"norm_{self.norm_type}" if self.metric_name == "norm" else self.metric_name
        return pico_analyze.NAMES.get(name, self.ours)


@dataclass(frozen=True)
class AnalysisConfig:
    """A whole config."""

    metrics: tuple[MetricConfig, ...]
    steps: tuple[int, ...]
    """Ascending, each once."""


@dataclass(frozen=True)
class _Wandb:
    entity: str | None = None
    project: str | None = None


@dataclass(frozen=True)
class _Report:
    lab_hash: str | None = None
    experiment_name: str | None = None


@dataclass(frozen=True)
class _Monitoring:
    output_dir: str | None = None
    save_to_wandb: bool = False
    wandb: _Wandb = _Wandb()
    save_to_picolabs: bool = False
    pico_report: _Report = _Report()


@dataclass(frozen=True)
class _Top:
    analysis_name: str | None = None
    metrics: object = None
    steps: object = None
    monitoring: _Monitoring = _Monitoring()


@dataclass(frozen=True)
class _Range:
    start: int = 0
    end: int | None = None
    step: int = 1


def load(config: str | Path | Mapping[str, Any]) -> AnalysisConfig:
    """Read a config of pico-analyze.

    Args:
        config: path of its YAML file, or what such a file holds.

    Raises:
        ConfigError: with every problem, one after the other.
    """
    problems: list[str] = []
    loaded = config if isinstance(config, Mapping) else _yaml(config)
    top = conversion.build(_Top, loaded, "", problems)
    metrics: list[MetricConfig] = []
    steps: list[int] = []
    if top is not None:
        for at, item in enumerate(_items(top.metrics, "metrics", problems)):
            made = _metric(item, f"metrics[{at}]", problems)
            metrics += [] if made is None else [made]
        steps = _steps(top.steps, problems)
    if problems:
        raise ConfigError("; ".join(problems))
    return AnalysisConfig(tuple(metrics), tuple(sorted(set(steps))))


def _yaml(path: str | Path) -> Any:
    try:
        loaded = conversion.load_yaml(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid YAML: {one_line(error)}") from None
    return loaded


def _items(value: object, where: str, problems: list[str]) -> list[Any]:
    if isinstance(value, list) and value:
        return value
    problems.append(f"{where} must be a list of at least one, not {value!r:.60}")
    return []


def _metric(item: Any, where: str, problems: list[str]) -> MetricConfig | None:
    made = conversion.build(MetricConfig, item, where, problems)
    if made is None:
        return None
    before = len(problems)
    name = made.metric_name
    known = {*_PLAIN, "norm", *registry.names()}
    if name not in known:
        what = f"{where}: no metric {name!r}.{did_you_mean(name, known)}"
        problems.append(what if name else f"{where} needs a metric_name")
        return None
    if (name == "norm") != (made.norm_type is not None) or made.norm_type not in (None, *NORMS):
        problems.append(
            f"{where}.norm_type must be one of {', '.join(NORMS)} for metric norm, and absent for "
            f"others, not {made.norm_type!r} for {name}"
        )
        return None
    compares = registry.get(made.ours).kind == "pair"
    if compares != (made.target_checkpoint is not None):
        problems.append(
            f"{where}: {name} compares two checkpoints and needs a target_checkpoint"
            if compares
            else f"{where}: {name} compares nothing, so target_checkpoint has no place there"
        )
    parts = [
        _component(part, f"{where}.components[{at}]", problems)
        for at, part in enumerate(_items(made.components, f"{where}.components", problems))
    ]
    if len(problems) > before:
        return None
    return MetricConfig(
        name, made.data_split, made.norm_type, made.target_checkpoint, tuple(filter(None, parts))
    )


def _component(item: Any, where: str, problems: list[str]) -> ComponentConfig | None:
    made: ComponentConfig | None = conversion.build(ComponentConfig, item, where, problems)
    if made is None:
        return None
    for key in ("component_name", "data_type", "layer_suffixes", "layers"):
        if key not in item:
            problems.append(f"{where} needs {key}")
            return None
    suffixes, layers = made.layer_suffixes, made.layers
    if made.component_name == "ov_circuit":
        wanted = {"output_layer", "value_layer"}
        is_right = isinstance(suffixes, Mapping) and set(suffixes) == wanted
        is_right = is_right and all(isinstance(v, str) for v in suffixes.values())  # type: ignore[attr-defined]
        shape = "a mapping of output_layer and value_layer to the ends of names"
    else:
        is_right, shape = isinstance(suffixes, str), "the end of a module's name"
    if not is_right:
        problems.append(f"{where}.layer_suffixes must be {shape}, not {suffixes!r:.80}")
    if not isinstance(layers, list) or not layers or not all(_is_count(n) for n in layers):
        problems.append(f"{where}.layers must be a list of layers from 0, not {layers!r:.60}")
    return made


def _steps(value: Any, problems: list[str]) -> list[int]:
    if isinstance(value, Mapping):
        made = conversion.build(_Range, value, "steps", problems)
        if made is None:
            return []
        if made.end is None or made.step < 1 or not 0 <= made.start <= made.end:
            problems.append("steps needs 0 ≤ start ≤ end, and a step of at least 1")
            return []
        if (made.end - made.start) // made.step >= _MOST_STEPS:
            problems.append(f"steps stands for more than {_MOST_STEPS} steps")
            return []
        return list(range(made.start, made.end + 1, made.step))
    steps = _items(value, "steps", problems)
    if not all(_is_count(step) for step in steps):
        problems.append(f"steps must be numbers from 0, not {steps!r:.60}")
        return []
    return steps


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
