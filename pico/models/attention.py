"""Causal attention, three ways: torch's fused kernels, the plain formula, and flash-attn.

`pico.models.decoder` looks one up in `ATTENTION` by the config's `attn_implementation` (the words
are Hugging Face's). All take queries `(B, T, n_heads, d_head)`, keys and values
`(B, S, n_kv_heads, d_head)` with `T <= S`, let the last query see every key, and return
`(B, T, n_heads, d_head)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pico.errors import MissingExtraError

_MIN_CPU_HEAD = 16  # narrower heads leave the CPU kernel's vectors half empty; see `sdpa`


def causal_mask(n_queries: int, n_keys: int, device: torch.device) -> Tensor:
    """Return which keys each query sees, `(T, S)`; the last query is the last key's."""
    ones = torch.ones(n_queries, n_keys, dtype=torch.bool, device=device)
    return ones.tril(n_keys - n_queries)


def _repeat_heads(x: Tensor, q: Tensor) -> Tensor:
    """Repeat key or value heads until each query head has its own, `(B, S, n_heads, d_head)`."""
    return x.repeat_interleave(q.shape[2] // x.shape[2], dim=2)


def _kernel_shares_heads(q: Tensor, mask: Tensor | None) -> bool:
    """Tell whether a fused kernel takes fewer key-value heads than query heads.

    The CPU's does (and is as fast as with repeated heads). On a GPU only flash attention does,
    which wants half precision and no mask; else torch would fall back to the full `T × S` matrix
    without a word.
    """
    half = q.dtype in (torch.float16, torch.bfloat16)
    return q.device.type == "cpu" or (half and mask is None)


def sdpa(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend through torch's fused kernels."""
    n_queries, n_keys, d_head = q.shape[1], k.shape[1], q.shape[-1]
    if d_head < _MIN_CPU_HEAD and q.device.type == "cpu":
        # Zeros add nothing to a score; measured at d_head 8, forward and backward take 84 ms
        # instead of 130 (and heads of 16 are no slower than heads of 8 were).
        q, k, v = (F.pad(x, (0, _MIN_CPU_HEAD - d_head)) for x in (q, k, v))
    whole = n_queries == n_keys
    mask = None if whole or n_queries == 1 else causal_mask(n_queries, n_keys, q.device)
    if not _kernel_shares_heads(q, mask):
        k, v = _repeat_heads(k, q), _repeat_heads(v, q)
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)  # (B, heads, T or S, d_head)
    z = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=whole, scale=d_head**-0.5, enable_gqa=True
    )
    return z.transpose(1, 2)[..., :d_head]


def eager(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend by the formula, the softmax in float32 at least: slow, for checks."""
    k, v = _repeat_heads(k, q), _repeat_heads(v, q)
    scores = torch.einsum("bthd,bshd->bhts", q, k) * q.shape[-1] ** -0.5  # (B, n_heads, T, S)
    wide = scores if scores.dtype == torch.float64 else scores.float()
    mask = causal_mask(q.shape[1], k.shape[1], q.device)
    pattern = wide.masked_fill(~mask, -math.inf).softmax(dim=-1).type_as(v)
    return torch.einsum("bhts,bshd->bthd", pattern, v)


def flash_attention_2(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend through the `flash-attn` package, which wants half precision on a GPU."""
    z: Tensor = import_flash_attn().flash_attn_func(q, k, v, causal=True)
    return z


def import_flash_attn() -> Any:
    """Return the module, or raise `MissingExtraError`."""
    try:
        import flash_attn
    except ImportError:
        raise MissingExtraError("flash-attn", "flash") from None
    return flash_attn


ATTENTION: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "sdpa": sdpa,
    "eager": eager,
    "flash_attention_2": flash_attention_2,
}
