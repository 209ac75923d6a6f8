"""The attention kernels against each other on bare tensors."""

from __future__ import annotations

import sys
import types

import pytest
import torch

from pico.models import attention
from pico.models.attention import ATTENTION, causal_mask, eager, sdpa


def heads(n_queries: int, n_keys: int, d_head: int) -> tuple[torch.Tensor, ...]:
    draw = torch.Generator().manual_seed(n_queries * 100 + d_head)
    shapes = ((2, n_queries, 6, d_head), (2, n_keys, 2, d_head), (2, n_keys, 2, d_head))
    return tuple(torch.randn(shape, generator=draw, dtype=torch.float64) for shape in shapes)


def by_hand(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """One query head at a time, one position at a time."""
    out = torch.empty_like(q)
    first = k.shape[1] - q.shape[1]
    for b in range(q.shape[0]):
        for t in range(q.shape[1]):
            for h in range(q.shape[2]):
                seen = slice(0, first + t + 1)
                scores = k[b, seen, h // 3] @ q[b, t, h] / q.shape[-1] ** 0.5
                out[b, t, h] = scores.softmax(0) @ v[b, seen, h // 3]
    return out


@pytest.mark.parametrize("d_head", [4, 8, 16, 20])
@pytest.mark.parametrize(("n_queries", "n_keys"), [(7, 7), (1, 7), (3, 7), (1, 1)])
@pytest.mark.parametrize("shares", [True, False])
def test_kernels_equal_the_formula(
    d_head: int, n_queries: int, n_keys: int, shares: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "_kernel_shares_heads", lambda *_: shares)
    tensors = heads(n_queries, n_keys, d_head)
    expected = by_hand(*tensors)
    for kernel in (sdpa, eager):
        found = kernel(*tensors)
        assert found.shape == expected.shape
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_only_flash_attention_shares_heads_on_a_gpu() -> None:
    with torch.device("meta"):
        single, half = torch.empty(1), torch.empty(1, dtype=torch.bfloat16)
    mask = causal_mask(1, 2, torch.device("cpu"))
    assert attention._kernel_shares_heads(torch.empty(1), mask)
    assert attention._kernel_shares_heads(half, None)
    assert not attention._kernel_shares_heads(half, mask)
    assert not attention._kernel_shares_heads(single, None)


def test_causal_mask_lets_the_last_query_see_every_key() -> None:
    assert causal_mask(2, 4, torch.device("cpu")).int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]


def test_flash_attention_is_called_with_its_own_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-in for a package without wheels: the layout it documents, computed by the formula."""
    seen = []

    def flash_attn_func(q, k, v, causal):
        seen.append((q.shape, k.shape, causal))
        return eager(q, k, v)

    package = types.SimpleNamespace(flash_attn_func=flash_attn_func)
    monkeypatch.setitem(sys.modules, "flash_attn", package)
    tensors = heads(5, 5, 8)
    assert torch.equal(ATTENTION["flash_attention_2"](*tensors), eager(*tensors))
    assert seen == [((2, 5, 6, 8), (2, 5, 2, 8), True)]
