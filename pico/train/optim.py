"""AdamW and its learning rate, both as functions of the config and the step alone."""

from __future__ import annotations

import math

import torch
from torch import nn

from pico.config import OptimizerConfig


def build(model: nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """Return AdamW with two groups: matrices with weight decay, norms and biases without."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
    )


def learning_rate(config: OptimizerConfig, step: int, max_steps: int) -> float:
    """Return the learning rate of the update that turns state `step` into `step + 1`.

    Warm-up rises linearly and is above zero at step 0, so that checkpoint 0 and 1 differ; after it
    the rate falls to `min_lr_ratio` of the peak at `max_steps`.

    >>> [round(learning_rate(OptimizerConfig(lr=1.0, warmup_steps=2), s, 4), 2) for s in range(4)]
    [0.5, 1.0, 1.0, 0.5]
    """
    if step < config.warmup_steps:
        return config.lr * (step + 1) / config.warmup_steps
    span = max(max_steps - config.warmup_steps, 1)
    progress = min((step - config.warmup_steps) / span, 1.0)
    if config.schedule == "constant":
        share = 1.0
    elif config.schedule == "linear":
        share = 1.0 - progress
    else:
        share = 0.5 * (1.0 + math.cos(math.pi * progress))
    return config.lr * (config.min_lr_ratio + (1.0 - config.min_lr_ratio) * share)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the rate of every group."""
    for group in optimizer.param_groups:
        group["lr"] = rate
