"""Components that take parts of a tensor: a head, rows, columns, and the norms of these.

Called by `pico.sql` (functions of the same names) and the public names of `pico.metrics`. All
count from 0 and compute in float64; SQL gives tensors back as float32.
"""

from __future__ import annotations

import math
from typing import Any

from pico.errors import MetricError
from pico.metrics import arrays
from pico.metrics.arrays import Array
from pico.metrics.components import register


@register()
def head(t: Array, i: int, d_head: int, axis: int = 0) -> Any:
    """Return the part of a tensor that belongs to one head.

    Args:
        t: (n_heads · d_head, …) as the weights q, k and v; with `axis` 1 (…, n_heads · d_head) as
            the weight o or activations at `z`.
        i: Index of the head, from 0.
        d_head: Width of a head.
        axis: 0 for rows, 1 for columns.

    Returns:
        The d_head rows or columns as float64, of the kind of `t`.

    Raises:
        MetricError: The tensor does not divide into heads, or there is no such head or axis.

    Edge cases:
        NaN and infinite entries are kept.

    Example:
        >>> head([[1.0], [2.0], [3.0], [4.0]], 1, 2).tolist()
        [[3.0], [4.0]]

    References:
        Vaswani et al., Attention Is All You Need (2017), section 3.2.2.
    """
    _, x = arrays.as_float64(t)
    if axis not in range(min(x.ndim, 2)):
        raise MetricError(f"a tensor of shape {tuple(x.shape)} has no axis {axis} to take heads of")
    if d_head < 1 or x.shape[axis] % d_head:
        raise MetricError(f"{x.shape[axis]} rows or columns do not divide into heads of {d_head}")
    if not 0 <= i < x.shape[axis] // d_head:
        raise MetricError(f"there is no head {i}; heads are 0 to {x.shape[axis] // d_head - 1}")
    part = slice(i * d_head, (i + 1) * d_head)
    return arrays.like(x[part] if axis == 0 else x[:, part], t)


@register()
def rows(t: Array, a: int, b: int) -> Any:
    """Return rows a to b - 1 of a tensor, counted from 0.

    Args:
        t: (n, …).
        a: The first row.
        b: The row after the last; at most n.

    Returns:
        (b - a, …) float64, of the kind of `t`.

    Raises:
        MetricError: Not 0 ≤ a ≤ b ≤ n, or the tensor is a scalar.

    Edge cases:
        a = b: no rows.

    Example:
        >>> rows([[1.0], [2.0], [3.0]], 1, 3).tolist()
        [[2.0], [3.0]]

    References:
        Python's slices.
    """
    _, x = arrays.as_float64(t)
    _check_range(x, 0, a, b)
    return arrays.like(x[a:b], t)


@register()
def cols(t: Array, a: int, b: int) -> Any:
    """Return columns a to b - 1 of a matrix, counted from 0.

    Args:
        t: (m, n, …).
        a: The first column.
        b: The column after the last; at most n.

    Returns:
        (m, b - a, …) float64, of the kind of `t`.

    Raises:
        MetricError: Not 0 ≤ a ≤ b ≤ n, or the tensor has fewer than two dimensions.

    Edge cases:
        a = b: no columns.

    Example:
        >>> cols([[1.0, 2.0, 3.0]], 0, 2).tolist()
        [[1.0, 2.0]]

    References:
        Python's slices.
    """
    _, x = arrays.as_float64(t)
    _check_range(x, 1, a, b)
    return arrays.like(x[:, a:b], t)


@register(returns="vector")
def row_norms(t: Array) -> Any:
    """Return the Euclidean norm of each row, such as of each token's embedding.

    Args:
        t: (m, n); more dimensions are taken as (shape[0], -1).

    Returns:
        (m,) float64, of the kind of `t`.

    Raises:
        MetricError: The tensor has fewer than two dimensions.

    Edge cases:
        A NaN or infinite entry: NaN or inf for its row. No columns: zeros.

    Example:
        >>> row_norms([[3.0, 4.0], [0.0, 0.0]]).tolist()
        [5.0, 0.0]

    References:
        `numpy.linalg.norm` along axis 1.
    """
    xp, x = _matrix(t, "row_norms")
    return arrays.like(_norms(xp, x), t)


@register(returns="vector")
def col_norms(t: Array) -> Any:
    """Return the Euclidean norm of each column, such as of what each hidden unit writes.

    Args:
        t: (m, n); more dimensions are taken as (shape[0], -1).

    Returns:
        (n,) float64, of the kind of `t`.

    Raises:
        MetricError: The tensor has fewer than two dimensions.

    Edge cases:
        A NaN or infinite entry: NaN or inf for its column. No rows: zeros.

    Example:
        >>> col_norms([[3.0, 1.0], [4.0, 0.0]]).tolist()
        [5.0, 1.0]

    References:
        `numpy.linalg.norm` along axis 0.
    """
    xp, x = _matrix(t, "col_norms")
    return arrays.like(_norms(xp, x.T), t)


@register()
def transpose(t: Array) -> Any:
    """Return a matrix with rows and columns exchanged.

    Args:
        t: (m, n).

    Returns:
        (n, m) float64, of the kind of `t`.

    Raises:
        MetricError: The tensor has another number of dimensions.

    Edge cases:
        NaN and infinite entries are kept.

    Example:
        >>> transpose([[1.0, 2.0]]).tolist()
        [[1.0], [2.0]]

    References:
        `numpy.transpose`.
    """
    _, x = arrays.as_float64(t)
    if x.ndim != 2:
        raise MetricError(f"transpose takes a matrix, not a tensor of shape {tuple(x.shape)}")
    return arrays.like(x.T, t)


def _check_range(x: Any, axis: int, a: int, b: int) -> None:
    if x.ndim <= axis:
        raise MetricError(f"a tensor of shape {tuple(x.shape)} has no {('rows', 'columns')[axis]}")
    if not 0 <= a <= b <= x.shape[axis]:
        raise MetricError(
            f"{a} to {b} is no range within {x.shape[axis]} {('rows', 'columns')[axis]}; "
            "the second number is the one after the last"
        )


def _matrix(t: Array, name: str) -> tuple[Any, Any]:
    xp, x = arrays.as_float64(t)
    if x.ndim < 2:
        raise MetricError(f"{name} takes a matrix, not a tensor of shape {tuple(x.shape)}")
    return xp, xp.reshape(x, (x.shape[0], math.prod(x.shape[1:])))


def _norms(xp: Any, x: Any) -> Any:
    """Return the norm of each row, without overflow or underflow of squares."""
    largest = arrays.max_magnitude(xp, x)
    unit = arrays.power_of_two(largest) if 0.0 < largest < math.inf else 1.0
    return xp.sqrt(xp.sum((x / unit) ** 2, axis=1)) * unit
