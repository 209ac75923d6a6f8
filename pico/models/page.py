"""Writes the page about names: what components and sites are called in other tools.

`make schemas` calls it, and a test says when the page is stale. The names come from `families`;
only the orientations are written here.
"""

from __future__ import annotations

from pico.models.families import GPT2, LLAMA, NEOX, PICO, TL_HOOKS, TL_NAMES, Family

_FAMILIES = {  # and where its trunk stands in Hugging Face's class
    "pico-decoder": (PICO, ""),
    "Llama, Mistral, Qwen2": (LLAMA, "model."),
    "GPT-NeoX": (NEOX, "gpt_neox."),
    "GPT-2": (GPT2, "transformer."),
}

_ROLES = {
    "embed": ("token embedding", "[vocab, d_model]", "the same"),
    "pos_embed": ("learned positions", "[context, d_model]", "the same"),
    "norm.attn": ("norm before attention", "[d_model]", "the same"),
    "q": ("query projection", "[n_heads · d_head, d_model]", "[n_heads, d_model, d_head]"),
    "k": ("key projection", "[n_kv_heads · d_head, d_model]", "[n_kv_heads, d_model, d_head]"),
    "v": ("value projection", "[n_kv_heads · d_head, d_model]", "[n_kv_heads, d_model, d_head]"),
    "qkv": ("fused query, key and value", "[3 · d_model, d_model]", "three tensors"),
    "o": ("attention output", "[d_model, n_heads · d_head]", "[n_heads, d_head, d_model]"),
    "norm.mlp": ("norm before the MLP", "[d_model]", "the same"),
    "gate": ("SwiGLU's gate", "[d_hidden, d_model]", "transposed"),
    "up": ("into the MLP", "[d_hidden, d_model]", "transposed"),
    "gate_up": ("fused gate and up", "[2 · d_hidden, d_model]", "two tensors"),
    "down": ("out of the MLP", "[d_model, d_hidden]", "transposed"),
    "router": ("choice of experts", "[n_experts, d_model]", "transposed"),
    "norm.final": ("norm before the unembedding", "[d_model]", "the same"),
    "unembed": ("unembedding", "[vocab, d_model]", "transposed"),
}

_SITES = {
    "resid.pre": ("residual stream before the block", "d_model"),
    "resid.mid": ("residual stream between attention and MLP", "d_model"),
    "resid.post": ("residual stream after the block", "d_model"),
    "attn.out": ("what attention adds", "d_model"),
    "mlp.out": ("what the MLP adds", "d_model"),
    "z": ("per-head mix of values, before `o`", "n_heads · d_head"),
    "mlp.hidden": ("hidden units of the MLP, before `down`", "d_hidden"),
    "q": ("queries, before rotation", "n_heads · d_head"),
    "k": ("keys, before rotation", "n_kv_heads · d_head"),
    "v": ("values", "n_kv_heads · d_head"),
    "q.rot": ("queries as attention compares them", "n_heads · d_head"),
    "k.rot": ("keys as attention compares them", "n_kv_heads · d_head"),
}


def markdown() -> str:
    """Return `schemas/COMPONENTS.md`."""
    lines = [
        "# Components and sites, and what others call them",
        "",
        "Generated from `pico/models/families.py` (`make schemas`); do not edit. `#` is the layer.",
        "",
        "A tensor keeps its framework's own name in `name`; `component` is its role, the same for",
        "every architecture. `parameters` holds, for each parameter of a run, the names in Hugging",
        "Face's Llama (`hf_name`) and in TransformerLens (`tl_name`).",
        "",
        *_components(),
        "",
        *_sites(),
    ]
    return "\n".join(lines) + "\n"


def _components() -> list[str]:
    rows = []
    for component, (what, here, there) in _ROLES.items():
        modules = [_code(_module(*family, component)) for family in _FAMILIES.values()]
        name = TL_NAMES.get((component, "weight"), "").format(layer="#", shared="")
        rows.append([f"`{component}`", what, *modules, _code(name), here, there if name else ""])
    return [
        "## Components",
        "",
        "Matrices are torch's `[out, in]`: `y = x @ W.T`. GPT-2's are the exception: its `Conv1D`",
        "stores `[in, out]`. Rows of `q` and `k` of a pico-decoder pair neighbouring features for",
        "the rotation, Hugging Face pairs the halves of a head; loading a model there reorders.",
        "",
        *_table(
            ["component", "what", *_FAMILIES, "TransformerLens", "shape here", "shape there"], rows
        ),
        "",
        "With grouped queries TransformerLens' own tensors are `_W_K` and `_W_V` (and `_b_K`,",
        "`_b_V`); `W_K` and `W_V` repeat them for each query head. It folds norms into the next",
        "matrix unless told not to (`fold_norm(W, gamma)` does that here).",
    ]


def _sites() -> list[str]:
    rows = []
    for site, (what, features) in _SITES.items():
        places = [_place(*family, site) for family in _FAMILIES.values()]
        hook = _code(TL_HOOKS[site].format(layer="#"))
        rows.append([f"`{site}`", what, features, *places, hook])
    return [
        "## Sites",
        "",
        "An activation is stored as `[sequences · positions, features]`. Besides these words,",
        "`<module>.in` and `<module>.out` of any module are sites.",
        "",
        *_table(["site", "what", "features", *_FAMILIES, "TransformerLens"], rows),
        "",
        "In the `hidden_states` of Hugging Face, entry `#` is `resid.pre` of layer `#`, so",
        "`resid.post` of layer `#` is entry `# + 1`, except for the last layer: the last entry has",
        "passed the final norm.",
    ]


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]


def _module(family: Family, trunk: str, component: str) -> str:
    for module, role in family.components.items():
        if role == component:
            return trunk + module
    return next((module for module, role in family.heads.items() if role == component), "")


def _place(family: Family, trunk: str, site: str) -> str:
    if site not in family.sites:
        return ""
    module, side = family.sites[site]
    told = {"in": "input of", "out": "output of", "rot": "rotated output of"}[side]
    return f"{told} {_code(trunk + module)}"


def _code(name: str) -> str:
    return f"`{name}`" if name else ""
