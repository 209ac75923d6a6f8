"""Location and spread of a tensor's entries, and the trace: what training maps are drawn from.

Called through the registry by SQL and the public names of `pico.metrics`. SQL has `mean`, `median`
and `variance` of rows already, hence the prefix: these are of the entries of one tensor.
"""

from __future__ import annotations

import math

from pico.errors import MetricError
from pico.metrics import arrays
from pico.metrics.arrays import Array
from pico.metrics.registry import register


@register("tensor", takes_prepared=True)
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
    x = arrays.prepare(array)
    return x.mean * x.unit if x.n and x.is_finite else math.nan


@register("tensor", takes_prepared=True)
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
    x = arrays.prepare(array)
    if not x.n or not x.is_finite:
        return math.nan
    in_order = x.in_order(+x.flat)  # of a copy
    middle = in_order[(x.n - 1) // 2], in_order[x.n // 2]
    return 0.5 * sum(float(entry) / x.unit for entry in middle) * x.unit


@register("tensor", takes_prepared=True)
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
    x = arrays.prepare(array)
    if not x.n or not x.is_finite:
        return math.nan
    return math.fsum(float(block @ block) for block in x.centred()) / x.n * x.unit * x.unit


@register("tensor", takes_prepared=True)
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
    x = arrays.prepare(matrix)
    if not x.n:
        return 0.0
    if not x.is_finite:
        return math.nan
    rows = x.xp.reshape(x.flat, (x.shape[0] if x.shape else 1, -1))
    return float(x.xp.sum(x.xp.astype(x.xp.linalg.diagonal(rows), x.xp.float64)))


@register("tensor", only_matrices=True, on_request=True)
def mean_cosine(matrix: Array) -> float:
    """Mean cosine between the rows of a matrix: 1 where all point one way (anisotropy).

    (‖Σᵢ uᵢ‖² - m) / (m (m - 1)), with uᵢ the rows divided by their norms.

    Args:
        matrix: (m, n), such as an embedding or activations; more dimensions as (shape[0], -1).

    Returns:
        A float in [-1/(m - 1), 1]; 0 is what rows of random directions tend to.

    Raises:
        MetricError: The input has fewer than two dimensions.

    Edge cases:
        Fewer than two rows, a row of zeros, an entry NaN or infinite: NaN.

    Example:
        >>> mean_cosine([[1.0, 0.0], [0.0, 2.0]])
        0.0

    References:
        Ethayarajh, How Contextual are Contextualized Word Representations? (2019).
    """
    xp, x = arrays.as_float64(matrix)
    if x.ndim < 2:
        raise MetricError(f"mean_cosine takes a matrix, not a tensor of shape {tuple(x.shape)}")
    m = x.shape[0]
    x = xp.reshape(x, (m, math.prod(x.shape[1:])))
    if m < 2 or not x.shape[1] or not math.isfinite(arrays.max_magnitude(xp, x)):
        return math.nan
    largest = xp.max(xp.abs(x), axis=1, keepdims=True)
    if not float(xp.min(largest)):
        return math.nan
    scaled = x / largest
    directions = scaled / xp.sqrt(xp.sum(scaled**2, axis=1, keepdims=True))
    total = float(xp.sum(xp.sum(directions, axis=0) ** 2))
    cosine: float = (total - m) / (m * (m - 1))
    return min(1.0, cosine)
