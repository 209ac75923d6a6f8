"""Spectral metrics against numpy and scipy, at full and deficient rank, and their invariances."""

import math

import numpy as np
import pytest
import scipy.linalg
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from pico.errors import MetricError
from pico.metrics import (
    condition_number,
    effective_rank,
    get,
    names,
    nuclear_norm,
    per,
    spectral_norm,
    stable_rank,
)

NORMS = [nuclear_norm, spectral_norm]
RATIOS = [effective_rank, per, stable_rank, condition_number]


def low_rank(m, n, rank, dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((m, rank)) @ rng.standard_normal((rank, n))).astype(dtype)


@pytest.mark.parametrize("shape", [(64, 48), (200, 16), (16, 200), (1, 64), (64, 1), (30, 30)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_full_rank_equals_numpy_and_scipy(shape, dtype):
    matrix = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    wide = matrix.astype(np.float64)
    sigma = scipy.linalg.svdvals(wide)
    rank = math.exp(scipy.stats.entropy(sigma))
    assert nuclear_norm(matrix) == pytest.approx(np.linalg.norm(wide, "nuc"), rel=1e-10)
    assert spectral_norm(matrix) == pytest.approx(np.linalg.norm(wide, 2), rel=1e-10)
    assert condition_number(matrix) == pytest.approx(np.linalg.cond(wide), rel=1e-8)
    assert effective_rank(matrix) == pytest.approx(rank, rel=1e-10)
    assert per(matrix) == pytest.approx(rank / min(shape), rel=1e-10)
    assert stable_rank(matrix) == pytest.approx(np.sum(wide**2) / sigma[0] ** 2, rel=1e-10)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rank", [1, 5])
def test_low_rank(dtype, rank):
    matrix = low_rank(64, 48, rank, dtype)
    sigma = scipy.linalg.svdvals(matrix.astype(np.float64))[:rank]
    assert effective_rank(matrix) == pytest.approx(math.exp(scipy.stats.entropy(sigma)), rel=1e-4)
    assert per(matrix) == effective_rank(matrix) / 48
    assert nuclear_norm(matrix) == pytest.approx(sigma.sum(), rel=1e-5)
    assert stable_rank(matrix) == pytest.approx(np.sum(sigma**2) / sigma[0] ** 2, rel=1e-6)
    assert condition_number(matrix) == math.inf


@pytest.mark.parametrize("n", [4, 64, 300])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_condition_number_of_deficient_matrices_is_infinite_whatever_the_size(n, dtype):
    for seed in range(3):
        assert condition_number(low_rank(n, n, n - 1, dtype, seed)) == math.inf
        assert condition_number(low_rank(3 * n, n, max(1, n // 2), dtype, seed)) == math.inf
    duplicated = np.random.default_rng(0).standard_normal((n, n)).astype(dtype)
    duplicated[1] = duplicated[0]
    assert condition_number(duplicated) == math.inf


@pytest.mark.parametrize("condition", [1e2, 1e4, 1e6, 1e8, 1e10])
def test_condition_number_of_near_singular_float64(condition):
    rng = np.random.default_rng(0)
    left, right = (np.linalg.qr(rng.standard_normal((40, 40)))[0] for _ in range(2))
    matrix = (left * np.geomspace(1.0, 1.0 / condition, 40)) @ right
    assert condition_number(matrix) == pytest.approx(condition, rel=1e-5)


def test_the_floor_of_the_condition_number_is_the_documented_one():
    floor = 2.0**-24  # times the Frobenius norm, which is 1 to within rounding here
    above = np.diag(np.asarray([1.0, 1.001 * floor], dtype=np.float32))
    below = np.diag(np.asarray([1.0, 0.999 * floor], dtype=np.float32))
    assert condition_number(above) == pytest.approx(2**24 / 1.001, rel=1e-6)
    assert condition_number(below) == math.inf
    assert condition_number(below.astype(np.float64)) == pytest.approx(2**24 / 0.999, rel=1e-6)
    assert condition_number(np.diag([1.0, 2.0**-50])) == 2.0**50
    assert condition_number(np.diag([1.0, 2.0**-52])) == math.inf


def test_condition_number_of_well_conditioned_bfloat16_is_finite():
    torch = pytest.importorskip("torch")
    tensor = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    expected = np.linalg.cond(tensor.to(torch.float64).numpy())
    assert condition_number(tensor) == pytest.approx(expected, rel=1e-8)


def test_orthogonal_matrices_have_full_rank_and_condition_one():
    for n in (1, 2, 17):
        matrix = np.linalg.qr(np.random.default_rng(n).standard_normal((n, n)))[0]
        assert effective_rank(matrix) == pytest.approx(n, rel=1e-14)
        assert per(matrix) == pytest.approx(1.0, rel=1e-14)
        assert stable_rank(matrix) == pytest.approx(n, rel=1e-14)
        assert condition_number(matrix) == pytest.approx(1.0, rel=1e-14)


def test_constant_matrix_has_rank_one():
    matrix = np.full((8, 8), 2.5, dtype=np.float32)
    assert effective_rank(matrix) == pytest.approx(1.0, rel=1e-12)
    assert per(matrix) == pytest.approx(0.125, rel=1e-12)
    assert stable_rank(matrix) == pytest.approx(1.0, rel=1e-12)
    assert condition_number(matrix) == math.inf


def test_edges():
    for metric in NORMS:
        assert metric(np.zeros((3, 4))) == 0.0
        assert metric(np.zeros((0, 4))) == 0.0
    for metric in RATIOS:
        assert math.isnan(metric(np.zeros((3, 4))))
        assert math.isnan(metric(np.zeros((0, 4))))
    for metric in NORMS + RATIOS:
        assert math.isnan(metric([[1.0, math.nan], [0.0, 1.0]]))
        assert math.isnan(metric([[1.0, math.inf], [0.0, 1.0]]))
        assert type(metric(np.eye(3, dtype=np.float32))) is float
        with pytest.raises(MetricError, match="need a matrix"):
            metric([1.0, 2.0])


@pytest.mark.parametrize("name", names(kind="spectrum"))
def test_one_definition_serves_the_matrix_and_its_singular_values(name):
    import pico.metrics

    matrix = np.random.default_rng(0).standard_normal((9, 7)).astype(np.float32)
    of_matrix = getattr(pico.metrics, name)
    assert get(name).function(pico.metrics.spectrum(matrix)) == of_matrix(matrix)
    assert get(name).function is not of_matrix


def test_zero_singular_values_count_as_zero_times_log_zero():
    assert get("effective_rank").function(np.asarray([2.0, 2.0, 0.0])) == pytest.approx(2.0)
    assert get("per").function(np.asarray([2.0, 2.0, 0.0, 0.0])) == pytest.approx(0.5)
    assert get("condition_number").function(np.asarray([2.0, 0.0])) == math.inf


@settings(max_examples=50)
@given(st.integers(1, 8), st.integers(1, 8), st.integers(0, 2**32 - 1), st.floats(1e-100, 1e100))
def test_scale_invariance_and_bounds(m, n, seed, factor):
    matrix = np.random.default_rng(seed).standard_normal((m, n))
    for metric in RATIOS:
        assert metric(matrix * -factor) == pytest.approx(metric(matrix), rel=1e-6)
    for metric in NORMS:
        assert metric(matrix * factor) == pytest.approx(metric(matrix) * factor, rel=1e-7)
    k = min(m, n)
    assert 1.0 <= effective_rank(matrix) <= k
    assert 1.0 / k <= per(matrix) <= 1.0
    assert 1.0 - 1e-12 <= stable_rank(matrix) <= k + 1e-12
    assert condition_number(matrix) >= 1.0
    assert spectral_norm(matrix) <= nuclear_norm(matrix) * (1 + 1e-14)


@settings(max_examples=50)
@given(st.lists(st.floats(0.0, 1e300), min_size=1, max_size=12))
def test_any_singular_values_give_ranks_within_bounds(values):
    sigma = np.sort(np.asarray(values))[::-1]
    rank = get("effective_rank").function(sigma)
    assert math.isnan(rank) if sigma[0] == 0.0 else 1.0 <= rank <= len(sigma)
