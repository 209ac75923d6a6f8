"""How far one tensor is from another of the same shape, entry by entry or by subspaces.

Called through the registry by SQL (step against step, run against run) and the public names of
`pico.metrics`.
"""

from __future__ import annotations

import math
from typing import Any

from pico.errors import MetricError
from pico.metrics import arrays
from pico.metrics.arrays import Array
from pico.metrics.registry import register


@register("pair", any_shape=True)
def cosine_similarity(x: Array, y: Array) -> float:
    """Cosine of the angle between two tensors, taken as vectors.

    cos(x, y) = Σᵢ xᵢ yᵢ / (‖x‖₂ ‖y‖₂)

    Args:
        x: Any shape.
        y: The same shape.

    Returns:
        A float in [-1, 1].

    Raises:
        MetricError: The shapes differ, or the two lie on different devices.

    Edge cases:
        One of the two is zero, empty, or has an entry NaN or infinite: NaN.

    Example:
        >>> cosine_similarity([3.0, 0.0], [0.0, 1.0])
        0.0

    References:
        Golub and Van Loan, Matrix Computations, 4th ed. (2013), section 2.1.
    """
    xp, a, b = arrays.of_one_shape(x, y, "cosine_similarity")
    a, b = _scaled(xp, a), _scaled(xp, b)
    if a is None or b is None:
        return math.nan
    within = math.sqrt(float(xp.sum(a**2))) * math.sqrt(float(xp.sum(b**2)))
    return min(1.0, max(-1.0, float(xp.sum(a * b)) / within))


@register("pair", any_shape=True)
def relative_change(before: Array, after: Array) -> float:
    """Size of a change relative to what was there: ‖after - before‖₂ / ‖before‖₂.

    Args:
        before: Any shape.
        after: The same shape.

    Returns:
        A float ≥ 0.

    Raises:
        MetricError: The shapes differ, or the two lie on different devices.

    Edge cases:
        No change: 0, also of a zero tensor. A change of a zero tensor: inf. Empty, or an entry NaN
        or infinite: NaN.

    Example:
        >>> relative_change([3.0, 4.0], [3.0, 5.0])
        0.2

    References:
        Golub and Van Loan, Matrix Computations, 4th ed. (2013), section 2.2 (relative error).
    """
    xp, a, b = arrays.of_one_shape(before, after, "relative_change")
    largest = max(arrays.max_magnitude(xp, a), arrays.max_magnitude(xp, b))
    finite = math.isfinite(arrays.max_magnitude(xp, a) + arrays.max_magnitude(xp, b))
    if not math.prod(a.shape) or not finite:
        return math.nan
    if largest == 0.0:
        return 0.0
    unit = arrays.power_of_two(largest)
    change = math.sqrt(float(xp.sum((b / unit - a / unit) ** 2)))
    base = math.sqrt(float(xp.sum((a / unit) ** 2)))
    if change == 0.0:
        return 0.0
    return change / base if base else math.inf


@register("pair")
def subspace_overlap(x: Array, y: Array, *, k: int = 8) -> float:
    """Overlap of the leading left singular subspaces of two matrices.

    ‖U_k(X)ᵀ U_k(Y)‖_F² / k, where U_k holds the k leading left singular vectors: 1 where the
    subspaces are the same, about k / m for unrelated ones.

    Args:
        x: (m, n); more dimensions are taken as (shape[0], -1).
        y: (m, p), the same number of rows. Give both transposed for the right subspaces.
        k: Dimension of the subspaces, at least 1; at most the rank of both.

    Returns:
        A float in [0, 1].

    Raises:
        MetricError: The numbers of rows differ, an input has fewer than two dimensions, k is below
            1, or the two lie on different devices.

    Edge cases:
        A rank (singular values above max(m, n) 2⁻²⁴ σ₁) below k, or an entry NaN or infinite: NaN.

    Example:
        >>> subspace_overlap([[2.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 2.0]], k=1)
        0.0

    References:
        Gur-Ari, Roberts and Dyer, Gradient Descent Happens in a Tiny Subspace (2018), section 3.
    """
    if k < 1:
        raise MetricError(f"subspace_overlap needs k of at least 1, not {k}")
    xp, a, b = arrays.of_one_device(x, y)
    if a.ndim < 2 or b.ndim < 2 or a.shape[0] != b.shape[0]:
        raise MetricError(
            "subspace_overlap needs matrices with the same number of rows, not shapes "
            f"{tuple(a.shape)} and {tuple(b.shape)}"
        )
    first, second = _leading(xp, a, k), _leading(xp, b, k)
    if first is None or second is None:
        return math.nan
    return min(1.0, float(xp.sum((first.T @ second) ** 2)) / k)


def _leading(xp: Any, x: Any, k: int) -> Any:
    """Return the k leading left singular vectors (m, k), or None if there are fewer."""
    scaled = _scaled(xp, xp.reshape(x, (x.shape[0], math.prod(x.shape[1:]))))
    if scaled is None or min(scaled.shape) < k:
        return None
    vectors, values, _ = xp.linalg.svd(scaled, full_matrices=False)
    floor = max(scaled.shape) * arrays.ROUNDOFF_FLOAT32 * float(values[0])
    return vectors[:, :k] if float(values[k - 1]) > floor else None


def _scaled(xp: Any, x: Any) -> Any:
    """Return x with magnitudes below 2, or None if it is zero, empty or not finite."""
    largest = arrays.max_magnitude(xp, x)
    if not math.prod(x.shape) or largest == 0.0 or not math.isfinite(largest):
        return None
    return x / arrays.power_of_two(largest)
