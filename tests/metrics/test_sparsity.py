"""Gini and Hoyer against their definitions, in float64, and their invariances."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pico.metrics import gini, hoyer

SHAPES = [(64, 48), (200, 16), (1, 64), (64, 1), (3, 4, 5)]
# Magnitudes that differ by less than the rounding of a sum would make "invariant" a matter of luck.
tensors = hnp.arrays(
    np.float64, hnp.array_shapes(max_dims=3, max_side=6), elements=st.integers(-1000, 1000)
)


def gini_by_pairs(array):
    """Return the mean absolute difference of all pairs over twice the mean: the definition."""
    x = np.abs(np.ravel(array)).astype(np.float64)
    return np.abs(x[:, None] - x[None, :]).mean() / (2 * x.mean())


def hoyer_by_norms(array):
    x = np.ravel(array).astype(np.float64)
    root = math.sqrt(x.size)
    return (root - np.linalg.norm(x, 1) / np.linalg.norm(x, 2)) / (root - 1)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_equal_their_definitions(shape, dtype):
    array = np.random.default_rng(0).standard_t(3, shape).astype(dtype)
    assert gini(array) == pytest.approx(gini_by_pairs(array), rel=1e-12)
    assert hoyer(array) == pytest.approx(hoyer_by_norms(array), rel=1e-12)


def test_equal_their_definitions_on_low_rank_and_sparse_tensors():
    rng = np.random.default_rng(1)
    low_rank = rng.standard_normal((40, 3)) @ rng.standard_normal((3, 50))
    sparse = low_rank * (rng.random(low_rank.shape) < 0.05)
    for array in (low_rank, sparse):
        assert gini(array) == pytest.approx(gini_by_pairs(array), rel=1e-12)
        assert hoyer(array) == pytest.approx(hoyer_by_norms(array), rel=1e-12)
    assert gini(sparse) > 0.9


def test_bfloat16_is_accumulated_in_float64():
    torch = pytest.importorskip("torch")
    tensor = torch.randn(64, 48, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    wide = tensor.to(torch.float64).numpy()
    assert gini(tensor) == pytest.approx(gini_by_pairs(wide), rel=1e-12)
    assert hoyer(tensor) == pytest.approx(hoyer_by_norms(wide), rel=1e-12)


def test_known_values():
    assert gini([1.0, 2.0, 3.0, 4.0]) == pytest.approx(0.25, rel=1e-15)
    assert hoyer([3.0, 4.0]) == pytest.approx((math.sqrt(2) - 1.4) / (math.sqrt(2) - 1), rel=1e-14)
    for n in (2, 10, 1000):
        one_hot = np.eye(1, n)
        assert gini(one_hot) == pytest.approx(1 - 1 / n, rel=1e-15)
        assert hoyer(one_hot) == 1.0
        assert gini(np.full(n, 0.1)) == pytest.approx(0.0, abs=1e-13)
        assert hoyer(np.full(n, 0.1)) == pytest.approx(0.0, abs=1e-13)


def test_edges():
    assert gini(np.zeros((8, 8))) == 0.0
    assert math.isnan(hoyer(np.zeros((8, 8))))
    assert gini([[3.0]]) == 0.0
    assert math.isnan(hoyer([[3.0]]))
    assert gini(-2.0) == 0.0
    for metric in (gini, hoyer):
        assert math.isnan(metric(np.zeros((0, 3))))
        assert math.isnan(metric([1.0, math.nan]))
        assert math.isnan(metric([1.0, math.inf]))
        assert type(metric(np.ones(3, np.float32))) is float


def test_extreme_magnitudes_neither_overflow_nor_underflow():
    array = np.random.default_rng(2).standard_normal(100)
    for factor in (1e-305, 1e305):
        assert gini(array * factor) == pytest.approx(gini(array), rel=1e-9)
        assert hoyer(array * factor) == pytest.approx(hoyer(array), rel=1e-9)
    assert gini([5e-324, 0.0]) == 0.5


@given(tensors, st.floats(1e-50, 1e50), st.booleans())
def test_scale_invariance(array, factor, negate):
    assume(array.any() and array.size > 1)
    scaled = array * (-factor if negate else factor)
    assert gini(scaled) == pytest.approx(gini(array), rel=1e-10, abs=1e-12)
    assert hoyer(scaled) == pytest.approx(hoyer(array), rel=1e-10, abs=1e-12)


@given(tensors, st.randoms(use_true_random=False))
def test_permutation_invariance(array, random):
    entries = np.ravel(array).tolist()
    random.shuffle(entries)
    assert gini(entries) == gini(array)
    assert hoyer(entries) == pytest.approx(hoyer(array), rel=1e-12, abs=1e-12, nan_ok=True)


@given(
    hnp.arrays(np.float32, st.integers(1, 50), elements=st.floats(-(2.0**100), 2.0**100, width=32))
)
def test_bounds(array):
    assert 0.0 <= gini(array) <= 1 - 1 / array.size + 1e-15 < 1.0 + 1e-15
    assert math.isnan(hoyer(array)) or 0.0 <= hoyer(array) <= 1.0


@given(tensors)
def test_adding_zeros_makes_sparser(array):
    assume(array.any())
    padded = np.concatenate([np.ravel(array), np.zeros(array.size)])
    assert gini(padded) > gini(array)
