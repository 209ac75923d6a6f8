"""What the attention heads of a model look at, as rows of the table `metrics`.

The recorder calls it while training, `pico.evaluate` for stored checkpoints: the same numbers.
Queries and keys of a few sequences are held at a time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import xxhash
from torch import nn

from pico.metrics import attention
from pico.models import architecture
from pico.record import hooks, passes
from pico.record.hooks import TapPoint
from pico.record.probes import Probe

SITES = ("q.rot", "k.rot")
"""Where queries and keys are recorded."""


def head_scores(model: nn.Module, probe: Probe) -> list[dict[str, Any]]:
    """Return rows of the table `metrics` about every attention head, without run and step.

    `attention_entropy`, `previous_token_score` and, of a probe whose second half repeats the first,
    `induction_score`: those of `pico.metrics`, from queries and keys as recorded at `q.rot` and
    `k.rot`. Component and site are `attention`, name is that of the `q.rot` activation, and the
    hash is over the hashes of both activations, pass by pass.

    Args:
        model: a model whose queries and keys can be recorded.
        probe: the tokens, `(n_sequences, n_tokens)`.

    Raises:
        RecordError: for a model that has no such sites, or refuses the tokens.
    """
    points = hooks.resolve(model, SITES, None)
    taps = [TapPoint(point, "all") for point in points]
    sizes = architecture.size(model)
    n_heads, n_kv_heads = int(sizes["n_heads"] or 0), int(sizes["n_kv_heads"] or 0)
    metrics = attention.HEAD_SCORES if is_repeat(probe) else attention.HEAD_SCORES[:-1]
    names = {p.layer: p.module_name for p in points if p.site == "q.rot"}
    means = {layer: {metric: np.zeros(n_heads) for metric in metrics} for layer in names}
    hashes: dict[int | None, list[str]] = {layer: [] for layer in names}
    for piece in passes.pieces(probe):
        found = {
            (row.keys["site"], row.keys["layer"]): row.tensor
            for row in passes.activations(model, piece, taps)
        }
        for layer, of_layer in means.items():
            q, k = found["q.rot", layer], found["k.rot", layer]
            shape = (*piece.tokens.shape, -1)
            queries, keys = (tensor.to_numpy().reshape(shape) for tensor in (q, k))
            scores = attention.head_scores(queries, keys, n_heads, n_kv_heads, metrics)
            for metric, values in scores.items():
                of_layer[metric] += len(piece.tokens) / len(probe.tokens) * np.asarray(values)
            hashes[layer] += [q.content_hash, k.content_hash]
    return [
        {
            "table_name": "activations",
            "name": names[layer],
            "layer": layer,
            "component": "attention",
            "site": "attention",
            "probe": probe.name,
            "tensor_hash": xxhash.xxh3_128_hexdigest(" ".join(hashes[layer]).encode()),
            "metric_version": attention.VERSION,
            "head": head,
            "metric": metric,
            "value": float(value),
        }
        for layer in sorted(means, key=lambda layer: layer or 0)
        for metric, values in means[layer].items()
        for head, value in enumerate(values)
    ]


def is_repeat(probe: Probe) -> bool:
    """Whether the second half of every sequence repeats the first."""
    half = probe.tokens.shape[1] // 2
    first, second = probe.tokens[:, :half], probe.tokens[:, half : 2 * half]
    return half > 0 and probe.tokens.shape[1] == 2 * half and bool((first == second).all())
