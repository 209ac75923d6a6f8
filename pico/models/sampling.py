"""How the next token is drawn from a model's logits; `PicoDecoder.generate` calls it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pico.errors import DataError


def sample(
    logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator
) -> Tensor:
    """Draw one token per row from `softmax(logits / temperature)`.

    Args:
        logits: float32 on the generator's device, `(B, vocab_size)`.
        temperature: 0 takes the likeliest token (the first of equals).
        top_k: only the `top_k` likeliest tokens, and their equals, can be drawn.
        generator: the source of randomness.

    Returns:
        Token ids, `(B, 1)`.

    Raises:
        DataError: when the temperature is negative or `top_k` below 1.
    """
    if not temperature >= 0 or (top_k is not None and top_k < 1):
        raise DataError(
            f"sampling needs temperature >= 0 and top_k >= 1, not {temperature} and {top_k}"
        )
    if temperature == 0:
        return logits.argmax(dim=-1, keepdim=True)
    if top_k is not None and top_k < logits.shape[-1]:
        floor = logits.topk(top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < floor, -math.inf)
    probabilities = (logits / temperature).softmax(dim=-1)
    return torch.multinomial(probabilities, num_samples=1, generator=generator)
