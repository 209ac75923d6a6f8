"""Entropy, participation, moments and tail of a spectrum against numpy on the SVD's values."""

import math

import numpy as np
import pytest
import scipy.stats

from pico import metrics

NAMES = (
    "spectral_entropy",
    "participation_ratio",
    "singular_value_mean",
    "singular_value_variance",
    "alpha_hill",
)


def matrix(shape, rank=None, seed=0):
    rng = np.random.default_rng(seed)
    if rank is None:
        return rng.standard_normal(shape)
    return rng.standard_normal((shape[0], rank)) @ rng.standard_normal((rank, shape[1]))


@pytest.mark.parametrize("shape", [(64, 48), (200, 16), (16, 200), (2, 2)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_equals_numpy(shape, dtype):
    a = matrix(shape).astype(dtype)
    s = np.linalg.svd(a.astype(np.float64), compute_uv=False)
    p, energies, k = s / s.sum(), s**2, len(s) // 2
    wanted = {
        "spectral_entropy": scipy.stats.entropy(p),
        "participation_ratio": energies.sum() ** 2 / (energies**2).sum(),
        "singular_value_mean": s.mean(),
        "singular_value_variance": s.var(),
        "alpha_hill": 1 + k / np.sum(np.log(energies[:k] / energies[k])),
    }
    for name, value in wanted.items():
        assert getattr(metrics, name)(a) == pytest.approx(value, rel=1e-9), name
    assert metrics.effective_rank(a) == pytest.approx(math.exp(wanted["spectral_entropy"]))


def test_equal_singular_values():
    a = 3.0 * np.eye(8)
    assert metrics.spectral_entropy(a) == pytest.approx(math.log(8), rel=1e-14)
    assert metrics.participation_ratio(a) == pytest.approx(8.0, rel=1e-14)
    assert metrics.singular_value_mean(a) == pytest.approx(3.0, rel=1e-14)
    assert metrics.singular_value_variance(a) == pytest.approx(0.0, abs=1e-28)
    assert metrics.alpha_hill(a) > 1e10  # infinite but for rounding


def test_a_tail_of_a_known_exponent():
    """Eigenvalues with P(λ > x) = x^-(α - 1), at their quantiles, give α back."""
    n, alpha = 4000, 3.0
    quantiles = (np.arange(n) + 0.5) / n
    eigenvalues = np.sort((1.0 - quantiles) ** (-1.0 / (alpha - 1.0)))[::-1]
    from pico.metrics import registry

    assert registry.get("alpha_hill").function(np.sqrt(eigenvalues)) == pytest.approx(
        alpha, rel=0.01
    )


def test_low_rank_tails_leave_rounding_out():
    a = matrix((64, 48), rank=6).astype(np.float32)
    s = np.linalg.svd(a.astype(np.float64), compute_uv=False)[:6]
    assert metrics.alpha_hill(a) == pytest.approx(
        1 + 3 / np.sum(np.log(s[:3] ** 2 / s[3] ** 2)), rel=1e-6
    )


@pytest.mark.parametrize("bad", ["nan", "inf", "empty"])
def test_undefined(bad):
    a = {
        "nan": np.array([[1.0, math.nan], [0.0, 1.0]]),
        "inf": np.array([[1.0, math.inf], [0.0, 1.0]]),
        "empty": np.empty((0, 3)),
    }[bad]
    for name in NAMES:
        assert math.isnan(getattr(metrics, name)(a)), name


def test_zeros_and_rank_one():
    zeros, one = np.zeros((5, 3)), np.outer(np.ones(5), [1.0, 2.0, 3.0])
    assert metrics.singular_value_mean(zeros) == metrics.singular_value_variance(zeros) == 0.0
    for name in ("spectral_entropy", "participation_ratio", "alpha_hill"):
        assert math.isnan(getattr(metrics, name)(zeros)), name
    assert metrics.spectral_entropy(one) == pytest.approx(0.0, abs=1e-6)
    assert metrics.participation_ratio(one) == pytest.approx(1.0, rel=1e-12)
    assert math.isnan(metrics.alpha_hill(one))


@pytest.mark.parametrize("factor", [1e-200, 1e100])
def test_scale(factor):
    a = matrix((12, 9))
    for name in ("spectral_entropy", "participation_ratio", "alpha_hill"):
        assert getattr(metrics, name)(a * factor) == pytest.approx(
            getattr(metrics, name)(a), rel=1e-9
        )
