"""Norms of a tensor's entries: sum, root of squares, maximum of magnitudes and of row sums.

Called through the registry by SQL, `tensor_stats` and the public names of `pico.metrics`. They
promise float64 accumulation of whatever type comes in, and no overflow on the way to a finite
result.
"""

from __future__ import annotations

import math

from pico.metrics import arrays
from pico.metrics.arrays import Array
from pico.metrics.registry import register


@register("tensor", takes_prepared=True)
def l1_norm(array: Array) -> float:
    """Sum of the magnitudes of all entries.

    ‖x‖₁ = Σᵢ |xᵢ|

    Args:
        array: Any shape.

    Returns:
        A float ≥ 0.

    Edge cases:
        Empty: 0. A NaN entry: NaN; otherwise an infinite entry: inf.

    Example:
        >>> l1_norm([[1.0, -2.0], [3.0, 0.0]])
        6.0

    References:
        Golub and Van Loan, Matrix Computations, 4th ed. (2013), section 2.2.
    """
    x = arrays.prepare(array)
    return x.unit * x.total if x.is_ordinary else x.largest


@register("tensor", takes_prepared=True)
def frobenius_norm(array: Array) -> float:
    """Root of the sum of the squares of all entries.

    ‖A‖_F = √(Σᵢⱼ aᵢⱼ²) = √(Σᵢ σᵢ²); the Euclidean norm of a vector. The entries are divided by a
    power of two first, so that no square overflows or underflows.

    Args:
        array: Any shape.

    Returns:
        A float ≥ 0.

    Edge cases:
        Empty: 0. A NaN entry: NaN; otherwise an infinite entry: inf.

    Example:
        >>> frobenius_norm([[3.0, 0.0], [0.0, -4.0]])
        5.0

    References:
        Golub and Van Loan, Matrix Computations, 4th ed. (2013), section 2.3.
    """
    x = arrays.prepare(array)
    return x.unit * math.sqrt(x.squares) if x.is_ordinary else x.largest


@register("tensor", takes_prepared=True)
def max_abs(array: Array) -> float:
    """Largest magnitude of any entry.

    ‖x‖_∞ = maxᵢ |xᵢ|, over the entries: the matrix norm of the same sign, the largest row sum, is
    another thing.

    Args:
        array: Any shape.

    Returns:
        A float ≥ 0.

    Edge cases:
        Empty: 0. A NaN entry: NaN; otherwise an infinite entry: inf.

    Example:
        >>> max_abs([[1.0, -2.0], [0.5, 0.0]])
        2.0

    References:
        Golub and Van Loan, Matrix Computations, 4th ed. (2013), section 2.2.
    """
    return arrays.prepare(array).largest


@register("tensor", takes_prepared=True)
def inf_norm(matrix: Array) -> float:
    """Largest row sum of magnitudes: the matrix norm that belongs to the maximum norm of vectors.

    ‖A‖_∞ = maxᵢ Σⱼ |aᵢⱼ|. `max_abs` is the largest entry, which pico-analyze calls "inf".

    Args:
        matrix: (m, n); more dimensions are taken as (shape[0], -1), a vector as one column.

    Returns:
        A float ≥ 0.

    Edge cases:
        Empty: 0. A NaN entry: NaN; otherwise an infinite entry: inf.

    Example:
        >>> inf_norm([[1.0, -2.0], [0.5, 0.0]])
        3.0

    References:
        Golub and Van Loan, Matrix Computations, 4th ed. (2013), section 2.3.
    """
    x = arrays.prepare(matrix)
    if not x.is_ordinary:
        return x.largest
    n_rows = x.shape[0] if x.shape else 1
    rows = x.xp.reshape(x.flat, (n_rows, x.n // n_rows))
    sums = (x.xp.sum(x.xp.abs(block), axis=1) for _, block in x.blocks(rows))
    return x.unit * max(float(x.xp.max(of_rows)) for of_rows in sums)
