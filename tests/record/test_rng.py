"""Generators go on where they were, and their states are not pickles."""

from __future__ import annotations

import json
import random

import numpy as np
import torch

from pico.record import rng


def draws() -> list[float]:
    return [
        torch.rand(()).item(),
        torch.randn(()).item(),
        float(np.random.random()),
        float(np.random.standard_normal()),
        random.random(),
        random.gauss(0, 1),
    ]


def test_restored_generators_draw_the_same() -> None:
    draws()  # leaves numpy and Python with half a pair of normal numbers
    states = rng.capture()
    expected = [draws() for _ in range(700)]  # Mersenne twisters refill after 624
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    rng.restore(states)
    assert [draws() for _ in range(700)] == expected


def test_capturing_draws_nothing() -> None:
    before = rng.capture()
    assert rng.capture() == before


def test_absent_states_leave_a_generator_alone() -> None:
    before = rng.capture()
    rng.restore(dict.fromkeys(before))
    rng.restore({})
    assert rng.capture() == before


def test_states_are_plain_bytes() -> None:
    states = rng.capture()
    assert torch.get_rng_state().numpy().tobytes() == states["rng_torch"]
    for name in ("rng_numpy", "rng_python"):
        json.loads(states[name] or b"")
