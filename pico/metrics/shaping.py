"""Components that rearrange tensors: split, reshape, concatenate.

Called by `pico.sql` (functions of the same names) and the public names of `pico.metrics`. They
promise to change no value, and to keep the order of entries that is torch's and numpy's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pico.errors import MetricError
from pico.metrics import arrays
from pico.metrics.arrays import Array
from pico.metrics.components import register


@register()
def split_qkv(qkv: Array, n_heads: int, which: str) -> Any:
    """Return the query, key or value weight out of GPT-NeoX's fused projection.

    The rows of the fused weight go head by head, and in each head through q, k and v.

    Args:
        qkv: (3 · n_heads · d_head, d_model), or (3 · n_heads · d_head,) for the bias.
        n_heads: Number of heads; GPT-NeoX has as many for keys and values.
        which: `q`, `k` or `v`.

    Returns:
        (n_heads · d_head, d_model) float64, or (n_heads · d_head,), of the kind of `qkv`.

    Raises:
        MetricError: The rows do not divide into 3 · n_heads, or `which` is another word.

    Edge cases:
        NaN and infinite entries are kept.

    Example:
        >>> import numpy as np
        >>> split_qkv(np.arange(6.0), 2, "k").tolist()
        [1.0, 4.0]

    References:
        Black et al., GPT-NeoX-20B (2022); `GPTNeoXAttention` in the library transformers.
    """
    xp, x = arrays.as_float64(qkv)
    rows = x.shape[0] if x.ndim else 0
    if which not in ("q", "k", "v"):
        raise MetricError(f"split_qkv gives 'q', 'k' or 'v', not {which!r}")
    if n_heads < 1 or not rows or rows % (3 * n_heads):
        raise MetricError(f"{rows} rows do not divide into q, k and v of {n_heads} heads")
    by_head = xp.reshape(x, (n_heads, 3, rows // (3 * n_heads), *x.shape[1:]))
    picked = by_head[:, "qkv".index(which)]
    return arrays.like(xp.reshape(picked, (rows // 3, *x.shape[1:])), qkv)


@register()
def reshape(tensor: Array, shape: Sequence[int]) -> Any:
    """Return the same entries in the same order under another shape.

    Args:
        tensor: Any shape.
        shape: The new one, of as many entries; one length may be -1 and is then worked out.

    Returns:
        `tensor` as float64 of that shape, of the kind of `tensor`.

    Raises:
        MetricError: The entries do not fill the shape.

    Edge cases:
        NaN and infinite entries are kept; no lengths at all: a scalar, of one entry.

    Example:
        >>> import numpy as np
        >>> reshape(np.arange(4.0), [2, -1]).tolist()
        [[0.0, 1.0], [2.0, 3.0]]

    References:
        `numpy.reshape`, order C.
    """
    xp, x = arrays.as_float64(tensor)
    lengths = tuple(int(length) for length in shape)
    known = math.prod(length for length in lengths if length != -1)
    n, n_open = math.prod(x.shape), lengths.count(-1)
    fills = known == n if not n_open else n_open == 1 and known > 0 and n % known == 0
    if min(lengths, default=0) < -1 or not fills:
        raise MetricError(f"{n} entries of shape {tuple(x.shape)} do not fill shape {lengths}")
    return arrays.like(xp.reshape(x, lengths), tensor)


@register()
def concat_tensors(a: Array, b: Array, axis: int = 0) -> Any:
    """Return two tensors joined along an axis; in SQL also a list of tensors.

    Args:
        a: Any shape but a scalar.
        b: The shape of `a`, but for its length along the axis.
        axis: Index of the axis, from 0; negative ones count from the last.

    Returns:
        `a` and then `b` as one float64 tensor, of the kind of `a`.

    Raises:
        MetricError: The shapes do not fit, there is no such axis, or the two lie on different
            devices.

    Edge cases:
        NaN and infinite entries are kept; a tensor without entries adds none.

    Example:
        >>> import numpy as np
        >>> concat_tensors(np.zeros((1, 2)), np.ones((1, 2)), axis=1).tolist()
        [[0.0, 0.0, 1.0, 1.0]]

    References:
        `numpy.concatenate`.
    """
    return joined([a, b], axis)


def joined(tensors: Sequence[Array], axis: int = 0) -> Any:
    """Return any number of tensors joined along an axis; see `concat_tensors`."""
    if not tensors:
        raise MetricError("there is no tensor to concatenate; give at least one")
    wide = [arrays.of_one_device(tensors[0], tensor) for tensor in tensors]
    xp, first = wide[0][0], wide[0][1]
    if not -first.ndim <= axis < first.ndim:
        raise MetricError(f"a tensor of shape {tuple(first.shape)} has no axis {axis}")
    axis %= first.ndim
    rest = [(*x.shape[:axis], *x.shape[axis + 1 :]) for _, _, x in wide]
    if any(x.ndim != first.ndim for _, _, x in wide) or len(set(rest)) > 1:
        shapes = " and ".join(str(tuple(x.shape)) for _, _, x in wide[:3])
        raise MetricError(f"tensors of shapes {shapes} cannot be joined along axis {axis}")
    return arrays.like(xp.concat([x for _, _, x in wide], axis=axis), tensors[0])
