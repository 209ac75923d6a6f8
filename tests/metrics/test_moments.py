"""Moments, trace, kurtosis, shares of zeros and row sums against numpy and scipy."""

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays as any_array

from pico import metrics

SHAPES = [(1,), (7,), (1, 64), (64, 48), (200, 16), (3, 4, 5)]
FINITE = st.floats(-1e6, 1e6, allow_subnormal=False)
REFERENCES = {
    "entry_mean": np.mean,
    "entry_median": np.median,
    "entry_variance": np.var,
    "zero_fraction": lambda x: np.mean(x == 0),
    "l1_l2_ratio": lambda x: np.sum(np.abs(x)) / np.linalg.norm(x.ravel()),
    "trace": lambda x: np.trace(np.atleast_2d(x.T).T.reshape(x.shape[0], -1)),
    "inf_norm": lambda x: np.linalg.norm(x.reshape(x.shape[0], -1), np.inf),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_equals_numpy(name, shape, dtype):
    x = np.random.default_rng(1).standard_normal(shape).astype(dtype) + dtype(0.5)
    x.ravel()[:: 3 if x.size > 1 else 2] = 0 if x.size > 1 else 2
    wanted = REFERENCES[name](x.astype(np.float64))
    assert getattr(metrics, name)(x) == pytest.approx(wanted, rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("shape", [(7,), (64, 48), (3, 4, 5)])
def test_kurtosis_equals_scipy(shape):
    x = np.random.default_rng(2).standard_t(5, shape)
    assert metrics.excess_kurtosis(x) == pytest.approx(
        scipy.stats.kurtosis(x, axis=None), rel=1e-11
    )
    assert metrics.excess_kurtosis(x + 1e6) == pytest.approx(metrics.excess_kurtosis(x), rel=1e-6)


@pytest.mark.parametrize("factor", [1e-200, 1e-300, 1e200])
def test_no_overflow_on_the_way(factor):
    x = np.random.default_rng(3).standard_normal((8, 5))
    for name in ("excess_kurtosis", "l1_l2_ratio", "zero_fraction"):
        assert getattr(metrics, name)(x * factor) == pytest.approx(
            getattr(metrics, name)(x), rel=1e-12
        )
    for name in ("entry_mean", "entry_median", "trace", "inf_norm"):
        assert getattr(metrics, name)(x * factor) == pytest.approx(
            getattr(metrics, name)(x) * factor, rel=1e-12
        )


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity(bad):
    x = np.ones((4, 3))
    x[2, 1] = bad
    for name in ("entry_mean", "entry_median", "entry_variance", "excess_kurtosis", "trace"):
        assert math.isnan(getattr(metrics, name)(x)), name
    assert math.isnan(metrics.l1_l2_ratio(x))
    assert metrics.zero_fraction(x) == 0.0
    assert metrics.inf_norm(x) == pytest.approx(abs(bad), nan_ok=True)


def test_empty_zero_and_constant():
    empty, zeros, constant = np.empty((0, 3)), np.zeros((2, 3)), np.full((5, 4), 0.1)
    for name in ("entry_mean", "entry_median", "entry_variance", "excess_kurtosis"):
        assert math.isnan(getattr(metrics, name)(empty)), name
    assert math.isnan(metrics.zero_fraction(empty)) and math.isnan(metrics.l1_l2_ratio(empty))
    assert metrics.trace(empty) == metrics.inf_norm(empty) == 0.0
    assert metrics.zero_fraction(zeros) == 1.0 and math.isnan(metrics.l1_l2_ratio(zeros))
    assert metrics.entry_mean(zeros) == metrics.entry_variance(zeros) == 0.0
    assert metrics.entry_variance(constant) == 0.0
    assert math.isnan(metrics.excess_kurtosis(constant))
    assert metrics.l1_l2_ratio(constant) == pytest.approx(math.sqrt(20), rel=1e-14)
    assert metrics.trace(np.float64(3.0)) == metrics.inf_norm(np.float64(-3.0)) + 0.0 == 3.0


@given(any_array(np.float64, (6, 5), elements=FINITE))
def test_laws(x):
    assert metrics.inf_norm(x) <= 5 * metrics.max_abs(x) * (1 + 1e-12)
    assert metrics.max_abs(x) <= metrics.inf_norm(x) * (1 + 1e-12)
    assert metrics.entry_variance(x) >= 0.0
    assert x.min() <= metrics.entry_median(x) <= x.max()
    ratio = metrics.l1_l2_ratio(x)
    assert math.isnan(ratio) or 1.0 - 1e-12 <= ratio <= math.sqrt(30) + 1e-12
