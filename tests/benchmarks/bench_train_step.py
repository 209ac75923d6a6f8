"""Time a training step of pico-decoder against `transformers.LlamaForCausalLM` of the same shape.

    python tests/benchmarks/bench_train_step.py [PAIRS]

Both models start from the same weights and see the same batches, in one process, turn by turn, with
the same optimizer (AdamW as in pico's trainer, fused for both), the same clipping and all threads.
The rival's loop is what its documentation shows: logits, cross entropy, backward.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from pico.config import ModelConfig
from pico.models import build, language_model_loss
from pico.models.hf import to_hf

BATCH, SEQ_LEN = 8, 512
PICO_TINY = ModelConfig(d_model=96)


def run(
    pairs: int = 9, config: ModelConfig = PICO_TINY, batch: int = BATCH, seq_len: int = SEQ_LEN
) -> dict[str, Any]:
    """Return medians in seconds, the ratio (above 1: ours is faster) and both last losses."""
    ours = build(config)
    theirs = to_hf(ours)
    vocab_size = ours.config.vocab_size
    draws = torch.Generator().manual_seed(0)

    def our_loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return language_model_loss(ours, x, y)[0]

    def their_loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        logits = theirs(input_ids=x, use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())

    steps = {"ours": _step(ours, our_loss), "theirs": _step(theirs, their_loss)}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    losses: dict[str, float] = {}
    for pair in range(pairs + 1):
        tokens = torch.randint(vocab_size, (batch, seq_len + 1), generator=draws)
        order = ("ours", "theirs") if pair % 2 else ("theirs", "ours")
        for name in order:
            start = time.perf_counter()
            losses[name] = steps[name](tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
            if pair:  # the first pair warms up
                seconds[name].append(time.perf_counter() - start)
    ratios = [b / a for a, b in zip(seconds["ours"], seconds["theirs"], strict=True)]
    return {
        "pairs": pairs,
        "threads": torch.get_num_threads(),
        "ours_s": statistics.median(seconds["ours"]),
        "theirs_s": statistics.median(seconds["theirs"]),
        "ratio": statistics.median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "ours_loss": losses["ours"],
        "theirs_loss": losses["theirs"],
    }


def _step(
    model: torch.nn.Module, loss_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> Callable[[torch.Tensor, torch.Tensor], float]:
    """Return forward, loss, backward, clip and update as one function of a batch."""
    model.train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )

    def step(x: torch.Tensor, y: torch.Tensor) -> float:
        loss = loss_of(x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    return step


def main() -> dict[str, Any]:
    """Run, print one line per number, and return them."""
    result = run(pairs=int(sys.argv[1]) if len(sys.argv) > 1 else 9)
    for name, value in result.items():
        print(f"{name:12} {value:.4f}" if isinstance(value, float) else f"{name:12} {value}")
    return result


if __name__ == "__main__":
    main()
