"""What a `record` mapping asks of probes: their sizes, and what to say of them when.

    probes:
      text: {n_sequences: 16, every: 50, record: [token_scores], layer_scores: true}
      repeat: {n_sequences: 8, schedule: pythia, record: [token_scores, attention]}

`plan.parse` calls `parse`. Without `record` a probe only has sizes, for `activations` that name it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pico.errors import ConfigError, did_you_mean
from pico.record import readers, schedule
from pico.record.schedule import NEVER, Schedule

PROBES = ("text", "repeat")
"""Probes that are built in."""
SCORES = ("token_scores", "attention")
"""What can be said of a probe besides its activations."""
SCORES_EVERY = 100
"""Steps between two scores where `record` has no schedule."""
_SIZES = ("n_sequences", "seq_len", "seed")


@dataclass(frozen=True)
class ProbePlan:
    """What is asked of one probe."""

    sizes: Mapping[str, int] = field(default_factory=dict)
    """`n_sequences`, `seq_len`, `seed` of a built-in probe, where they are given."""
    schedule: Schedule = NEVER
    """When it is scored."""
    scores: tuple[str, ...] = ()
    """Of `SCORES`."""
    layer_scores: bool = False
    """Whether tokens are scored after each block too."""


def parse(spec: Any, where: str) -> dict[str, ProbePlan]:
    """Read what is asked of probes, by name.

    Raises:
        ConfigError: naming the place.
    """
    if not isinstance(spec, Mapping):
        raise ConfigError(f"{where} must map probes to their settings, not {spec!r}")
    return {str(name): _probe(options, f"{where}.{name}") for name, options in spec.items()}


def _probe(spec: Any, where: str) -> ProbePlan:
    if not isinstance(spec, (Mapping, type(None))):
        raise ConfigError(f"{where} must be a mapping, not {spec!r}")
    given = dict(spec or {})
    options = (*_SIZES, "record", "layer_scores")
    when, given = readers.split(given, options, where)
    sizes = {
        key: readers.count(given[key], f"{where}.{key}", 0 if key == "seed" else 1)
        for key in _SIZES
        if key in given
    }
    if "record" not in given:
        extra = [key for key in spec or {} if key not in _SIZES]
        if extra:
            raise ConfigError(
                f"{where}.{extra[0]} is about scores; say which: record: [{', '.join(SCORES)}]"
            )
        return ProbePlan(sizes)
    scores = readers.words(given["record"], SCORES, "score", f"{where}.record")
    by_layer = readers.flag(given.get("layer_scores", False), f"{where}.layer_scores")
    if by_layer and "token_scores" not in scores:
        raise ConfigError(
            f"{where}.layer_scores is about token_scores; add it: record: [token_scores, …]"
        )
    if not any(key in (spec or {}) for key in (*schedule.KEYS, "schedule")):
        when = {"every": SCORES_EVERY}
    return ProbePlan(
        sizes,
        readers.ends(schedule.parse(when, where)),
        scores,
        by_layer,
    )


def unknown(probes: Mapping[str, ProbePlan], named: set[str]) -> list[str]:
    """Return what is wrong with sizes for probes that are neither built in nor named elsewhere."""
    return [
        f"record.probes: probe {name!r} cannot take settings; built in: {', '.join(PROBES)}."
        f"{did_you_mean(name, PROBES)}"
        for name, plan in probes.items()
        if name not in PROBES and name not in named and not plan.scores
    ]
