"""Torch tensors to the lake's tensors and back, bit for bit.

`hooks` copies with `to_host` what is recorded; whoever restores a model uses `to_torch`.
"""

from __future__ import annotations

import numpy as np
import torch

from pico.lake import codec


def gathered(tensor: torch.Tensor) -> torch.Tensor:
    """Return the whole of a sharded tensor, and any other as it is; without a graph."""
    whole: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole.detach()


def to_host(tensor: torch.Tensor) -> codec.Tensor:
    """Copy a torch tensor to host memory; a sharded one is gathered first."""
    copied = gathered(tensor).to("cpu", copy=True).contiguous()
    name = str(copied.dtype).removeprefix("torch.")
    flat = copied.reshape(-1).view(torch.uint8).numpy().view(codec.storage(name))
    return codec.Tensor(name, tuple(copied.shape), flat)


def to_torch(tensor: codec.Tensor) -> torch.Tensor:
    """Return a new torch tensor on the CPU with the same type, shape and bits."""
    dtype: torch.dtype = getattr(torch, tensor.dtype)
    flat = torch.from_numpy(tensor.data.copy().view(np.uint8))
    return flat.view(dtype).reshape(tensor.shape)
