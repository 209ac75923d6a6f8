"""The training loss: mean cross entropy, and the mean of each sequence at no extra cost.

The trainer, the held-out evaluation and studies call `language_model_loss`. Up to `MAX_LOGITS`
logits it is the plain expression, and its gradients are those of
`F.cross_entropy(model(x).flatten(0, 1), targets.flatten())` bit for bit. Above that the logits
never exist all at once: a vocabulary of 50,304 times 4,096 tokens is 824 MB, read and written some
eight times, and on a CPU that traffic costs more than the matrix products.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from pico.models.decoder import PicoDecoder

IGNORED = -100
"""A target that counts for nothing (torch's convention)."""

MAX_LOGITS = 2**24
"""Most logits held at once, 64 MB of float32; beyond it the loss goes through them in chunks."""


def language_model_loss(
    model: nn.Module, input_ids: Tensor, targets: Tensor, loss_mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the mean cross entropy of the targets, and each sequence's mean.

    `-mean(log softmax(logits)[target])` in nats, over all targets that count.

    Args:
        model: a `PicoDecoder`, or a wrapper that passes its attributes on. The chunked path calls
            `model.hidden` and reads `model.de_embedding_proj.weight`, so there hooks on the whole
            model and on `de_embedding_proj` do not fire; those on every other module do.
        input_ids: token ids, `(B, T)`.
        targets: the token that follows each, `(B, T)`; `-100` counts for nothing.
        loss_mask: bool `(B, T)`; a target counts where it is true.

    Returns:
        The mean, a scalar with gradient, and float32 means per sequence, `(B,)`, without. Where no
        target counts, both are NaN.

    Example:
        >>> from pico.config import ModelConfig
        >>> model = PicoDecoder(ModelConfig(d_model=24, n_layers=1, context=8), vocab_size=11)
        >>> ids = torch.tensor([[1, 2, 3, 4]])
        >>> loss, per_sequence = language_model_loss(model, ids[:, :-1], ids[:, 1:])
        >>> loss.requires_grad, per_sequence.shape
        (True, torch.Size([1]))
    """
    decoder = cast(PicoDecoder, model)
    if loss_mask is not None:
        targets = targets.masked_fill(~loss_mask.bool(), IGNORED)
    flat = targets.flatten()  # (B * T,)
    weight = decoder.de_embedding_proj.weight  # (vocab_size, d_model)
    if flat.numel() * weight.shape[0] <= MAX_LOGITS:
        logits = decoder(input_ids).flatten(0, 1)  # (B * T, vocab_size)
        # cross_entropy is these two calls; apart, they leave the log-probabilities to be read.
        log_probs = F.log_softmax(logits if logits.dtype == torch.float64 else logits.float(), -1)
        loss = F.nll_loss(log_probs, flat, ignore_index=IGNORED)
        chosen = log_probs.detach().gather(1, flat.clamp(min=0).unsqueeze(1)).squeeze(1)
        token_losses = -chosen  # (B * T,)
    else:
        hidden = decoder.hidden(input_ids).flatten(0, 1)  # (B * T, d_model)
        loss, token_losses = _chunked(hidden, weight, flat)
    return loss, _sequence_means(token_losses.view_as(targets), targets)


def _sequence_means(token_losses: Tensor, targets: Tensor) -> Tensor:
    """Average `(B, T)` over the targets that count, `(B,)`."""
    counts = targets != IGNORED
    return token_losses.masked_fill(~counts, 0.0).sum(dim=1) / counts.sum(dim=1)


def _chunked(hidden: Tensor, weight: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and per-token cross entropy of `hidden @ weight.T` without holding it whole."""
    device = hidden.device.type
    autocast = torch.is_autocast_enabled(device)
    dtype = torch.get_autocast_dtype(device) if autocast else weight.dtype
    arguments = (hidden.to(dtype), weight.to(dtype), targets, torch.is_grad_enabled())
    with torch.autocast(device, enabled=False):
        result = _ChunkedCrossEntropy.apply(*arguments)  # type: ignore[no-untyped-call]
    return cast(tuple[Tensor, Tensor], result)


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Unembedding, softmax and their gradients, some rows of tokens at a time, all in `forward`.

    The gradient of a token's loss by its logits is `softmax - one_hot(target)`: known as soon as
    the softmax is. So `backward` only scales what `forward` kept, which is as large as `hidden`
    and `weight` and does not grow with their product.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, with_grad: bool
    ) -> tuple[Tensor, Tensor]:
        n_tokens, vocab_size = hidden.shape[0], weight.shape[0]
        wide = torch.promote_types(hidden.dtype, torch.float32)
        wants = [with_grad and wanted for wanted in ctx.needs_input_grad[:2]]
        d_hidden = torch.empty_like(hidden, dtype=wide) if wants[0] else None
        d_weight = torch.zeros_like(weight, dtype=wide) if wants[1] else None
        losses = hidden.new_empty(n_tokens, dtype=wide)
        n_rows = min(max(1, MAX_LOGITS // vocab_size), n_tokens)
        buffer = hidden.new_empty(n_rows, vocab_size)  # reused: fresh pages cost as much as exp
        for start in range(0, n_tokens, n_rows):
            rows = slice(start, start + n_rows)
            x = hidden[rows]  # (R, d_model)
            counts = (targets[rows] != IGNORED).unsqueeze(1).to(wide)  # (R, 1)
            target = targets[rows].clamp(min=0)  # (R,)
            scores = torch.mm(x, weight.T, out=buffer[: len(x)]).to(wide)  # (R, vocab_size)
            chosen = scores.gather(1, target.unsqueeze(1))  # (R, 1)
            largest = scores.amax(dim=1, keepdim=True)
            scores.sub_(largest).exp_()
            total = scores.sum(dim=1, keepdim=True)
            losses[rows] = ((total.log() + largest - chosen) * counts).squeeze(1)
            powers, share = scores.to(x.dtype), counts / total  # softmax = powers * share
            if d_hidden is not None:
                d_hidden[rows] = (powers @ weight) * share - weight[target] * counts
            if d_weight is not None:
                _add_product(d_weight, powers.T, (x * share).to(x.dtype))
                d_weight.index_add_(0, target, x * counts, alpha=-1)
        n_counted = (targets != IGNORED).sum()
        ctx.save_for_backward(d_hidden, d_weight, n_counted)
        ctx.dtype = hidden.dtype
        ctx.mark_non_differentiable(losses)
        return losses.sum() / n_counted, losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        *kept, n_counted = ctx.saved_tensors
        scale = d_loss / n_counted
        d_hidden, d_weight = (None if x is None else (x * scale).to(ctx.dtype) for x in kept)
        return d_hidden, d_weight, None, None


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """Add `a @ b` to `total`, which stays float32 where the factors are narrower."""
    if total.dtype == a.dtype:
        total.addmm_(a, b)
    else:
        total.add_(a @ b)
