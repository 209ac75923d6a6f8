"""Norms against an independent computation, at the ends of the number range and at the edges."""

import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pico.metrics import frobenius_norm, l1_norm, max_abs

NORMS = [l1_norm, frobenius_norm, max_abs]
SHAPES = [(7,), (64, 48), (200, 16), (3, 300), (1, 64), (64, 1), (2, 3, 4, 5), ()]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16])
def test_norms_equal_exact_arithmetic(shape, dtype):
    array = (np.random.default_rng(0).standard_normal(shape) * 9).astype(dtype)
    exact = [Fraction(float(value)) for value in np.ravel(array)]
    assert l1_norm(array) == pytest.approx(float(sum(map(abs, exact))), rel=1e-14)
    assert frobenius_norm(array) ** 2 == pytest.approx(
        float(sum(value**2 for value in exact)), rel=1e-14
    )
    assert max_abs(array) == float(max(map(abs, exact)))


def test_frobenius_equals_scipy():
    array = np.random.default_rng(1).standard_normal((50, 70))
    assert frobenius_norm(array) == pytest.approx(scipy.linalg.norm(array, "fro"), rel=1e-14)


@pytest.mark.parametrize("magnitude", [1e-320, 1e-200, 1e-30, 1.0, 1e30, 1e200, 1e307])
def test_frobenius_neither_overflows_nor_underflows(magnitude):
    assert frobenius_norm([3 * magnitude, 4 * magnitude]) == pytest.approx(5 * magnitude, rel=1e-3)


def test_float16_sums_do_not_overflow():
    array = np.full(100, 60_000, dtype=np.float16)
    assert l1_norm(array) == 100 * float(array[0])
    assert frobenius_norm(array) == 10 * float(array[0])


@pytest.mark.parametrize("norm", NORMS)
def test_edges(norm):
    assert norm(np.zeros((0, 5))) == 0.0
    assert norm(np.zeros((4, 5), np.float32)) == 0.0
    assert math.isnan(norm([1.0, math.nan]))
    assert norm([1.0, -math.inf]) == math.inf
    assert math.isnan(norm([math.inf, math.nan]))
    assert norm(-3.0) == 3.0
    assert type(norm(np.ones(3, np.float32))) is float


@given(
    hnp.arrays(np.float64, st.integers(1, 30), elements=st.floats(-1e100, 1e100)),
    st.floats(1e-100, 1e100),
)
def test_norms_scale_with_the_tensor_and_keep_their_order(array, factor):
    for norm in NORMS:
        assert norm(array * factor) == pytest.approx(norm(array) * factor, rel=1e-12, abs=1e-300)
    slack = 1 + 1e-14
    assert max_abs(array) <= frobenius_norm(array) * slack <= l1_norm(array) * slack**2
