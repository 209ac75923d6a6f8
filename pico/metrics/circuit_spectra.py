"""Singular values of attention circuits, from their thin factors.

Called by `pico.sql` (functions of the same names) and the public names of `pico.metrics`. The
(d_model, d_model) product is never formed: a (d_head, d_head) matrix made of the factors' Gram
matrices has its singular values, or, where those are too small for it, one made of the factors'
QR decompositions. Orientation and grouped queries are those of `circuits`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pico.metrics import arrays
from pico.metrics.arrays import Array
from pico.metrics.circuits import Factors, check_heads, ov_factors, qk_factors
from pico.metrics.components import register
from pico.metrics.spectrum import GRAM_FLOOR, spectrum


@register(returns="vector")
def ov_spectrum(v: Array, o: Array, n_heads: int, n_kv_heads: int, head: int) -> Any:
    """Return the singular values of a head's output-value circuit, without forming it.

    With O_hᵀO_h = LLᵀ they are the square roots of the eigenvalues of Lᵀ(V_gV_gᵀ)L, which is d_head
    by d_head. Where the smallest of these is below 2⁻³² ‖O_hᵀO_h‖ ‖V_gV_gᵀ‖ they no longer hold the
    small values, and those of R₁R₂ᵀ are taken, with O_h = Q₁R₁ and V_gᵀ = Q₂R₂.

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
    thin = ov_factors(v, o, n_heads, n_kv_heads, head)
    return arrays.like(_spectra(thin.xp, [thin.left], [thin.right])[0], v)


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
    thin = qk_factors(q, k, n_heads, n_kv_heads, head)
    return arrays.like(_spectra(thin.xp, [thin.left], [thin.right])[0], q)


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
    return arrays.like(_of_heads(ov_factors, v, o, n_heads, n_kv_heads), v)


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
    return arrays.like(_of_heads(qk_factors, q, k, n_heads, n_kv_heads), q)


def _of_heads(
    factors: Callable[..., Factors], x: Array, y: Array, n_heads: int, n_kv_heads: int
) -> Any:
    """Return the spectra of all heads of a layer; what heads share is widened and squared once."""
    check_heads(n_heads, n_kv_heads)
    heads = [factors(x, y, n_heads, n_kv_heads, head) for head in range(n_heads)]
    shared = [thin.right for thin in heads[:: n_heads // n_kv_heads]]
    return _spectra(heads[0].xp, [thin.left for thin in heads], shared)


def _spectra(xp: Any, lefts: Sequence[Any], rights: Sequence[Any]) -> Any:
    """Return the min(d_head, m, n) singular values of each left · right that can be other than 0.

    Args:
        xp: the namespace of the factors.
        lefts: (m, d_head) each, float64.
        rights: (d_head, n) each, float64; each serves as many of the lefts, in order.

    Returns:
        (number of lefts, min(d_head, m, n)), each row descending; NaN if a factor is not finite.
    """
    partner = [i * len(rights) // len(lefts) for i in range(len(lefts))]
    largest = [arrays.max_magnitude(xp, factor) for factor in (*lefts, *rights)]
    by_grams: list[Any] = [None] * len(lefts)
    if all(0.0 < magnitude < math.inf for magnitude in largest):
        by_grams = _by_gram_matrices(xp, lefts, rights, [*map(arrays.power_of_two, largest)])
    rows = [
        _by_triangles(xp, left, rights[j]) if row is None else row
        for row, left, j in zip(by_grams, lefts, partner, strict=True)
    ]
    return xp.stack(rows)


def _by_gram_matrices(
    xp: Any, lefts: Sequence[Any], rights: Sequence[Any], units: Sequence[float]
) -> list[Any]:
    """Return the singular values of each product, None where they are too small for this way.

    By Weyl, an error of a few 2⁻⁵² in either Gram matrix moves an eigenvalue of their product by
    no more than that times both norms: what lies above `GRAM_FLOOR` times both is right to a
    relative 1e-6. All heads share one Cholesky and one eigenvalue call, in which numpy gives up
    Python's lock, as it does not for one small matrix.
    """
    n = len(lefts)
    scaled = [factor / unit for factor, unit in zip((*lefts, *rights), units, strict=True)]
    grams = xp.stack([xp.matrix_transpose(x) @ x for x in scaled[:n]])
    partner = [i * len(rights) // n for i in range(n)]
    shared = [x @ xp.matrix_transpose(x) for x in scaled[n:]]
    others = xp.stack([shared[j] for j in partner])
    try:
        lower = xp.linalg.cholesky(grams)
    except (np.linalg.LinAlgError, RuntimeError):  # torch's is a RuntimeError
        return [None] * n
    eigenvalues = xp.linalg.eigvalsh(xp.matrix_transpose(lower) @ others @ lower)  # ascending
    floors = GRAM_FLOOR * xp.linalg.matrix_norm(grams) * xp.linalg.matrix_norm(others)
    return [
        xp.flip(xp.sqrt(eigenvalues[i])) * units[i] * units[n + j]
        if float(eigenvalues[i][0]) >= float(floors[i])
        else None
        for i, j in enumerate(partner)
    ]


def _by_triangles(xp: Any, left: Any, right: Any) -> Any:
    """Return the singular values of left · right by two QR decompositions, NaN if not finite."""
    n = min(left.shape[1], left.shape[0], right.shape[1])
    if not all(math.isfinite(arrays.max_magnitude(xp, factor)) for factor in (left, right)):
        return xp.full((n,), float("nan"), dtype=xp.float64, device=arrays.device(left))
    return spectrum(_triangle(xp, left) @ _triangle(xp, right.T).T)[:n]


def _triangle(xp: Any, tall: Any) -> Any:
    """Return R of a QR decomposition; numpy leaves Q out, which takes half the time."""
    if isinstance(tall, np.ndarray):
        return np.linalg.qr(tall, mode="r")
    return xp.linalg.qr(tall, mode="reduced")[1]
