"""pico-decoder to and from `transformers.LlamaForCausalLM`: same function, other names.

`pico.load_model(…, as_="hf")` and the importers call it; TransformerLens, nnsight and lm-eval take
the result. The weights are copied bit for bit; only the rows of `q_proj` and `k_proj` are
reordered, because Hugging Face rotates `x[j]` with `x[j + d_head / 2]` where pico-train, like the
original LLaMA, rotates `x[2j]` with `x[2j + 1]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pico.config import ModelConfig
from pico.errors import ConfigError, MissingExtraError
from pico.models.decoder import PicoDecoder

_TOP = {
    "embedding_proj.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "de_embedding_proj.weight": "lm_head.weight",
}
_IN_LAYER = {
    "attention.q_proj": "self_attn.q_proj",
    "attention.k_proj": "self_attn.k_proj",
    "attention.v_proj": "self_attn.v_proj",
    "attention.o_proj": "self_attn.o_proj",
    "swiglu.w_0": "mlp.gate_proj",
    "swiglu.w_1": "mlp.up_proj",
    "swiglu.w_2": "mlp.down_proj",
    "attention_norm": "input_layernorm",
    "swiglu_norm": "post_attention_layernorm",
}


def hf_names(n_layers: int) -> dict[str, str]:
    """Return each parameter's name in pico-decoder with its name in `LlamaForCausalLM`.

    >>> hf_names(1)["layers.0.swiglu.w_2.weight"]
    'model.layers.0.mlp.down_proj.weight'
    """
    names = dict(_TOP)
    for layer in range(n_layers):
        for ours, theirs in _IN_LAYER.items():
            names[f"layers.{layer}.{ours}.weight"] = f"model.layers.{layer}.{theirs}.weight"
    return names


def to_hf_state(state: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Return the weights of a pico-decoder as a state dict of `LlamaForCausalLM`.

    Raises:
        ConfigError: when weights are missing or left over.
    """
    names = hf_names(config.n_layers)
    _check_names(state, names)
    return {
        theirs: _halves(state[ours], config.d_head) if _rotated(ours) else state[ours]
        for ours, theirs in names.items()
    }


def from_hf_state(state: Mapping[str, Tensor], config: ModelConfig) -> dict[str, Tensor]:
    """Return the weights of a `LlamaForCausalLM` as a state dict of pico-decoder.

    Tied embeddings (no `lm_head.weight`) become two equal ones: pico-decoder never ties them.

    Raises:
        ConfigError: when weights are missing or left over (biases, for one).
    """
    if "lm_head.weight" not in state and "model.embed_tokens.weight" in state:
        state = {**state, "lm_head.weight": state["model.embed_tokens.weight"].clone()}
    names = hf_names(config.n_layers)
    _check_names(state, names.values())
    return {
        ours: _pairs(state[theirs], config.d_head) if _rotated(ours) else state[theirs]
        for ours, theirs in names.items()
    }


def to_hf(model: PicoDecoder) -> Any:
    """Return a `transformers.LlamaForCausalLM` that computes the same logits.

    It has its own copy of the weights, the dtype, device and training mode of `model`.

    Raises:
        MissingExtraError: without transformers.
    """
    try:
        import transformers
    except ImportError:
        raise MissingExtraError("transformers", "hf") from None
    sizes = model.config
    config = transformers.LlamaConfig(
        vocab_size=sizes.vocab_size,
        hidden_size=sizes.d_model,
        intermediate_size=sizes.hidden,
        num_hidden_layers=sizes.n_layers,
        num_attention_heads=sizes.n_heads,
        num_key_value_heads=sizes.n_kv_heads,
        max_position_embeddings=sizes.context,
        rms_norm_eps=sizes.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": sizes.rope_theta},
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation=sizes.attn_implementation,
    )
    weight = model.embedding_proj.weight
    with torch.random.fork_rng(devices=[]):  # its constructor draws weights; a run must not notice
        theirs = transformers.LlamaForCausalLM(config).to(weight.device, weight.dtype)
    theirs.load_state_dict(to_hf_state(model.state_dict(), sizes))
    return theirs.train(model.training)


def from_hf(theirs: Any) -> PicoDecoder:
    """Return a pico-decoder that computes the logits of a `LlamaForCausalLM`.

    Raises:
        ConfigError: when that model is something that pico-decoder cannot express.
    """
    config = config_from_hf(theirs.config)
    weight = theirs.get_input_embeddings().weight
    model = PicoDecoder(config).to(weight.device, weight.dtype)
    model.load_state_dict(from_hf_state(theirs.state_dict(), config))
    return model.train(theirs.training)


def config_from_hf(config: Any) -> ModelConfig:
    """Return the sizes of a `LlamaConfig`.

    Raises:
        ConfigError: when it asks for scaled RoPE, another activation or a free head size.
    """
    rope = config.rope_parameters or {}
    d_head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    problems = [
        text
        for wrong, text in (
            (rope.get("rope_type", "default") != "default", f"RoPE {rope.get('rope_type')!r}"),
            (config.hidden_act != "silu", f"activation {config.hidden_act!r}"),
            (d_head * config.num_attention_heads != config.hidden_size, f"head_dim {d_head}"),
        )
        if wrong
    ]
    if problems:
        raise ConfigError(
            f"pico-decoder has no {', no '.join(problems)}; keep the model as a transformers class"
        )
    return ModelConfig(
        d_model=config.hidden_size,
        n_layers=config.num_hidden_layers,
        n_heads=config.num_attention_heads,
        n_kv_heads=config.num_key_value_heads,
        d_hidden=config.intermediate_size,
        vocab_size=config.vocab_size,
        context=config.max_position_embeddings,
        rope_theta=float(rope.get("rope_theta", 10000.0)),
        norm_eps=config.rms_norm_eps,
    )


def _rotated(name: str) -> bool:
    return name.endswith(("q_proj.weight", "k_proj.weight"))


def _halves(weight: Tensor, d_head: int) -> Tensor:
    """Reorder each head's rows from (0, 1), (2, 3), … to all firsts, then all seconds."""
    heads = weight.reshape(-1, d_head // 2, 2, weight.shape[1])  # (heads, pair, member, d_model)
    return heads.transpose(1, 2).reshape(weight.shape)


def _pairs(weight: Tensor, d_head: int) -> Tensor:
    """Undo `_halves`."""
    heads = weight.reshape(-1, 2, d_head // 2, weight.shape[1])  # (heads, member, pair, d_model)
    return heads.transpose(1, 2).reshape(weight.shape)


def _check_names(state: Mapping[str, Tensor], wanted: Any) -> None:
    missing, surplus = set(wanted) - set(state), set(state) - set(wanted)
    if missing or surplus:
        raise ConfigError(
            f"these weights are not a LLaMA of this size: missing {sorted(missing)[:3]}, "
            f"left over {sorted(surplus)[:3]}"
        )
