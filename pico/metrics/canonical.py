"""Canonical correlations of two representations of the same samples: SVCCA and PWCCA.

Called through the registry by SQL and the public names of `pico.metrics`. Directions whose
singular value is within rounding of 0 are dropped (above n_max ε σ₁ counts), nothing else is added
or regularised, so that a representation compared with itself gives exactly 1 up to rounding.
"""

from __future__ import annotations

import math
from typing import Any

from pico.errors import MetricError
from pico.metrics import arrays
from pico.metrics.arrays import Array
from pico.metrics.registry import register
from pico.metrics.similarity import centred_samples


@register("pair")
def svcca(x: Array, y: Array, *, variance: float = 0.99) -> float:
    """Mean canonical correlation of the leading principal directions of two representations.

    Σᵢ ρᵢ / c over the c = min(k_x, k_y) canonical correlations ρ of the first k_x (k_y) principal
    components of X (Y), the fewest that hold the share `variance` of its variance.

    Args:
        x: (n_samples, n_features_x); leading dimensions of more than two are samples too.
        y: (n_samples, n_features_y), the same samples in the same order.
        variance: Share of the variance to keep, above 0 and at most 1.

    Returns:
        A float in [0, 1]; 1 where the kept subspaces are linear images of each other.

    Raises:
        MetricError: The numbers of samples differ, an input has fewer than two dimensions, the
            share is not in (0, 1], or the two lie on different devices.

    Edge cases:
        k_x + k_y of n_samples or more, where correlations of 1 arise by chance alone; no variance
        in x or in y; or an entry NaN or infinite: NaN.

    Example:
        >>> points = [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [2.0, 2.0], [1.0, 3.0]]
        >>> round(svcca(points, points), 12)
        1.0

    References:
        Raghu, Gilmer, Yosinski and Sohl-Dickstein, SVCCA (NeurIPS, 2017).
    """
    if not 0.0 < variance <= 1.0:
        raise MetricError(f"svcca needs a share of variance in (0, 1], not {variance}")
    xp, a, b = centred_samples(x, y, "svcca")
    if a is None or b is None:
        return math.nan
    first, second = (_leading(xp, *_directions(xp, z), variance) for z in (a, b))
    if first.shape[1] + second.shape[1] >= a.shape[0]:
        return math.nan
    return min(1.0, float(xp.mean(xp.linalg.svdvals(first.T @ second))))


@register("pair")
def pwcca(x: Array, y: Array) -> float:
    """Canonical correlations weighted by how much of the first representation each accounts for.

    Σᵢ αᵢ ρᵢ / Σᵢ αᵢ, with αᵢ = Σⱼ |⟨hᵢ, xⱼ⟩|, hᵢ the canonical variables of X and xⱼ its centred
    features. Not symmetric: the weights are those of x.

    Args:
        x: (n_samples, n_features_x); leading dimensions of more than two are samples too.
        y: (n_samples, n_features_y), the same samples in the same order.

    Returns:
        A float in [0, 1]; 1 where y holds a linear image of x.

    Raises:
        MetricError: There are fewer samples than features of x or y (every correlation would be 1
            by chance alone; `svcca` keeps fewer directions), the numbers of samples differ, an
            input has fewer than two dimensions, or the two lie on different devices.

    Edge cases:
        No variance in x or in y, or an entry NaN or infinite: NaN.

    Example:
        >>> points = [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [2.0, 2.0], [1.0, 3.0]]
        >>> round(pwcca(points, points), 12)
        1.0

    References:
        Morcos, Raghu and Bengio, Insights on representational similarity (NeurIPS, 2018).
    """
    xp, a, b = centred_samples(x, y, "pwcca")
    if a is None or b is None:
        return math.nan
    n, p, q = a.shape[0], a.shape[1], b.shape[1]
    if n < max(p, q):
        raise MetricError(
            f"pwcca of {n} samples with {max(p, q)} features would be 1 by chance alone; give at "
            "least as many samples as features, or take svcca"
        )
    (first, _), (second, _) = _directions(xp, a), _directions(xp, b)
    left, correlations, _ = xp.linalg.svd(first.T @ second, full_matrices=False)
    weights = xp.sum(xp.abs((first @ left).T @ a), axis=1)
    return min(1.0, float(xp.sum(weights * correlations)) / float(xp.sum(weights)))


def _directions(xp: Any, a: Any) -> tuple[Any, Any]:
    """Return an orthonormal basis of the columns of a (n, r) and its singular values (r,)."""
    basis, values, _ = xp.linalg.svd(a, full_matrices=False)
    floor = max(a.shape) * arrays.ROUNDOFF_FLOAT64 * float(values[0])
    rank = int(xp.sum(xp.astype(values > floor, xp.int64)))
    return basis[:, :rank], values[:rank]


def _leading(xp: Any, basis: Any, values: Any, variance: float) -> Any:
    """Return the fewest leading columns of a basis that hold a share of the variance."""
    energies = xp.cumulative_sum((values / values[0]) ** 2)
    short = energies < (variance - 1e-12) * energies[-1]
    return basis[:, : int(xp.sum(xp.astype(short, xp.int64))) + 1]
