"""Fifty checkpoints of a small model, written as a lake, as `.pt` files and as safetensors.

Shared by the benchmarks that read. The weights start from the model's own initialisation and drift
by a little noise from checkpoint to checkpoint; the lake is written by `pico.Recorder`, so that its
files, its log and its `tensor_stats` are what training leaves behind.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file

import pico
from pico.config import ModelConfig
from pico.models import build

MODEL = ModelConfig(d_model=96, n_layers=12, vocab_size=8192, context=512)
"""3.2 million parameters; attention matrices are 96 x 96."""
RUN = "drift"
N_CHECKPOINTS = 50


@dataclass(frozen=True)
class Checkpoints:
    """Where the same tensors lie in three forms."""

    lake: str
    torch_files: list[Path]
    safetensors_files: list[Path]
    n_parameters: int


@contextmanager
def written(
    config: ModelConfig = MODEL, n_checkpoints: int = N_CHECKPOINTS
) -> Iterator[Checkpoints]:
    """Write the checkpoints into a temporary folder, which is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="pico-bench-") as name:
        folder = Path(name)
        model = build(config)
        noise = torch.Generator().manual_seed(1)
        lake = str(folder / "lake")
        recorder = pico.Recorder(lake, RUN, model, record={"weights": True})
        files: tuple[list[Path], list[Path]] = ([], [])
        for step in range(n_checkpoints):
            if step:
                _drift(model, noise)
                recorder.step()
            state = {key: value.clone() for key, value in model.state_dict().items()}
            files[0].append(folder / f"{step}.pt")
            torch.save(state, files[0][-1])
            files[1].append(folder / f"{step}.safetensors")
            save_file(state, files[1][-1])
        recorder.close()
        yield Checkpoints(lake, *files, sum(p.numel() for p in model.parameters()))


@torch.no_grad()
def _drift(model: torch.nn.Module, noise: torch.Generator) -> None:
    for parameter in model.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=noise), alpha=1e-3)
