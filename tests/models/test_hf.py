"""Conversion to and from transformers' LLaMA."""

from __future__ import annotations

import sys

import pytest
import torch
import transformers

from pico.config import ModelConfig
from pico.errors import ConfigError, MissingExtraError
from pico.models import build
from pico.models.hf import config_from_hf, from_hf, from_hf_state, to_hf, to_hf_state

CONFIG = ModelConfig(d_model=48, n_layers=2, n_heads=6, n_kv_heads=2, context=32, rope_theta=700.0)


def llama(**changes: object) -> transformers.LlamaForCausalLM:
    sizes = dict(
        vocab_size=51,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=24,
    )
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**sizes, **changes}))


def test_there_and_back_is_bitwise_equal() -> None:
    model = build(CONFIG, 61)
    state = model.state_dict()
    back = from_hf_state(to_hf_state(state, CONFIG), CONFIG)
    assert back.keys() == state.keys()
    assert all(torch.equal(back[name], state[name]) for name in state)


def test_a_transformers_model_becomes_a_pico_decoder() -> None:
    theirs = llama(rope_parameters={"rope_type": "default", "rope_theta": 300.0}).eval()
    ours = from_hf(theirs)
    x = torch.arange(20).unsqueeze(0)
    assert not ours.training
    assert ours.config.rope_theta == 300.0
    assert (ours(x) - theirs(x).logits).abs().max() <= 1e-5


def test_sizes_survive() -> None:
    model = build(CONFIG, 61)
    theirs = to_hf(model)
    assert theirs.config.rope_parameters["rope_theta"] == 700.0
    back = config_from_hf(theirs.config)
    assert back.hidden == CONFIG.hidden
    for name in ("d_model", "n_layers", "n_heads", "n_kv_heads", "context", "norm_eps"):
        assert getattr(back, name) == getattr(CONFIG, name)


def test_conversion_leaves_the_random_state_and_the_weights_alone() -> None:
    model = build(CONFIG, 61).bfloat16()
    before = torch.get_rng_state()
    theirs = to_hf(model)
    assert torch.equal(torch.get_rng_state(), before)
    assert theirs.dtype == torch.bfloat16
    with torch.no_grad():
        theirs.lm_head.weight.zero_()
    assert model.de_embedding_proj.weight.abs().max() > 0


def test_tied_embeddings_become_two() -> None:
    theirs = llama(tie_word_embeddings=True)
    state = {k: v for k, v in theirs.state_dict().items() if k != "lm_head.weight"}
    ours = from_hf_state(state, config_from_hf(theirs.config))
    assert torch.equal(ours["embedding_proj.weight"], ours["de_embedding_proj.weight"])
    assert ours["embedding_proj.weight"].data_ptr() != ours["de_embedding_proj.weight"].data_ptr()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "activation 'gelu'"),
        ({"head_dim": 16}, "head_dim 16"),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}, "RoPE"),
    ],
)
def test_what_cannot_be_expressed_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_hf(llama(**changes))


def test_biases_and_missing_weights_are_refused() -> None:
    theirs = llama(attention_bias=True)
    with pytest.raises(ConfigError, match=r"left over.*bias"):
        from_hf(theirs)
    with pytest.raises(ConfigError, match="missing"):
        to_hf_state({}, CONFIG)


def test_without_transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match=r"pico-lake\[hf\]"):
        to_hf(build(CONFIG, 61))
