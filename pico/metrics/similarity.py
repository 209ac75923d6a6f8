"""Similarity of two representations of the same samples.

Called through the registry by SQL (over any join: step against step, layer against layer, run
against run) and the public names of `pico.metrics`. It promises to work in whichever of feature
space and sample space is smaller.
"""

from __future__ import annotations

import math
from typing import Any

from pico.errors import MetricError
from pico.metrics import arrays
from pico.metrics.arrays import Array
from pico.metrics.registry import register


@register("pair")
def cka(x: Array, y: Array) -> float:
    """Linear centred kernel alignment of two sets of features of the same samples.

    CKA(X, Y) = ‖YᵀX‖_F² / (‖XᵀX‖_F ‖YᵀY‖_F), with the columns of X and Y centred: the biased
    estimator, which tends to 1 when there are fewer samples than features.

    Args:
        x: (n_samples, n_features_x); leading dimensions of more than two are samples too.
        y: (n_samples, n_features_y), the same samples in the same order.

    Returns:
        A float in [0, 1]; 1 where one is a rotation and scaling of the other.

    Raises:
        MetricError: The numbers of samples differ, an input has fewer than two dimensions, or the
            two lie on different devices.

    Edge cases:
        No variance in x or in y (constant features, one sample, none), or an entry NaN or
        infinite: NaN.

    Example:
        >>> cka([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]], [[0.0, 3.0], [3.0, 0.0], [0.0, 0.0]])
        1.0

    References:
        Kornblith, Norouzi, Lee and Hinton, Similarity of Neural Network Representations Revisited
        (ICML, 2019), section 3.
    """
    xp, a = _samples(x, "x")
    xp_y, b = _samples(y, "y")
    if xp is not xp_y or arrays.device(a) != arrays.device(b):
        raise MetricError("x and y lie on different devices; move one to the device of the other")
    if a.shape[0] != b.shape[0]:
        raise MetricError(
            f"x has {a.shape[0]} samples and y has {b.shape[0]}; cka compares features of the "
            "same samples in the same order"
        )
    a, b = _centred(xp, a), _centred(xp, b)
    if a is None or b is None:
        return math.nan
    n, p, q = a.shape[0], a.shape[1], b.shape[1]
    if n * (p + q) < p * p + q * q + p * q:
        gram_a, gram_b = a @ a.T, b @ b.T  # (n, n) both
        cross = float(xp.sum(gram_a * gram_b))  # the trace of their product, = ‖BᵀA‖_F²
    else:
        gram_a, gram_b = a.T @ a, b.T @ b  # (p, p), (q, q)
        cross = float(xp.sum((b.T @ a) ** 2))
    within = math.sqrt(float(xp.sum(gram_a**2))) * math.sqrt(float(xp.sum(gram_b**2)))
    return min(1.0, max(0.0, cross / within))


def _samples(array: Array, which: str) -> tuple[Any, Any]:
    xp, x = arrays.as_float64(array)
    if x.ndim < 2:
        raise MetricError(
            f"cka needs (n_samples, n_features), and {which} has shape {tuple(x.shape)}"
        )
    return xp, xp.reshape(x, (math.prod(x.shape[:-1]), x.shape[-1]))


def _centred(xp: Any, x: Any) -> Any:
    """Return x (n, p) with columns of mean 0 and magnitudes near 1, or None without variance.

    The first sample is subtracted before the mean: a constant column becomes exactly 0, where its
    mean alone would leave rounding noise, which has a similarity too.
    """
    if not math.prod(x.shape) or not math.isfinite(arrays.max_magnitude(xp, x)):
        return None
    x = x - x[:1, :]
    x = x - xp.mean(x, axis=0, keepdims=True)
    largest = arrays.max_magnitude(xp, x)
    if largest == 0.0 or not math.isfinite(largest):
        return None
    return x / arrays.power_of_two(largest)  # squares of tiny gradients would underflow
