"""Attention circuits: what one head reads and writes, from the weights of its projections.

Called by `pico.sql` (functions of the same names) and the public names of `pico.metrics`. A head's
circuit is a (d_model, d_model) matrix of rank d_head at most, formed only for those who ask for it:
`circuit_spectra` takes its singular values from the factors.

Orientation is torch's: q, k and v are (heads · d_head, d_model) and o is (d_model, heads · d_head).
With grouped queries, head h reads key and value head ⌊h · n_kv_heads / n_heads⌋.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from pico.errors import MetricError
from pico.metrics import arrays
from pico.metrics.arrays import Array
from pico.metrics.components import register


class Factors(NamedTuple):
    """A product left · right of inner dimension d_head, not formed."""

    xp: Any
    left: Any  # (m, d_head)
    right: Any  # (d_head, n)


@register()
def ov_circuit(v: Array, o: Array, n_heads: int, n_kv_heads: int, head: int) -> Any:
    """Return a head's output-value circuit: what it writes for what it attends to.

    O_h V_g, so that attending to a residual vector x adds O_h V_g x.

    Args:
        v: (n_kv_heads · d_head, d_model), weight of the value projection.
        o: (d_model, n_heads · d_head), weight of the output projection.
        n_heads: Number of query heads.
        n_kv_heads: Number of key and value heads; a divisor of `n_heads`.
        head: Index of the query head, from 0.

    Returns:
        (d_model, d_model) float64, of the kind of `v`.

    Raises:
        MetricError: The shapes do not fit the numbers of heads, or there is no such head.

    Edge cases:
        NaN and infinite entries spread as in any product.

    Example:
        >>> import numpy as np
        >>> ov_circuit(np.eye(2), np.asarray([[0.0, 1.0], [2.0, 0.0]]), 2, 2, 1).tolist()
        [[0.0, 1.0], [0.0, 0.0]]

    References:
        Elhage et al., A Mathematical Framework for Transformer Circuits (2021).
    """
    thin = ov_factors(v, o, n_heads, n_kv_heads, head)
    return arrays.like(thin.left @ thin.right, v)


@register()
def qk_circuit(q: Array, k: Array, n_heads: int, n_kv_heads: int, head: int) -> Any:
    """Return a head's query-key circuit: which residual vectors attend to which.

    Q_hᵀ K_g, so that the score of x attending to y is xᵀ Q_hᵀ K_g y, before positions turn it and
    before it is divided by √d_head.

    Args:
        q: (n_heads · d_head, d_model), weight of the query projection.
        k: (n_kv_heads · d_head, d_model), weight of the key projection.
        n_heads: Number of query heads.
        n_kv_heads: Number of key and value heads; a divisor of `n_heads`.
        head: Index of the query head, from 0.

    Returns:
        (d_model, d_model) float64, of the kind of `q`.

    Raises:
        MetricError: The shapes do not fit the numbers of heads, or there is no such head.

    Edge cases:
        NaN and infinite entries spread as in any product.

    Example:
        >>> import numpy as np
        >>> qk_circuit(np.eye(2), np.asarray([[0.0, 1.0], [2.0, 0.0]]), 2, 2, 1).tolist()
        [[0.0, 0.0], [2.0, 0.0]]

    References:
        Elhage et al., A Mathematical Framework for Transformer Circuits (2021).
    """
    thin = qk_factors(q, k, n_heads, n_kv_heads, head)
    return arrays.like(thin.left @ thin.right, q)


@register()
def ov_activations(values: Array, o: Array, n_heads: int, n_kv_heads: int, head: int) -> Any:
    """Return what a head would write for the value at each sample, were it attended to alone.

    X_g O_hᵀ, with X_g the activations of the value projection that head h reads.

    Args:
        values: (n_samples, n_kv_heads · d_head), activations of the value projection; leading
            dimensions of more than two are samples too.
        o: (d_model, n_heads · d_head), weight of the output projection.
        n_heads: Number of query heads.
        n_kv_heads: Number of key and value heads; a divisor of `n_heads`.
        head: Index of the query head, from 0.

    Returns:
        (n_samples, d_model) float64, of the kind of `values`.

    Raises:
        MetricError: The shapes do not fit the numbers of heads, or there is no such head.

    Edge cases:
        NaN and infinite entries spread as in any product.

    Example:
        >>> import numpy as np
        >>> ov_activations([[5.0, 7.0]], np.asarray([[0.0, 1.0], [2.0, 0.0]]), 2, 2, 1).tolist()
        [[7.0, 0.0]]

    References:
        Elhage et al., A Mathematical Framework for Transformer Circuits (2021).
    """
    xp, x, output = arrays.of_one_device(values, o)
    if x.ndim < 2 or output.ndim != 2:
        shapes = f"{tuple(x.shape)} and {tuple(output.shape)}"
        raise MetricError(f"values and o need two dimensions or more, and two: not {shapes}")
    x = xp.reshape(x, (math.prod(x.shape[:-1]), x.shape[-1]))
    group, d_head = _group(x.T, "the transpose of values", n_heads, n_kv_heads, head)
    _check_columns(output, "o", n_heads * d_head, output.shape[0])
    read = x[:, group * d_head : (group + 1) * d_head]
    return arrays.like(read @ output[:, head * d_head : (head + 1) * d_head].T, values)


@register()
def vo_product(v: Array, o: Array, n_heads: int, n_kv_heads: int, head: int) -> Any:
    """Return what pico-analyze calls the weights of a head's OV circuit: V_g O_h.

    The factors of `ov_circuit` the other way round, so that neither its size nor its singular
    values are those of the circuit; only its trace and its eigenvalues other than 0 are.

    Args:
        v: (n_kv_heads · d_head, d_model), weight of the value projection.
        o: (d_model, n_heads · d_head), weight of the output projection.
        n_heads: Number of query heads.
        n_kv_heads: Number of key and value heads; a divisor of `n_heads`.
        head: Index of the query head, from 0.

    Returns:
        (d_head, d_head) float64, of the kind of `v`.

    Raises:
        MetricError: The shapes do not fit the numbers of heads, or there is no such head.

    Edge cases:
        NaN and infinite entries spread as in any product.

    Example:
        >>> import numpy as np
        >>> vo_product(np.eye(2), np.asarray([[0.0, 1.0], [2.0, 3.0]]), 2, 2, 1).tolist()
        [[3.0]]

    References:
        pico-analyze, `src/components/ov_circuit.py` (2025).
    """
    thin = ov_factors(v, o, n_heads, n_kv_heads, head)
    return arrays.like(thin.right @ thin.left, v)


@register()
def ov_gradient_pico(
    v: Array, o: Array, v_grad: Array, o_grad: Array, n_heads: int, n_kv_heads: int, head: int
) -> Any:
    """Return what pico-analyze calls the gradient of a head's OV circuit: dO_h V_g + O_h dV_g.

    The change of O_h V_g for a step along the gradients of its factors, to first order; it is not
    the gradient of the loss by the circuit, which has no parameter of its own.

    Args:
        v: (n_kv_heads · d_head, d_model), weight of the value projection.
        o: (d_model, n_heads · d_head), weight of the output projection.
        v_grad: The gradient of `v`, of its shape.
        o_grad: The gradient of `o`, of its shape.
        n_heads: Number of query heads.
        n_kv_heads: Number of key and value heads; a divisor of `n_heads`.
        head: Index of the query head, from 0.

    Returns:
        (d_model, d_model) float64, of the kind of `v`.

    Raises:
        MetricError: The shapes do not fit the numbers of heads, or there is no such head.

    Edge cases:
        NaN and infinite entries spread as in any product.

    Example:
        >>> import numpy as np
        >>> ov_gradient_pico([[2.0]], [[3.0]], [[0.5]], [[0.1]], 1, 1, 0).tolist()
        [[1.7]]

    References:
        pico-analyze, `src/components/ov_circuit.py` (2025).
    """
    from_output = ov_factors(v, o_grad, n_heads, n_kv_heads, head)
    from_value = ov_factors(v_grad, o, n_heads, n_kv_heads, head)
    change = from_output.left @ from_output.right + from_value.left @ from_value.right
    return arrays.like(change, v)


def ov_factors(v: Array, o: Array, n_heads: int, n_kv_heads: int, head: int) -> Factors:
    """Return O_h and V_g of a head, checked; only these are widened."""
    value, output = arrays.real(v), arrays.real(o)
    group, d_head = _group(value, "v", n_heads, n_kv_heads, head)
    _check_columns(output, "o", n_heads * d_head, value.shape[1])
    left = output[:, head * d_head : (head + 1) * d_head]
    return Factors(*arrays.of_one_device(left, value[group * d_head : (group + 1) * d_head, :]))


def qk_factors(q: Array, k: Array, n_heads: int, n_kv_heads: int, head: int) -> Factors:
    """Return Q_hᵀ and K_g of a head, checked; only these are widened."""
    query, key = arrays.real(q), arrays.real(k)
    group, d_head = _group(key, "k", n_heads, n_kv_heads, head)
    _check_columns(query.T if query.ndim == 2 else query, "q", n_heads * d_head, key.shape[1])
    left = query[head * d_head : (head + 1) * d_head, :].T
    return Factors(*arrays.of_one_device(left, key[group * d_head : (group + 1) * d_head, :]))


def _group(x: Any, which: str, n_heads: int, n_kv_heads: int, head: int) -> tuple[int, int]:
    """Return the key and value head of a query head, and d_head."""
    check_heads(n_heads, n_kv_heads)
    if not 0 <= head < n_heads:
        raise MetricError(f"there is no head {head}; heads are 0 to {n_heads - 1}")
    if x.ndim != 2 or x.shape[0] % n_kv_heads or not x.shape[0]:
        raise MetricError(
            f"{which} of shape {tuple(x.shape)} does not divide into {n_kv_heads} heads"
        )
    return head * n_kv_heads // n_heads, x.shape[0] // n_kv_heads


def check_heads(n_heads: int, n_kv_heads: int) -> None:
    """Raise a MetricError unless each key and value head serves as many query heads."""
    if n_kv_heads < 1 or n_heads < 1 or n_heads % n_kv_heads:
        raise MetricError(f"{n_heads} heads do not divide among {n_kv_heads} key and value heads")


def _check_columns(x: Any, which: str, inner: int, d_model: int) -> None:
    if x.ndim != 2 or x.shape[1] != inner or x.shape[0] != d_model:
        needed = f"{d_model} x {inner}" if which == "o" else f"{inner} x {d_model}"
        found = tuple(x.shape) if which == "o" or x.ndim != 2 else tuple(x.shape[::-1])
        raise MetricError(f"{which} has shape {found}, and the other weight needs {needed}")
