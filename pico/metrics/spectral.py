"""Metrics that come from a matrix's singular values: norms, ranks and conditioning.

Each is written once, as a function of the singular values σ₁ ≥ … ≥ σₙ ≥ 0 (n = min of rows and
columns); `register_spectral` makes of it the public function of the matrix that its docstring
describes. Called through the registry by SQL, which gives all of them one spectrum.
"""

from __future__ import annotations

import math

import numpy as np

from pico.metrics.arrays import ROUNDOFF_FLOAT32, ROUNDOFF_FLOAT64, FloatVector
from pico.metrics.registry import register_spectral


@register_spectral()
def nuclear_norm(singular_values: FloatVector) -> float:
    """Sum of the singular values.

    ‖A‖_* = Σᵢ σᵢ

    Args:
        matrix: (m, n); more dimensions are taken as (shape[0], -1).

    Returns:
        A float ≥ 0.

    Raises:
        MetricError: The input has fewer than two dimensions.

    Edge cases:
        Zeros or empty: 0. A NaN or infinite entry: NaN.

    Example:
        >>> nuclear_norm([[3.0, 0.0], [0.0, -4.0]])
        7.0

    References:
        Recht, Fazel and Parrilo, Guaranteed Minimum-Rank Solutions (SIAM Review, 2010), section 2.
    """
    relative = relative_to_largest(singular_values)
    if relative is None:
        return float(np.sum(singular_values))  # 0, or NaN
    return float(singular_values[0]) * float(np.sum(relative))


@register_spectral()
def spectral_norm(singular_values: FloatVector) -> float:
    """Largest singular value.

    ‖A‖₂ = σ₁ = max over ‖x‖₂ = 1 of ‖Ax‖₂

    Args:
        matrix: (m, n); more dimensions are taken as (shape[0], -1).

    Returns:
        A float ≥ 0.

    Raises:
        MetricError: The input has fewer than two dimensions.

    Edge cases:
        Zeros or empty: 0. A NaN or infinite entry: NaN.

    Example:
        >>> spectral_norm([[3.0, 0.0], [0.0, -4.0]])
        4.0

    References:
        Golub and Van Loan, Matrix Computations, 4th ed. (2013), section 2.3.
    """
    return float(singular_values[0]) if len(singular_values) else 0.0


@register_spectral()
def effective_rank(singular_values: FloatVector) -> float:
    """Effective rank: the exponential of the entropy of the normalised singular values.

    erank(A) = exp(-Σᵢ pᵢ ln pᵢ), with pᵢ = σᵢ / Σⱼ σⱼ and 0 · ln 0 = 0

    Args:
        matrix: (m, n); more dimensions are taken as (shape[0], -1).

    Returns:
        A float from 1 (rank one) to min(m, n) (all singular values equal).

    Raises:
        MetricError: The input has fewer than two dimensions.

    Edge cases:
        Zeros, empty, or an entry NaN or infinite: NaN.

    Example:
        >>> round(effective_rank([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 0.0]]), 12)
        2.0

    References:
        Roy and Vetterli, The Effective Rank (EUSIPCO, 2007), definition 1.
    """
    return _entropy_rank(singular_values)


@register_spectral()
def per(singular_values: FloatVector) -> float:
    """Proportional effective rank: the effective rank divided by the full rank.

    PER(A) = erank(A) / min(m, n)

    Args:
        matrix: (m, n); more dimensions are taken as (shape[0], -1).

    Returns:
        A float from 1 / min(m, n) to 1.

    Raises:
        MetricError: The input has fewer than two dimensions.

    Edge cases:
        Zeros, empty, or an entry NaN or infinite: NaN.

    Example:
        >>> round(per([[2.0, 0.0, 0.0, 0.0], [0.0, 2.0, 0.0, 0.0]]), 12)
        1.0

    References:
        Diehl Martinez, Lesci and Buttery, Tending Towards Stability (EMNLP Findings, 2024);
        the entropy is in nats, as in Roy and Vetterli (EUSIPCO, 2007).
    """
    n = len(singular_values)
    return _entropy_rank(singular_values) / n if n else math.nan


@register_spectral()
def stable_rank(singular_values: FloatVector) -> float:
    """Stable rank: the squared Frobenius norm over the squared spectral norm.

    srank(A) = ‖A‖_F² / ‖A‖₂² = Σᵢ σᵢ² / σ₁²

    Args:
        matrix: (m, n); more dimensions are taken as (shape[0], -1).

    Returns:
        A float from 1 to the rank of the matrix; unlike the rank, it moves little under noise.

    Raises:
        MetricError: The input has fewer than two dimensions.

    Edge cases:
        Zeros, empty, or an entry NaN or infinite: NaN.

    Example:
        >>> stable_rank([[2.0, 0.0], [0.0, 1.0]])
        1.25

    References:
        Rudelson and Vershynin, Sampling from Large Matrices (J. ACM, 2007), section 1.
    """
    relative = relative_to_largest(singular_values)
    return math.nan if relative is None else float(np.sum(relative**2))


@register_spectral(takes_roundoff=True)
def condition_number(singular_values: FloatVector, *, roundoff: float = ROUNDOFF_FLOAT32) -> float:
    """Condition number: the largest singular value over the smallest, or infinity.

    κ₂(A) = σ₁ / σ_min, and inf where σ_min ≤ max(u, k · 2⁻⁵²) · ‖A‖_F, with k = min(m, n).

    u is the rounding error of the entries as they are stored: 2⁻²⁴ for float32 and narrower types
    (which a lake widens to float32), 2⁻⁵³ for float64. Rounding each entry moves every singular
    value by at most u ‖A‖_F (Weyl), so that below the floor σ_min cannot be told from 0, and the
    quotient would be rounding noise. The other term is the error of the singular values themselves.
    The largest value that float32 entries can give is therefore 2²⁴ = 1.7e7.

    Args:
        matrix: (m, n); more dimensions are taken as (shape[0], -1).

    Returns:
        A float ≥ 1.

    Raises:
        MetricError: The input has fewer than two dimensions.

    Edge cases:
        Rank-deficient, so that σ_min lies below the floor: inf. Zeros, empty, or an entry NaN or
        infinite: NaN.

    Example:
        >>> condition_number([[8.0, 0.0], [0.0, 2.0]])
        4.0
        >>> condition_number([[1.0, 1.0], [1.0, 1.0]])
        inf

    References:
        Golub and Van Loan, Matrix Computations, 4th ed. (2013), sections 2.6 and 8.6 (Weyl).
    """
    relative = relative_to_largest(singular_values)
    if relative is None:
        return math.nan
    smallest = float(relative[-1])
    floor = max(roundoff, len(relative) * 2.0 * ROUNDOFF_FLOAT64) * float(np.linalg.norm(relative))
    return 1.0 / smallest if smallest > floor else math.inf


def relative_to_largest(singular_values: FloatVector) -> FloatVector | None:
    """Return σ / σ₁, or None where there is no finite σ₁ > 0: no values, zeros, or NaN."""
    values = np.asarray(singular_values, dtype=np.float64)
    if not len(values) or not 0.0 < values[0] < math.inf:
        return None
    return np.asarray(values / values[0])


def entropy(relative: FloatVector) -> float:
    """Return -Σ p ln p in nats, with p = σ / Σ σ of values from `relative_to_largest`."""
    positive = relative[relative > 0.0]
    p = positive / np.sum(positive)
    return max(0.0, -float(np.sum(p * np.log(p))))


def _entropy_rank(singular_values: FloatVector) -> float:
    relative = relative_to_largest(singular_values)
    if relative is None:
        return math.nan
    return min(math.exp(entropy(relative)), float(len(relative)))  # equal ones may round above n
