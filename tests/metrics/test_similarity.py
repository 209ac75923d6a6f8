"""CKA against its definition by centred kernels, its invariances, and its edges."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pico.errors import MetricError
from pico.metrics import arrays, cka


def cka_by_kernels(x, y):
    """Return tr(KHLH) / √(tr(KHKH) tr(LHLH)) with K = XXᵀ, L = YYᵀ, H = I - 1/n: the definition."""
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    n = len(x)
    centring = np.eye(n) - np.full((n, n), 1.0 / n)
    k, other = centring @ x @ x.T @ centring, centring @ y @ y.T @ centring
    return np.trace(k @ other) / math.sqrt(np.trace(k @ k) * np.trace(other @ other))


def pair(n, p, q, seed=0, noise=1.0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, p))
    return x, x @ rng.standard_normal((p, q)) + noise * rng.standard_normal((n, q)) + 5.0


@pytest.mark.parametrize(("n", "p", "q"), [(256, 32, 32), (256, 24, 32), (24, 64, 64), (10, 3, 90)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_equals_the_definition(n, p, q, dtype):
    x, y = (array.astype(dtype) for array in pair(n, p, q))
    assert cka(x, y) == pytest.approx(cka_by_kernels(x, y), rel=1e-10)
    assert cka(y, x) == pytest.approx(cka(x, y), rel=1e-12)
    assert type(cka(x, y)) is float


def test_identical_and_unrelated():
    x, _ = pair(500, 8, 8)
    assert cka(x, x) == pytest.approx(1.0, rel=1e-14)
    unrelated = np.random.default_rng(9).standard_normal((500, 8))
    assert cka(x, unrelated) < 0.05


@pytest.mark.parametrize("offset", [1e3, 1e6])
def test_offsets_of_the_features_do_not_matter(offset):
    x, y = pair(64, 8, 12)
    assert cka(x + offset, y) == pytest.approx(cka(x, y), rel=1e-8)


@pytest.mark.parametrize("factor", [1e-200, 1e-30, 1e30, 1e200])
def test_scale_does_not_matter_even_where_squares_leave_the_range(factor):
    x, y = pair(64, 8, 12)
    assert cka(x * factor, y) == pytest.approx(cka(x, y), rel=1e-12)


def test_leading_dimensions_are_samples():
    x, y = pair(24, 5, 7)
    assert cka(x.reshape(2, 12, 5), y.reshape(2, 3, 4, 7)) == cka(x, y)


def test_edges():
    x, _ = pair(30, 4, 4)
    zeros, constant = np.zeros((30, 3)), np.full((30, 3), 0.1)
    assert math.isnan(cka(x, zeros))
    assert math.isnan(cka(constant, x))
    assert math.isnan(cka(constant.astype(np.float32), constant))
    assert math.isnan(cka(x[:1], x[:1]))
    assert math.isnan(cka(x[:0], x[:0]))
    assert math.isnan(cka(x[:, :0], x))
    for bad in (math.nan, math.inf):
        broken = x.copy()
        broken[3, 1] = bad
        assert math.isnan(cka(x, broken))


def test_bad_shapes_are_refused_with_their_values():
    with pytest.raises(MetricError, match="x has 30 samples and y has 20"):
        cka(np.ones((30, 2)), np.ones((20, 2)))
    with pytest.raises(MetricError, match=r"y has shape \(30,\)"):
        cka(np.ones((30, 2)), np.ones(30))


def test_torch_numpy_and_bfloat16_agree():
    torch = pytest.importorskip("torch")
    x, y = pair(50, 6, 9)
    assert cka(torch.from_numpy(x), torch.from_numpy(y)) == cka(x, y)
    assert cka(torch.from_numpy(x), y) == cka(x, y)
    narrow = torch.from_numpy(x).to(torch.bfloat16)
    assert cka(narrow, y) == cka(narrow.to(torch.float64).numpy(), y)


@pytest.mark.parametrize(("n", "p", "q"), [(50, 6, 9), (8, 20, 30)])
def test_off_the_host_the_tensors_own_library_gives_equal_values(monkeypatch, n, p, q):
    torch = pytest.importorskip("torch")
    x, y = pair(n, p, q)
    expected = cka(x, y)
    monkeypatch.setattr(arrays, "_lies_in_host_memory", lambda array: isinstance(array, np.ndarray))
    assert cka(torch.from_numpy(x), torch.from_numpy(y)) == pytest.approx(expected, rel=1e-12)
    with pytest.raises(MetricError, match="different devices"):
        cka(torch.from_numpy(x), y)


@settings(max_examples=50)
@given(
    st.integers(2, 20), st.integers(1, 8), st.integers(1, 8), st.integers(0, 2**32 - 1),
    st.floats(1e-20, 1e20),
)  # fmt: skip
def test_invariant_under_rotation_and_scaling_and_bounded(n, p, q, seed, factor):
    x, y = pair(n, p, q, seed)
    rotation = np.linalg.qr(np.random.default_rng(seed + 1).standard_normal((p, p)))[0]
    assert cka(factor * x @ rotation, y) == pytest.approx(cka(x, y), rel=1e-9, abs=1e-12)
    assert cka(x[::-1], y[::-1]) == pytest.approx(cka(x, y), rel=1e-9, abs=1e-12)
    assert 0.0 <= cka(x, y) <= 1.0
