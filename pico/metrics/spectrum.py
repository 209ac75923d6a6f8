"""Singular values: one spectrum a tensor, from which every spectral metric comes.

Called by the metrics of `spectral.py`, by `registry.compute` (once for all of them) and by
`pico.sql`. It promises float64 values in descending order, each right to a relative 1e-6 or, below
that, as right as a float64 SVD makes it (an error of a few 2⁻⁵² σ₁); and the price of a matrix
product and a symmetric eigenvalue problem only, where those suffice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pico.errors import MetricError
from pico.metrics import arrays
from pico.metrics.arrays import Array

# The eigenvalues of a Gram matrix carry an absolute error of a few 2⁻⁵² λ₁. Above this multiple of
# λ₁ that is a relative error of a few 2⁻²⁰ in λ and of half as much in σ (measured: 6e-7 at worst);
# below it, an SVD answers. An entry of float32 moves such a σ by 2⁻⁸ of itself.
GRAM_FLOOR = 2.0**-32


def spectrum(matrix: Array) -> Any:
    """Return the singular values of a matrix, descending, in float64.

    σᵢ = √λᵢ(AᵀA) or √λᵢ(AAᵀ), whichever is smaller, formed in float64 of the matrix divided by a
    power of two (so no square overflows or underflows). Where the smallest λ is below 2⁻³² λ₁
    (σ_min < 1.5e-5 σ₁), the eigenvalues no longer hold the small singular values, and a
    float64 SVD of the matrix itself replaces them.

    Args:
        matrix: (m, n); more dimensions are taken as (shape[0], -1).

    Returns:
        (min(m, n),) float64: a numpy array, or a torch tensor on the input's device for a tensor.

    Raises:
        MetricError: The input has fewer than two dimensions.

    Edge cases:
        Empty matrix: no values. Zeros: zeros. A NaN or infinite entry: all values NaN.

    Example:
        >>> import numpy as np
        >>> spectrum(np.asarray([[0.0, 2.0], [5.0, 0.0], [0.0, 0.0]])).tolist()
        [5.0, 2.0]

    References:
        Golub and Van Loan, Matrix Computations, 4th ed. (2013), section 8.6.
    """
    return spectra([matrix])[0]


def spectra(matrices: Sequence[Array]) -> list[Any]:
    """Return the singular values of several matrices, each as `spectrum` gives them.

    Gram matrices of one size go through one eigenvalue call: numpy gives up Python's lock for a
    stack of small ones, not for one (of fewer than about 500 rows), so that other threads wait.

    Args:
        matrices: (m, n) each; more dimensions are taken as (shape[0], -1). All on one device.

    Returns:
        For each (min(m, n),) float64: a numpy array, or a torch tensor for a tensor.

    Raises:
        MetricError: One has fewer than two dimensions.

    Edge cases:
        No matrices: an empty list. Otherwise those of `spectrum`.

    Example:
        >>> [values.tolist() for values in spectra([[[2.0]], [[0.0, 3.0]]])]
        [[2.0], [3.0]]

    References:
        Golub and Van Loan, Matrix Computations, 4th ed. (2013), section 8.6.
    """
    prepared = [arrays.prepare(matrix) for matrix in matrices]
    found = [_of_no_ordinary(x) for x in prepared]
    of_size: dict[int, list[int]] = {}
    for i, x in enumerate(prepared):
        if found[i] is None:
            of_size.setdefault(min(_size(x)), []).append(i)
    for indices in of_size.values():
        values = _by_gram_matrices([prepared[i] for i in indices])
        for i, each in zip(indices, values, strict=True):
            found[i] = each
    return [arrays.like(values, x) for values, x in zip(found, matrices, strict=True)]


def _size(x: arrays.Prepared) -> tuple[int, int]:
    if len(x.shape) < 2:
        raise MetricError(
            f"singular values need a matrix, and this tensor has shape {x.shape}; "
            "metrics for any shape: pico.metrics.names(kind='tensor')"
        )
    return x.shape[0], math.prod(x.shape[1:])


def _of_no_ordinary(x: arrays.Prepared) -> Any:
    """Return the values of a matrix that is empty, zero or not finite, None for any other."""
    n = min(_size(x))
    if x.is_ordinary:
        return None
    value = 0.0 if x.largest == 0.0 else math.nan
    return x.xp.full((n,), value, dtype=x.xp.float64, device=arrays.device(x.flat))


def _by_gram_matrices(matrices: Sequence[arrays.Prepared]) -> list[Any]:
    """Return the singular values of ordinary matrices that have the same smaller side."""
    xp = matrices[0].xp
    eigenvalues = xp.linalg.eigvalsh(xp.stack([_gram(x) for x in matrices]))  # ascending
    return [
        xp.linalg.svdvals(_scaled(x)) * x.unit
        if float(values[0]) < GRAM_FLOOR * float(values[-1])
        else xp.flip(xp.sqrt(values)) * x.unit
        for x, values in zip(matrices, eigenvalues, strict=True)
    ]


def _scaled(x: arrays.Prepared) -> Any:
    return x.xp.reshape(x.scaled, _size(x))  # magnitudes at most 2


def _gram(x: arrays.Prepared) -> Any:
    """Return AᵀA or AAᵀ, whichever is smaller, of the scaled matrix."""
    a, (m, n) = _scaled(x), _size(x)
    return a.T @ a if m >= n else a @ a.T
