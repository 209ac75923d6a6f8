"""At which steps something is recorded: the grammar of every `schedule` in a `record` section.

    pythia                  0, 1, 2, 4, …, 512, then every 1000
    every: 50               0, 50, 100, …  (with `from` and `until` to narrow it)
    [0, 10, 300]            these steps
    [pythia, {every: 100}]  all of either
    last                    the last step of the run
    true / false            every step / never

A schedule is a pure function of the step, so that a resumed run records what an uninterrupted one
would have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from pico.errors import ConfigError, did_you_mean

NAMES = ("pythia", "last", "always", "never")
KEYS = ("every", "from", "until")
Steps: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Every:
    """Every `every` steps, from `start` up to and including `until`."""

    every: int
    start: int = 0
    until: int | None = None

    @overload
    def wants(self, step: int) -> bool: ...
    @overload
    def wants(self, step: Steps) -> npt.NDArray[np.bool_]: ...
    def wants(self, step: Any) -> Any:
        """Say whether the step is one of them, or of each step whether it is."""
        within = (step >= self.start) & (self.until is None or step <= self.until)
        return within & ((step - self.start) % self.every == 0)


_PYTHIA_FIRST = frozenset({0, *(2**n for n in range(10))})
_PYTHIA_LATER = Every(1000, start=1000)


@dataclass(frozen=True)
class Schedule:
    """The steps that any of its parts wants.

    >>> schedule = parse(["pythia", {"every": 100}])
    >>> list(schedule.planned(130))
    [0, 1, 2, 4, 8, 16, 32, 64, 100, 128]
    """

    rules: tuple[Every, ...] = ()
    steps: frozenset[int] = frozenset()
    pythia: bool = False
    last: bool = False

    def wants(self, step: int, is_last: bool = False) -> bool:
        """Say whether `step` is recorded; `is_last` marks the run's last step."""
        return (
            step in self.steps
            or (self.last and is_last)
            or (self.pythia and is_pythia_step(step))
            or any(rule.wants(step) for rule in self.rules)
        )

    def among(self, steps: Steps) -> npt.NDArray[np.bool_]:
        """Say of each step what `wants` says of it, where none is the last."""
        found = np.isin(steps, list(self.steps | (_PYTHIA_FIRST if self.pythia else set())))
        for rule in (*self.rules, *([_PYTHIA_LATER] if self.pythia else [])):
            found |= rule.wants(steps)
        return found

    def planned(self, last_step: int) -> Iterator[int]:
        """Yield the steps from 0 to `last_step` that the schedule wants, in order."""
        return (step for step in range(last_step + 1) if self.wants(step, step == last_step))

    @property
    def is_never(self) -> bool:
        """Whether no step is ever wanted."""
        return not (self.rules or self.steps or self.pythia or self.last)

    def __or__(self, other: Schedule) -> Schedule:
        """Return the schedule of the steps that either wants."""
        return Schedule(
            self.rules + other.rules,
            self.steps | other.steps,
            self.pythia or other.pythia,
            self.last or other.last,
        )


NEVER = Schedule()
"""The schedule that wants no step."""


def is_pythia_step(step: int) -> bool:
    """Say whether Pythia kept this step: 0, the powers of two to 512, then every 1000."""
    return step in _PYTHIA_FIRST or _PYTHIA_LATER.wants(step)


def parse(spec: Any, where: str = "schedule") -> Schedule:
    """Read a schedule from what YAML gives.

    Args:
        spec: see the module's grammar.
        where: the config key, for error messages.

    Raises:
        ConfigError: naming the key and what it may hold.
    """
    if spec is None or spec is False or spec == "never":
        return Schedule()
    if spec is True or spec == "always":
        return Schedule(rules=(Every(1),))
    if isinstance(spec, int):
        return Schedule(steps=frozenset([_step(spec, where)]))
    if isinstance(spec, str):
        if spec not in NAMES:
            raise ConfigError(
                f"{where}: no schedule {spec!r}.{did_you_mean(spec, NAMES)} "
                f"Use {', '.join(NAMES)}, every: N, or a list of steps"
            )
        return Schedule(pythia=spec == "pythia", last=spec == "last")
    if isinstance(spec, Mapping):
        return Schedule(rules=(_every(spec, where),))
    if isinstance(spec, Sequence):
        combined = Schedule()
        for part in spec:
            combined |= parse(part, where)
        return combined
    raise ConfigError(f"{where}: {spec!r} is no schedule")


def _every(spec: Mapping[str, Any], where: str) -> Every:
    for key in spec:
        if key not in KEYS:
            raise ConfigError(f"unknown config key '{where}.{key}'.{did_you_mean(str(key), KEYS)}")
    every = spec.get("every")
    if not isinstance(every, int) or isinstance(every, bool) or every < 1:
        raise ConfigError(f"{where}.every must be a whole number of at least 1, not {every!r}")
    until = spec.get("until")
    return Every(
        every,
        _step(spec.get("from", 0), f"{where}.from"),
        None if until is None else _step(until, f"{where}.until"),
    )


def _step(value: Any, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ConfigError(f"{where}: {value!r} is no step; steps are whole numbers from 0")
    return value
