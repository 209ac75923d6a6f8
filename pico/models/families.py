"""The tables behind `pico.models.architecture`: what each family of models calls its parts.

A new family is a new entry here. Module names are relative to the model's trunk, `#` stands for the
layer; components and sites are the lake's own words. TransformerLens' names depend on the component
alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Side = Literal["in", "out", "rot"]
"""A module's first input, its output, or its output after the rotary embedding that the module
around it applies."""


@dataclass(frozen=True)
class Family:
    """How one family of models names its modules."""

    signature: str
    """A module that every member has; what stands before it is the trunk's prefix."""
    components: Mapping[str, str]
    """Module in the trunk: its component."""
    sites: Mapping[str, tuple[str, Side]]
    """Site word: the module and the side on which it is taken."""
    heads: Mapping[str, str] = field(default_factory=dict)
    """Last part of a module's name outside the trunk: its component."""
    foreign: tuple[str, ...] = ()
    """Modules whose presence shows another family with the same signature."""


PICO = Family(
    signature="layers.0.swiglu.w_0",
    components={
        "embedding_proj": "embed",
        "layers.#.attention_norm": "norm.attn",
        "layers.#.attention.q_proj": "q",
        "layers.#.attention.k_proj": "k",
        "layers.#.attention.v_proj": "v",
        "layers.#.attention.o_proj": "o",
        "layers.#.swiglu_norm": "norm.mlp",
        "layers.#.swiglu.w_0": "gate",
        "layers.#.swiglu.w_1": "up",
        "layers.#.swiglu.w_2": "down",
        "output_norm": "norm.final",
        "de_embedding_proj": "unembed",
    },
    sites={
        "resid.pre": ("layers.#", "in"),
        "resid.mid": ("layers.#.swiglu_norm", "in"),
        "resid.post": ("layers.#", "out"),
        "attn.out": ("layers.#.attention", "out"),
        "mlp.out": ("layers.#.swiglu", "out"),
        "z": ("layers.#.attention.o_proj", "in"),
        "mlp.hidden": ("layers.#.swiglu.w_2", "in"),
        "q": ("layers.#.attention.q_proj", "out"),
        "k": ("layers.#.attention.k_proj", "out"),
        "v": ("layers.#.attention.v_proj", "out"),
        "q.rot": ("layers.#.attention.q_rot", "out"),
        "k.rot": ("layers.#.attention.k_rot", "out"),
    },
)

# Llama, Mistral, Qwen2 and their like. The self_attn module returns a tuple and layers of older
# releases did, so attn.out is read behind o_proj, where it is the same tensor.
LLAMA = Family(
    signature="layers.0.self_attn.o_proj",
    components={
        "embed_tokens": "embed",
        "layers.#.input_layernorm": "norm.attn",
        "layers.#.self_attn.q_proj": "q",
        "layers.#.self_attn.k_proj": "k",
        "layers.#.self_attn.v_proj": "v",
        "layers.#.self_attn.qkv_proj": "qkv",
        "layers.#.self_attn.o_proj": "o",
        "layers.#.post_attention_layernorm": "norm.mlp",
        "layers.#.mlp.gate": "router",
        "layers.#.mlp.gate_proj": "gate",
        "layers.#.mlp.up_proj": "up",
        "layers.#.mlp.gate_up_proj": "gate_up",
        "layers.#.mlp.down_proj": "down",
        "norm": "norm.final",
    },
    heads={"lm_head": "unembed"},
    sites={
        "resid.pre": ("layers.#", "in"),
        "resid.mid": ("layers.#.post_attention_layernorm", "in"),
        "resid.post": ("layers.#", "out"),
        "attn.out": ("layers.#.self_attn.o_proj", "out"),
        "mlp.out": ("layers.#.mlp", "out"),
        "z": ("layers.#.self_attn.o_proj", "in"),
        "mlp.hidden": ("layers.#.mlp.down_proj", "in"),
        "q": ("layers.#.self_attn.q_proj", "out"),
        "k": ("layers.#.self_attn.k_proj", "out"),
        "v": ("layers.#.self_attn.v_proj", "out"),
        "q.rot": ("layers.#.self_attn.q_proj", "rot"),
        "k.rot": ("layers.#.self_attn.k_proj", "rot"),
    },
    # Gemma 2 and OLMo 2 normalise after attention and call that by the same name.
    foreign=("layers.0.pre_feedforward_layernorm", "layers.0.post_feedforward_layernorm"),
)

# Pythia. Query, key and value are one module here, head by head, so q, k and v are no sites.
NEOX = Family(
    signature="layers.0.attention.query_key_value",
    components={
        "embed_in": "embed",
        "layers.#.input_layernorm": "norm.attn",
        "layers.#.attention.query_key_value": "qkv",
        "layers.#.attention.dense": "o",
        "layers.#.post_attention_layernorm": "norm.mlp",
        "layers.#.mlp.dense_h_to_4h": "up",
        "layers.#.mlp.dense_4h_to_h": "down",
        "final_layer_norm": "norm.final",
    },
    heads={"embed_out": "unembed", "lm_head": "unembed"},
    sites={
        "resid.pre": ("layers.#", "in"),
        "resid.mid": ("layers.#.post_attention_layernorm", "in"),
        "resid.post": ("layers.#", "out"),
        "attn.out": ("layers.#.attention.dense", "out"),
        "mlp.out": ("layers.#.mlp", "out"),
        "z": ("layers.#.attention.dense", "in"),
        "mlp.hidden": ("layers.#.mlp.dense_4h_to_h", "in"),
    },
)

GPT2 = Family(
    signature="h.0.attn.c_attn",
    components={
        "wte": "embed",
        "wpe": "pos_embed",
        "h.#.ln_1": "norm.attn",
        "h.#.attn.c_attn": "qkv",
        "h.#.attn.c_proj": "o",
        "h.#.ln_2": "norm.mlp",
        "h.#.mlp.c_fc": "up",
        "h.#.mlp.c_proj": "down",
        "ln_f": "norm.final",
    },
    heads={"lm_head": "unembed"},
    sites={
        "resid.pre": ("h.#", "in"),
        "resid.mid": ("h.#.ln_2", "in"),
        "resid.post": ("h.#", "out"),
        "attn.out": ("h.#.attn.c_proj", "out"),
        "mlp.out": ("h.#.mlp", "out"),
        "z": ("h.#.attn.c_proj", "in"),
        "mlp.hidden": ("h.#.mlp.c_proj", "in"),
    },
)

FAMILIES = (PICO, LLAMA, NEOX, GPT2)

TL_NAMES: Mapping[tuple[str, str], str] = {
    ("embed", "weight"): "embed.W_E",
    ("pos_embed", "weight"): "pos_embed.W_pos",
    ("norm.attn", "weight"): "blocks.{layer}.ln1.w",
    ("norm.attn", "bias"): "blocks.{layer}.ln1.b",
    ("q", "weight"): "blocks.{layer}.attn.W_Q",
    ("q", "bias"): "blocks.{layer}.attn.b_Q",
    ("k", "weight"): "blocks.{layer}.attn.{shared}W_K",
    ("k", "bias"): "blocks.{layer}.attn.{shared}b_K",
    ("v", "weight"): "blocks.{layer}.attn.{shared}W_V",
    ("v", "bias"): "blocks.{layer}.attn.{shared}b_V",
    ("o", "weight"): "blocks.{layer}.attn.W_O",
    ("o", "bias"): "blocks.{layer}.attn.b_O",
    ("norm.mlp", "weight"): "blocks.{layer}.ln2.w",
    ("norm.mlp", "bias"): "blocks.{layer}.ln2.b",
    ("gate", "weight"): "blocks.{layer}.mlp.W_gate",
    ("up", "weight"): "blocks.{layer}.mlp.W_in",
    ("up", "bias"): "blocks.{layer}.mlp.b_in",
    ("down", "weight"): "blocks.{layer}.mlp.W_out",
    ("down", "bias"): "blocks.{layer}.mlp.b_out",
    ("norm.final", "weight"): "ln_final.w",
    ("norm.final", "bias"): "ln_final.b",
    ("unembed", "weight"): "unembed.W_U",
    ("unembed", "bias"): "unembed.b_U",
}
"""TransformerLens' names, without its folding of norms; `{shared}` is `_` with grouped queries."""

TL_HOOKS: Mapping[str, str] = {
    "resid.pre": "blocks.{layer}.hook_resid_pre",
    "resid.mid": "blocks.{layer}.hook_resid_mid",
    "resid.post": "blocks.{layer}.hook_resid_post",
    "attn.out": "blocks.{layer}.hook_attn_out",
    "mlp.out": "blocks.{layer}.hook_mlp_out",
    "z": "blocks.{layer}.attn.hook_z",
    "mlp.hidden": "blocks.{layer}.mlp.hook_post",
    "q": "blocks.{layer}.attn.hook_q",
    "k": "blocks.{layer}.attn.hook_k",
    "v": "blocks.{layer}.attn.hook_v",
    "q.rot": "blocks.{layer}.attn.hook_rot_q",
    "k.rot": "blocks.{layer}.attn.hook_rot_k",
}
"""TransformerLens' hook of each site; it keeps heads in a dimension of their own."""
