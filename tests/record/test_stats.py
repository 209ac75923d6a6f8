"""Statistics of a tensor are numpy's in float64, whatever it holds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pico.record.stats import Stats, summarize


@given(
    hnp.arrays(
        np.float32,
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=9),
        elements=st.floats(-1e6, 1e6, width=32),
    )
)
def test_agrees_with_numpy(values: np.ndarray) -> None:
    found, exact = summarize(values), values.astype(np.float64)
    assert found.numel == exact.size
    assert found.nonfinite == 0
    if not exact.size:
        assert found == Stats(0, None, None, None, None, 0)
        return
    scale = float(np.abs(exact).max())
    assert found.max_abs == scale
    assert found.frobenius_norm == pytest.approx(math.sqrt((exact**2).sum()), rel=1e-12)
    assert found.mean == pytest.approx(exact.mean(), rel=1e-12, abs=1e-12 * scale)
    assert found.std == pytest.approx(exact.std(), rel=1e-6, abs=1e-7 * scale)


def test_many_chunks_give_what_one_pass_gives() -> None:
    values = np.random.default_rng(0).standard_normal(300_001).astype(np.float32)
    found, exact = summarize(values), values.astype(np.float64)
    assert found.frobenius_norm == pytest.approx(np.linalg.norm(exact), rel=1e-12)
    assert found.mean == pytest.approx(exact.mean(), rel=1e-9)
    assert found.std == pytest.approx(exact.std(), rel=1e-9)
    assert found.max_abs == np.abs(exact).max()


def test_float64_loses_nothing() -> None:
    found = summarize(np.array([1e200, -1e200]))
    assert found.max_abs == 1e200
    assert summarize(np.array([1e-300, -3e-300])).max_abs == 3e-300


@pytest.mark.parametrize("where", [0, 70_000, 140_000])
@pytest.mark.parametrize(
    ("bad", "largest"), [(math.nan, math.nan), (math.inf, math.inf), (-math.inf, math.inf)]
)
def test_what_is_not_finite_is_counted_and_spreads(where: int, bad: float, largest: float) -> None:
    values = np.ones(140_001, dtype=np.float32)
    values[where] = bad
    found = summarize(values)
    assert (found.numel, found.nonfinite) == (140_001, 1)
    assert repr(found.max_abs) == repr(largest)
    assert not math.isfinite(found.frobenius_norm or 0)
    assert not math.isfinite(found.mean or 0)
    assert not math.isfinite(found.std or 0)


def test_both_infinities() -> None:
    found = summarize(np.array([math.inf, -math.inf, 1.0], dtype=np.float32))
    assert (found.nonfinite, found.max_abs) == (2, math.inf)
    assert math.isnan(found.mean or 0)


def test_a_scalar_is_a_tensor() -> None:
    assert summarize(np.array(-2.0)) == Stats(1, 2.0, -2.0, 0.0, 2.0, 0)


def test_a_constant_tensor_has_no_spread() -> None:
    assert summarize(np.full(1000, 0.1, np.float32)).std == pytest.approx(0, abs=1e-8)
