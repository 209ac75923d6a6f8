"""Spectra of circuits against decompositions of the products written out."""

import functools
import math

import numpy as np
import pytest

from pico.errors import MetricError
from pico.metrics import (
    ov_circuit,
    ov_spectra,
    ov_spectrum,
    qk_circuit,
    qk_spectra,
    qk_spectrum,
)
from tests.metrics.test_circuits import SIZES, weights


@pytest.mark.parametrize("sizes", SIZES)
def test_spectra_are_those_of_the_products(sizes):
    q, k, v, o = weights(*sizes)
    n = min(sizes[2:])
    for head in range(sizes[0]):
        for thin, full in (
            (ov_spectrum(v, o, *sizes[:2], head), ov_circuit(v, o, *sizes[:2], head)),
            (qk_spectrum(q, k, *sizes[:2], head), qk_circuit(q, k, *sizes[:2], head)),
        ):
            wanted = np.linalg.svd(full, compute_uv=False)
            assert thin.shape == (n,)
            np.testing.assert_allclose(thin, wanted[:n], rtol=1e-9)
            assert np.all(wanted[n:] < 1e-12 * wanted[0])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_damaged_entries(bad):
    q, k, v, o = weights(4, 2, 8, 32)
    v[3, 5] = k[3, 5] = bad
    assert np.isnan(ov_spectrum(v, o, 4, 2, 0)).all() and np.isnan(qk_spectrum(q, k, 4, 2, 1)).all()
    assert np.isfinite(ov_spectrum(v, o, 4, 2, 3)).all()


def test_zeros_have_zero_spectra():
    assert ov_spectrum(np.zeros((8, 32)), np.zeros((32, 8)), 1, 1, 0).tolist() == [0.0] * 8


@pytest.mark.parametrize("sizes", SIZES)
def test_spectra_of_all_heads_are_those_of_each(sizes):
    q, k, v, o = weights(*sizes)
    heads = range(sizes[0])
    each = [ov_spectrum(v, o, *sizes[:2], head) for head in heads]
    np.testing.assert_array_equal(ov_spectra(v, o, *sizes[:2]), each)
    each = [qk_spectrum(q, k, *sizes[:2], head) for head in heads]
    np.testing.assert_array_equal(qk_spectra(q, k, *sizes[:2]), each)


@pytest.mark.parametrize("last", [1.0, 1e-9])
def test_no_product_is_formed(monkeypatch, last):
    """Nothing larger than the factors is decomposed, by Gram matrices or, where small, by QR."""
    _, _, v, o = weights(4, 2, 8, 96)
    v, o = v.astype(float), o.astype(float)
    v[::8] *= last  # one direction of each head
    shapes = []
    for name in ("cholesky", "eigvalsh", "qr", "svd"):

        def noted(x, *args, of, name, **kwargs):
            shapes.append((name, *x.shape))
            return of(x, *args, **kwargs)

        of = getattr(np.linalg, name)
        monkeypatch.setattr(np.linalg, name, functools.partial(noted, of=of, name=name))
    found = ov_spectra(v, o, 4, 2)
    if last < 1.0:
        assert ("qr", 96, 8) in shapes
    assert {shape[-2:] for shape in shapes} <= {(8, 8), (96, 8)}
    exact = [np.linalg.svd(o[:, 8 * h : 8 * h + 8] @ v[h // 2 * 8 :][:8])[1][:8] for h in range(4)]
    np.testing.assert_allclose(found, exact, rtol=1e-6, atol=1e-13)


@pytest.mark.parametrize("size", [1e-160, 1e150])
def test_magnitudes_whose_squares_do_not_fit(size):
    v, o = (weight.astype(float) for weight in weights(4, 2, 8, 32)[2:])
    expected = ov_spectra(v, o, 4, 2) * size
    np.testing.assert_allclose(ov_spectra(v * size, o, 4, 2), expected, rtol=1e-12)
    np.testing.assert_allclose(ov_spectra(v, o * size, 4, 2), expected, rtol=1e-12)


def test_heads_that_are_zero_or_not_finite_leave_the_others():
    _, _, v, o = weights(4, 2, 8, 32)
    v, o = v.copy(), o.copy()
    o[:, :8], o[0, 9] = 0.0, np.inf
    expected = ov_spectra(v, o, 4, 2)
    assert expected[0].tolist() == [0.0] * 8 and np.isnan(expected[1]).all()
    np.testing.assert_allclose(expected[3], ov_spectrum(v, o, 4, 2, 3), rtol=1e-12)


def test_spectra_refuse_and_keep_the_kind():
    _, _, v, o = weights(4, 2, 8, 32)
    for n_heads, n_kv_heads in ((4, 3), (0, 0), (0, 1), (4, 0)):
        with pytest.raises(MetricError, match="do not divide among"):
            ov_spectra(v, o, n_heads, n_kv_heads)
    torch = pytest.importorskip("torch")
    found = ov_spectra(torch.from_numpy(v), torch.from_numpy(o), 4, 2)
    assert isinstance(found, torch.Tensor)
    np.testing.assert_array_equal(found.numpy(), ov_spectra(v, o, 4, 2))
