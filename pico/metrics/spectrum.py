"""Singular values: one spectrum a tensor, from which every spectral metric comes.

Called by the metrics of `spectral.py`, by `registry.compute` (once for all of them) and by
`pico.sql`. It promises float64 values in descending order, each right to a relative 1e-7 or, below
that, as right as a float64 SVD makes it (an error of a few 2⁻⁵² σ₁); and the price of a matrix
product and a symmetric eigenvalue problem only, where those suffice.
"""

from __future__ import annotations

import math
from typing import Any

from pico.errors import MetricError
from pico.metrics import arrays
from pico.metrics.arrays import Array

# The eigenvalues of a Gram matrix carry an absolute error of a few 2⁻⁵² λ₁. Above this multiple of
# λ₁ that is a relative error of a few 2⁻²⁶ in λ and of half as much in σ; below it, an SVD answers.
_GRAM_FLOOR = 2.0**-26


def spectrum(matrix: Array) -> Any:
    """Return the singular values of a matrix, descending, in float64.

    σᵢ = √λᵢ(AᵀA) or √λᵢ(AAᵀ), whichever is smaller, formed in float64 of the matrix divided by a
    power of two (so no square overflows or underflows). Where the smallest λ is below 2⁻²⁶ λ₁
    (σ_min < 1.2e-4 σ₁), the eigenvalues no longer hold the small singular values, and a
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
    x = arrays.prepare(matrix)
    if len(x.shape) < 2:
        raise MetricError(
            f"singular values need a matrix, and this tensor has shape {x.shape}; "
            "metrics for any shape: pico.metrics.names(kind='tensor')"
        )
    return arrays.like(_singular_values(x), matrix)


def _singular_values(x: arrays.Prepared) -> Any:
    xp, m, n = x.xp, x.shape[0], math.prod(x.shape[1:])
    if not x.is_ordinary:
        value = 0.0 if x.largest == 0.0 else math.nan
        return xp.full((min(m, n),), value, dtype=xp.float64, device=arrays.device(x.flat))
    a = xp.reshape(x.scaled, (m, n))  # magnitudes at most 2
    gram = a.T @ a if m >= n else a @ a.T  # (min(m, n), min(m, n))
    eigenvalues = xp.linalg.eigvalsh(gram)  # ascending
    if float(eigenvalues[0]) < _GRAM_FLOOR * float(eigenvalues[-1]):
        return xp.linalg.svdvals(a) * x.unit
    return xp.flip(xp.sqrt(eigenvalues)) * x.unit
