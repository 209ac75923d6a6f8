"""Scores of tokens and heads against Hugging Face's own losses, and against logits made by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import nn

from pico.config import ModelConfig
from pico.errors import RecordError
from pico.metrics import attention_entropy, induction_score, previous_token_score
from pico.models import build
from pico.models.hf import to_hf
from pico.record import heads, hooks, passes, probes, scores
from pico.record.hooks import TapPoint
from pico.record.probes import Probe
from tests.record.test_rotated import CONFIG, N_HEADS, N_KV_HEADS, T, pattern, qwen2, recorded

TOKENS = np.random.default_rng(0).integers(0, 61, (3, T))
PROBE = probes.make("mine", TOKENS, "text", [5, 7, 11])


def pico() -> nn.Module:
    model = build(CONFIG, 61, seed=3)
    for parameter in model.parameters():
        parameter.data *= 2.0  # far from uniform predictions
    return model


def scored(model: nn.Module, probe: Probe = PROBE, layers: bool = False) -> list[dict]:
    tables = list(scores.token_scores(model, probe, "r", 40, layers))
    return [row for table in tables for row in table.to_pylist()]


@pytest.mark.parametrize("make", [pico, qwen2, lambda: to_hf(pico())])
def test_losses_are_those_of_hugging_face(make) -> None:
    model = make()
    theirs = to_hf(model) if make is pico else model
    rows = scored(model)
    ids = torch.from_numpy(TOKENS)
    with torch.no_grad():
        whole = theirs.eval()(ids, labels=ids).loss.item()
        logits = theirs(ids).logits[:, :-1].double()
    assert np.mean([row["loss"] for row in rows]) == pytest.approx(whole, abs=1e-5)
    each = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none").numpy()
    np.testing.assert_allclose([row["loss"] for row in rows], each, atol=1e-5)
    entropies = torch.distributions.Categorical(logits=logits).entropy().flatten().numpy()
    np.testing.assert_allclose([row["entropy"] for row in rows], entropies, atol=1e-5)
    assert [row["top1_id"] for row in rows] == logits.argmax(-1).flatten().tolist()
    order = logits.argsort(dim=-1, descending=True)
    ranks = (order == ids[:, 1:, None]).nonzero()[:, 2].tolist()
    assert [row["rank"] for row in rows] == ranks
    first = rows[0]
    assert (first["run_id"], first["global_step"], first["probe"]) == ("r", 40, "mine")
    assert (first["sequence_id"], first["position"], first["layer"]) == (5, 0, None)
    assert (first["token_id"], first["target_id"]) == (TOKENS[0, 0], TOKENS[0, 1])
    assert len(rows) == 3 * (T - 1)


@pytest.mark.parametrize("make", [pico, qwen2])
def test_layer_scores_are_the_logit_lens(make) -> None:
    model = make()
    rows = scored(model, layers=True)
    theirs = (to_hf(model) if make is pico else model).eval()
    ids = torch.from_numpy(TOKENS)
    with torch.no_grad():
        output = theirs(ids, output_hidden_states=True)
        early = theirs.lm_head(theirs.model.norm(output.hidden_states[1]))  # after block 0
    losses = F.cross_entropy(early[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    found = {layer: [r["loss"] for r in rows if r["layer"] == layer] for layer in (None, 0, 1)}
    np.testing.assert_allclose(found[0], losses.numpy(), atol=1e-5)
    np.testing.assert_allclose(found[1], found[None], atol=1e-6)  # the last block is the output
    assert np.abs(np.subtract(found[0], found[1])).max() > 0.1
    assert len(rows) == 3 * 3 * (T - 1)


def test_logits_made_by_hand() -> None:
    half = math.log(0.5)
    logits = torch.tensor(
        [
            [half, half, -math.inf, -math.inf],
            [0.0, 0.0, 0.0, 0.0],
            [0.0, 1.0, 2.0, 3.0],
            [math.nan, 0.0, 0.0, 0.0],
        ]
    )
    found = scores.score_columns(logits, torch.tensor([0, 3, 1, 1]))
    total = math.log(sum(math.exp(z) for z in range(4)))
    np.testing.assert_allclose(found["loss"][:3], [math.log(2), math.log(4), total - 1], rtol=1e-7)
    p = np.exp(np.arange(4.0) - total)
    expected = [math.log(2), math.log(4), -(p * np.log(p)).sum()]
    np.testing.assert_allclose(found["entropy"][:3], expected, rtol=1e-7)
    assert found["rank"][:3].tolist() == [0, 0, 2]
    assert found["top1_id"][2] == 3
    assert np.isnan(found["loss"][3]) and np.isnan(found["entropy"][3])


def test_a_target_of_no_probability_has_an_infinite_loss() -> None:
    found = scores.score_columns(torch.tensor([[0.0, -math.inf]]), torch.tensor([1]))
    assert found["loss"].tolist() == [math.inf]
    assert (found["entropy"].tolist(), found["rank"].tolist()) == ([0.0], [1])


def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = scored(pico(), layers=True)
    monkeypatch.setattr(scores, "_CHUNK", 3 * 61)
    assert scored(pico(), layers=True) == whole


class Fixed(nn.Module):
    """Gives the logits that it was given."""

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.logits.expand(len(ids), -1, -1)


def test_nan_logits_leave_a_loss_of_nan_and_no_rank() -> None:
    logits = torch.zeros(1, 3, 5)
    logits[0, 1, 2] = math.nan
    rows = scored(Fixed(logits), probes.make("mine", [[0, 1, 2]], "text"))
    assert [math.isnan(row["loss"]) for row in rows] == [False, True]
    assert [(row["rank"], row["top1_id"]) for row in rows] == [(0, 0), (None, None)]


def test_targets_that_do_not_count_have_no_loss() -> None:
    counted = np.ones((3, T), dtype=bool)
    counted[1, 2:] = False
    rows = scored(pico(), Probe("mine", TOKENS, "text", [0, 1, 2], counted))
    empty = [(row["sequence_id"], row["position"]) for row in rows if row["loss"] is None]
    assert empty == [(1, position) for position in range(2, T - 1)]
    assert all(row["entropy"] is not None and row["rank"] is not None for row in rows)


def test_the_model_is_left_as_it_was() -> None:
    model = pico().train()
    model.layers[0].eval()
    modes = [module.training for module in model.modules()]
    scored(model, layers=True)
    heads.head_scores(model, PROBE)
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_heads_are_scored_from_their_queries_and_keys() -> None:
    model = pico()
    repeated = probes.make("repeat", np.tile(TOKENS[:, : T // 2], 2), "text")
    rows = heads.head_scores(model, repeated)
    at = recorded(model, torch.from_numpy(repeated.tokens))
    assert len(rows) == 2 * N_HEADS * 3
    for row in rows:
        p = pattern(at["q.rot", row["layer"]], at["k.rot", row["layer"]])[:, row["head"]]
        if row["metric"] == "attention_entropy":
            expected = torch.special.entr(p).sum(-1).mean()
        elif row["metric"] == "previous_token_score":
            expected = p.diagonal(-1, 1, 2).mean()
        else:
            expected = p.diagonal(1 - T // 2, 1, 2)[:, 1:].mean()  # from the second half on
        assert row["value"] == pytest.approx(float(expected), abs=1e-6)
        assert row["name"] == f"layers.{row['layer']}.attention.q_rot"
        assert (row["component"], row["site"], row["probe"]) == ("attention",) * 2 + ("repeat",)
    q, k = (at[site, 1].flatten(-2).numpy() for site in ("q.rot", "k.rot"))
    for function in (attention_entropy, previous_token_score, induction_score):
        [value] = [
            row["value"]
            for row in rows
            if (row["metric"], row["layer"], row["head"]) == (function.__name__, 1, 4)
        ]
        assert value == pytest.approx(function(q, k, N_HEADS, N_KV_HEADS, 4), rel=1e-9)


def test_rows_are_the_same_in_small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    model = pico()
    whole = scored(model, layers=True)
    monkeypatch.setattr(scores, "_ROWS", 1)
    tables = list(scores.token_scores(model, PROBE, "r", 40, True))
    assert len(tables) == len(TOKENS)
    assert [row for table in tables for row in table.to_pylist()] == whole
    assert [row["layer"] for row in whole[:: T - 1]] == [None, 0, 1] * len(TOKENS)


def test_many_sequences_go_through_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model, points = pico(), [TapPoint(p, "all") for p in hooks.resolve(pico(), ["z"], None)]
    whole = passes.activations(model, PROBE, points), heads.head_scores(model, PROBE)
    sizes = []
    monkeypatch.setattr(passes, "N_AT_A_TIME", 2)
    monkeypatch.setattr("pico.metrics.attention._CHUNK", T * T)
    model.register_forward_pre_hook(lambda module, args: sizes.append(len(args[0])))
    parted = passes.activations(model, PROBE, points), heads.head_scores(model, PROBE)
    assert sizes == [2, 1, 2, 1]
    for a, b in zip(whole[0], parted[0], strict=True):
        assert a.keys == b.keys and a.keys["input_hash"] == PROBE.input_hash
        np.testing.assert_allclose(a.tensor.to_numpy(), b.tensor.to_numpy(), atol=1e-5)
    for a, b in zip(
        *(
            sorted(p[1], key=lambda r: (r["layer"], r["metric"], r["head"]))
            for p in (whole, parted)
        ),
        strict=True,
    ):
        assert a["value"] == pytest.approx(b["value"], abs=1e-5)


def test_only_what_repeats_has_an_induction_score() -> None:
    assert {row["metric"] for row in heads.head_scores(pico(), PROBE)} == {
        "attention_entropy",
        "previous_token_score",
    }


def test_what_cannot_be_scored_is_refused() -> None:
    with pytest.raises(RecordError, match="cannot take the probe's tokens"):
        scored(to_hf(pico()), probes.make("mine", [[0, 99]], "text"))
    with pytest.raises(RecordError, match=r"need logits \[sequences, 2, vocabulary\]"):
        scored(Fixed(torch.zeros(1, 3, 5)), probes.make("mine", [[0, 1]], "text"))
    with pytest.raises(RecordError, match="layer scores need a model whose blocks"):
        scored(Fixed(torch.zeros(1, 3, 5)), layers=True)
    gpt2 = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=61, n_embd=12, n_layer=1, n_head=2, n_positions=16)
    )
    assert len(scored(gpt2, layers=True)) == 2 * 3 * (T - 1)
    with pytest.raises(RecordError, match="cannot take the probe's tokens"):
        heads.head_scores(to_hf(pico()), probes.make("mine", [[0, 99]], "text"))
    with pytest.raises(RecordError, match=r"no site 'q.rot'"):
        heads.head_scores(gpt2, PROBE)


def test_bfloat16_logits_are_widened() -> None:
    model = build(ModelConfig(**vars(CONFIG)), 61).to(torch.bfloat16)
    rows = scored(model)
    with torch.no_grad():
        z = model(torch.from_numpy(TOKENS))[:, :-1].double()
    each = F.cross_entropy(
        z.flatten(0, 1), torch.from_numpy(TOKENS[:, 1:]).flatten(), reduction="none"
    )
    np.testing.assert_allclose([row["loss"] for row in rows], each, rtol=1e-2)
