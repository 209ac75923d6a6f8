"""What a model says about each token of a probe.

The recorder calls it while training, `pico.evaluate` for stored checkpoints: the same numbers. It
promises to leave no trace on the model, and to hold the logits of a few positions at a time in
float64, whatever the vocabulary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn

from pico import schema
from pico.errors import RecordError
from pico.models import architecture
from pico.record import heads, hooks, passes
from pico.record.probes import Probe

Values: TypeAlias = np.ndarray[Any, Any]
_COLUMNS = {"loss": np.float64, "entropy": np.float64, "rank": np.int64, "top1_id": np.int64}
_ROWS = 1 << 16
"""Rows of a block."""
_CHUNK = 1 << 22
"""Logits that are looked at in float64 at a time, 32 MB of each of a few copies."""


def token_scores(
    model: nn.Module, probe: Probe, run: str, step: int, layer_scores: bool = False
) -> Iterator[pa.Table]:
    """Yield rows of the table `token_scores`, some sequences of a probe at a time.

    Numbers are gathered in blocks: small arrays that live on between the logits of one sequence and
    those of the next would pin the memory that both lie in.

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
    layers = [None, *(lens.layers if lens else ())]
    n_sequences, n = probe.tokens.shape[0], probe.tokens.shape[1] - 1
    at_a_time = max(1, _ROWS // max(1, len(layers) * n))
    with passes.undisturbed(model):
        for start in range(0, n_sequences, at_a_time):
            numbers = range(start, min(start + at_a_time, n_sequences))
            shape = (len(numbers), len(layers), n)
            columns = {name: np.empty(shape, kind) for name, kind in _COLUMNS.items()}
            for place, number in enumerate(numbers):
                ids = passes.token_ids(model, probe.tokens[number : number + 1])
                found = _of_sequence(model, ids, lens)
                for at, logits in enumerate(found):
                    targets = ids[0, 1:].to(logits.device)
                    for name, values in score_columns(logits[:n], targets).items():
                        columns[name][place, at] = values
            yield _rows(run, step, probe, numbers, layers, columns)


def _of_sequence(model: nn.Module, ids: Tensor, lens: _Lens | None) -> Iterator[Tensor]:
    """Yield the logits `(T, vocab_size)` of one sequence, then those after each block."""
    if lens is None:
        yield passes.logits_of(model, ids)[0]
        return
    with lens.watch() as streams:
        yield passes.logits_of(model, ids)[0]
    for layer in lens.layers:
        yield lens.logits(streams[layer])


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
        self.layers = list(self._points)

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
    run: str,
    step: int,
    probe: Probe,
    numbers: range,
    layers: Sequence[int | None],
    columns: Mapping[str, Values],
) -> pa.Table:
    """Return the rows of some sequences of a probe, layer by layer, position by position."""
    shape = columns["loss"].shape  # (sequences, layers, positions)
    part = slice(numbers.start, numbers.stop)

    def spread(values: Values, axes: tuple[int, ...]) -> Values:
        return np.broadcast_to(np.expand_dims(values, axes), shape).reshape(-1)

    n = shape[2]
    ids = np.array([int(probe.sequence_ids[number]) for number in numbers], np.int64)
    known = np.array([-1 if layer is None else layer for layer in layers], np.int32)
    unknown = np.isnan(columns["entropy"]).reshape(-1)
    counted = None if probe.counted is None else ~spread(probe.counted[part, :n], (1,))
    flat = {name: values.reshape(-1) for name, values in columns.items()}
    return schema.table("token_scores").batch(
        {
            "run_id": [run] * unknown.size,
            "global_step": np.full(unknown.size, step, np.int64),
            "probe": [probe.name] * unknown.size,
            "sequence_id": spread(ids, (1, 2)),
            "position": spread(np.arange(n), (0, 1)),
            "token_id": spread(probe.tokens[part, :n], (1,)),
            "target_id": spread(probe.tokens[part, 1:], (1,)),
            "layer": pa.array(spread(known, (0, 2)), mask=spread(known < 0, (0, 2))),
            "loss": pa.array(flat["loss"], mask=counted),
            "entropy": pa.array(flat["entropy"]),
            "rank": pa.array(flat["rank"].astype(np.int32), mask=unknown),
            "top1_id": pa.array(flat["top1_id"].astype(np.int32), mask=unknown),
        }
    )


def score_columns(logits: Tensor, targets: Tensor) -> dict[str, Values]:
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
