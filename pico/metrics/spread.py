"""How a spectrum is spread: entropy, participation, moments and the tail's exponent.

Like `spectral`, each is a function of the singular values σ₁ ≥ … ≥ σₙ ≥ 0 (n = min of rows and
columns) that `register_spectral` turns into the public function of the matrix; all of them share
one spectrum.
"""

from __future__ import annotations

import math

import numpy as np

from pico.metrics.arrays import FloatVector
from pico.metrics.registry import register_spectral
from pico.metrics.spectral import entropy, relative_to_largest


@register_spectral()
def spectral_entropy(singular_values: FloatVector) -> float:
    """Shannon entropy of the normalised singular values, in nats; `effective_rank` is its exp.

    H = -Σᵢ pᵢ ln pᵢ, with pᵢ = σᵢ / Σⱼ σⱼ and 0 · ln 0 = 0

    Args:
        matrix: (m, n); more dimensions are taken as (shape[0], -1).

    Returns:
        A float from 0 (rank one) to ln min(m, n) (all singular values equal).

    Raises:
        MetricError: The input has fewer than two dimensions.

    Edge cases:
        Zeros, empty, or an entry NaN or infinite: NaN.

    Example:
        >>> round(spectral_entropy([[2.0, 0.0], [0.0, 2.0]]), 6)  # ln 2
        0.693147

    References:
        Roy and Vetterli, The Effective Rank (EUSIPCO, 2007), definition 1.
    """
    relative = relative_to_largest(singular_values)
    return math.nan if relative is None else entropy(relative)


@register_spectral()
def participation_ratio(singular_values: FloatVector) -> float:
    """Participation ratio: how many directions share the energy of the matrix.

    PR = (Σᵢ σᵢ²)² / Σᵢ σᵢ⁴

    Args:
        matrix: (m, n); more dimensions are taken as (shape[0], -1).

    Returns:
        A float from 1 (rank one) to min(m, n) (all singular values equal).

    Raises:
        MetricError: The input has fewer than two dimensions.

    Edge cases:
        Zeros, empty, or an entry NaN or infinite: NaN.

    Example:
        >>> participation_ratio([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 0.0]])
        2.0

    References:
        Gao et al., A theory of multineuronal dimensionality, dynamics and measurement (2017),
        with λ = σ² for the eigenvalues of the covariance.
    """
    relative = relative_to_largest(singular_values)
    if relative is None:
        return math.nan
    energies = relative**2
    return float(np.sum(energies)) ** 2 / float(np.sum(energies**2))


@register_spectral()
def singular_value_mean(singular_values: FloatVector) -> float:
    """Mean of the singular values.

    Σᵢ σᵢ / n, n = min(rows, columns)

    Args:
        matrix: (m, n); more dimensions are taken as (shape[0], -1).

    Returns:
        A float ≥ 0.

    Raises:
        MetricError: The input has fewer than two dimensions.

    Edge cases:
        Zeros: 0. Empty, or an entry NaN or infinite: NaN.

    Example:
        >>> singular_value_mean([[3.0, 0.0], [0.0, -4.0]])
        3.5

    References:
        Hu et al., Latent State Models of Training Dynamics (TMLR, 2023).
    """
    relative = relative_to_largest(singular_values)
    if relative is None:
        return _of_zeros(singular_values)
    return float(np.mean(relative)) * float(singular_values[0])


@register_spectral()
def singular_value_variance(singular_values: FloatVector) -> float:
    """Variance of the singular values.

    Σᵢ (σᵢ - σ̄)² / n, n = min(rows, columns)

    Args:
        matrix: (m, n); more dimensions are taken as (shape[0], -1).

    Returns:
        A float ≥ 0.

    Raises:
        MetricError: The input has fewer than two dimensions.

    Edge cases:
        Zeros: 0. Empty, or an entry NaN or infinite: NaN.

    Example:
        >>> singular_value_variance([[3.0, 0.0], [0.0, -4.0]])
        0.25

    References:
        Hu et al., Latent State Models of Training Dynamics (TMLR, 2023).
    """
    relative = relative_to_largest(singular_values)
    if relative is None:
        return _of_zeros(singular_values)
    return float(np.var(relative)) * float(singular_values[0]) * float(singular_values[0])


@register_spectral()
def alpha_hill(singular_values: FloatVector) -> float:
    """Exponent of a power law for the larger half of the eigenvalues, by Hill's estimator.

    α = 1 + k / Σᵢ₌₁ᵏ ln(λᵢ / λₖ₊₁), with λᵢ = σᵢ² of the r that are above rounding (σ > n ε σ₁,
    ε = 2⁻²⁴) and k = ⌊r / 2⌋: small where the spectrum has a heavy tail.

    Args:
        matrix: (m, n); more dimensions are taken as (shape[0], -1).

    Returns:
        A float > 1; inf where the larger half of the eigenvalues are all equal.

    Raises:
        MetricError: The input has fewer than two dimensions.

    Edge cases:
        Fewer than two singular values above rounding, or an entry NaN or infinite: NaN.

    Example:
        >>> round(alpha_hill([[math.e, 0.0], [0.0, 1.0]]), 6)  # 1 + 1 / ln e²
        1.5

    References:
        Hill, A Simple General Approach to Inference About the Tail of a Distribution (Ann. Stat.,
        1975); Zhou et al., Temperature Balancing (NeurIPS, 2023), PL_Alpha_Hill; Martin, Peng and
        Mahoney, Predicting trends in the quality of neural networks (Nat. Commun., 2021).
    """
    relative = relative_to_largest(singular_values)
    if relative is None:
        return math.nan
    above = relative[relative > len(relative) * 2.0**-24]
    k = len(above) // 2
    if k == 0:
        return math.nan
    total = 2.0 * float(np.sum(np.log(above[:k] / above[k])))
    return 1.0 + k / total if total > 0.0 else math.inf


def _of_zeros(singular_values: FloatVector) -> float:
    """Return 0 for singular values that are all 0, NaN where there are none or they are NaN."""
    return float(singular_values[0]) if len(singular_values) else math.nan
