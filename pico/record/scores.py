"""What a model says about each token of a probe.

The recorder calls it while training, `pico.evaluate` for stored checkpoints: the same numbers. It
promises to leave no trace on the model, and to hold the logits of a few positions at a time in
float64, whatever the vocabulary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn

from pico import schema
from pico.errors import RecordError
from pico.models import architecture
from pico.record import heads, hooks, passes
from pico.record.probes import Probe

_CHUNK = 1 << 22
"""Logits that are looked at in float64 at a time, 32 MB of each of a few copies."""


def token_scores(
    model: nn.Module, probe: Probe, run: str, step: int, layer_scores: bool = False
) -> Iterator[pa.Table]:
    """Yield rows of the table `token_scores`, a table for each sequence of a probe.

    Every token but a sequence's last is an input with a target, the token after it. From logits z
    in float64: loss = ln Σ exp z - z[target]; entropy = -Σ p ln p; rank = tokens with z above that
    of the target; top1 = the token with the highest z.

    Args:
        model: a model of tokens, that gives logits or an output with `logits`.
        probe: the tokens, `(n_sequences, n_tokens)`.
        run: name of the run, for the rows.
        step: the step of the model's state, for the rows.
        layer_scores: score the stream after each block as well, through the final norm and the
            unembedding (logit lens); `layer` is the block.

    Raises:
        RecordError: if the model cannot take the tokens, or with `layer_scores` is of no family
            whose blocks, final norm and unembedding are known.
    """
    lens = _Lens(model) if layer_scores else None
    device = next(model.parameters()).device
    with passes.undisturbed(model):
        for number, sequence_id in enumerate(probe.sequence_ids):
            ids = torch.from_numpy(probe.tokens[number : number + 1]).to(device)
            if lens is None:
                of_layers, logits = {}, passes.logits_of(model, ids)[0]  # (T, vocab_size)
            else:
                with lens.watch() as streams:
                    logits = passes.logits_of(model, ids)[0]
                of_layers = {layer: lens.logits(x) for layer, x in streams.items()}
            yield pa.concat_tables(
                _rows(run, step, probe, number, int(sequence_id), layer, each)
                for layer, each in [(None, logits), *of_layers.items()]
            )


def check(model: nn.Module, of_heads: bool, layer_scores: bool) -> None:
    """Refuse scores that a model cannot give.

    Raises:
        RecordError: saying which.
    """
    if of_heads:
        hooks.resolve(model, heads.SITES, None)
    if layer_scores:
        _Lens(model)


class _Lens:
    """The stream after each block, read as the model reads the last one."""

    def __init__(self, model: nn.Module) -> None:
        self._modules = dict(model.named_modules())
        norm, unembed = (architecture.module_of(model, c) for c in ("norm.final", "unembed"))
        points = architecture.sites(model).get("resid.post", [])
        if norm is None or unembed is None or not points:
            raise RecordError(
                f"layer scores need a model whose blocks, final norm and unembedding are known; "
                f"{type(model).__name__} is of none of these families"
            )
        self._norm, self._unembed = self._modules[norm], self._modules[unembed]
        self._points = {int(point.layer or 0): point.module_name for point in points}

    @contextlib.contextmanager
    def watch(self) -> Iterator[dict[int, Tensor]]:
        """Collect the stream after each block, `(T, d_model)`, of the pass that follows."""
        streams: dict[int, Tensor] = {}

        def keep(layer: int) -> Any:
            def hook(module: nn.Module, args: Any, output: Any) -> None:
                streams[layer] = (output if isinstance(output, Tensor) else output[0])[0]

            return hook

        handles = [
            self._modules[name].register_forward_hook(keep(layer))
            for layer, name in self._points.items()
        ]
        try:
            yield streams
        finally:
            for handle in handles:
                handle.remove()

    def logits(self, stream: Tensor) -> Tensor:
        """Return the logits of a stream `(T, d_model)`, `(T, vocab_size)`."""
        logits: Tensor = self._unembed(self._norm(stream))
        return logits


def _rows(
    run: str, step: int, probe: Probe, number: int, sequence_id: int, layer: int | None, z: Tensor
) -> pa.Table:
    """Return the rows of one sequence and layer."""
    tokens, n = probe.tokens[number], probe.tokens.shape[1] - 1
    targets = tokens[1:]
    columns = score_columns(z[:n], torch.from_numpy(targets).to(z.device))
    unknown = np.isnan(columns["entropy"])
    uncounted = None if probe.counted is None else ~probe.counted[number, :n]
    return schema.table("token_scores").batch(
        {
            "run_id": [run] * n,
            "global_step": [step] * n,
            "probe": [probe.name] * n,
            "sequence_id": [sequence_id] * n,
            "position": list(range(n)),
            "token_id": tokens[:n].tolist(),
            "target_id": targets.tolist(),
            "layer": [layer] * n,
            "loss": pa.array(columns["loss"], mask=uncounted),
            "entropy": pa.array(columns["entropy"]),
            "rank": pa.array(columns["rank"].astype(np.int32), mask=unknown),
            "top1_id": pa.array(columns["top1_id"].astype(np.int32), mask=unknown),
        }
    )


def score_columns(logits: Tensor, targets: Tensor) -> dict[str, np.ndarray[Any, Any]]:
    """Return loss, entropy, rank and most likely token of each position.

    Args:
        logits: `(T, vocab_size)`.
        targets: `(T,)` token ids.

    Returns:
        `loss`, `entropy` (nats, float64), `rank`, `top1_id` (int64), each `(T,)`. A NaN among the
        logits of a position makes its loss and entropy NaN, and its rank and token mean nothing.
    """
    parts: dict[str, list[Tensor]] = {"loss": [], "entropy": [], "rank": [], "top1_id": []}
    n_rows = max(1, _CHUNK // max(1, logits.shape[1]))
    for start in range(0, logits.shape[0], n_rows):
        z = logits[start : start + n_rows].double()  # (R, vocab_size)
        target = targets[start : start + n_rows, None]  # (R, 1)
        log_p = z.log_softmax(dim=1)
        terms = (log_p.exp() * log_p).masked_fill(log_p == -torch.inf, 0.0)  # 0 ln 0 = 0
        parts["loss"].append(-log_p.gather(1, target)[:, 0])
        parts["entropy"].append(-terms.sum(dim=1))
        parts["rank"].append((z > z.gather(1, target)).sum(dim=1))
        parts["top1_id"].append(z.argmax(dim=1))
    return {name: torch.cat(found).cpu().numpy() for name, found in parts.items()}
