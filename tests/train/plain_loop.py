"""The same training written again in plain torch: what the trainer and the lake are compared with.

Nothing here touches the trainer, Fabric, the recorder or its hooks: the model comes from
`models.build`, the tokens from `Lake.batch`, the loss is `F.cross_entropy` of the logits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pico import config as configs
from pico import models
from pico.api import Lake
from pico.config import RunConfig


class PlainLoop:
    """Trains step by step; `history` holds what each step was made of."""

    def __init__(self, mapping: dict[str, Any], lake: Lake, run: str) -> None:
        self.config: RunConfig = configs.load(mapping)
        (row,) = [r for r in lake.snapshot().read("runs", runs=[run]).to_pylist()]
        self.lake, self.run = lake, run
        self.model = models.build(self.config.model, row["vocab_size"], self.config.seeds.init)
        c = self.config.optimizer
        parameters = list(self.model.parameters())
        self.optimizer = torch.optim.AdamW(
            [
                {"params": [p for p in parameters if p.ndim > 1], "weight_decay": c.weight_decay},
                {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0},
            ],
            lr=c.lr,
            betas=c.betas,
            eps=c.eps,
        )

    def states(self) -> Iterator[dict[str, Any]]:
        """Yield, for every step of the run and the end, the state and what the batch caused."""
        for step in range(self.config.max_steps):
            found = {"step": step, **self._state(), **self._train(step)}
            yield found
        yield {"step": self.config.max_steps, **self._state()}

    def _state(self) -> dict[str, Any]:
        names = {id(p): name for name, p in self.model.named_parameters()}
        return {
            "weights": {k: v.numpy().copy() for k, v in self.model.state_dict().items()},
            "optimizer": {
                (names[id(p)], key): value.numpy().copy()
                for p, buffers in self.optimizer.state.items()
                for key, value in buffers.items()
            },
        }

    def _train(self, step: int) -> dict[str, Any]:
        c = self.config
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(step)
        tokens = torch.from_numpy(self.lake.batch(self.run, step))
        self.model.train()
        n_micro = c.batch.size // (c.batch.micro_size or c.batch.size)
        losses, per_sequence = [], []
        with site_hooks(self.model) as seen:
            for part in tokens.chunk(n_micro):
                logits = self.model(part[:, :-1])
                loss = F.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten())
                (loss / n_micro).backward()
                losses.append(loss.item())
                each = F.cross_entropy(
                    logits.detach().transpose(1, 2), part[:, 1:], reduction="none"
                )
                per_sequence += each.mean(dim=1).tolist()
        raw = gradients(self.model)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), c.optimizer.max_grad_norm)
        clipped = gradients(self.model)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return {
            "raw": raw,
            "clipped": clipped,
            "loss": sum(losses) / n_micro,
            "grad_norm": norm.item(),
            "lr": self.rate(step),
            "sequence_losses": per_sequence,
            "activations": {key: torch.cat(parts) for key, parts in seen.items()},
        }

    def rate(self, step: int) -> float:
        c = self.config.optimizer
        if step < c.warmup_steps:
            return c.lr * (step + 1) / c.warmup_steps
        share = (step - c.warmup_steps) / (self.config.max_steps - c.warmup_steps)
        fallen = 0.5 * (1 + math.cos(math.pi * share))
        return c.lr * (c.min_lr_ratio + (1 - c.min_lr_ratio) * fallen)


def gradients(model: nn.Module) -> dict[str, np.ndarray]:
    return {name: p.grad.numpy().copy() for name, p in model.named_parameters()}


@contextmanager
def site_hooks(model: nn.Module) -> Iterator[dict[tuple[str, int], list[Tensor]]]:
    """Collect every site of a pico-decoder with hooks of the test's own, `(B, T, …)` each."""
    seen: dict[tuple[str, int], list[Tensor]] = {}
    handles = []

    def output(site: str, layer: int) -> Callable[..., None]:
        return lambda _, __, out: seen.setdefault((site, layer), []).append(out.detach().clone())

    def given(site: str, layer: int) -> Callable[..., None]:
        return lambda _, args: seen.setdefault((site, layer), []).append(args[0].detach().clone())

    for n, layer in enumerate(model.layers):
        handles += [
            layer.register_forward_pre_hook(given("resid.pre", n)),
            layer.register_forward_hook(output("resid.post", n)),
            layer.attention.register_forward_hook(output("attn.out", n)),
            layer.swiglu.register_forward_hook(output("mlp.out", n)),
            layer.attention.o_proj.register_forward_pre_hook(given("z", n)),
            layer.swiglu.w_2.register_forward_pre_hook(given("mlp.hidden", n)),
            layer.attention.q_proj.register_forward_hook(output("q", n)),
            layer.attention.k_proj.register_forward_hook(output("k", n)),
            layer.attention.v_proj.register_forward_hook(output("v", n)),
        ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
        for n, _ in enumerate(model.layers):  # by definition, not by a hook
            both = zip(seen[("resid.pre", n)], seen[("attn.out", n)], strict=True)
            seen[("resid.mid", n)] = [before + attention for before, attention in both]


def at(value: Tensor, positions: list[int]) -> np.ndarray:
    """Return the rows of `(B, T, …)` at some positions, as the lake stores them."""
    return value[:, positions].reshape(value.shape[0] * len(positions), -1).numpy()
