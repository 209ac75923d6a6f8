"""Small torch loops for the recorder's tests, and what the lake holds of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pico.record.recorder import Recorder
from tests.train import tiny

EVERYTHING: dict[str, Any] = {
    "checkpoints": True,
    "weights": True,
    "gradients": True,
    "optimizer": True,
    "activations": [{"schedule": True, "sites": ["0.out", "3.in"], "positions": "all"}],
    "tensor_stats": True,
}


def mlp(seed: int = 0, dropout: float = 0.0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Dropout(dropout), nn.Linear(6, 3))


def batch(step: int, rows: int = 5) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(1000 + step)
    return torch.randn(rows, 4, generator=draw), torch.randint(0, 3, (rows,), generator=draw)


def sgd(model: nn.Module, lr: float = 0.1) -> torch.optim.Optimizer:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.SGD(trained, lr=lr, momentum=0.9)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> float:
    """One update; gradients stay where they are until the next one."""
    inputs, targets = batch(number)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.item()


def state(model: nn.Module) -> dict[str, Any]:
    return {name: value.numpy().copy() for name, value in model.state_dict().items()}


def train(
    lake: Path | str,
    n_steps: int,
    record: dict[str, Any] | None,
    model: nn.Module | None = None,
    run: str = "plain",
    **options: Any,
) -> nn.Module:
    """Train an MLP for some steps with a recorder, closed at the end."""
    model = model or mlp()
    optimizer = sgd(model)
    with Recorder(str(lake), run, model, optimizer, record, **options) as recorder:
        for number in range(n_steps):
            loss = step(model, optimizer, number)
            recorder.step(loss=loss)
    return model


def hooks(model: nn.Module) -> int:
    """Count the hooks on all modules of a model."""
    return sum(
        len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()
    )


def numbers(lake: Path, table: str, run: str = "plain") -> list[int]:
    """The steps of a table, one for each of its rows or tensors."""
    return sorted(row["global_step"] for row in tiny.rows(lake, table, run))
