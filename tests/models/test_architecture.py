"""Canonical names of parameters and sites, family by family."""

from __future__ import annotations

import pytest
import torch
import transformers
from torch import nn

from pico.config import ModelConfig
from pico.errors import RecordError
from pico.models import architecture, build
from pico.models.architecture import SitePoint, parameters, resolve_site, sites, size
from pico.models.hf import to_hf

CONFIG = ModelConfig(d_model=48, n_layers=2, n_heads=6, n_kv_heads=2, context=32)
WORDS = ["resid.pre", "resid.mid", "resid.post", "attn.out", "mlp.out", "z", "mlp.hidden"]


def pico() -> nn.Module:
    return build(CONFIG, 61)


def llama() -> nn.Module:
    return to_hf(build(CONFIG, 61))


def qwen2() -> nn.Module:
    return transformers.Qwen2ForCausalLM(
        transformers.Qwen2Config(
            vocab_size=61,
            hidden_size=48,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=6,
            num_key_value_heads=2,
        )
    )


def neox(parallel: bool = True) -> nn.Module:
    return transformers.GPTNeoXForCausalLM(
        transformers.GPTNeoXConfig(
            vocab_size=61,
            hidden_size=48,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=6,
            max_position_embeddings=32,
            use_parallel_residual=parallel,
            hidden_dropout=0.0,
            attention_dropout=0.0,
        )
    )


def gpt2() -> nn.Module:
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=61, n_embd=48, n_layer=2, n_head=6, n_positions=32)
    )


def layer_components(model: nn.Module, layer: int) -> dict[str, str | None]:
    return {p.name: p.component for p in parameters(model) if p.layer == layer}


def test_pico_decoder() -> None:
    model = pico()
    rows = {row.name: row for row in parameters(model)}
    assert list(rows) == list(model.state_dict())
    assert [row.component for row in rows.values()] == [
        "embed",
        *(["norm.attn", "q", "k", "v", "o", "norm.mlp", "gate", "up", "down"] * 2),
        "norm.final",
        "unembed",
    ]
    k = rows["layers.1.attention.k_proj.weight"]
    assert (k.layer, k.param, k.shape, k.dtype, k.numel) == (1, "weight", (16, 48), "float32", 768)
    assert (k.n_heads, k.n_kv_heads, k.d_head) == (6, 2, 8)
    assert (k.trainable, k.alias_of) == (True, None)
    assert k.hf_name == "model.layers.1.self_attn.k_proj.weight"
    assert k.tl_name == "blocks.1.attn._W_K"
    assert rows["layers.0.swiglu.w_0.weight"].tl_name == "blocks.0.mlp.W_gate"
    assert rows["layers.0.swiglu.w_0.weight"].d_head is None
    assert rows["embedding_proj.weight"].layer is None


def test_hf_names_of_a_pico_decoder_are_those_of_the_converted_model() -> None:
    assert [p.hf_name for p in parameters(pico())] == [
        p.hf_name for p in sorted(parameters(llama()), key=_pico_order)
    ]
    by_hf_name = {p.hf_name: p for p in parameters(pico())}
    for row in parameters(llama()):
        ours = by_hf_name[row.hf_name]
        assert (ours.component, ours.layer, ours.tl_name, ours.shape, ours.d_head) == (
            row.component,
            row.layer,
            row.tl_name,
            row.shape,
            row.d_head,
        )


def _pico_order(row: architecture.ParameterInfo) -> int:
    return [p.hf_name for p in parameters(pico())].index(row.name)


def test_qwen2_has_biases() -> None:
    rows = {row.name: row for row in parameters(qwen2())}
    bias = rows["model.layers.1.self_attn.v_proj.bias"]
    assert (bias.component, bias.param, bias.layer) == ("v", "bias", 1)
    assert bias.tl_name == "blocks.1.attn._b_V"
    assert all(row.component for row in rows.values())


def test_gpt_neox() -> None:
    rows = {row.name: row for row in parameters(neox())}
    found = {name: row.component for name, row in rows.items() if row.layer in (0, None)}
    # transformers called the unembedding embed_out once, and its checkpoints still do.
    found = {name.replace("embed_out", "lm_head"): c for name, c in found.items()}
    assert {name: c for name, c in found.items() if name.endswith("weight")} == {
        "gpt_neox.embed_in.weight": "embed",
        "gpt_neox.layers.0.input_layernorm.weight": "norm.attn",
        "gpt_neox.layers.0.post_attention_layernorm.weight": "norm.mlp",
        "gpt_neox.layers.0.attention.query_key_value.weight": "qkv",
        "gpt_neox.layers.0.attention.dense.weight": "o",
        "gpt_neox.layers.0.mlp.dense_h_to_4h.weight": "up",
        "gpt_neox.layers.0.mlp.dense_4h_to_h.weight": "down",
        "gpt_neox.final_layer_norm.weight": "norm.final",
        "lm_head.weight": "unembed",
    }
    assert rows["gpt_neox.layers.0.attention.query_key_value.bias"].component == "qkv"
    qkv = rows["gpt_neox.layers.0.attention.query_key_value.weight"]
    assert (qkv.n_heads, qkv.n_kv_heads, qkv.d_head, qkv.tl_name) == (6, 6, 8, None)


def test_gpt2_and_its_tied_unembedding() -> None:
    model = gpt2()
    rows = {row.name: row for row in parameters(model)}
    assert rows["transformer.wpe.weight"].component == "pos_embed"
    c_attn = rows["transformer.h.1.attn.c_attn.weight"]
    assert (c_attn.component, c_attn.shape) == ("qkv", (48, 144))
    assert rows["transformer.h.1.attn.c_proj.weight"].component == "o"
    assert rows["transformer.h.1.mlp.c_proj.bias"].component == "down"
    head = rows["lm_head.weight"]
    assert (head.component, head.alias_of) == ("unembed", "transformer.wte.weight")
    assert all(row.component for row in rows.values())
    sizes = size(model)
    assert sizes["n_params"] == sum(parameter.numel() for parameter in model.parameters())
    assert sizes["n_params_non_embedding"] == sizes["n_params"] - (61 + 32) * 48


def test_unknown_model_with_tied_and_frozen_parameters() -> None:
    model = nn.Sequential(nn.Embedding(5, 4), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 5)))
    model[1][1].weight = model[0].weight
    model[1][0].bias.requires_grad_(False)
    model.register_parameter("gain", nn.Parameter(torch.ones((), dtype=torch.bfloat16)))
    rows = {row.name: row for row in parameters(model)}
    assert rows["1.1.weight"].alias_of == "0.weight"
    assert {row.component for row in rows.values()} == {None}
    assert [row.layer for row in rows.values()] == [None, 0, 1, 1, 1, 1]
    assert not rows["1.0.bias"].trainable
    gain = rows["gain"]
    assert (gain.param, gain.dtype, gain.shape, gain.numel) == (None, "bfloat16", (), 1)
    assert sites(model) == {}
    assert size(model) == {
        "n_params": 20 + 16 + 4 + 5 + 1,
        "n_params_non_embedding": None,
        **dict.fromkeys(("n_layers", "d_model", "n_heads", "n_kv_heads", "d_head", "vocab_size")),
    }


def test_adapters_and_wrappers_change_nothing() -> None:
    model = llama()
    wrapped = nn.Sequential()
    wrapped.add_module("3", model)
    for plain, row in zip(parameters(model), parameters(wrapped), strict=True):
        assert (row.component, row.layer) == (plain.component, plain.layer)
        assert row.name == f"3.{plain.name}"
    attention = model.model.layers[1].self_attn
    lora = nn.Module()
    lora.base_layer = attention.q_proj
    lora.lora_A = nn.ModuleDict({"default": nn.Linear(48, 2, bias=False)})
    lora.lora_B = nn.ModuleDict({"default": nn.Linear(2, 48, bias=False)})
    attention.q_proj = lora
    rows = [p for p in parameters(model) if ".1.self_attn.q_proj" in p.name]
    assert [(p.component, p.layer) for p in rows] == [("q", 1), ("lora_a", 1), ("lora_b", 1)]


def test_a_family_with_the_same_names_for_other_things_is_not_claimed() -> None:
    config = transformers.Olmo2Config(
        vocab_size=61,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=6,
        num_key_value_heads=2,
        pad_token_id=0,
        eos_token_id=0,
    )
    rows = parameters(transformers.Olmo2ForCausalLM(config))
    assert {row.component for row in rows} == {None}
    assert {row.layer for row in rows} == {None, 0}


def test_sizes() -> None:
    expected = {"n_layers": 2, "d_model": 48, "n_heads": 6, "d_head": 8, "vocab_size": 61}
    for make, kv_heads in ((pico, 2), (llama, 2), (neox, 6), (gpt2, 6)):
        found = size(make())
        assert {**expected, "n_kv_heads": kv_heads}.items() <= found.items()
    found = size(pico())
    assert found["n_params_non_embedding"] == found["n_params"] - 2 * 61 * 48


@pytest.mark.parametrize("make", [pico, llama, qwen2])
def test_sites_of_llama_like_models_cover_every_layer(make) -> None:
    model = make()
    found = sites(model)
    assert list(found) == [*WORDS, "q", "k", "v", "q.rot", "k.rot"]
    modules = dict(model.named_modules())
    for site, points in found.items():
        assert [point.layer for point in points] == [0, 1]
        assert all(point.site == site and point.module_name in modules for point in points)


def test_sites_of_other_families() -> None:
    assert list(sites(neox(parallel=False))) == WORDS
    assert list(sites(gpt2())) == WORDS
    parallel = sites(neox())
    assert list(parallel) == [word for word in WORDS if word != "resid.mid"]


def _run(model: nn.Module) -> dict[tuple[str, int], torch.Tensor]:
    """Activations at every site, taken by hooks as the recorder does."""
    taken: dict[tuple[str, int], torch.Tensor] = {}
    handles = []
    for points in sites(model).values():
        for point in points:
            module = model.get_submodule(point.module_name)
            key = (point.site, point.layer)
            if point.side == "in":
                hook = module.register_forward_pre_hook(
                    lambda _, args, key=key: taken.__setitem__(key, args[0])
                )
            else:  # before the rotation, for these
                hook = module.register_forward_hook(
                    lambda _, __, out, key=key: taken.__setitem__(
                        key, out if isinstance(out, torch.Tensor) else out[0]
                    )
                )
            handles.append(hook)
    with torch.no_grad():
        model.eval()(torch.arange(20).view(2, 10))
    for handle in handles:
        handle.remove()
    return taken


@pytest.mark.parametrize("make", [pico, llama, qwen2, neox, lambda: neox(False), gpt2])
def test_the_residual_stream_adds_up_at_the_sites(make) -> None:
    model = make()
    at = _run(model)
    for layer in (0, 1):
        pre, post = at["resid.pre", layer], at["resid.post", layer]
        attn, mlp = at["attn.out", layer], at["mlp.out", layer]
        torch.testing.assert_close(pre + attn + mlp, post)
        if "resid.mid" in sites(model):
            torch.testing.assert_close(pre + attn, at["resid.mid", layer])
        weight = next(p for p in parameters(model) if (p.component, p.layer) == ("o", layer))
        assert at["z", layer].shape[-1] == weight.shape[1]
    torch.testing.assert_close(at["resid.post", 0], at["resid.pre", 1])


def test_sites_of_a_pico_decoder_equal_those_of_the_converted_model() -> None:
    model = build(CONFIG, 61)
    ours, theirs = _run(model), _run(to_hf(model))
    assert ours.keys() == theirs.keys()
    for key, value in ours.items():
        if key[0] not in ("q", "k", "q.rot", "k.rot"):  # their rows are permuted
            torch.testing.assert_close(value, theirs[key], rtol=1e-5, atol=1e-6)


def test_resolving_a_site() -> None:
    model = pico()
    assert resolve_site(model, "z") == sites(model)["z"]
    name = "layers.1.attention.q_proj"
    assert resolve_site(model, f"{name}.in") == [SitePoint(f"{name}.in", 1, name, "in")]
    assert resolve_site(model, "output_norm.out") == [
        SitePoint("output_norm.out", None, "output_norm", "out")
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("resid.mdi", r"no site 'resid.mdi'. Did you mean 'resid.mid'\? Sites: resid.pre, "),
        ("layers.1.attention.q_prj.in", r"Did you mean 'layers.1.attention.q_proj.in'\?"),
        ("output_norm.sideways", "no site 'output_norm.sideways'"),
        ("", "no site ''"),
        (".in", "no site '.in'"),
    ],
)
def test_unknown_sites(text: str, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        resolve_site(pico(), text)


def test_no_parallel_midpoint_and_no_words_without_a_family() -> None:
    with pytest.raises(RecordError, match=r"no site 'resid.mid'"):
        resolve_site(neox(), "resid.mid")
    with pytest.raises(RecordError, match="Sites: none by name"):
        resolve_site(nn.Sequential(nn.Linear(2, 2)), "z")
