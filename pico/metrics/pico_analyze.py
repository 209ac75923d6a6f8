"""Variants that give pico-analyze's own numbers, for replication: `gini_pico` and its siblings.

Called through the registry by SQL, by `pico analyze` (by way of `NAMES`) and by the public names of
`pico.metrics`. Each departs from the metric without `_pico` only where pico-analyze does, and its
docstring says how; `pico metrics compute` leaves them out unless they are asked for by name. Where
pico-analyze stops with an exception, they are NaN.

pico-analyze calculates in a tensor's own type. A lake widens bfloat16 to float32, so that the type
is judged by the values here: a tensor is bfloat16 if 8 significant bits hold every entry and one
entry needs all 8. Constants such as 1 or 2.5 are float32 by this rule.
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pico.errors import MetricError
from pico.metrics import arrays
from pico.metrics.arrays import Array
from pico.metrics.norms import frobenius_norm
from pico.metrics.registry import register
from pico.metrics.similarity import samples
from pico.metrics.sparsity import gini, hoyer

NAMES = {
    "cka": "cka",
    "condition_number": "condition_number_pico",
    "gini": "gini_pico",
    "hoyer": "hoyer_pico",
    "norm_frobenius": "frobenius_norm_pico",
    "norm_inf": "max_abs",
    "norm_nuclear": "nuclear_norm",
    "per": "per_pico",
    "pwcca": "pwcca_pico",
}
"""The metric here that gives the number of each of pico-analyze's (`norm_` and its `norm_type`)."""

_N_TRIALS = 10
_NOISE = 1e-6
_Floats: TypeAlias = npt.NDArray[np.float32]
_Doubles: TypeAlias = npt.NDArray[np.float64]


@register("tensor", on_request=True)
def gini_pico(array: Array) -> float:
    """Gini coefficient as pico-analyze calculates it: in bfloat16 throughout for such a tensor.

    The formula is the one of `gini`. In bfloat16 the ranks, their products with the magnitudes,
    both sums and the quotient are each rounded to 8 significant bits.

    Args:
        array: Any shape, n entries in all.

    Returns:
        A float; that of `gini` for all other types.

    Edge cases:
        All zeros or empty: 0. An entry NaN or infinite: NaN.

    Example:
        >>> import numpy as np
        >>> round(gini_pico(np.arange(1.0, 256.0)), 4), round(gini(np.arange(1.0, 256.0)), 4)
        (0.332, 0.332)

    References:
        pico-analyze, `src/metrics/gini.py` (2025).
    """
    x = _as_float32(array).reshape(-1)
    if not x.size:
        return 0.0
    if not _is_bfloat16(x):
        return gini(array)
    magnitudes = np.sort(np.abs(x))
    ranks = _rounded(_rounded(2 * _bfloat16_index(x.size) - np.float32(x.size)) - 1)
    total = _rounded_sum(magnitudes)
    whole = float(_rounded(np.float32(x.size * total)))
    return float(_rounded(np.float32(_rounded_sum(_rounded(ranks * magnitudes)) / whole)))


@register("tensor", on_request=True)
def hoyer_pico(array: Array) -> float:
    """Hoyer's sparsity as pico-analyze calculates it: from norms in bfloat16 for such a tensor.

    The formula is the one of `hoyer`. In bfloat16 each of the two norms is rounded to 8 significant
    bits.

    Args:
        array: Any shape, n entries in all.

    Returns:
        A float; that of `hoyer` for all other types.

    Edge cases:
        All zeros or a single entry, where pico-analyze divides by zero, empty, or an entry NaN or
        infinite: NaN.

    Example:
        >>> hoyer_pico([0.0, 0.0, 3.0, 0.0])
        1.0

    References:
        pico-analyze, `src/metrics/hoyer.py` (2025).
    """
    x = _as_float32(array).reshape(-1)
    if x.size < 2 or not _is_bfloat16(x):
        return hoyer(array)
    root = math.sqrt(x.size)
    return (root - _rounded_sum(np.abs(x)) / frobenius_norm_pico(x)) / (root - 1.0)


@register("tensor", on_request=True)
def frobenius_norm_pico(array: Array) -> float:
    """Frobenius norm as pico-analyze calculates it: rounded to bfloat16 for such a tensor.

    ‖x‖₂ = √Σᵢ xᵢ², to 8 significant bits if the entries are bfloat16.

    Args:
        array: Any shape.

    Returns:
        A float ≥ 0; that of `frobenius_norm` for all other types.

    Edge cases:
        Empty: 0. An entry NaN: NaN; infinite, without NaN: inf.

    Example:
        >>> frobenius_norm_pico([3.0, 4.0])
        5.0

    References:
        pico-analyze, `src/metrics/norm.py` (2025).
    """
    norm = frobenius_norm(array)
    return float(_rounded(np.float32(norm))) if _is_bfloat16(_as_float32(array)) else norm


@register("tensor", on_request=True, only_matrices=True)
def per_pico(matrix: Array) -> float:
    """Proportional effective rank as pico-analyze calculates it: from a float32 decomposition.

    exp(-Σᵢ pᵢ ln pᵢ) / min(m, n) with pᵢ = σᵢ / Σⱼ σⱼ in float32, and 0 · ln 0 = NaN.

    Args:
        matrix: (m, n); more dimensions are taken as (shape[0], -1).

    Returns:
        A float in (0, 1]; where no pᵢ is 0 it is that of `per` but for rounding.

    Raises:
        MetricError: The input has fewer than two dimensions.

    Edge cases:
        A singular value of exactly 0 in float32, so zeros too: NaN; a matrix of lower rank has
        rounding noise in its place more often than not. Empty, or an entry NaN or infinite: NaN.

    Example:
        >>> round(per_pico([[2.0, 0.0], [0.0, 2.0]]), 6), per_pico([[2.0, 0.0], [0.0, 0.0]])
        (1.0, nan)

    References:
        pico-analyze, `src/metrics/per.py` (2025).
    """
    singular_values = _singular_values(matrix, "per_pico")
    total = singular_values.sum()
    p = singular_values / total if 0.0 < total < math.inf else singular_values
    if not p.all() or not np.isfinite(p).all() or not p.size:
        return math.nan
    return math.exp(-float(np.sum(p * np.log(p)))) / p.size


@register("tensor", on_request=True, only_matrices=True)
def condition_number_pico(matrix: Array) -> float:
    """Condition number as pico-analyze calculates it: from a float32 decomposition, no floor.

    σ₁ / σ_min in float32. Beyond 1e7 or so the quotient is rounding noise: another machine or
    another library of linear algebra gives another number.

    Args:
        matrix: (m, n); more dimensions are taken as (shape[0], -1).

    Returns:
        A float ≥ 1; where `condition_number` is finite it is that one but for rounding.

    Raises:
        MetricError: The input has fewer than two dimensions.

    Edge cases:
        σ_min of exactly 0: inf. Zeros, empty, or an entry NaN or infinite: NaN.

    Example:
        >>> condition_number_pico([[8.0, 0.0], [0.0, 2.0]])
        4.0

    References:
        pico-analyze, `src/metrics/condition_number.py` (2025).
    """
    values = _singular_values(matrix, "condition_number_pico")
    if not values.size or not 0.0 < values[0] < math.inf:
        return math.nan
    return float(values[0] / values[-1]) if values[-1] else math.inf


@register("pair", on_request=True)
def pwcca_pico(x: Array, y: Array) -> float:
    """Projection-weighted canonical correlation as pico-analyze calculates it.

    Σᵢ αᵢ ρᵢ / Σᵢ αᵢ with ρ of the covariances without regularisation, and αᵢ = Σⱼ |⟨pᵢ, xⱼ⟩|, where
    p are the orthonormalised uᵢᵀ(X - x̄) + x̄: directions that have not been whitened, of features
    that are not centred. Where a covariance is not positive, both inputs are divided by 10 and get
    noise of 1e-6, ten times at most. pico-analyze leaves that noise unseeded; here it is seeded.

    Args:
        x: (n_samples, n_features_x); leading dimensions of more than two are samples too.
        y: (n_samples, n_features_y), the same samples in the same order.

    Returns:
        A float; of features of lower rank, where the noise decides, 1 or a little more.

    Raises:
        MetricError: The numbers of samples differ, an input has fewer than two dimensions, or the
            two lie on different devices.

    Edge cases:
        No more samples than features of x, more features in x than in y, no variance in x or in
        y, or an entry NaN or infinite: NaN.

    Example:
        >>> points = [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [2.0, 2.0], [1.0, 3.0]]
        >>> round(pwcca_pico(points, points), 6)
        1.0

    References:
        pico-analyze, `src/metrics/pwcca.py` and `lib/svcca` (2025), after Morcos, Raghu and Bengio
        (NeurIPS, 2018).
    """
    _, wide_x, wide_y = samples(x, y, "pwcca_pico")
    a, b = (arrays.to_host(z).T.astype(np.float32) for z in (wide_x, wide_y))  # features first
    n_features, n_samples = a.shape
    if n_features >= n_samples or n_features > len(b):
        return math.nan
    if not all(np.isfinite(z).all() and np.ptp(z, axis=1).any() for z in (a, b)):
        return math.nan
    found = _canonical(a, b)
    if found is None:
        return math.nan
    left, correlations, means = found
    directions = left.T @ (a - means) + means
    weights = np.sum(np.abs(np.linalg.qr(directions.T)[0].T @ a.T), axis=1)
    return float(weights @ correlations / np.sum(weights))


def _canonical(a: Any, b: Any) -> tuple[_Doubles, _Doubles, _Doubles] | None:
    """Return canonical directions of a, the correlations, and the means of a with its noise."""
    rng = np.random.default_rng(0)
    for _ in range(_N_TRIALS):
        both = np.cov(a, b)
        within_a, within_b = both[: len(a), : len(a)], both[len(a) :, len(a) :]
        largest_a, largest_b = np.max(np.abs(within_a)), np.max(np.abs(within_b))
        roots = _inverse_root(within_a / largest_a), _inverse_root(within_b / largest_b)
        if roots[0] is not None and roots[1] is not None:
            across = both[: len(a), len(a) :] / math.sqrt(largest_a * largest_b)
            left, correlations, _ = np.linalg.svd(roots[0] @ across @ roots[1])
            return left, correlations, np.mean(a, axis=1, keepdims=True)
        a = a * 0.1 + rng.normal(size=a.shape) * _NOISE
        b = b * 0.1 + rng.normal(size=b.shape) * _NOISE
    return None


def _inverse_root(covariance: _Doubles) -> _Doubles | None:
    """Return the root of the pseudo-inverse; None where rounding makes an eigenvalue negative."""
    eigenvalues, vectors = np.linalg.eigh(np.linalg.pinv(covariance))
    return None if eigenvalues[0] < 0.0 else (vectors * np.sqrt(eigenvalues)) @ vectors.T


def _singular_values(matrix: Array, metric: str) -> _Floats:
    """Return the singular values of a float32 decomposition; NaN if an entry is not finite."""
    x = _as_float32(matrix)
    if x.ndim < 2:
        raise MetricError(
            f"{metric} needs a matrix, and this tensor has shape {x.shape}; "
            "for any shape there are gini, hoyer and the norms"
        )
    x = x.reshape(x.shape[0], math.prod(x.shape[1:]))
    if not np.isfinite(x).all():
        return np.full(min(x.shape), math.nan, np.float32)
    return np.linalg.svd(x, compute_uv=False)


def _as_float32(array: Array) -> _Floats:
    with np.errstate(over="ignore"):
        return arrays.to_host(arrays.as_float64(array)[1]).astype(np.float32)


def _is_bfloat16(x: _Floats) -> bool:
    """Tell whether the entries are those of a bfloat16 tensor (see the module)."""
    bits = x.view(np.uint32)
    return bool(np.isfinite(x).all() and not (bits & 0xFFFF).any() and (bits & 0x10000).any())


def _bfloat16_index(n: int) -> _Floats:
    """Return 1 … n as `torch.arange` makes them: 16 at a time, from a start that is rounded."""
    index = np.arange(n, dtype=np.int64)
    lane = index % 16
    lane[n // 16 * 16 :] = 0  # the rest is made one by one
    return _rounded(_rounded((index - lane + 1).astype(np.float32)) + lane.astype(np.float32))


def _rounded(x: Any) -> _Floats:
    """Round finite float32 numbers to bfloat16, to even where two are as near."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    upper = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return upper.view(np.float32)


def _rounded_sum(x: _Floats) -> float:
    return float(_rounded(np.float32(np.sum(x, dtype=np.float64))))
