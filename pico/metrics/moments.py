"""Location and spread of a tensor's entries, and the trace: what training maps are drawn from.

Called through the registry by SQL and the public names of `pico.metrics`. SQL has `mean`, `median`
and `variance` of rows already, hence the prefix: these are of the entries of one tensor.
"""

from __future__ import annotations

import math
from typing import Any

from pico.metrics import arrays
from pico.metrics.arrays import Array
from pico.metrics.registry import register


@register("tensor")
def entry_mean(array: Array) -> float:
    """Mean of the entries.

    x̄ = Σᵢ xᵢ / n

    Args:
        array: Any shape, n entries in all.

    Returns:
        A float.

    Edge cases:
        Empty, or an entry NaN or infinite: NaN.

    Example:
        >>> entry_mean([[1.0, 2.0], [3.0, 6.0]])
        3.0

    References:
        Hu et al., Latent State Models of Training Dynamics (TMLR, 2023).
    """
    scaled = _scaled(array)
    if scaled is None:
        return math.nan
    xp, x, unit = scaled
    return float(xp.mean(x)) * unit


@register("tensor")
def entry_median(array: Array) -> float:
    """Median of the entries; of an even number of them, the mean of the middle two.

    Args:
        array: Any shape, n entries in all.

    Returns:
        A float.

    Edge cases:
        Empty, or an entry NaN or infinite: NaN.

    Example:
        >>> entry_median([[1.0, 2.0], [3.0, 6.0]])
        2.5

    References:
        Hu et al., Latent State Models of Training Dynamics (TMLR, 2023).
    """
    scaled = _scaled(array)
    if scaled is None:
        return math.nan
    xp, x, unit = scaled
    x = xp.sort(x, stable=False)
    n = int(x.shape[0])
    return 0.5 * (float(x[(n - 1) // 2]) + float(x[n // 2])) * unit


@register("tensor")
def entry_variance(array: Array) -> float:
    """Variance of the entries.

    Σᵢ (xᵢ - x̄)² / n

    Args:
        array: Any shape, n entries in all.

    Returns:
        A float ≥ 0.

    Edge cases:
        One entry: 0. Empty, or an entry NaN or infinite: NaN.

    Example:
        >>> entry_variance([1.0, 2.0, 3.0])
        0.6666666666666666

    References:
        Hu et al., Latent State Models of Training Dynamics (TMLR, 2023).
    """
    scaled = _scaled(array)
    if scaled is None:
        return math.nan
    xp, x, unit = scaled
    x = x - x[0]  # equal entries become exactly 0
    return float(xp.mean((x - xp.mean(x)) ** 2)) * unit * unit


@register("tensor")
def trace(matrix: Array) -> float:
    """Sum of the main diagonal, whether the matrix is square or not.

    tr A = Σᵢ aᵢᵢ for i < min(m, n)

    Args:
        matrix: (m, n); more dimensions are taken as (shape[0], -1), a vector as one column.

    Returns:
        A float.

    Edge cases:
        Empty: 0. An entry NaN or infinite, wherever it stands: NaN.

    Example:
        >>> trace([[1.0, 9.0, 9.0], [9.0, 2.0, 9.0]])
        3.0

    References:
        Golub and Van Loan, Matrix Computations, 4th ed. (2013), section 7.1; Hu et al., Latent
        State Models of Training Dynamics (TMLR, 2023).
    """
    xp, x = arrays.as_float64(matrix)
    if not math.prod(x.shape):
        return 0.0
    if not math.isfinite(arrays.max_magnitude(xp, x)):
        return math.nan
    rows = xp.reshape(x, (x.shape[0] if x.ndim else 1, -1))
    return float(xp.sum(xp.linalg.diagonal(rows)))


def _scaled(array: Array) -> tuple[Any, Any, float] | None:
    """Return namespace, entries as a vector of magnitudes below 2, and unit; None if not finite."""
    xp, x = arrays.as_float64(array)
    largest = arrays.max_magnitude(xp, x)
    if not math.prod(x.shape) or not math.isfinite(largest):
        return None
    unit = arrays.power_of_two(largest) if largest else 1.0
    return xp, xp.reshape(x, (-1,)) / unit, unit
