"""Sparsity of a tensor: how unequally the magnitudes of its entries are distributed.

Called through the registry by SQL and the public names of `pico.metrics`. Both measures promise
float64 accumulation, values in [0, 1] and invariance under scaling and reordering.
"""

from __future__ import annotations

import math

from pico.metrics import arrays
from pico.metrics.arrays import Array
from pico.metrics.registry import register


@register("tensor")
def gini(array: Array) -> float:
    """Gini coefficient of the magnitudes: 0 where all are equal, near 1 where few are not 0.

    G = Σᵢ (2i - n - 1) |x|₍ᵢ₎ / (n Σᵢ |x|₍ᵢ₎), with |x|₍₁₎ ≤ … ≤ |x|₍ₙ₎

    Args:
        array: Any shape, n entries in all.

    Returns:
        A float in [0, 1); at most 1 - 1/n, where one entry alone is not 0.

    Edge cases:
        All zeros: 0, for all are equal. Empty, or an entry NaN or infinite: NaN.

    Example:
        >>> gini([0.0, 0.0, 0.0, -7.0])
        0.75

    References:
        Hurley and Rickard, Comparing Measures of Sparsity (IEEE Trans. Inf. Theory, 2009).
    """
    xp, magnitudes = arrays.sorted_magnitudes(array)
    n = int(magnitudes.shape[0])
    largest = float(magnitudes[-1]) if n else math.nan
    if not math.isfinite(largest):
        return math.nan
    if largest == 0.0:
        return 0.0
    magnitudes = magnitudes / arrays.power_of_two(largest)
    ranks = xp.arange(1 - n, n, 2, dtype=xp.float64, device=arrays.device(magnitudes))  # 2i - n - 1
    ratio: float = float(ranks @ magnitudes) / (n * float(xp.sum(magnitudes)))
    return max(0.0, ratio)  # equal entries leave a rounding error of either sign


@register("tensor")
def hoyer(array: Array) -> float:
    """Hoyer's sparsity: 0 where all magnitudes are equal, 1 where one entry alone is not 0.

    H = (√n - ‖x‖₁ / ‖x‖₂) / (√n - 1)

    Args:
        array: Any shape, n entries in all.

    Returns:
        A float in [0, 1].

    Edge cases:
        All zeros, a single entry, empty, or an entry NaN or infinite: NaN.

    Example:
        >>> hoyer([0.0, 0.0, 3.0, 0.0])
        1.0

    References:
        Hoyer, Non-negative Matrix Factorization with Sparseness Constraints (JMLR, 2004).
    """
    xp, x = arrays.as_float64(array)
    n = math.prod(x.shape)
    largest = arrays.max_magnitude(xp, x)
    if n <= 1 or largest == 0.0 or not math.isfinite(largest):
        return math.nan
    magnitudes = xp.abs(x / arrays.power_of_two(largest))
    ratio = float(xp.sum(magnitudes)) / math.sqrt(float(xp.sum(magnitudes**2)))
    return min(1.0, max(0.0, (math.sqrt(n) - ratio) / (math.sqrt(n) - 1.0)))
