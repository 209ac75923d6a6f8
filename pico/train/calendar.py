"""The steps of a run by what is recorded at them: few kinds, however many steps.

`forecast` asks it, so that a plan of a million steps takes no longer than one of a thousand.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from pico.record.plan import RecordPlan
from pico.record.schedule import Schedule

_CHUNK = 1 << 18
_MOST = 1 << 22
"""Of longer runs so many steps are looked at, and taken for all."""


def kinds(plan: RecordPlan, last: int) -> list[tuple[int, float]]:
    """Return a step of each kind and how many of that kind there are.

    Steps are of one kind if the same schedules want them and the steps before them, and if both or
    neither end a batch of commits. The first step and the last two are kinds of their own.

    Args:
        plan: what is recorded when.
        last: the last step; 0 is the first.

    Returns:
        Pairs in the order of their steps; the numbers add up to `last + 1`. Of a run of more than
        four million steps the numbers are those of the first, scaled.
    """
    schedules = list(dict.fromkeys(_schedules(plan)))
    ends = sorted({0, max(last - 1, 0), last})
    first, until = 1, min(last - 1, _MOST)
    firsts: dict[bytes, int] = {}
    counts: Counter[bytes] = Counter()
    for start in range(first, until, _CHUNK):
        steps = np.arange(start, min(start + _CHUNK, until))
        marks = [schedule.among(steps) for schedule in schedules]
        marks += [schedule.among(steps - 1) for schedule in schedules]
        marks.append(steps % plan.commit_every == 0)
        kind = np.packbits(np.stack(marks, axis=1), axis=1)
        found, places, numbers = np.unique(kind, axis=0, return_index=True, return_counts=True)
        for row, place, number in zip(found, places, numbers, strict=True):
            firsts.setdefault(row.tobytes(), int(steps[place]))
            counts[row.tobytes()] += int(number)
    scale = max(last - 1 - first, 0) / max(until - first, 1)
    middle = [(step, counts[kind] * scale) for kind, step in firsts.items()]
    return sorted([*((step, 1.0) for step in ends), *middle])


def _schedules(part: Any) -> Iterator[Schedule]:
    """Yield every schedule in a plan."""
    if isinstance(part, Schedule):
        yield part
    elif dataclasses.is_dataclass(part) and not isinstance(part, type):
        for field in dataclasses.fields(part):
            yield from _schedules(getattr(part, field.name))
    elif isinstance(part, Mapping):
        for item in part.values():
            yield from _schedules(item)
    elif isinstance(part, (list, tuple)):
        for item in part:
            yield from _schedules(item)
