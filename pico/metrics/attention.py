"""What attention heads look at, from recorded queries and keys.

Called by `pico.sql` (functions of the same names), by `pico.evaluate` and the recorder for the
`metrics` rows of heads, and the public names of `pico.metrics`. Queries and keys are what the model
compares: sites `q.rot` and `k.rot`, after the rotary embedding. With grouped queries, head h reads
key head ⌊h · n_kv_heads / n_heads⌋. Attention is causal, scores are divided by √d_head.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pico.errors import MetricError
from pico.metrics import arrays
from pico.metrics.arrays import Array
from pico.metrics.circuits import check_heads
from pico.metrics.components import register

_CHUNK = 1 << 22
"""Attention weights that are held at a time, 32 MB of each of a few copies."""


@register()
def attention_pattern(
    q: Array, k: Array, n_heads: int, n_kv_heads: int, n_positions: int = 0
) -> Any:
    """Return what each position of each head attends to: softmax(Q Kᵀ / √d_head), causal.

    Args:
        q: (…, T, n_heads · d_head), queries as recorded at `q.rot`.
        k: (…, T, n_kv_heads · d_head), keys as recorded at `k.rot`.
        n_heads: Number of query heads.
        n_kv_heads: Number of key heads; a divisor of `n_heads`.
        n_positions: T, where the rows of a matrix are those of several sequences, as the lake
            stores them; 0: all rows are one sequence.

    Returns:
        (…, n_heads, T, T) float64, rows summing to 1; (n_sequences, n_heads, T, T) where
        `n_positions` is given.

    Raises:
        MetricError: The shapes do not fit the numbers of heads, each other or `n_positions`.

    Edge cases:
        A NaN or infinite query or key: NaN in the rows that see it.

    Example:
        >>> attention_pattern([[1.0], [0.0]], [[2.0], [2.0]], 1, 1).tolist()
        [[[1.0, 0.0], [0.5, 0.5]]]

    References:
        Vaswani et al., Attention Is All You Need (2017).
    """
    xp, queries, keys = _in_heads(q, k, n_heads, n_kv_heads, n_positions)
    patterns = [_pattern(xp, queries, keys, head) for head in range(n_heads)]
    return arrays.like(xp.stack(patterns, axis=-3), q)


@register(returns="number")
def attention_entropy(
    q: Array, k: Array, n_heads: int, n_kv_heads: int, head: int, n_positions: int = 0
) -> float:
    """Return the mean entropy of a head's attention: 0 where each position sees one other.

    Σ_j -p_ij ln p_ij, averaged over sequences and positions i.

    Args:
        q: (…, T, n_heads · d_head), queries as recorded at `q.rot`.
        k: (…, T, n_kv_heads · d_head), keys as recorded at `k.rot`.
        n_heads: Number of query heads.
        n_kv_heads: Number of key heads; a divisor of `n_heads`.
        head: Index of the query head, from 0.
        n_positions: As in `attention_pattern`.

    Returns:
        Nats.

    Raises:
        MetricError: As `attention_pattern`, or there is no such head.

    Edge cases:
        A NaN or infinite entry: NaN. No positions: NaN.

    Example:
        >>> round(attention_entropy([[1.0], [0.0]], [[2.0], [2.0]], 1, 1, 0), 6)
        0.346574

    References:
        Zhai et al., Stabilizing Transformer Training by Preventing Attention Entropy Collapse
        (2023).
    """
    return _score(_entropy, q, k, n_heads, n_kv_heads, head, n_positions)


@register(returns="number")
def previous_token_score(
    q: Array, k: Array, n_heads: int, n_kv_heads: int, head: int, n_positions: int = 0
) -> float:
    """Return how much a head attends to the position just before, on average.

    Args:
        q: (…, T, n_heads · d_head), queries as recorded at `q.rot`.
        k: (…, T, n_kv_heads · d_head), keys as recorded at `k.rot`.
        n_heads: Number of query heads.
        n_kv_heads: Number of key heads; a divisor of `n_heads`.
        head: Index of the query head, from 0.
        n_positions: As in `attention_pattern`.

    Returns:
        Between 0 and 1: the mean attention from position i to i - 1, over sequences and i ≥ 1.

    Raises:
        MetricError: As `attention_pattern`, or there is no such head.

    Edge cases:
        A NaN or infinite entry: NaN. Fewer than two positions: NaN.

    Example:
        >>> previous_token_score([[1.0], [0.0]], [[2.0], [2.0]], 1, 1, 0)
        0.5

    References:
        Olsson et al., In-context Learning and Induction Heads (2022).
    """
    return _score(_previous, q, k, n_heads, n_kv_heads, head, n_positions)


@register(returns="number")
def induction_score(
    q: Array, k: Array, n_heads: int, n_kv_heads: int, head: int, n_positions: int = 0
) -> float:
    """Return how much a head attends to what followed the same token last time.

    Of sequences whose second half repeats the first, as those of the probe `repeat`.

    Args:
        q: (…, T, n_heads · d_head), queries as recorded at `q.rot`.
        k: (…, T, n_kv_heads · d_head), keys as recorded at `k.rot`.
        n_heads: Number of query heads.
        n_kv_heads: Number of key heads; a divisor of `n_heads`.
        head: Index of the query head, from 0.
        n_positions: As in `attention_pattern`.

    Returns:
        Between 0 and 1: the mean attention from position i to i - ⌊T/2⌋ + 1, over sequences and
        the positions i ≥ ⌊T/2⌋ of the second half.

    Raises:
        MetricError: As `attention_pattern`, or there is no such head.

    Edge cases:
        A NaN or infinite entry: NaN. Fewer than two positions: NaN.

    Example:
        >>> q, k = [[1.0]] * 4, [[0.0], [50.0], [0.0], [0.0]]
        >>> round(induction_score(q, k, 1, 1, 0), 6)  # 2 sees 1, and 3 does not see 2
        0.5

    References:
        Olsson et al., In-context Learning and Induction Heads (2022).
    """
    return _score(_induction, q, k, n_heads, n_kv_heads, head, n_positions)


def head_scores(
    q: Array, k: Array, n_heads: int, n_kv_heads: int, names: tuple[str, ...] | None = None
) -> dict[str, list[float]]:
    """Return several scores of every head, each pattern formed once.

    Args:
        q: (…, T, n_heads · d_head), queries as recorded at `q.rot`.
        k: (…, T, n_kv_heads · d_head), keys as recorded at `k.rot`.
        n_heads: Number of query heads.
        n_kv_heads: Number of key heads; a divisor of `n_heads`.
        names: Of `HEAD_SCORES`; by default all.

    Returns:
        By name, a value for each head.

    Raises:
        MetricError: As `attention_pattern`.
    """
    wanted = HEAD_SCORES if names is None else names
    xp, queries, keys = _in_heads(q, k, n_heads, n_kv_heads, 0)
    n, lead = queries.shape[-3], math.prod(queries.shape[:-3])
    queries, keys = (xp.reshape(x, (lead, *x.shape[-3:])) for x in (queries, keys))
    at_a_time = max(1, _CHUNK // max(1, n * n))
    found: dict[str, list[float]] = {name: [] for name in wanted}
    for head in range(n_heads):
        means = dict.fromkeys(wanted, 0.0 if lead else math.nan)
        for start in range(0, lead, at_a_time):
            part = slice(start, start + at_a_time)
            pattern = _pattern(xp, queries[part], keys[part], head)
            for name in wanted:
                means[name] += pattern.shape[0] / lead * _OF_PATTERN[name](xp, pattern)
        for name in wanted:
            found[name].append(means[name])
    return found


def _in_heads(
    q: Array, k: Array, n_heads: int, n_kv_heads: int, n_positions: int
) -> tuple[Any, Any, Any]:
    """Return queries (…, T, n_heads, d_head) and keys (…, T, n_kv_heads, d_head), checked."""
    check_heads(n_heads, n_kv_heads)
    xp, queries, keys = arrays.of_one_device(q, k)
    d_head = queries.shape[-1] // n_heads if queries.ndim > 1 else 0
    if (
        not d_head
        or queries.shape != (*keys.shape[:-1], n_heads * d_head)
        or keys.shape[-1] != n_kv_heads * d_head
    ):
        raise MetricError(
            f"queries and keys of shapes {tuple(queries.shape)} and {tuple(keys.shape)} are not "
            f"those of {n_heads} heads and {n_kv_heads} key heads at the same positions"
        )
    if n_positions < 0 or (n_positions and (queries.ndim > 2 or queries.shape[0] % n_positions)):
        raise MetricError(
            f"queries of shape {tuple(queries.shape)} are no sequences of {n_positions} positions"
        )
    lead = (-1, n_positions) if n_positions else queries.shape[:-1]
    return (
        xp,
        xp.reshape(queries, (*lead, n_heads, d_head)),
        xp.reshape(keys, (*lead, n_kv_heads, d_head)),
    )


def _pattern(xp: Any, queries: Any, keys: Any, head: int) -> Any:
    """Return the attention (…, T, T) of one head."""
    n_heads, d_head, n = queries.shape[-2], queries.shape[-1], queries.shape[-3]
    if not 0 <= head < n_heads:
        raise MetricError(f"there is no head {head}; heads are 0 to {n_heads - 1}")
    q, k = queries[..., head, :], keys[..., head * keys.shape[-2] // n_heads, :]
    with np.errstate(invalid="ignore", over="ignore"):
        return _causal_softmax(xp, q @ xp.matrix_transpose(k) / math.sqrt(d_head), n)


def _causal_softmax(xp: Any, scores: Any, n: int) -> Any:
    where = arrays.device(scores)
    sees = xp.tril(xp.ones((n, n), dtype=xp.bool, device=where))
    minus_infinity = xp.full((1,), -math.inf, dtype=xp.float64, device=where)
    scores = xp.where(sees, scores, minus_infinity)
    if n:
        scores = scores - xp.max(scores, axis=-1, keepdims=True)
    weights = xp.exp(scores)
    return weights / xp.sum(weights, axis=-1, keepdims=True)


def _score(
    of_pattern: Any, q: Array, k: Array, n_heads: int, n_kv_heads: int, head: int, n_positions: int
) -> float:
    xp, queries, keys = _in_heads(q, k, n_heads, n_kv_heads, n_positions)
    return float(of_pattern(xp, _pattern(xp, queries, keys, head)))


def _mean(xp: Any, values: Any) -> float:
    return float(xp.mean(values)) if math.prod(values.shape) else math.nan


def _entropy(xp: Any, pattern: Any) -> float:
    tiny = xp.where(pattern > 0.0, pattern, xp.ones_like(pattern))  # 0 ln 0 = 0
    return _mean(xp, xp.sum(-pattern * xp.log(tiny), axis=-1))


def _previous(xp: Any, pattern: Any) -> float:
    n = pattern.shape[-1]
    before = [pattern[..., i, i - 1] for i in range(1, n)]
    return _mean(xp, xp.stack(before)) if before else math.nan


def _induction(xp: Any, pattern: Any) -> float:
    n = pattern.shape[-1]
    half = n // 2
    followed = [pattern[..., i, i - half + 1] for i in range(half, n)] if half else []
    return _mean(xp, xp.stack(followed)) if followed else math.nan


_OF_PATTERN = {
    "attention_entropy": _entropy,
    "previous_token_score": _previous,
    "induction_score": _induction,
}
VERSION = 1
"""Of the scores of heads, stored with every row."""
HEAD_SCORES = tuple(_OF_PATTERN)
"""Names of the scores that a head has."""
