"""Attention of heads against softmax in torch, and scores of patterns made by hand."""

import math

import numpy as np
import pytest
import torch

from pico.errors import MetricError
from pico.metrics import (
    attention_entropy,
    attention_pattern,
    induction_score,
    previous_token_score,
)
from pico.metrics.attention import HEAD_SCORES, head_scores

SIZES = [(1, 1, 1), (4, 4, 3), (6, 2, 8), (4, 1, 2)]
FAR = 1e4  # a score that leaves nothing to the others


def recorded(n_heads, n_kv_heads, d_head, n=3, length=7):
    rng = np.random.default_rng(n_heads)
    q = rng.standard_normal((n, length, n_heads * d_head)).astype(np.float32)
    return q, rng.standard_normal((n, length, n_kv_heads * d_head)).astype(np.float32)


def reference(q, k, n_heads, n_kv_heads):
    q, k = (torch.from_numpy(x).double() for x in (q, k))
    q = q.unflatten(-1, (n_heads, -1)).transpose(1, 2)
    k = k.unflatten(-1, (n_kv_heads, -1)).transpose(1, 2)
    k = k.repeat_interleave(n_heads // n_kv_heads, dim=1)
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    n = scores.shape[-1]
    return scores.masked_fill(~torch.ones(n, n).tril().bool(), -torch.inf).softmax(-1).numpy()


@pytest.mark.parametrize("sizes", SIZES)
def test_patterns_are_softmax_of_scores(sizes):
    q, k = recorded(*sizes)
    expected = reference(q, k, *sizes[:2])
    np.testing.assert_allclose(attention_pattern(q, k, *sizes[:2]), expected, rtol=1e-12)
    as_stored = (x.reshape(-1, x.shape[-1]) for x in (q, k))
    found = attention_pattern(*as_stored, *sizes[:2], n_positions=7)
    np.testing.assert_array_equal(found, attention_pattern(q, k, *sizes[:2]))
    np.testing.assert_allclose(found.sum(-1), 1.0, rtol=1e-14)


@pytest.mark.parametrize("sizes", SIZES)
def test_scores_are_means_over_the_pattern(sizes):
    q, k = recorded(*sizes)
    patterns = reference(q, k, *sizes[:2])
    of_all = head_scores(q, k, *sizes[:2])
    assert tuple(of_all) == HEAD_SCORES
    for head in range(sizes[0]):
        p = patterns[:, head]
        entropies = -(p * np.log(np.where(p > 0, p, 1.0))).sum(-1)
        before = [p[s, i, i - 1] for s in range(3) for i in range(1, 7)]
        followed = [p[s, i, i - 3 + 1] for s in range(3) for i in range(3, 7)]
        wanted = [entropies.mean(), np.mean(before), np.mean(followed)]
        functions = (attention_entropy, previous_token_score, induction_score)
        for name, function, value in zip(HEAD_SCORES, functions, wanted, strict=True):
            assert function(q, k, *sizes[:2], head) == pytest.approx(value, rel=1e-12)
            assert of_all[name][head] == function(q, k, *sizes[:2], head)


def one_hot(targets):
    """Queries and keys of one head that attends from each position to its target alone."""
    n = len(targets)
    keys = np.eye(n) * FAR
    return keys[list(targets)] / FAR, keys


def test_a_perfect_induction_head():
    q, k = one_hot([0, 0, 0, 0, 1, 2, 3, 4])
    assert induction_score(q, k, 1, 1, 0) == pytest.approx(1.0, abs=1e-12)
    assert attention_entropy(q, k, 1, 1, 0) == pytest.approx(0.0, abs=1e-9)
    assert previous_token_score(q, k, 1, 1, 0) == pytest.approx(1 / 7)


def test_a_perfect_previous_token_head():
    q, k = one_hot([0, 0, 1, 2, 3, 4])
    assert previous_token_score(q, k, 1, 1, 0) == pytest.approx(1.0, abs=1e-12)
    assert induction_score(q, k, 1, 1, 0) == pytest.approx(0.0, abs=1e-12)


def test_uniform_attention():
    q, k = np.zeros((2, 6, 4)), np.ones((2, 6, 2))
    assert attention_entropy(q, k, 2, 1, 1) == pytest.approx(np.mean(np.log(np.arange(1, 7))))
    assert previous_token_score(q, k, 2, 1, 1) == pytest.approx(np.mean(1 / np.arange(2, 7)))


def test_edges():
    assert attention_entropy(np.zeros((1, 2)), np.zeros((1, 2)), 1, 1, 0) == 0.0
    for function in (previous_token_score, induction_score):
        assert math.isnan(function(np.zeros((1, 2)), np.zeros((1, 2)), 1, 1, 0))
        assert math.isnan(function(np.zeros((0, 2)), np.zeros((0, 2)), 1, 1, 0))
    assert attention_pattern(np.zeros((0, 2)), np.zeros((0, 2)), 1, 1).shape == (1, 0, 0)
    q, k = recorded(2, 1, 4, n=1, length=4)
    k[0, 2, 0] = np.nan
    pattern = attention_pattern(q, k, 2, 1)
    assert not np.isnan(pattern[:, :, :2]).any() and np.isnan(pattern[:, :, 2:, :3]).all()
    q[0, 0, 0] = np.inf
    assert math.isnan(attention_entropy(q, k, 2, 1, 0))
    assert type(induction_score(torch.zeros(1, 4, 2), torch.zeros(1, 4, 2), 1, 1, 0)) is float
    assert isinstance(attention_pattern(torch.zeros(4, 2), torch.zeros(4, 2), 1, 1), torch.Tensor)


@pytest.mark.parametrize(
    ("q", "k", "given", "message"),
    [
        ((4, 6), (4, 6), (4, 4, 0), "are not those of 4 heads and 4 key heads"),
        ((4, 6), (5, 6), (2, 2, 0), "at the same positions"),
        ((4, 6), (4, 6), (2, 1, 0), "are not those of 2 heads and 1 key heads"),
        ((4, 6), (4, 3), (2, 1, 2), "no head 2; heads are 0 to 1"),
        ((4, 6), (4, 3), (2, 1, -1), "no head -1"),
        ((4, 6), (4, 6), (3, 2, 0), "do not divide among"),
        ((6,), (6,), (1, 1, 0), "are not those of 1 heads"),
        ((4, 6), (4, 6), (1, 1, 0, 3), r"shape \(4, 6\) are no sequences of 3 positions"),
        ((2, 4, 6), (2, 4, 6), (1, 1, 0, 4), "are no sequences of 4 positions"),
        ((4, 6), (4, 6), (1, 1, 0, -4), "are no sequences of -4 positions"),
    ],
)
def test_what_does_not_fit_is_refused(q, k, given, message):
    with pytest.raises(MetricError, match=message):
        induction_score(np.zeros(q), np.zeros(k), *given)
