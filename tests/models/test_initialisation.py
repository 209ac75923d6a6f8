"""What is declared of the initialisation is what the weights are drawn from."""

from __future__ import annotations

import re

import torch

from pico.config import ModelConfig
from pico.models import build
from pico.models.initialisation import declared

CONFIG = ModelConfig(d_model=192, n_layers=8, n_heads=4, n_kv_heads=2, context=32)


def test_weights_follow_what_is_declared_of_them() -> None:
    model = build(CONFIG, 500)
    said = declared(model.config, model)
    assert set(said) == {name for name, _ in model.named_parameters()}
    for name, parameter in model.named_parameters():
        words = re.fullmatch(r"(normal|constant)\(([^,]+)(?:, (.+))?\)", said[name])
        assert words is not None
        mean, std = float(words[2]), float(words[3] or 0)
        if words[1] == "constant":
            assert torch.equal(parameter, torch.full_like(parameter, mean))
        else:
            # five standard errors of mean and standard deviation of normal draws
            n = parameter.numel()
            assert abs(parameter.mean().item() - mean) < 5 * std / n**0.5, name
            assert abs(parameter.std().item() / std - 1) < 5 / (2 * n) ** 0.5, name


def test_layers_that_write_to_the_residual_stream_are_smaller() -> None:
    said = declared(CONFIG, build(CONFIG, 50))
    base = (2 / (5 * 192)) ** 0.5
    assert said["layers.0.attention.q_proj.weight"] == f"normal(0.0, {base})"
    assert said["layers.7.attention.o_proj.weight"] == f"normal(0.0, {base / 4})"
    assert said["output_norm.weight"] == "constant(1.0)"
