"""Components that compute with tensors: sums, products, roots, means.

Called by `pico.sql` (functions of the same names) and the public names of `pico.metrics`. All
compute in float64; SQL gives tensors back as float32. What divides by zero gives inf or NaN, as
IEEE 754 says, and never an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pico.errors import MetricError
from pico.metrics import arrays
from pico.metrics.arrays import Array
from pico.metrics.components import register


@register()
def matmul(a: Array, b: Array) -> Any:
    """Return the product of two matrices.

    Args:
        a: (m, k).
        b: (k, n).

    Returns:
        (m, n) float64, of the kind of `a`.

    Raises:
        MetricError: The shapes do not fit, or the two lie on different devices.

    Edge cases:
        NaN and infinite entries spread as in any product.

    Example:
        >>> matmul([[1.0, 2.0]], [[3.0], [4.0]]).tolist()
        [[11.0]]

    References:
        `numpy.matmul`.
    """
    _, x, y = arrays.of_one_device(a, b)
    if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[0]:
        raise MetricError(
            f"matrices of shapes {tuple(x.shape)} and {tuple(y.shape)} have no product"
        )
    return arrays.like(x @ y, a)


@register()
def t_add(a: Array, b: Array) -> Any:
    """Return a + b, entry by entry.

    Args:
        a: Any shape.
        b: The shape of `a`, or one that broadcasts with it (a vector, a number).

    Returns:
        float64 of the shape broadcast, of the kind of `a`.

    Raises:
        MetricError: The shapes do not broadcast, or the two lie on different devices.

    Edge cases:
        As IEEE 754: inf - inf is NaN.

    Example:
        >>> t_add([1.0, 2.0], [10.0, 20.0]).tolist()
        [11.0, 22.0]

    References:
        `numpy.add`.
    """
    return _entrywise(a, b, lambda x, y: x + y)


@register()
def t_sub(a: Array, b: Array) -> Any:
    """Return a - b, entry by entry: what changed between two steps.

    Args:
        a: Any shape.
        b: The shape of `a`, or one that broadcasts with it (a vector, a number).

    Returns:
        float64 of the shape broadcast, of the kind of `a`.

    Raises:
        MetricError: The shapes do not broadcast, or the two lie on different devices.

    Edge cases:
        As IEEE 754: inf - inf is NaN.

    Example:
        >>> t_sub([1.0, 2.0], [0.5, 2.0]).tolist()
        [0.5, 0.0]

    References:
        `numpy.subtract`.
    """
    return _entrywise(a, b, lambda x, y: x - y)


@register()
def t_mul(a: Array, b: Array) -> Any:
    """Return a · b, entry by entry.

    Args:
        a: Any shape.
        b: The shape of `a`, or one that broadcasts with it (a vector, a number).

    Returns:
        float64 of the shape broadcast, of the kind of `a`.

    Raises:
        MetricError: The shapes do not broadcast, or the two lie on different devices.

    Edge cases:
        As IEEE 754: 0 · inf is NaN.

    Example:
        >>> t_mul([1.0, 2.0], [3.0, 4.0]).tolist()
        [3.0, 8.0]

    References:
        `numpy.multiply`.
    """
    return _entrywise(a, b, lambda x, y: x * y)


@register()
def t_div(a: Array, b: Array) -> Any:
    """Return a / b, entry by entry, such as Adam's first moment by the root of its second.

    Args:
        a: Any shape.
        b: The shape of `a`, or one that broadcasts with it (a vector, a number).

    Returns:
        float64 of the shape broadcast, of the kind of `a`.

    Raises:
        MetricError: The shapes do not broadcast, or the two lie on different devices.

    Edge cases:
        As IEEE 754: 1 / 0 is inf, 0 / 0 is NaN.

    Example:
        >>> t_div([1.0, 2.0], [4.0, 0.0]).tolist()
        [0.25, inf]

    References:
        `numpy.divide`.
    """
    return _entrywise(a, b, lambda x, y: x / y)


@register()
def t_sqrt(t: Array) -> Any:
    """Return the square root of each entry.

    Args:
        t: Any shape.

    Returns:
        float64 of the same shape, of the kind of `t`.

    Raises:
        MetricError: The entries are complex, or are not numbers.

    Edge cases:
        A negative entry: NaN.

    Example:
        >>> t_sqrt([4.0, 0.0]).tolist()
        [2.0, 0.0]

    References:
        `numpy.sqrt`.
    """
    xp, x = arrays.as_float64(t)
    with np.errstate(invalid="ignore"):
        return arrays.like(xp.sqrt(x), t)


@register()
def fold_norm(w: Array, gamma: Array) -> Any:
    """Return a weight with the gain of the norm before it multiplied in: W diag(γ).

    Args:
        w: (d_out, d_in), the weight that reads the normalised stream.
        gamma: (d_in,), the gain of that norm.

    Returns:
        (d_out, d_in) float64, of the kind of `w`.

    Raises:
        MetricError: The shapes do not fit, or the two lie on different devices.

    Edge cases:
        NaN and infinite entries spread as in any product.

    Example:
        >>> fold_norm([[1.0, 2.0], [3.0, 4.0]], [10.0, 1.0]).tolist()
        [[10.0, 2.0], [30.0, 4.0]]

    References:
        `fold_ln` of TransformerLens.
    """
    _, x, gain = arrays.of_one_device(w, gamma)
    if x.ndim != 2 or gain.shape != x.shape[1:]:
        raise MetricError(
            f"a gain of shape {tuple(gain.shape)} is none for a weight of shape {tuple(x.shape)}; "
            "it has an entry for each column"
        )
    with np.errstate(invalid="ignore"):
        return arrays.like(x * gain, w)


@register()
def tensor_mean(a: Array, b: Array) -> Any:
    """Return the mean of two tensors, entry by entry; in SQL also of a list of tensors.

    Args:
        a: Any shape.
        b: The shape of `a`.

    Returns:
        float64 of that shape, of the kind of `a`; as float32 that of two float32 tensors is
        bit for bit torch's.

    Raises:
        MetricError: The shapes differ, or the two lie on different devices.

    Edge cases:
        NaN and infinite entries spread as in any sum.

    Example:
        >>> tensor_mean([1.0, 2.0], [3.0, 2.0]).tolist()
        [2.0, 2.0]

    References:
        Izmailov et al., Averaging Weights Leads to Wider Optima and Better Generalization (2018).
    """
    return mean_of([a, b])


def mean_of(tensors: Sequence[Array]) -> Any:
    """Return the mean of any number of tensors of one shape; see `tensor_mean`."""
    if not tensors:
        raise MetricError("there is no tensor to take the mean of; give at least one")
    wide = [arrays.of_one_shape(tensors[0], tensor, "tensor_mean") for tensor in tensors]
    total = wide[0][1]
    with np.errstate(invalid="ignore"):
        for _, _, x in wide[1:]:
            total = total + x
        return arrays.like(total / len(wide), tensors[0])


def _entrywise(a: Array, b: Array, operation: Callable[[Any, Any], Any]) -> Any:
    _, x, y = arrays.of_one_device(a, b)
    try:
        np.broadcast_shapes(tuple(x.shape), tuple(y.shape))
    except ValueError:
        shapes = f"{tuple(x.shape)} and {tuple(y.shape)}"
        raise MetricError(f"tensors of shapes {shapes} do not fit entry by entry") from None
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return arrays.like(operation(x, y), a)
