"""Singular values of attention circuits, from their thin factors.

Called by `pico.sql` (functions of the same names) and the public names of `pico.metrics`. Two QR
decompositions leave a (d_head, d_head) matrix with the singular values of the (d_model, d_model)
product, which is never formed. Orientation and grouped queries are those of `circuits`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pico.metrics import arrays
from pico.metrics.arrays import Array
from pico.metrics.circuits import Factors, check_heads, ov_factors, qk_factors
from pico.metrics.components import register
from pico.metrics.spectrum import spectrum


@register(returns="vector")
def ov_spectrum(v: Array, o: Array, n_heads: int, n_kv_heads: int, head: int) -> Any:
    """Return the singular values of a head's output-value circuit, without forming it.

    With O_h = Q₁R₁ and V_gᵀ = Q₂R₂ they are those of R₁R₂ᵀ, which is d_head by d_head.

    Args:
        v: (n_kv_heads · d_head, d_model), weight of the value projection.
        o: (d_model, n_heads · d_head), weight of the output projection.
        n_heads: Number of query heads.
        n_kv_heads: Number of key and value heads; a divisor of `n_heads`.
        head: Index of the query head, from 0.

    Returns:
        (min(d_head, d_model),) float64, descending: the d_model - d_head zeros that the circuit
        has besides are left out.

    Raises:
        MetricError: The shapes do not fit the numbers of heads, or there is no such head.

    Edge cases:
        A NaN or infinite entry in the head's rows or columns: all values NaN.

    Example:
        >>> import numpy as np
        >>> ov_spectrum(np.eye(2), np.asarray([[0.0, 1.0], [2.0, 0.0]]), 2, 2, 0).tolist()
        [2.0]

    References:
        Golub and Van Loan, Matrix Computations, 4th ed. (2013), section 5.4.
    """
    return arrays.like(_thin_spectrum(ov_factors(v, o, n_heads, n_kv_heads, head)), v)


@register(returns="vector")
def qk_spectrum(q: Array, k: Array, n_heads: int, n_kv_heads: int, head: int) -> Any:
    """Return the singular values of a head's query-key circuit, without forming it.

    Args:
        q: (n_heads · d_head, d_model), weight of the query projection.
        k: (n_kv_heads · d_head, d_model), weight of the key projection.
        n_heads: Number of query heads.
        n_kv_heads: Number of key and value heads; a divisor of `n_heads`.
        head: Index of the query head, from 0.

    Returns:
        (min(d_head, d_model),) float64, descending; the circuit's other singular values are 0.

    Raises:
        MetricError: The shapes do not fit the numbers of heads, or there is no such head.

    Edge cases:
        A NaN or infinite entry in the head's rows: all values NaN.

    Example:
        >>> import numpy as np
        >>> qk_spectrum(np.eye(2), np.asarray([[0.0, 1.0], [2.0, 0.0]]), 2, 2, 1).tolist()
        [2.0]

    References:
        Golub and Van Loan, Matrix Computations, 4th ed. (2013), section 5.4.
    """
    return arrays.like(_thin_spectrum(qk_factors(q, k, n_heads, n_kv_heads, head)), q)


@register(returns="matrix")
def ov_spectra(v: Array, o: Array, n_heads: int, n_kv_heads: int) -> Any:
    """Return the output-value spectra of all heads of a layer, head by head.

    Args:
        v: (n_kv_heads · d_head, d_model), weight of the value projection.
        o: (d_model, n_heads · d_head), weight of the output projection.
        n_heads: Number of query heads.
        n_kv_heads: Number of key and value heads; a divisor of `n_heads`.

    Returns:
        (n_heads, min(d_head, d_model)) float64, each row as `ov_spectrum` gives it.

    Raises:
        MetricError: The shapes do not fit the numbers of heads.

    Edge cases:
        A NaN or infinite entry: NaN in the rows of the heads that it belongs to.

    Example:
        >>> import numpy as np
        >>> ov_spectra(np.eye(2), np.asarray([[0.0, 1.0], [3.0, 0.0]]), 2, 2).tolist()
        [[3.0], [1.0]]

    References:
        Golub and Van Loan, Matrix Computations, 4th ed. (2013), section 5.4.
    """
    check_heads(n_heads, n_kv_heads)
    xp, x, y = arrays.of_one_device(v, o)  # widened once for all heads
    heads = [ov_factors(x, y, n_heads, n_kv_heads, head) for head in range(n_heads)]
    return arrays.like(xp.stack([_thin_spectrum(thin) for thin in heads]), v)


@register(returns="matrix")
def qk_spectra(q: Array, k: Array, n_heads: int, n_kv_heads: int) -> Any:
    """Return the query-key spectra of all heads of a layer, head by head.

    Args:
        q: (n_heads · d_head, d_model), weight of the query projection.
        k: (n_kv_heads · d_head, d_model), weight of the key projection.
        n_heads: Number of query heads.
        n_kv_heads: Number of key and value heads; a divisor of `n_heads`.

    Returns:
        (n_heads, min(d_head, d_model)) float64, each row as `qk_spectrum` gives it.

    Raises:
        MetricError: The shapes do not fit the numbers of heads.

    Edge cases:
        A NaN or infinite entry: NaN in the rows of the heads that it belongs to.

    Example:
        >>> import numpy as np
        >>> qk_spectra(np.eye(2), np.asarray([[0.0, 1.0], [3.0, 0.0]]), 2, 2).tolist()
        [[1.0], [3.0]]

    References:
        Golub and Van Loan, Matrix Computations, 4th ed. (2013), section 5.4.
    """
    check_heads(n_heads, n_kv_heads)
    xp, x, y = arrays.of_one_device(q, k)  # widened once for all heads
    heads = [qk_factors(x, y, n_heads, n_kv_heads, head) for head in range(n_heads)]
    return arrays.like(xp.stack([_thin_spectrum(thin) for thin in heads]), q)


def _thin_spectrum(thin: Factors) -> Any:
    """Return the min(d_head, m, n) singular values of left · right that can be other than 0."""
    xp = thin.xp
    n = min(thin.left.shape[1], thin.left.shape[0], thin.right.shape[1])
    if not all(math.isfinite(arrays.max_magnitude(xp, factor)) for factor in thin[1:]):
        return xp.full((n,), float("nan"), dtype=xp.float64, device=arrays.device(thin.left))
    return spectrum(_triangle(xp, thin.left) @ _triangle(xp, thin.right.T).T)[:n]


def _triangle(xp: Any, tall: Any) -> Any:
    """Return R of a QR decomposition; numpy leaves Q out, which takes half the time."""
    if isinstance(tall, np.ndarray):
        return np.linalg.qr(tall, mode="r")
    return xp.linalg.qr(tall, mode="reduced")[1]
