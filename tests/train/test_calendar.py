"""Steps of one kind are alike in everything that a plan asks, and every step is of one kind."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from pico.record import plan as plans
from pico.record import schedule
from pico.train import calendar

PLANS: list[dict[str, Any]] = [
    {},
    {"weights": "pythia", "checkpoints": {"every": 7}, "commit_every": 4},
    {"weights": {"every": 5, "from": 3, "until": 40}, "pairs": True, "gradients": [1, 2, 30]},
    {
        "activations": [{"probe": "text", "sites": ["z"], "schedule": ["pythia", {"every": 9}]}],
        "metrics": {"names": ["per"], "every": 6, "tables": ["weights"]},
        "tensor_stats": {"gradients": {"every": 2}},
        "probes": {"text": {"every": 11, "record": ["token_scores"]}},
    },
]


@pytest.mark.parametrize("spec", PLANS)
@pytest.mark.parametrize("last", [0, 1, 2, 3, 50, 1100])
def test_kinds_are_those_of_every_step(spec: dict[str, Any], last: int) -> None:
    plan = plans.parse(spec)
    found = list(calendar._schedules(plan))

    def kind(step: int) -> tuple[bool, ...]:
        wants = [s.wants(at) for s in found for at in (step, step - 1)]
        return (*wants, step % plan.commit_every == 0)

    alone = {0, max(last - 1, 0), last}
    expected = Counter(kind(step) for step in range(last + 1) if step not in alone)
    kinds = calendar.kinds(plan, last)
    assert sum(n for _, n in kinds) == last + 1
    assert [n for step, n in kinds if step in alone] == [1.0] * len(alone)
    assert {kind(step): n for step, n in kinds if step not in alone} == expected


def test_few_kinds_of_very_many_steps() -> None:
    plan = plans.parse({"weights": "pythia", "checkpoints": {"every": 1000}})
    kinds = calendar.kinds(plan, 10**12)
    assert len(kinds) < 30
    assert sum(n for _, n in kinds) == pytest.approx(10**12 + 1, rel=1e-9)
    kept = sum(n for step, n in kinds if step and step % 1000 == 0)
    assert kept == pytest.approx(10**9, rel=1e-3)


@pytest.mark.parametrize("spec", ["pythia", "last", True, False, [3, 700], {"every": 6, "from": 2}])
def test_a_schedule_says_the_same_of_many_steps(spec: Any) -> None:
    made = schedule.parse([spec, {"every": 50, "from": 10, "until": 400}])
    steps = np.arange(-1, 3000)
    assert made.among(steps).tolist() == [made.wants(int(step)) for step in steps]
