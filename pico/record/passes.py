"""Passes a probe's tokens through a model, leaving no trace on it.

`scores`, `heads` and `Capture` call it while training, `pico.evaluate` for stored checkpoints: the
same passes, and so the same bits. A probe of many sequences goes through a few at a time, so that
memory does not grow with it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from pico.errors import RecordError
from pico.lake.table import TensorRow
from pico.record.hooks import TapPoint, Taps
from pico.record.probes import Probe

N_AT_A_TIME = 8
"""Sequences of a pass."""


def activations(model: nn.Module, probe: Probe, points: Sequence[TapPoint]) -> list[TensorRow]:
    """Return what a probe gives at some points of a model, as rows of the table `activations`.

    Raises:
        RecordError: if the model cannot take the tokens.
    """
    taps = Taps(model, points)
    with undisturbed(model):
        try:
            for piece in pieces(probe):
                output_of(model, token_ids(model, piece.tokens))
        finally:
            taps.remove()
    found = taps.rows(probe.name, probe.dataset, probe.sequence_ids)
    return [TensorRow({**r.keys, "input_hash": probe.input_hash}, r.tensor) for r in found]


def pieces(probe: Probe) -> Iterator[Probe]:
    """Yield a probe as probes of at most `N_AT_A_TIME` sequences."""
    for start in range(0, len(probe.tokens), N_AT_A_TIME):
        part = slice(start, start + N_AT_A_TIME)
        yield replace(
            probe,
            tokens=probe.tokens[part],
            sequence_ids=probe.sequence_ids[part],
            counted=None if probe.counted is None else probe.counted[part],
        )


def token_ids(model: nn.Module, tokens: npt.NDArray[np.int64]) -> Tensor:
    """Return token ids where the model is."""
    return torch.from_numpy(tokens).to(next(model.parameters()).device)


def output_of(model: nn.Module, ids: Tensor) -> Any:
    """Return what a model gives for token ids.

    Raises:
        RecordError: if it refuses them.
    """
    try:
        return model(ids)
    except (IndexError, RuntimeError) as error:
        told = " ".join(str(error).split())
        raise RecordError(f"the model cannot take the probe's tokens: {told:.200}") from None


def logits_of(model: nn.Module, ids: Tensor) -> Tensor:
    """Return the logits that a model gives, `(sequences, T, vocab_size)`.

    Raises:
        RecordError: if it gives something else, or refuses the tokens.
    """
    output = output_of(model, ids)
    logits = getattr(output, "logits", output)
    if not isinstance(logits, Tensor) or logits.ndim != 3 or logits.shape[:2] != ids.shape:
        shape = list(getattr(logits, "shape", []))
        raise RecordError(
            f"scores need logits [sequences, {ids.shape[1]}, vocabulary] from the model, not "
            f"{type(logits).__name__} {shape}"
        )
    return logits


@contextlib.contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Have the model evaluate without gradient, and put its modes back afterwards."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, was_training in modes.items():
            module.training = was_training
