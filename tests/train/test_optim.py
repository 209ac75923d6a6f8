"""AdamW's groups and the learning rate as a function of the step."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pico import models
from pico.config import ModelConfig, OptimizerConfig
from pico.train import optim

ROOT = math.sqrt(2)  # cos(π / 4) = 1 / √2
TABLE = {
    "constant": [0.25, 0.5, 0.75, 1, 1, 1, 1, 1, 1],
    "linear": [0.25, 0.5, 0.75, 1, 1, 0.775, 0.55, 0.325, 0.1],
    "cosine": [0.25, 0.5, 0.75, 1, 1, 0.55 + 0.45 / ROOT, 0.55, 0.55 - 0.45 / ROOT, 0.1],
}


@pytest.mark.parametrize("schedule", TABLE)
def test_rates_by_hand(schedule: str) -> None:
    config = OptimizerConfig(lr=2.0, warmup_steps=4, schedule=schedule, min_lr_ratio=0.1)  # type: ignore[arg-type]
    rates = [optim.learning_rate(config, step, 8) for step in range(9)]
    # four steps of warm-up, the peak at step 4 again, then the fall to a tenth at step 8
    assert rates == pytest.approx([2 * share for share in TABLE[schedule]])


@given(
    st.sampled_from(["constant", "linear", "cosine"]),
    st.integers(0, 50),
    st.integers(1, 100),
    st.floats(0, 1),
)
def test_rates_rise_and_then_fall(schedule: str, warmup: int, n: int, floor: float) -> None:
    config = OptimizerConfig(
        lr=1.0,
        warmup_steps=warmup,
        schedule=schedule,  # type: ignore[arg-type]
        min_lr_ratio=floor,
    )
    rates = [optim.learning_rate(config, step, n) for step in range(n)]
    assert all(0 < rate <= 1 + 1e-12 for rate in rates)
    rising, falling = rates[:warmup], rates[warmup:]
    assert rising == sorted(rising)
    assert all(a >= b - 1e-12 for a, b in itertools.pairwise(falling))
    assert all(rate >= floor - 1e-12 for rate in falling)


def test_beyond_the_end_the_rate_stays() -> None:
    config = OptimizerConfig(lr=1.0, schedule="cosine", min_lr_ratio=0.2)
    assert optim.learning_rate(config, 500, 10) == pytest.approx(0.2)


def test_norms_do_not_decay() -> None:
    model = models.build(ModelConfig(d_model=24, n_layers=1, n_heads=2, n_kv_heads=1), 30)
    model.embedding_proj.weight.requires_grad_(False)
    config = OptimizerConfig(lr=0.5, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.3)
    matrices, vectors = optim.build(model, config).param_groups
    assert (matrices["weight_decay"], vectors["weight_decay"]) == (0.3, 0.0)
    assert (matrices["lr"], matrices["betas"], matrices["eps"]) == (0.5, (0.8, 0.9), 1e-6)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert {names[id(p)] for p in vectors["params"]} == {
        "layers.0.attention_norm.weight",
        "layers.0.swiglu_norm.weight",
        "output_norm.weight",
    }
    assert len(matrices["params"]) == 4 + 3 + 1  # attention, SwiGLU, unembedding; one is frozen


def test_a_model_without_vectors() -> None:
    optimizer = optim.build(torch.nn.Linear(2, 2, bias=False), OptimizerConfig())
    assert len(optimizer.param_groups) == 1
    optim.set_learning_rate(optimizer, 0.25)
    assert optimizer.param_groups[0]["lr"] == 0.25
