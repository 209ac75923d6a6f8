"""The similarities of representations against second, textbook versions of each; their laws."""

import math

import numpy as np
import pytest
import scipy.linalg
import scipy.spatial.distance
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from pico import metrics
from pico.errors import MetricError
from pico.metrics import cka_debiased, cka_rbf, procrustes, pwcca, rsa, svcca

EVERY = [cka_debiased, cka_rbf, procrustes, rsa, svcca, pwcca]
SIZES = [(256, 32, 32), (256, 24, 32), (60, 3, 17), (40, 12, 5)]


def pair(n, p, q, seed=0, noise=1.0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, p))
    return x, x @ rng.standard_normal((p, q)) + noise * rng.standard_normal((n, q)) + 5.0


def centred(x):
    return x - x.mean(axis=0)


def hsic_by_sums(k, other):
    """The unbiased estimator as a U-statistic: written with loops over the definition's sums."""
    n = len(k)
    k, other = k.copy(), other.copy()
    np.fill_diagonal(k, 0.0)
    np.fill_diagonal(other, 0.0)
    one = np.ones(n)
    first = np.trace(k @ other)
    second = (one @ k @ one) * (one @ other @ one) / ((n - 1) * (n - 2))
    third = 2.0 / (n - 2) * (one @ k @ other @ one)
    return (first + second - third) / (n * (n - 3))


@pytest.mark.parametrize(("n", "p", "q"), [*SIZES, (10, 3, 90), (24, 64, 64)])
def test_cka_debiased(n, p, q):
    x, y = pair(n, p, q)
    k, other = x @ x.T, y @ y.T
    wanted = hsic_by_sums(k, other) / math.sqrt(hsic_by_sums(k, k) * hsic_by_sums(other, other))
    assert cka_debiased(x, y) == pytest.approx(wanted, rel=1e-8)


def test_cka_debiased_has_no_bias_where_cka_has():
    rng = np.random.default_rng(5)
    x, y = rng.standard_normal((20, 400)), rng.standard_normal((20, 400))
    assert metrics.cka(x, y) > 0.9
    assert abs(cka_debiased(x, y)) < 0.1


@pytest.mark.parametrize(("n", "p", "q"), SIZES)
@pytest.mark.parametrize("bandwidth", [0.5, 1.0])
def test_cka_rbf(n, p, q, bandwidth):
    x, y = pair(n, p, q)

    def kernel(z):
        distances = scipy.spatial.distance.pdist(z, "sqeuclidean")
        scale = 2.0 * bandwidth**2 * np.median(distances)
        k = np.exp(-scipy.spatial.distance.squareform(distances) / scale)
        h = np.eye(n) - np.full((n, n), 1.0 / n)
        return h @ k @ h

    k, other = kernel(x), kernel(y)
    wanted = np.sum(k * other) / math.sqrt(np.sum(k * k) * np.sum(other * other))
    assert cka_rbf(x, y, bandwidth=bandwidth) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize(("n", "p", "q"), SIZES)
def test_procrustes(n, p, q):
    x, y = pair(n, p, q)
    wide = max(p, q)
    a, b = (np.pad(centred(z), ((0, 0), (0, wide - z.shape[1]))) for z in (x, y))
    a, b = a / np.linalg.norm(a), b / np.linalg.norm(b)
    rotation, _ = scipy.linalg.orthogonal_procrustes(a, b)
    distance = np.linalg.norm(a @ rotation - b)
    assert procrustes(x, y) == pytest.approx(1.0 - distance**2 / 2.0, rel=1e-10)


@pytest.mark.parametrize(("n", "p", "q"), SIZES)
def test_rsa(n, p, q):
    x, y = pair(n, p, q)
    first, second = (scipy.spatial.distance.pdist(z, "correlation") for z in (x, y))
    wanted = scipy.stats.spearmanr(first, second).statistic
    assert rsa(x, y) == pytest.approx(wanted, rel=1e-6, abs=1e-9)


def test_rsa_shares_ranks_among_equals():
    x = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
    y = np.array([[1.0, 0.0, 2.0], [0.0, 1.0, 2.0], [3.0, 0.0, 1.0], [1.0, 2.0, 0.0]])
    first, second = (np.round(scipy.spatial.distance.pdist(z, "correlation"), 9) for z in (x, y))
    assert rsa(x, y) == pytest.approx(scipy.stats.spearmanr(first, second).statistic, abs=0.05)


def canonical_by_eigenvalues(a, b):
    """CCA by the generalised eigenvalue problem of the covariances: correlations and variables."""
    saa, sbb, sab = a.T @ a, b.T @ b, a.T @ b
    values, vectors = scipy.linalg.eigh(sab @ np.linalg.solve(sbb, sab.T), saa)
    order = np.argsort(values)[::-1][: min(a.shape[1], b.shape[1])]
    correlations = np.sqrt(np.clip(values[order], 0.0, 1.0))
    variables = a @ vectors[:, order]
    return correlations, variables / np.linalg.norm(variables, axis=0)


@pytest.mark.parametrize(("n", "p", "q"), SIZES)
def test_pwcca(n, p, q):
    x, y = pair(n, p, q)
    a, b = centred(x), centred(y)
    correlations, variables = canonical_by_eigenvalues(a, b)
    weights = np.abs(variables.T @ a).sum(axis=1)
    wanted = np.sum(weights * correlations) / np.sum(weights)
    assert pwcca(x, y) == pytest.approx(wanted, rel=1e-8)


@pytest.mark.parametrize(("n", "p", "q"), SIZES)
@pytest.mark.parametrize("variance", [0.5, 0.9, 0.99])
def test_svcca(n, p, q, variance):
    x, y = pair(n, p, q)

    def reduced(z):
        _, s, vectors = np.linalg.svd(centred(z), full_matrices=False)
        keep = int(np.searchsorted(np.cumsum(s**2) / np.sum(s**2), variance)) + 1
        return centred(z) @ vectors[:keep].T

    correlations, _ = canonical_by_eigenvalues(reduced(x), reduced(y))
    assert svcca(x, y, variance=variance) == pytest.approx(correlations.mean(), rel=1e-7)


@pytest.mark.parametrize("similarity", EVERY)
def test_a_representation_equals_itself(similarity):
    x, _ = pair(80, 12, 4)
    assert similarity(x, x) == pytest.approx(1.0, rel=1e-12)
    assert similarity(x.astype(np.float32), x.astype(np.float32)) == pytest.approx(1.0, rel=1e-12)
    assert type(similarity(x, x)) is float


@pytest.mark.parametrize("similarity", [cka_debiased, cka_rbf, procrustes, svcca])
def test_rotation_scale_and_offset_do_not_matter(similarity):
    x, y = pair(80, 12, 7)
    rotation = scipy.stats.ortho_group.rvs(12, random_state=3)
    moved = 1e-3 * x @ rotation + 100.0
    assert similarity(moved, y) == pytest.approx(similarity(x, y), rel=1e-8)


def test_linear_images_do_not_matter_to_canonical_correlations():
    x, y = pair(200, 6, 6)
    image = y @ np.random.default_rng(1).standard_normal((6, 6))
    assert pwcca(x, image) == pytest.approx(pwcca(x, y), rel=1e-9)
    assert svcca(x, image, variance=1.0) == pytest.approx(svcca(x, y, variance=1.0), rel=1e-9)


def test_rank_deficient_features_are_dropped():
    x, y = pair(100, 6, 8)
    doubled = np.hstack([x, x])
    assert pwcca(doubled, doubled) == pytest.approx(1.0, rel=1e-10)
    assert pwcca(y, doubled) == pytest.approx(pwcca(y, x), rel=1e-8)


@pytest.mark.parametrize("similarity", EVERY)
def test_undefined(similarity):
    x, y = pair(40, 5, 6)
    assert math.isnan(similarity(x, np.ones_like(y)))
    assert math.isnan(similarity(np.zeros_like(x), y))
    for bad in (math.nan, math.inf):
        damaged = y.copy()
        damaged[3, 2] = bad
        assert math.isnan(similarity(x, damaged))


@pytest.mark.parametrize("similarity", EVERY)
def test_refusals(similarity):
    x, y = pair(40, 5, 6)
    name = similarity.__name__
    with pytest.raises(MetricError, match=f"{name} compares features of the same samples"):
        similarity(x, y[:-1])
    with pytest.raises(MetricError, match=f"{name} needs"):
        similarity(x, y[:, 0])


def test_too_few_samples():
    x, y = pair(12, 20, 20)
    with pytest.raises(MetricError, match="12 samples with 20 features would be 1 by chance"):
        pwcca(x, y)
    assert math.isnan(svcca(x, y))
    assert math.isnan(cka_debiased(x[:3], y[:3]))
    assert math.isnan(rsa(x[:2], y[:2]))


def test_arguments_out_of_range():
    x, y = pair(40, 5, 6)
    for wrong in (0.0, -1.0, math.nan):
        with pytest.raises(MetricError, match="bandwidth above 0"):
            cka_rbf(x, y, bandwidth=wrong)
    for wrong in (0.0, 1.5, math.nan):
        with pytest.raises(MetricError, match=r"variance in \(0, 1\]"):
            svcca(x, y, variance=wrong)


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.integers(1, 8), st.integers(1, 8))
def test_bounds(seed, p, q):
    x, y = pair(30, p, q, seed)
    for similarity in EVERY:
        value = similarity(x, y)
        assert math.isnan(value) or -1.0 <= value <= 1.0, similarity.__name__
    assert procrustes(x, y) == pytest.approx(procrustes(y, x), rel=1e-10)
    assert cka_debiased(x, y) == pytest.approx(cka_debiased(y, x), rel=1e-8, abs=1e-12)


@pytest.mark.parametrize("similarity", EVERY)
def test_torch_gives_the_same_on_its_own_device(monkeypatch, similarity):
    torch = pytest.importorskip("torch")
    from pico.metrics import arrays

    x, y = pair(60, 7, 5)
    wanted = similarity(x, y)
    monkeypatch.setattr(arrays, "_lies_in_host_memory", lambda array: False)
    assert similarity(torch.from_numpy(x), torch.from_numpy(y)) == pytest.approx(wanted, rel=1e-9)
