"""Arithmetic of tensors against numpy and torch, special values included."""

import operator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pico.errors import MetricError
from pico.metrics import (
    fold_norm,
    matmul,
    mean_cosine,
    t_add,
    t_div,
    t_mul,
    t_sqrt,
    t_sub,
    tensor_mean,
)
from pico.metrics.arithmetic import mean_of

FLOATS = hnp.arrays(np.float32, (3, 4), elements=st.floats(width=32))
PAIRS = {t_add: operator.add, t_sub: operator.sub, t_mul: operator.mul, t_div: operator.truediv}


@pytest.mark.parametrize("ours", PAIRS)
@given(FLOATS, FLOATS)
def test_entry_by_entry(ours, x, y):
    with np.errstate(all="ignore"):
        expected = PAIRS[ours](x.astype(float), y.astype(float))
    np.testing.assert_array_equal(ours(x, y), expected)
    np.testing.assert_array_equal(ours(torch.from_numpy(x), torch.from_numpy(y)), expected)


def test_what_broadcasts():
    assert t_mul([[1.0, 2.0]], 3.0).tolist() == [[3.0, 6.0]]
    assert t_add([[1.0], [2.0]], [10.0, 20.0]).tolist() == [[11.0, 21.0], [12.0, 22.0]]


def test_roots():
    found = t_sqrt([4.0, 0.0, np.inf, -1.0, np.nan])
    assert found[:3].tolist() == [2.0, 0.0, np.inf] and np.isnan(found[3:]).all()


@given(FLOATS, FLOATS)
def test_the_mean_of_two_is_torchs_bit_for_bit(x, y):
    torchs = torch.stack([torch.from_numpy(x), torch.from_numpy(y)]).mean(0).numpy()
    with np.errstate(over="ignore"):
        ours = tensor_mean(x, y).astype(np.float32)
    in_range = np.isfinite(torchs) | ~np.isfinite(ours)  # a float32 sum overflows, ours does not
    np.testing.assert_array_equal(ours[in_range], torchs[in_range])


def test_the_mean_of_many():
    tensors = np.random.default_rng(0).standard_normal((5, 2, 3))
    np.testing.assert_allclose(mean_of(list(tensors)), tensors.mean(0), rtol=1e-14)
    np.testing.assert_array_equal(mean_of([tensors[0]]), tensors[0])
    with pytest.raises(MetricError, match="no tensor to take the mean of"):
        mean_of([])
    with pytest.raises(MetricError, match="tensors of one shape"):
        mean_of([np.zeros(2), np.zeros(3)])


def test_products():
    a, b = np.random.default_rng(1).standard_normal((2, 3, 3))
    np.testing.assert_allclose(matmul(a, b), a @ b, rtol=1e-14)
    gain = np.array([1.0, 2.0, 0.5])
    np.testing.assert_allclose(fold_norm(a, gain), matmul(a, np.diag(gain)), rtol=1e-14)
    np.testing.assert_array_equal(fold_norm(a, np.ones(3)), a)
    x = np.array([0.3, -1.0, 2.0])
    np.testing.assert_allclose(fold_norm(a, gain) @ x, a @ (gain * x), rtol=1e-14)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: t_add(np.zeros(2), np.zeros(3)), r"shapes \(2,\) and \(3,\) do not fit"),
        (lambda: matmul(np.zeros((2, 3)), np.zeros((2, 3))), "have no product"),
        (lambda: matmul(np.zeros(2), np.zeros((2, 3))), "have no product"),
        (lambda: fold_norm(np.zeros((2, 3)), np.zeros(2)), "it has an entry for each column"),
        (lambda: fold_norm(np.zeros(2), np.zeros(2)), "it has an entry for each column"),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises(MetricError, match=message):
        call()


def test_mean_cosine_is_the_mean_over_pairs():
    x = np.random.default_rng(2).standard_normal((7, 5)) + 0.7
    cosines = [
        x[i] @ x[j] / (np.linalg.norm(x[i]) * np.linalg.norm(x[j]))
        for i in range(7)
        for j in range(i)
    ]
    assert mean_cosine(x) == pytest.approx(np.mean(cosines), rel=1e-12)
    assert mean_cosine(x * np.geomspace(1e-200, 1e200, 7)[:, None]) == pytest.approx(
        np.mean(cosines), rel=1e-12
    )
    assert mean_cosine(np.ones((4, 3))) == pytest.approx(1.0, rel=1e-14)
    assert mean_cosine([[1.0, 0.0], [-2.0, 0.0]]) == pytest.approx(-1.0)
    for odd in (
        [[1.0, 2.0]],
        [[0.0, 0.0], [1.0, 0.0]],
        [[np.nan, 1.0], [1.0, 1.0]],
        np.ones((2, 0)),
    ):
        assert np.isnan(mean_cosine(odd))
    with pytest.raises(MetricError, match="takes a matrix"):
        mean_cosine([1.0])
