"""Cosine, relative change and subspace overlap against numpy, their laws and their edges."""

import math

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays as any_array

from pico.errors import MetricError
from pico.metrics import cosine_similarity, relative_change, subspace_overlap

ELEMENTS = st.floats(-1e3, 1e3, allow_subnormal=False)


def pair(shape, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape)
    return x, x + 0.5 * rng.standard_normal(shape)


@pytest.mark.parametrize("shape", [(5,), (64, 48), (3, 4, 5)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_equal_numpy(shape, dtype):
    x, y = (z.astype(dtype) for z in pair(shape))
    a, b = x.astype(np.float64).ravel(), y.astype(np.float64).ravel()
    cosine = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
    assert cosine_similarity(x, y) == pytest.approx(cosine, rel=1e-12)
    change = np.linalg.norm(b - a) / np.linalg.norm(a)
    assert relative_change(x, y) == pytest.approx(change, rel=1e-12)


@pytest.mark.parametrize("shape", [(20, 9), (9, 20), (12, 12)])
@pytest.mark.parametrize("k", [1, 3, 8])
def test_overlap_equals_the_cosines_of_the_principal_angles(shape, k):
    x, y = pair(shape, 3)
    first, second = (np.linalg.svd(z)[0][:, :k] for z in (x, y))
    cosines = np.cos(scipy.linalg.subspace_angles(first, second))
    assert subspace_overlap(x, y, k=k) == pytest.approx(np.sum(cosines**2) / k, rel=1e-9)


def test_overlap_of_the_same_and_of_unrelated_subspaces():
    x, _ = pair((200, 12))
    assert subspace_overlap(x, x, k=5) == pytest.approx(1.0, rel=1e-12)
    assert subspace_overlap(x, -3.0 * x) == pytest.approx(1.0, rel=1e-12)
    other = np.random.default_rng(8).standard_normal((200, 12))
    assert subspace_overlap(x, other) < 0.15


def test_edges():
    x, y = pair((6, 4))
    zeros = np.zeros((6, 4))
    assert math.isnan(cosine_similarity(x, zeros)) and math.isnan(cosine_similarity(zeros, zeros))
    assert relative_change(x, x) == relative_change(zeros, zeros) == 0.0
    assert relative_change(zeros, x) == math.inf
    assert relative_change(x, zeros) == pytest.approx(1.0, rel=1e-14)
    assert cosine_similarity(x, -x) == pytest.approx(-1.0, rel=1e-14)
    assert cosine_similarity(x * 1e-200, y * 1e200) == pytest.approx(cosine_similarity(x, y))
    for bad in (math.nan, math.inf):
        y[0, 0] = bad
        assert math.isnan(cosine_similarity(x, y)) and math.isnan(relative_change(x, y))
        assert math.isnan(subspace_overlap(x, y, k=2))
    empty = np.empty((0, 4))
    assert math.isnan(cosine_similarity(empty, empty)) and math.isnan(relative_change(empty, empty))
    low = np.outer(np.arange(1.0, 7.0), np.ones(4))
    assert math.isnan(subspace_overlap(low, x, k=2))
    assert not math.isnan(subspace_overlap(low, x, k=1))


def test_refusals():
    x, y = pair((6, 4))
    for function in (cosine_similarity, relative_change):
        with pytest.raises(MetricError, match="one shape"):
            function(x, y.T)
    with pytest.raises(MetricError, match="same number of rows"):
        subspace_overlap(x, y.T, k=1)
    with pytest.raises(MetricError, match="at least 1, not 0"):
        subspace_overlap(x, y, k=0)


@given(any_array(np.float64, (2, 4, 3), elements=ELEMENTS))
def test_laws(both):
    x, y = both
    cosine = cosine_similarity(x, y)
    assert math.isnan(cosine) or -1.0 <= cosine <= 1.0
    assert cosine_similarity(y, x) == pytest.approx(cosine, rel=1e-12, abs=1e-15, nan_ok=True)
    assert relative_change(x, y) >= 0.0
