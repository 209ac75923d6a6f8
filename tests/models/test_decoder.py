"""pico-decoder against transformers' LLaMA, against itself with a cache, and against bad input."""

from __future__ import annotations

import dataclasses
import sys

import pytest
import torch
import torch.nn.functional as F

from pico.config import ModelConfig
from pico.errors import ConfigError, DataError, MissingExtraError
from pico.models import KVCache, PicoDecoder, build
from pico.models.hf import hf_names, to_hf, to_hf_state

VOCAB = 61
SHAPES = {
    "mqa": ModelConfig(d_model=48, n_layers=2, n_heads=6, n_kv_heads=1, context=40),
    "gqa": ModelConfig(d_model=96, n_layers=3, n_heads=12, n_kv_heads=4, context=64),
    "mha": ModelConfig(d_model=64, n_layers=2, n_heads=2, n_kv_heads=2, context=64, d_hidden=100),
    "theta": ModelConfig(
        d_model=40, n_layers=2, n_heads=2, n_kv_heads=1, context=48, rope_theta=500.0
    ),
}


def tokens(batch: int, length: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(VOCAB, (batch, length), generator=torch.Generator().manual_seed(seed))


def sharpened(config: ModelConfig) -> PicoDecoder:
    """A model whose attention is far from uniform, so that position and pairing matter."""
    model = build(config, VOCAB, seed=3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "q_proj" in name or "k_proj" in name:
                parameter.mul_(3)
            if "norm" in name:
                parameter.add_(torch.linspace(-0.5, 0.5, len(parameter)))
    return model


@pytest.mark.parametrize("shape", SHAPES)
def test_logits_and_gradients_equal_transformers(shape: str) -> None:
    ours = sharpened(SHAPES[shape])
    theirs = to_hf(ours)
    x = tokens(3, SHAPES[shape].context - 1)
    ours_logits, their_logits = ours(x), theirs(x).logits
    assert (ours_logits - their_logits).abs().max() <= 1e-5
    for logits in (ours_logits, their_logits):
        F.cross_entropy(logits[:, :-1].flatten(0, 1), x[:, 1:].flatten()).backward()
    gradients = {name: parameter.grad for name, parameter in ours.named_parameters()}
    converted = to_hf_state(gradients, ours.config)
    for name, parameter in theirs.named_parameters():
        assert parameter.grad.abs().max() > 1e-4
        assert (converted[name] - parameter.grad).abs().max() <= 1e-5, name


def test_attention_pattern_is_sharp_enough_to_test_positions() -> None:
    model = sharpened(SHAPES["gqa"])
    x = tokens(1, 20)
    swapped = x.clone()
    swapped[0, 3], swapped[0, 9] = x[0, 9], x[0, 3]
    assert (model(x)[0, -1] - model(swapped)[0, -1]).abs().max() > 1e-3


def test_models_of_different_heads_and_theta_live_side_by_side() -> None:
    models = [sharpened(config) for config in SHAPES.values()]
    references = [to_hf(model) for model in models]
    for length in (5, 30, 17):
        for model, reference in zip(models, references, strict=True):
            x = tokens(2, length)
            assert (model(x) - reference(x).logits).abs().max() <= 1e-5
    tables = {model.rope.table.data_ptr() for model in models}
    assert len(tables) == len(models)


@pytest.mark.parametrize("shape", SHAPES)
def test_eager_equals_sdpa(shape: str) -> None:
    config = dataclasses.replace(SHAPES[shape], attn_implementation="eager")
    fused, plain = sharpened(SHAPES[shape]), sharpened(config)
    x = tokens(2, 33)
    assert (fused(x) - plain(x)).abs().max() <= 1e-5


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("pieces", [[1] * 12, [5] + [1] * 7, [4, 3, 5], [12]])
@torch.no_grad()
def test_cached_logits_equal_uncached(pieces: list[int], implementation: str) -> None:
    model = sharpened(dataclasses.replace(SHAPES["gqa"], attn_implementation=implementation))
    x = tokens(2, 12)
    cache, seen = KVCache(), []
    for piece in x.split(pieces, dim=1):
        seen.append(model(piece, cache))
    assert cache.length == 12
    assert (torch.cat(seen, dim=1) - model(x)).abs().max() <= 1e-5


def test_names_are_those_of_pico_train() -> None:
    names = list(build(SHAPES["mqa"], VOCAB).state_dict())
    expected = ["embedding_proj.weight"]
    for layer in range(2):
        expected += [f"layers.{layer}.attention_norm.weight"]
        expected += [f"layers.{layer}.attention.{part}_proj.weight" for part in "qkvo"]
        expected += [f"layers.{layer}.swiglu_norm.weight"]
        expected += [f"layers.{layer}.swiglu.w_{part}.weight" for part in range(3)]
    expected += ["output_norm.weight", "de_embedding_proj.weight"]
    assert names == expected
    assert set(hf_names(2)) == set(names)


@pytest.mark.parametrize(
    ("d_model", "count"),
    [(96, 11_282_784), (384, 64_595_328), (768, 181_095_168), (1536, 569_808_384)],
)
def test_parameter_counts_of_the_pico_sizes(d_model: int, count: int) -> None:
    with torch.device("meta"):
        model = PicoDecoder(ModelConfig(d_model=d_model))
    assert sum(parameter.numel() for parameter in model.parameters()) == count


def test_initialisation_depends_on_its_seed_alone() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = build(SHAPES["gqa"], VOCAB, seed=5)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    second, other = build(SHAPES["gqa"], VOCAB, seed=5), build(SHAPES["gqa"], VOCAB, seed=6)
    for (name, a), b, c in zip(
        first.named_parameters(), second.parameters(), other.parameters(), strict=True
    ):
        assert torch.equal(a, b)
        assert a.dim() == 1 or not torch.equal(a, c), name


def test_initialisation_scale() -> None:
    config = ModelConfig(d_model=192, n_layers=8, n_heads=4, n_kv_heads=2)
    model = build(config, 500)
    base = (2 / (5 * 192)) ** 0.5
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1:
            assert (parameter == 1).all()
        else:
            residual = name.endswith(("o_proj.weight", "w_2.weight"))
            expected = base / 4 if residual else base
            assert abs(parameter.std().item() / expected - 1) < 0.03, name


def test_reruns_are_bitwise_equal() -> None:
    def once() -> list[torch.Tensor]:
        model = sharpened(SHAPES["gqa"])
        logits = model(tokens(2, 40))
        logits.square().mean().backward()
        return [logits.detach(), *(parameter.grad for parameter in model.parameters())]

    assert all(torch.equal(a, b) for a, b in zip(once(), once(), strict=True))


def test_a_model_from_the_meta_device_or_cast_keeps_its_rotary_table() -> None:
    model = sharpened(SHAPES["gqa"])
    with torch.device("meta"):
        empty = PicoDecoder(SHAPES["gqa"], VOCAB)
    assert empty.rope.table.is_meta
    filled = empty.to_empty(device="cpu")
    filled.load_state_dict(model.state_dict())
    x = tokens(1, 30)
    assert torch.equal(filled(x), model(x))
    half = build(SHAPES["gqa"], VOCAB).bfloat16()
    assert half.rope.table.dtype == torch.float32
    assert torch.equal(half.rope.table, model.rope.table)
    assert half(x).dtype == torch.bfloat16
    wide = sharpened(SHAPES["gqa"]).double()
    assert (wide(x) - model(x)).abs().max() <= 1e-5
    assert wide(x).dtype == torch.float64


def test_dropout_acts_in_training_only_and_not_at_zero() -> None:
    plain = build(SHAPES["gqa"], VOCAB)
    assert not [m for m in plain.modules() if isinstance(m, torch.nn.Dropout)]
    config = dataclasses.replace(SHAPES["gqa"], dropout=0.5)
    model, x = build(config, VOCAB), tokens(1, 8)
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), plain(x))
    assert list(model.state_dict()) == list(plain.state_dict())


def test_generate_is_decided_by_its_seed() -> None:
    model, prompt = sharpened(SHAPES["gqa"]), tokens(2, 5)
    first = model.generate(prompt, 20, seed=1)
    assert first.shape == (2, 25)
    assert torch.equal(first[:, :5], prompt)
    torch.manual_seed(9)
    assert torch.equal(first, model.generate(prompt, 20, seed=1))
    assert not torch.equal(first, model.generate(prompt, 20, seed=2))
    generator = torch.Generator().manual_seed(1)
    assert torch.equal(first, model.generate(prompt, 20, generator=generator))
    assert model.training
    assert torch.equal(model.generate(prompt, 0), prompt)


def test_greedy_generation_equals_uncached_argmax() -> None:
    model, text = sharpened(SHAPES["gqa"]), tokens(1, 4)
    greedy = model.generate(text, 15, temperature=0)
    for _ in range(15):
        text = torch.cat((text, model(text)[:, -1:].argmax(-1)), dim=1)
    assert torch.equal(greedy, text)
    assert torch.equal(greedy, model.generate(greedy[:, :4], 15, top_k=1, seed=3))


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (torch.zeros(3, dtype=torch.long), r"shape \(B, T\).*\(3,\)"),
        (torch.zeros(1, 0, dtype=torch.long), "not empty"),
        (torch.zeros(1, 3), "float32"),
        (torch.zeros(1, 41, dtype=torch.long), "41 tokens exceed the model's context of 40"),
        (torch.tensor([[0, VOCAB]]), f"token id {VOCAB} lies outside the vocabulary of {VOCAB}"),
        (torch.tensor([[-1, 0]]), "token id -1"),
    ],
)
def test_bad_input_ids(ids: torch.Tensor, message: str) -> None:
    with pytest.raises(DataError, match=message):
        build(SHAPES["mqa"], VOCAB)(ids)


def test_exceeding_the_context_while_decoding() -> None:
    model, cache = build(SHAPES["mqa"], VOCAB), KVCache()
    with torch.no_grad():
        model(tokens(1, 40), cache)
        with pytest.raises(DataError, match="41 tokens exceed"):
            model(tokens(1, 1), cache)
    with pytest.raises(DataError, match="45 tokens exceed"):
        model.generate(tokens(1, 5), 40)
    with pytest.raises(DataError, match="max_new_tokens"):
        model.generate(tokens(1, 5), -1)


def test_bad_sizes_and_absent_flash_attn(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="vocab_size must be at least 1, not 0"):
        PicoDecoder(SHAPES["mqa"], vocab_size=0)
    with pytest.raises(ConfigError, match="vocab_size 10 is smaller than the tokenizer's 61"):
        build(ModelConfig(d_model=24, vocab_size=10), VOCAB)
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    with pytest.raises(MissingExtraError, match=r"pico-lake\[flash\]"):
        build(ModelConfig(d_model=24, attn_implementation="flash_attention_2"), VOCAB)


def test_vocabulary_defaults() -> None:
    with torch.device("meta"):
        assert build(ModelConfig(d_model=24)).config.vocab_size == 50304
        assert build(ModelConfig(d_model=24, vocab_size=70), 61).config.vocab_size == 70
        assert build(ModelConfig(d_model=24), 61).config.vocab_size == 61
