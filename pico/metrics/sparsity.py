"""Sparsity of a tensor: how unequally the magnitudes of its entries are distributed.

Called through the registry by SQL and the public names of `pico.metrics`. All promise float64
accumulation and invariance under reordering, and all but the counting of zeros under scaling.
"""

from __future__ import annotations

import math

from pico.metrics import arrays
from pico.metrics.arrays import Array
from pico.metrics.registry import register


@register("tensor", takes_prepared=True)
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
    x = arrays.prepare(array)
    if not x.n or not x.is_finite:
        return math.nan
    if x.largest == 0.0:
        return 0.0
    magnitudes = x.in_order(x.xp.abs(x.flat))
    where = arrays.device(magnitudes)
    ranked, ramp = 0.0, None  # Σᵢ (2i - n - 1) |x|₍ᵢ₎ / unit
    for start, block in x.blocks(magnitudes):
        if ramp is None:  # the first block is the longest
            ramp = x.xp.arange(block.shape[0], dtype=x.xp.float64, device=where)
        within = float(ramp[: block.shape[0]] @ block)
        ranked += 2.0 * within + (2 * start + 1 - x.n) * float(x.xp.sum(block))
    ratio = ranked / (x.n * x.total)
    return max(0.0, ratio)  # equal entries leave a rounding error of either sign


@register("tensor", takes_prepared=True)
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
    x = arrays.prepare(array)
    if x.n <= 1 or not x.is_ordinary:
        return math.nan
    ratio = x.total / math.sqrt(x.squares)
    return min(1.0, max(0.0, (math.sqrt(x.n) - ratio) / (math.sqrt(x.n) - 1.0)))


@register("tensor", takes_prepared=True)
def zero_fraction(array: Array) -> float:
    """Share of the entries that are exactly zero.

    Z = #{i : xᵢ = 0} / n

    Args:
        array: Any shape, n entries in all.

    Returns:
        A float in [0, 1].

    Edge cases:
        Empty: NaN. NaN and infinite entries are not zero; -0.0 is.

    Example:
        >>> zero_fraction([0.0, -0.0, 3.0, 1e-30])
        0.5

    References:
        The ℓ⁰ measure of Hurley and Rickard, Comparing Measures of Sparsity (IEEE Trans. Inf.
        Theory, 2009), divided by n and turned round.
    """
    x = arrays.prepare(array)
    return (x.n - int(x.xp.count_nonzero(x.flat))) / x.n if x.n else math.nan


@register("tensor", takes_prepared=True)
def excess_kurtosis(array: Array) -> float:
    """Excess kurtosis of the entries: 0 for normally distributed ones, more with heavier tails.

    κ = m₄ / m₂² - 3, with the central moments mₖ = Σᵢ (xᵢ - x̄)ᵏ / n (not corrected for bias)

    Args:
        array: Any shape, n entries in all.

    Returns:
        A float ≥ -2.

    Edge cases:
        All entries equal, empty, or an entry NaN or infinite: NaN.

    Example:
        >>> excess_kurtosis([-1.0, 1.0, -1.0, 1.0])
        -2.0

    References:
        Joanes and Gill, Comparing Measures of Sample Skewness and Kurtosis (JRSS D, 1998), g₂.
    """
    x = arrays.prepare(array)
    if not x.is_ordinary:
        return math.nan
    largest = max(arrays.max_magnitude(x.xp, block) for block in x.centred())
    if largest == 0.0:
        return math.nan
    unit, second, fourth = arrays.power_of_two(largest), [], []
    for block in x.centred():
        squares = (block / unit) ** 2
        second.append(float(x.xp.sum(squares)))
        fourth.append(float(squares @ squares))
    return x.n * math.fsum(fourth) / math.fsum(second) ** 2 - 3.0


@register("tensor", takes_prepared=True)
def l1_l2_ratio(array: Array) -> float:
    """Sum of magnitudes over root of squares: 1 where one entry alone is not 0, √n if all equal.

    ‖x‖₁ / ‖x‖₂

    Args:
        array: Any shape, n entries in all.

    Returns:
        A float from 1 to √n.

    Edge cases:
        All zeros, empty, or an entry NaN or infinite: NaN.

    Example:
        >>> l1_l2_ratio([3.0, -4.0])
        1.4

    References:
        Hurley and Rickard, Comparing Measures of Sparsity (IEEE Trans. Inf. Theory, 2009); "code
        sparsity" in Hu et al., Latent State Models of Training Dynamics (TMLR, 2023).
    """
    x = arrays.prepare(array)
    return x.total / math.sqrt(x.squares) if x.is_ordinary else math.nan
