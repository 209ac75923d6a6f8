"""The sites `q.rot` and `k.rot`: what attention compares, in every family that turns them."""

from __future__ import annotations

import pytest
import torch
import transformers
from torch import nn

from pico.config import ModelConfig
from pico.errors import RecordError
from pico.metrics import attention_pattern
from pico.models import build
from pico.models.architecture import sites
from pico.models.hf import to_hf
from pico.record import hooks
from pico.record.hooks import TapPoint, Taps

N_HEADS, N_KV_HEADS, D_HEAD, T = 6, 2, 8, 10
CONFIG = ModelConfig(d_model=48, n_layers=2, n_heads=N_HEADS, n_kv_heads=N_KV_HEADS, context=32)
SIZES = {
    "vocab_size": 61,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": N_HEADS,
    "num_key_value_heads": N_KV_HEADS,
}


def pico() -> nn.Module:
    model = build(CONFIG, 61, seed=3)
    for parameter in model.parameters():
        parameter.data *= 3.0  # far from uniform attention
    return model


def qwen2() -> nn.Module:
    torch.manual_seed(0)
    return transformers.Qwen2ForCausalLM(
        transformers.Qwen2Config(**SIZES, attn_implementation="eager", initializer_range=0.3)
    )


def scaled_rope() -> nn.Module:
    torch.manual_seed(0)
    rope = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            **SIZES, attn_implementation="eager", initializer_range=0.3, rope_parameters=rope
        )
    )


def recorded(model: nn.Module, ids: torch.Tensor) -> dict[tuple[str, int | None], torch.Tensor]:
    points = hooks.resolve(model, ["q.rot", "k.rot"], None)
    taps = Taps(model, [TapPoint(point, "all") for point in points])
    with torch.no_grad():
        model.eval()(ids)
    taps.remove()
    rows = taps.rows("mine", "text", list(range(len(ids))))
    shape = (len(ids), T, -1, D_HEAD)
    return {
        (row.keys["site"], row.keys["layer"]): torch.from_numpy(row.tensor.to_numpy()).view(shape)
        for row in rows
    }


def pattern(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Attention (sequences, heads, T, T) by the formula, one head at a time."""
    heads = []
    for head in range(N_HEADS):
        group = head * N_KV_HEADS // N_HEADS
        scores = q[:, :, head].double() @ k[:, :, group].double().transpose(1, 2) / D_HEAD**0.5
        heads.append(scores.masked_fill(~torch.ones(T, T).tril().bool(), -torch.inf).softmax(-1))
    return torch.stack(heads, dim=1)


@pytest.mark.parametrize("make", [pico, qwen2, scaled_rope])
def test_they_give_the_attention_of_the_model(make) -> None:
    model = make()
    ids = torch.randint(0, 61, (3, T), generator=torch.Generator().manual_seed(1))
    at = recorded(model, ids)
    assert set(at) == {(site, layer) for site in ("q.rot", "k.rot") for layer in (0, 1)}
    theirs = to_hf(model) if make is pico else model
    theirs.set_attn_implementation("eager")
    with torch.no_grad():
        eager = theirs.eval()(ids, output_attentions=True).attentions
    for layer in (0, 1):
        ours = pattern(at["q.rot", layer], at["k.rot", layer]).float()
        assert eager[layer].max() > 0.5 and eager[layer][:, :, -1].std() > 0.05
        torch.testing.assert_close(ours, eager[layer], rtol=0, atol=1e-5)
        q, k = (at[site, layer].flatten(-2) for site in ("q.rot", "k.rot"))
        found = attention_pattern(q, k, N_HEADS, N_KV_HEADS).float()
        torch.testing.assert_close(found, eager[layer], rtol=0, atol=1e-5)


def test_what_is_not_turned_or_normalised_first_is_no_such_site() -> None:
    config = transformers.Qwen3Config(**SIZES, head_dim=D_HEAD)
    assert "q" in sites(transformers.Qwen3ForCausalLM(config))
    assert "q.rot" not in sites(transformers.Qwen3ForCausalLM(config))


def test_attention_without_rotary_positions_is_refused() -> None:
    model = qwen2()
    layer = model.model.layers[0].self_attn
    hidden, mask = torch.zeros(1, T, 48), None
    with pytest.raises(
        RecordError, match=r"q.rot or k.rot: Qwen2Attention is given no position_em"
    ):
        points = [point for point in sites(model)["q.rot"] if point.layer == 0]
        taps = Taps(model, [TapPoint(point, "all") for point in points])
        try:
            layer(hidden, attention_mask=mask)
        finally:
            taps.remove()
