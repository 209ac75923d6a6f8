"""Torch to the lake and back without losing a bit."""

from __future__ import annotations

import pytest
import torch

from pico.record.tensors import to_host, to_torch

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
    torch.complex64,
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (2, 0, 3)], ids=str)
def test_round_trip(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    n = torch.Size(shape).numel() * dtype.itemsize
    raw = torch.randint(0, 256, (n,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    if dtype is torch.bool:
        raw %= 2
    value = raw.view(dtype).reshape(shape)
    stored = to_host(value)
    assert (stored.dtype, stored.shape) == (str(dtype).removeprefix("torch."), shape)
    back = to_torch(stored)
    assert (back.dtype, back.shape) == (value.dtype, value.shape)
    assert back.reshape(-1).view(torch.uint8).tolist() == raw.tolist()


def test_a_copy_does_not_follow_its_original() -> None:
    value = torch.ones(3, requires_grad=True)
    stored = to_host(value)
    with torch.no_grad():
        value += 1
    assert stored.to_numpy().tolist() == [1, 1, 1]
    back = to_torch(stored)
    back += 5
    assert stored.to_numpy().tolist() == [1, 1, 1]


def test_views_that_are_not_contiguous() -> None:
    value = torch.arange(12.0).reshape(3, 4).T[1:]
    assert torch.equal(to_torch(to_host(value)), value)
