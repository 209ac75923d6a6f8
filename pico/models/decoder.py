"""pico-decoder: a LLaMA-style language model in one file, in reading order.

Norm, rotary embedding, attention, SwiGLU, block, model. The trainer and `pico.load_model` build it
through `pico.models.build`. It promises pico-train's parameter names and shapes, the numbers of
`transformers.LlamaForCausalLM` for the same weights (`pico.models.hf` converts them), an
initialisation that depends on nothing but its seed, and that two models never share a table.

    h = h + attention(attention_norm(h))       one block; the two halves follow each other
    h = h + swiglu(swiglu_norm(h))
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pico.config import ModelConfig
from pico.errors import ConfigError, DataError
from pico.models import initialisation
from pico.models.attention import ATTENTION, import_flash_attn
from pico.models.sampling import sample

DEFAULT_VOCAB_SIZE = 50304
"""Rows of the embedding when neither the config nor a tokenizer says otherwise (pico-train's)."""


class Linear(nn.Linear):
    """A linear map without bias, its weight `(d_out, d_in)`."""

    def __init__(self, d_in: int, d_out: int) -> None:
        """Reserve the weight."""
        super().__init__(d_in, d_out, bias=False)

    def reset_parameters(self) -> None:
        """Leave it to `init_weights`: torch's default would spend the global random state."""


class Embedding(nn.Embedding):
    """A row for each token."""

    def reset_parameters(self) -> None:
        """Leave it to `init_weights`, as `Linear` does."""


class RMSNorm(nn.Module):
    """`x / sqrt(mean(x²) + eps) · weight` over the last dimension.

    References:
        Zhang & Sennrich, "Root Mean Square Layer Normalization", 2019.
    """

    def __init__(self, d_model: int, eps: float) -> None:
        """Reserve one weight per feature."""
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d_model))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise `x` of shape `(..., d_model)`."""
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


class RotaryEmbedding(nn.Module):
    """The rotations `exp(i · position · theta^(-2j/d_head))` of one model.

    A buffer of this instance (never of the class), not saved, float32 whatever the model becomes.

    References:
        Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding", 2021.
    """

    table: Tensor

    def __init__(self, d_head: int, context: int, theta: float) -> None:
        """Compute the table for every position below `context`."""
        super().__init__()
        self.d_head, self.context, self.theta = d_head, context, theta
        self.register_buffer("table", self._angles(torch.get_default_device()), persistent=False)

    def forward(self, start: int, stop: int) -> Tensor:
        """Return the rotations of positions `start … stop-1`, complex `(T, 1, d_head / 2)`."""
        return torch.view_as_complex(self.table[start:stop]).unsqueeze(1)

    def _angles(self, device: torch.device) -> Tensor:
        exponents = torch.arange(0, self.d_head, 2, dtype=torch.float32, device=device)
        frequencies = 1.0 / self.theta ** (exponents / self.d_head)  # (d_head / 2,)
        positions = torch.arange(self.context, dtype=torch.float32, device=device)
        angles = torch.outer(positions, frequencies)  # (context, d_head / 2)
        return torch.stack((angles.cos(), angles.sin()), dim=-1)  # (context, d_head / 2, 2)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> RotaryEmbedding:
        """Follow the model to a device, recomputed: a cast or `to_empty` must not spoil it."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.table = self._angles(self.table.device)
        return self


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Turn neighbouring pairs `(x[2j], x[2j+1])` as complex numbers, in float32 at least.

    `x` is `(B, T, heads, d_head)`, `rotation` comes from `RotaryEmbedding`. (Hugging Face pairs
    `x[j]` with `x[j + d_head / 2]`: the same with permuted rows of weights, see `pico.models.hf`.)
    """
    wide = x if x.dtype == torch.float64 else x.float()
    pairs = torch.view_as_complex(wide.reshape(*x.shape[:-1], -1, 2))  # (B, T, heads, d_head / 2)
    return torch.view_as_real(pairs * rotation).flatten(-2).type_as(x)


class KVCache:
    """Keys and values of the positions seen so far; `PicoDecoder.forward` appends to it."""

    def __init__(self) -> None:
        """Start with none."""
        self.length = 0
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append `(B, T, n_kv_heads, d_head)` and return all `S` positions of this layer."""
        if layer in self._keys:
            k = torch.cat((self._keys[layer], k), dim=1)  # (B, S, n_kv_heads, d_head)
            v = torch.cat((self._values[layer], v), dim=1)
        self._keys[layer], self._values[layer] = k, v
        return k, v


class Attention(nn.Module):
    """Causal self-attention with fewer key-value heads than query heads.

    References:
        Ainslie et al., "GQA: Training Generalized Multi-Query Transformer Models", 2023.
    """

    def __init__(self, config: ModelConfig, layer: int) -> None:
        """Reserve the four projections."""
        super().__init__()
        self.layer = layer
        self.d_head = config.d_head
        self.attend = ATTENTION[config.attn_implementation]
        d_kv = config.n_kv_heads * config.d_head
        self.q_proj = Linear(config.d_model, config.d_model)
        self.k_proj = Linear(config.d_model, d_kv)
        self.v_proj = Linear(config.d_model, d_kv)
        self.o_proj = Linear(config.d_model, config.d_model)
        self.q_rot, self.k_rot = nn.Identity(), nn.Identity()  # places for hooks
        self.dropout = nn.Dropout(config.dropout) if config.dropout > 0 else None

    def forward(self, x: Tensor, rotation: Tensor, cache: KVCache | None = None) -> Tensor:
        """Mix positions: `x` `(B, T, d_model)` to the same shape."""
        heads = (-1, self.d_head)
        q = self.q_proj(x).unflatten(-1, heads)  # (B, T, n_heads, d_head)
        k = self.k_proj(x).unflatten(-1, heads)  # (B, T, n_kv_heads, d_head)
        q, k = self.q_rot(rotate(q, rotation)), self.k_rot(rotate(k, rotation))
        v = self.v_proj(x).unflatten(-1, heads)  # (B, T, n_kv_heads, d_head)
        if cache is not None:
            k, v = cache.append(self.layer, k, v)  # (B, S, n_kv_heads, d_head)
        z = self.attend(q, k, v)  # (B, T, n_heads, d_head)
        out: Tensor = self.o_proj(z.flatten(-2))  # (B, T, d_model)
        return out if self.dropout is None else self.dropout(out)


class SwiGLU(nn.Module):
    """`w_2(silu(w_0 x) · w_1 x)`: w_0 is the gate, w_1 goes up, w_2 down.

    References:
        Shazeer, "GLU Variants Improve Transformer", 2020.
    """

    def __init__(self, config: ModelConfig) -> None:
        """Reserve the three projections."""
        super().__init__()
        self.w_0 = Linear(config.d_model, config.hidden)
        self.w_1 = Linear(config.d_model, config.hidden)
        self.w_2 = Linear(config.hidden, config.d_model)
        self.dropout = nn.Dropout(config.dropout) if config.dropout > 0 else None

    def forward(self, x: Tensor) -> Tensor:
        """Map each position: `x` `(B, T, d_model)` to the same shape."""
        out: Tensor = self.w_2(F.silu(self.w_0(x)) * self.w_1(x))
        return out if self.dropout is None else self.dropout(out)


class Block(nn.Module):
    """One layer: attention, then SwiGLU, each on a normalised copy and added back."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        """Reserve both halves."""
        super().__init__()
        self.attention_norm = RMSNorm(config.d_model, config.norm_eps)
        self.attention = Attention(config, layer)
        self.swiglu_norm = RMSNorm(config.d_model, config.norm_eps)
        self.swiglu = SwiGLU(config)

    def forward(self, x: Tensor, rotation: Tensor, cache: KVCache | None = None) -> Tensor:
        """Advance the residual stream `x`, `(B, T, d_model)`, by one layer."""
        x = x + self.attention(self.attention_norm(x), rotation, cache)
        out: Tensor = x + self.swiglu(self.swiglu_norm(x))
        return out


class PicoDecoder(nn.Module):
    """The model: embedding, blocks, final norm, unembedding.

    Args:
        config: sizes; `model.config` is the same with `vocab_size` filled in.
        vocab_size: rows of the embedding; by default the config's, else 50,304.
        seed: of the initialisation.

    Raises:
        ConfigError, MissingExtraError: no vocabulary; flash-attn asked for and absent.

    Example:
        >>> from pico.config import ModelConfig
        >>> model = PicoDecoder(ModelConfig(d_model=24, n_layers=1, context=8), vocab_size=11)
        >>> model(torch.tensor([[1, 2, 3]])).shape
        torch.Size([1, 3, 11])
    """

    def __init__(self, config: ModelConfig, vocab_size: int | None = None, seed: int = 0) -> None:
        """Reserve all parameters and initialise them from `seed`."""
        super().__init__()
        if vocab_size is None:
            vocab_size = DEFAULT_VOCAB_SIZE if config.vocab_size is None else config.vocab_size
        if vocab_size < 1:
            raise ConfigError(f"vocab_size must be at least 1, not {vocab_size}")
        if config.attn_implementation == "flash_attention_2":
            import_flash_attn()  # fail now, not at the first step
        self.config = dataclasses.replace(config, vocab_size=vocab_size)
        self.embedding_proj = Embedding(vocab_size, config.d_model)
        self.layers = nn.ModuleList(Block(config, layer) for layer in range(config.n_layers))
        self.output_norm = RMSNorm(config.d_model, config.norm_eps)
        self.de_embedding_proj = Linear(config.d_model, vocab_size)
        self.rope = RotaryEmbedding(config.d_head, config.context, config.rope_theta)
        self.init_weights(seed)

    @torch.no_grad()
    def init_weights(self, seed: int) -> None:
        """Draw every weight anew, as `initialisation.moments` says.

        The same values for the same seed, whatever the device.
        """
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if parameter.is_meta:
                continue
            mean, std = initialisation.moments(self.config, name, parameter.dim())
            if std == 0.0:
                parameter.fill_(mean)
                continue
            drawn = torch.randn(parameter.shape, generator=generator, device="cpu")
            parameter.copy_(drawn * std + mean)

    def hidden(self, input_ids: Tensor, cache: KVCache | None = None) -> Tensor:
        """Return what the unembedding reads: the final norm's output, `(B, T, d_model)`.

        Args:
            input_ids: token ids, integers `(B, T)`.
            cache: earlier positions of the same sequences; the new ones are appended.

        Raises:
            DataError: when the ids are not `(B, T)` integers, exceed the context, or lie outside
                the vocabulary (checked on the CPU only: elsewhere it would cost a wait).
        """
        start = 0 if cache is None else cache.length
        self._check(input_ids, start)
        stop = start + input_ids.shape[1]
        rotation = self.rope(start, stop)  # (T, 1, d_head / 2)
        x = self.embedding_proj(input_ids)  # (B, T, d_model)
        for block in self.layers:
            x = block(x, rotation, cache)
        if cache is not None:
            cache.length = stop
        normed: Tensor = self.output_norm(x)
        return normed

    def forward(self, input_ids: Tensor, cache: KVCache | None = None) -> Tensor:
        """Return the logits of the next token at each position, `(B, T, vocab_size)`."""
        logits: Tensor = self.de_embedding_proj(self.hidden(input_ids, cache))
        return logits

    @torch.no_grad()
    def generate(
        self,
        input_ids: Tensor,
        max_new_tokens: int,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        seed: int = 0,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Continue each prompt token by token, with a cache and without dropout.

        Args:
            input_ids, max_new_tokens: prompts of one length, `(B, T)`, and how much to add.
            temperature, top_k: see `pico.models.sampling.sample`.
            seed: of the sampling; the same seed gives the same text.
            generator: a CPU generator to draw from, in place of `seed`.

        Returns:
            Prompts and continuations, `(B, T + max_new_tokens)`.

        Raises:
            DataError: when that exceeds the context, or an argument is out of range.
        """
        if max_new_tokens < 0:
            raise DataError(f"max_new_tokens must be at least 0, not {max_new_tokens}")
        self._check(input_ids, max_new_tokens)
        generator = torch.Generator().manual_seed(seed) if generator is None else generator
        cache, tokens, was_training = KVCache(), input_ids, self.training
        self.eval()
        try:
            for _ in range(max_new_tokens):
                last = self.hidden(tokens[:, cache.length :], cache)[:, -1]  # (B, d_model)
                logits = self.de_embedding_proj(last).float().cpu()  # (B, vocab_size)
                chosen = sample(logits, temperature, top_k, generator)  # (B, 1)
                tokens = torch.cat((tokens, chosen.to(tokens)), dim=1)
        finally:
            self.train(was_training)
        return tokens

    def _check(self, input_ids: Tensor, n_other: int) -> None:
        """Refuse ids that are not a batch of tokens, or too many with `n_other` further ones."""
        if input_ids.dim() != 2 or input_ids.numel() == 0 or input_ids.is_floating_point():
            raise DataError(
                f"input_ids must be integers of shape (B, T), not empty; these are "
                f"{input_ids.dtype} of shape {tuple(input_ids.shape)}"
            )
        length = input_ids.shape[1] + n_other
        if length > self.config.context:
            raise DataError(
                f"{length} tokens exceed the model's context of {self.config.context}; shorten "
                f"the prompt or build the model with a larger context"
            )
        if input_ids.device.type == "cpu":
            low, high = (int(x) for x in input_ids.aminmax())
            if low < 0 or high >= self.embedding_proj.num_embeddings:
                raise DataError(
                    f"token id {low if low < 0 else high} lies outside the vocabulary of "
                    f"{self.embedding_proj.num_embeddings}; is this the model's tokenizer?"
                )
