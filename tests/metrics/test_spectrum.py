"""Singular values against a float64 SVD, over shapes, ranks, conditions and magnitudes."""

import math

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from pico.errors import MetricError
from pico.metrics import arrays, spectrum


def rotation(rng, n):
    return np.linalg.qr(rng.standard_normal((n, n)))[0]


def with_values(values, m, n, seed=0):
    """Return an (m, n) matrix with the given singular values."""
    rng = np.random.default_rng(seed)
    k = min(m, n)
    return (rotation(rng, m)[:, :k] * values) @ rotation(rng, n)[:, :k].T


@pytest.mark.parametrize("shape", [(64, 48), (200, 16), (16, 200), (1, 64), (64, 1), (1, 1)])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32])
def test_equals_a_float64_svd(shape, dtype):
    matrix = (np.random.default_rng(0).standard_normal(shape) * 5).astype(dtype)
    values = spectrum(matrix)
    expected = scipy.linalg.svdvals(matrix.astype(np.float64))
    assert values.dtype == np.float64
    assert values.shape == (min(shape),)
    np.testing.assert_allclose(values, expected, rtol=1e-10)


@pytest.mark.parametrize("condition", [1e1, 1e3, 8e3, 1e4, 1e6, 1e8, 1e10])
@pytest.mark.parametrize(("m", "n"), [(60, 40), (40, 60), (50, 50)])
def test_small_singular_values_keep_their_accuracy(condition, m, n):
    wanted = np.geomspace(1.0, 1.0 / condition, min(m, n))
    np.testing.assert_allclose(spectrum(with_values(wanted, m, n)), wanted, rtol=1e-7, atol=2e-15)


def test_a_single_tiny_singular_value_beyond_the_reach_of_the_gram_matrix():
    wanted = np.append(np.ones(30), 3e-11)
    assert spectrum(with_values(wanted, 31, 45))[-1] == pytest.approx(3e-11, rel=1e-4)


def test_low_rank_leaves_only_rounding_noise():
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((64, 5)) @ rng.standard_normal((5, 48))
    values = spectrum(matrix)
    np.testing.assert_allclose(values[:5], scipy.linalg.svdvals(matrix)[:5], rtol=1e-12)
    assert values[5:].max() < 1e-14 * values[0]


def test_well_conditioned_matrices_take_no_svd(monkeypatch):
    """The cheap way is the usual way: this is what makes a spectrum of every tensor affordable."""
    import array_api_compat.numpy as xp

    def refuse(_):
        raise AssertionError("an SVD was taken")

    monkeypatch.setattr(xp.linalg, "svdvals", refuse)
    spectrum(np.random.default_rng(0).standard_normal((60, 90)))
    with pytest.raises(AssertionError, match="SVD"):
        spectrum(np.ones((4, 4)))


@pytest.mark.parametrize("factor", [1e-300, 1e-160, 1e160, 1e300])
def test_extreme_magnitudes_neither_overflow_nor_underflow(factor):
    matrix = np.random.default_rng(0).standard_normal((12, 9))
    np.testing.assert_allclose(spectrum(matrix * factor), spectrum(matrix) * factor, rtol=1e-9)


def test_edges():
    np.testing.assert_array_equal(spectrum(np.zeros((3, 5))), np.zeros(3))
    assert spectrum(np.zeros((0, 5))).shape == (0,)
    assert spectrum(np.zeros((5, 0))).shape == (0,)
    for bad in (math.nan, math.inf, -math.inf):
        matrix = np.ones((3, 4), np.float32)
        matrix[1, 2] = bad
        np.testing.assert_array_equal(spectrum(matrix), np.full(3, math.nan))
    np.testing.assert_allclose(spectrum(np.full((8, 8), 2.5)), [20.0] + [0.0] * 7, atol=1e-14)


def test_more_than_two_dimensions_are_rows_of_the_first():
    array = np.random.default_rng(0).standard_normal((6, 2, 3, 4))
    np.testing.assert_array_equal(spectrum(array), spectrum(array.reshape(6, 24)))


@pytest.mark.parametrize("array", [3.0, [1.0, 2.0, 3.0]])
def test_fewer_than_two_dimensions_are_refused(array):
    with pytest.raises(MetricError, match=r"singular values need a matrix.*shape \("):
        spectrum(array)


@pytest.mark.parametrize("shape", [(20, 30), (30, 20), (8, 2, 4)])
def test_torch_gives_the_same_values_and_gets_a_tensor(shape):
    torch = pytest.importorskip("torch")
    array = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    tensor = torch.from_numpy(array).requires_grad_()
    values = spectrum(tensor)
    assert isinstance(values, torch.Tensor)
    assert values.dtype == torch.float64
    assert not values.requires_grad
    np.testing.assert_array_equal(values.numpy(), spectrum(array))


@pytest.mark.parametrize("matrix", ["random", "low rank", "zeros", "nan"])
def test_off_the_host_the_tensors_own_library_gives_equal_values(monkeypatch, matrix):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    array = {
        "random": rng.standard_normal((20, 30)),
        "low rank": rng.standard_normal((20, 3)) @ rng.standard_normal((3, 30)),
        "zeros": np.zeros((4, 6)),
        "nan": np.full((4, 6), math.nan),
    }[matrix]
    expected = spectrum(array)
    monkeypatch.setattr(arrays, "_lies_in_host_memory", lambda array: False)
    values = spectrum(torch.from_numpy(array))
    assert isinstance(values, torch.Tensor)
    np.testing.assert_allclose(values.numpy(), expected, rtol=1e-10, atol=1e-13)


@settings(max_examples=40)
@given(st.integers(1, 12), st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_orthogonal_invariance(m, n, seed):
    rng = np.random.default_rng(seed)
    matrix = rng.standard_normal((m, n))
    turned = rotation(rng, m) @ matrix @ rotation(rng, n)
    values = spectrum(matrix)
    np.testing.assert_allclose(spectrum(turned), values, rtol=1e-7, atol=1e-13 * values[0])
    np.testing.assert_allclose(spectrum(matrix.T), values, rtol=1e-7, atol=1e-13 * values[0])
    assert np.all(np.diff(values) <= 0.0)
    assert np.linalg.norm(values) == pytest.approx(np.linalg.norm(matrix), rel=1e-12)


@pytest.mark.parametrize("n", [2, 8, 96])
@pytest.mark.parametrize("smallest", [2.0**-8, 2.0**-15.9, 2.0**-16.1, 2.0**-26, 2.0**-40])
def test_values_are_right_on_both_sides_of_the_floor(n, smallest):
    rng = np.random.default_rng(n)
    u, v = (np.linalg.qr(rng.standard_normal((n, n)))[0] for _ in range(2))
    exact = np.geomspace(1.0, smallest, n)
    found = spectrum((u * exact) @ v)
    np.testing.assert_allclose(found, exact, rtol=1e-6, atol=1e-15)
