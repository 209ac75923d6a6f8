"""What a model's parameters and activations are called in the lake, whatever its class.

The recorder and the importers ask `parameters` for the rows of the table `parameters` (component,
layer, heads, ties), `sites` and `resolve_site` for the module whose input or output is an
activation site, and `size` for the columns of `runs`. Families are recognised by module names, so
nothing here imports transformers, and a wrapper's prefix (`module.`, `_orig_mod.`) does no harm. A
model of no known family still gets rows: component NULL, layer the first integer in the name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from torch import nn

from pico.errors import RecordError, did_you_mean
from pico.models.families import FAMILIES, PICO, TL_NAMES, Family, Side
from pico.models.hf import hf_names

_HEADED = frozenset({"q", "k", "v", "o", "qkv"})
_CONFIG_NAMES = {
    "n_layers": ("n_layers", "num_hidden_layers", "n_layer"),
    "d_model": ("d_model", "hidden_size", "n_embd"),
    "n_heads": ("n_heads", "num_attention_heads", "n_head"),
    "n_kv_heads": ("n_kv_heads", "num_key_value_heads"),
    "d_head": ("d_head", "head_dim"),
    "vocab_size": ("vocab_size",),
}


@dataclass(frozen=True)
class ParameterInfo:
    """One parameter of a model, as a row of the table `parameters`."""

    name: str
    layer: int | None
    component: str | None
    param: str | None
    """`weight` or `bias`; None for a parameter called otherwise."""
    shape: tuple[int, ...]
    dtype: str
    numel: int
    trainable: bool
    alias_of: str | None
    """The first name of the same tensor, where it is tied."""
    n_heads: int | None
    n_kv_heads: int | None
    d_head: int | None
    hf_name: str | None
    tl_name: str | None


@dataclass(frozen=True)
class SitePoint:
    """Where an activation is taken: the first input or the output of one module."""

    site: str
    layer: int | None
    module_name: str
    side: Side


def parameters(model: nn.Module) -> list[ParameterInfo]:
    """Describe every parameter, a tied one once per name, in the model's own order.

    Shapes are the framework's: torch's `[out, in]`, but `[in, out]` for GPT-2's Conv1D.

    Example:
        >>> [(p.name, p.layer, p.component) for p in parameters(nn.Sequential(nn.Linear(2, 3)))]
        [('0.weight', 0, None), ('0.bias', 0, None)]
    """
    found = _recognise(model)
    sizes = _config_sizes(model)
    first_names: dict[int, str] = {}
    rows = []
    for name, parameter in model.named_parameters(remove_duplicate=False):
        first = first_names.setdefault(id(parameter), name)
        module, _, last = name.rpartition(".")
        param = last if last in ("weight", "bias") else None
        layer, component = _place(module, found)
        headed = component in _HEADED
        rows.append(
            ParameterInfo(
                name=name,
                layer=layer,
                component=component,
                param=param,
                shape=tuple(parameter.shape),
                dtype=str(parameter.dtype).removeprefix("torch."),
                numel=parameter.numel(),
                trainable=parameter.requires_grad,
                alias_of=None if first == name else first,
                n_heads=sizes["n_heads"] if headed else None,
                n_kv_heads=sizes["n_kv_heads"] if headed else None,
                d_head=sizes["d_head"] if headed else None,
                hf_name=_hf_name(name, found, sizes["n_layers"]),
                tl_name=_tl_name(layer, component, param, sizes),
            )
        )
    return rows


def sites(model: nn.Module) -> dict[str, list[SitePoint]]:
    """Return, for each site word that means something in this model, its point in every layer.

    Raises nothing: a model of no known family has no site words, an empty mapping.
    """
    found = _recognise(model)
    if found is None:
        return {}
    family, prefix = found
    modules = dict(model.named_modules())
    parallel = getattr(getattr(model, "config", None), "use_parallel_residual", False)
    points: dict[str, list[SitePoint]] = {}
    for site, (pattern, side) in family.sites.items():
        if site == "resid.mid" and parallel:
            continue  # both halves read the same stream: there is no state between them
        if side == "rot" and f"{prefix}{pattern.replace('#', '0')[:-4]}norm" in modules:
            continue  # queries and keys are normalised between projection and rotation
        layer = 0
        while (name := f"{prefix}{pattern.replace('#', str(layer))}") in modules:
            points.setdefault(site, []).append(SitePoint(site, layer, name, side))
            layer += 1
    return points


def resolve_site(model: nn.Module, text: str) -> list[SitePoint]:
    """Return the points that a site word, `<module>.in` or `<module>.out` stands for.

    Raises:
        RecordError: when this model has no such site or module.

    Example:
        >>> resolve_site(nn.Sequential(nn.Linear(2, 3)), "0.out")
        [SitePoint(site='0.out', layer=0, module_name='0', side='out')]
    """
    known = sites(model)
    if text in known:
        return known[text]
    name, _, side = text.rpartition(".")
    modules = [module for module, _ in model.named_modules() if module]
    if name in modules and side in ("in", "out"):
        return [SitePoint(text, layer_of(name), name, "in" if side == "in" else "out")]
    everything = [*known, *(f"{module}.{end}" for module in modules for end in ("in", "out"))]
    words = ", ".join(known) or "none by name"
    raise RecordError(
        f"this model has no site {text!r}.{did_you_mean(text, everything)} "
        f"Sites: {words}; also <module>.in and <module>.out of any module"
    )


def module_of(model: nn.Module, component: str) -> str | None:
    """Return the name of the module with a component outside the blocks; None if it has none.

    Args:
        model: the model.
        component: `embed`, `norm.final`, `unembed`, ….
    """
    found = _recognise(model)
    names = [str(name) for name, _ in model.named_modules()]
    return next((name for name in names if _place(name, found) == (None, component)), None)


def size(model: nn.Module) -> dict[str, int | None]:
    """Return the sizes that the table `runs` holds, None where they cannot be known.

    Keys: `n_params` (tied tensors once), `n_params_non_embedding` (without token embedding,
    unembedding and learned positions; None for an unknown family), `n_layers`, `d_model`,
    `n_heads`, `n_kv_heads`, `d_head`, `vocab_size` (from the model's config).
    """
    rows = [row for row in parameters(model) if row.alias_of is None]
    total = sum(row.numel for row in rows)
    embedding = sum(r.numel for r in rows if r.component in ("embed", "unembed", "pos_embed"))
    return {
        "n_params": total,
        "n_params_non_embedding": None if _recognise(model) is None else total - embedding,
        **_config_sizes(model),
    }


def layer_of(name: str) -> int | None:
    """Return the first integer of a dotted name.

    >>> layer_of("model.layers.3.mlp"), layer_of("lm_head")
    (3, None)
    """
    return next((int(part) for part in name.split(".") if part.isdecimal()), None)


def _recognise(model: nn.Module) -> tuple[Family, str] | None:
    """Return the model's family and the prefix in front of the family's module names."""
    names = [name for name, _ in model.named_modules()]
    for family in FAMILIES:
        for name in names:
            if name != family.signature and not name.endswith("." + family.signature):
                continue
            prefix = name[: -len(family.signature)]
            if not any(f"{prefix}{foreign}" in names for foreign in family.foreign):
                return family, prefix
    return None


def _place(module: str, found: tuple[Family, str] | None) -> tuple[int | None, str | None]:
    """Return layer and component of the parameters that stand directly in `module`."""
    if found is None:
        return layer_of(module), None
    family, prefix = found
    layer = layer_of(module.removeprefix(prefix))
    adapter = re.search(r"\.lora_([AB])\b", module)
    if adapter:
        return layer, f"lora_{adapter[1].lower()}"
    module = module.removesuffix(".base_layer")  # what PEFT calls the layer that it wraps
    if module.startswith(prefix):
        inside = re.sub(r"\.\d+\.", ".#.", module.removeprefix(prefix), count=1)
        if inside in family.components:
            return layer, family.components[inside]
    head = family.heads.get(module.rpartition(".")[2])
    return (layer, None) if head is None else (None, head)


def _hf_name(name: str, found: tuple[Family, str] | None, n_layers: int | None) -> str | None:
    if found is None:
        return None
    family, prefix = found
    if family is PICO:
        return hf_names(n_layers or 0).get(name.removeprefix(prefix))
    return name


def _tl_name(
    layer: int | None, component: str | None, param: str | None, sizes: dict[str, int | None]
) -> str | None:
    """Return TransformerLens' name, which marks shared key-value heads with an underscore."""
    template = TL_NAMES.get((component or "", param or ""))
    if template is None:
        return None
    shared = component in ("k", "v") and sizes["n_kv_heads"] != sizes["n_heads"]
    return template.format(layer=layer, shared="_" if shared else "")


def _config_sizes(model: nn.Module) -> dict[str, int | None]:
    """Read the sizes of pico's or Hugging Face's config; key-value heads default to heads."""
    config: Any = getattr(model, "config", None)
    sizes: dict[str, int | None] = {}
    for ours, names in _CONFIG_NAMES.items():
        values = (getattr(config, name, None) for name in names)
        sizes[ours] = next((value for value in values if isinstance(value, int)), None)
    d_model, n_heads = sizes["d_model"], sizes["n_heads"]
    if sizes["n_kv_heads"] is None:
        sizes["n_kv_heads"] = n_heads
    if sizes["d_head"] is None and d_model is not None and n_heads:
        sizes["d_head"] = d_model // n_heads
    return sizes
