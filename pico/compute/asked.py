"""What `pico metrics compute` is asked for: metrics by name, with their arguments and a reference.

`materialize` calls `choose`. A name may stand alone (`gini`), among others after commas
(`gini,per`), or with arguments of its function (`subspace_overlap(k=4)`). Metrics of two tensors
compare each tensor with the one of the same name at a `Reference`.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from pico.errors import MetricError, did_you_mean
from pico.metrics import attention, registry

Label: TypeAlias = tuple[str, str | None, int]
"""What a kept value is called: metric, arguments as JSON (None for none), version."""

_SPEC = re.compile(r"(?P<name>[^()=,]+?)\s*(?:\((?P<arguments>[^()]*)\))?")


@dataclass(frozen=True)
class Reference:
    """What tensors are compared with: the same tensor of another step, another run, or both."""

    run: str | None = None
    """None: the run itself."""
    step: int | Literal["last"] | None = None
    """None: the same step; `last`: the last step that the other run has in the table."""

    @classmethod
    def of(cls, run: str | None, step: int | str | None) -> Reference | None:
        """Return the reference that options ask for; None for none.

        Raises:
            MetricError: for a step that is neither a number nor `last`.
        """
        if run is None and step is None:
            return None
        if step is None or step == "last":
            return cls(run, "last" if step else None)
        if not re.fullmatch(r"[0-9]{1,18}", str(step)):
            raise MetricError(f"a reference step is a number or last, not {step!r}")
        return cls(run, int(step))


@dataclass(frozen=True)
class Asked:
    """A metric with its arguments."""

    metric: registry.Metric
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Those that differ from the defaults."""

    @property
    def label(self) -> Label:
        """What its values are kept under."""
        args = json.dumps(dict(sorted(self.arguments.items()))) if self.arguments else None
        return self.metric.name, args, self.metric.version


def choose(
    names: str | Iterable[str] | None, reference: Reference | None
) -> tuple[list[Asked], list[Asked]]:
    """Return the metrics of one tensor and those of two that are asked for.

    Args:
        names: by default all of one tensor but those that must be asked for.
        reference: what tensors are compared with.

    Raises:
        MetricError: for an unknown metric or argument, for a metric of two tensors without a
            reference, and for a reference without such a metric.
    """
    if names is None:
        found = [registry.get(name) for name in registry.names()]
        chosen = [Asked(m) for m in found if m.kind != "pair" and not m.on_request]
    else:
        specs = [spec for text in _listed(names) for spec in _split(text)]
        chosen = list({asked.label: asked for asked in map(_parse, specs)}.values())
    pairs = [asked for asked in chosen if asked.metric.kind == "pair"]
    if pairs and reference is None:
        name = pairs[0].metric.name
        raise MetricError(
            f"metric {name!r} compares two tensors; say with which: --reference-step last or a "
            f"number, --reference-run RUN; or ask in SQL: {name}(a.tensor, b.tensor)"
        )
    if reference is not None and not pairs:
        known = ", ".join(registry.names("pair"))
        raise MetricError(f"a reference is for metrics of two tensors; name some of: {known}")
    return [asked for asked in chosen if asked.metric.kind != "pair"], pairs


def _listed(names: str | Iterable[str]) -> Sequence[str]:
    return [names] if isinstance(names, str) else list(names)


def _split(text: str) -> list[str]:
    """Split at commas that stand outside parentheses.

    >>> _split("gini, subspace_overlap(k=2),per")
    ['gini', 'subspace_overlap(k=2)', 'per']
    """
    return [part.strip() for part in re.split(r",(?![^(]*\))", text)]


def _parse(spec: str) -> Asked:
    """Return the metric that a text names.

    >>> _parse("subspace_overlap(k=2)").label
    ('subspace_overlap', '{"k": 2}', 1)
    """
    found = _SPEC.fullmatch(spec)
    if found is None:
        raise MetricError(f"{spec!r} names no metric; write gini, or subspace_overlap(k=4)")
    if found["name"] in attention.HEAD_SCORES:
        raise MetricError(
            f"{found['name']} is about attention heads, not about one tensor: pico probe RUN "
            "--record attention keeps it in metrics; in SQL it takes q.rot and k.rot, see pico "
            "functions"
        )
    metric = registry.get(found["name"])
    arguments = {}
    for part in filter(None, (part.strip() for part in (found["arguments"] or "").split(","))):
        key, _, text = (word.strip() for word in part.partition("="))
        if key not in metric.arguments:
            hint = did_you_mean(key, metric.arguments)
            raise MetricError(
                f"metric {metric.name!r} has no argument {key!r}.{hint} "
                f"It has: {', '.join(metric.arguments) or 'none'}"
            )
        arguments[key] = _number(metric, key, text)
    defaults = metric.arguments
    return Asked(metric, {k: v for k, v in arguments.items() if v != defaults[k]})


def _number(metric: registry.Metric, key: str, text: str) -> int | float:
    """Return a number of the type that the argument's default has."""
    kind = type(metric.arguments[key])
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise MetricError(f"{metric.name}({key}=…) takes a number, not {text!r}")
    if kind is int and value != int(value):
        raise MetricError(f"{metric.name}({key}=…) takes a whole number, not {text!r}")
    return int(value) if kind is int else float(value)
