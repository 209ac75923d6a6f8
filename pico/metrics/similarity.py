"""Similarity of two representations of the same samples: kernels, rotations, distances.

Called through the registry by SQL (over any join: step against step, layer against layer, run
against run) and the public names of `pico.metrics`. All take (n_samples, n_features), centre the
features, and are 1 for equal representations. Those that can work in feature space or in sample
space take whichever is smaller. `canonical` holds the canonical correlations.
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
    xp, a, b = centred_samples(x, y, "cka")
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


@register("pair")
def cka_debiased(x: Array, y: Array) -> float:
    """Linear centred kernel alignment by the unbiased estimator of HSIC: right for few samples too.

    HSIC₁(X, Y) / √(HSIC₁(X, X) HSIC₁(Y, Y)), HSIC₁ = [tr K̃L̃ + 1ᵀK̃1 1ᵀL̃1 / ((n - 1)(n - 2))
    - 2 1ᵀK̃L̃1 / (n - 2)] / (n (n - 3)), where K̃ and L̃ are XXᵀ and YYᵀ with a diagonal of 0.

    Args:
        x: (n_samples, n_features_x); leading dimensions of more than two are samples too.
        y: (n_samples, n_features_y), the same samples in the same order.

    Returns:
        A float of at most 1, around 0 (it may be below) for unrelated representations.

    Raises:
        MetricError: The numbers of samples differ, an input has fewer than two dimensions, or the
            two lie on different devices.

    Edge cases:
        Fewer than four samples, no variance in x or in y, an estimate of a variance that is not
        positive, or an entry NaN or infinite: NaN.

    Example:
        >>> points = [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [2.0, 2.0]]
        >>> round(cka_debiased(points, points), 12)
        1.0

    References:
        Song et al., Feature Selection via Dependence Maximization (JMLR, 2012), equation 5; Nguyen,
        Raghu and Kornblith, Do Wide and Deep Networks Learn the Same Things? (ICLR, 2021).
    """
    xp, a, b = centred_samples(x, y, "cka_debiased")
    if a is None or b is None or a.shape[0] < 4:
        return math.nan
    cross, own, other = (_hsic(xp, *pair) for pair in ((a, b), (a, a), (b, b)))
    if own <= 0.0 or other <= 0.0:
        return math.nan
    return min(1.0, cross / (math.sqrt(own) * math.sqrt(other)))


@register("pair")
def cka_rbf(x: Array, y: Array, *, bandwidth: float = 1.0) -> float:
    """Centred kernel alignment with Gaussian kernels: similarity of neighbourhoods.

    CKA of K and L with Kᵢⱼ = exp(-dᵢⱼ² / (2 b² m)), where m is the median of dᵢⱼ² over i < j and
    b is `bandwidth`; the same for L. Takes time and memory of n_samples².

    Args:
        x: (n_samples, n_features_x); leading dimensions of more than two are samples too.
        y: (n_samples, n_features_y), the same samples in the same order.
        bandwidth: Width of the kernels in root median squared distances, above 0.

    Returns:
        A float in [0, 1].

    Raises:
        MetricError: The numbers of samples differ, an input has fewer than two dimensions, the
            bandwidth is not above 0, or the two lie on different devices.

    Edge cases:
        No variance in x or in y, a median distance of 0, or an entry NaN or infinite: NaN.

    Example:
        >>> points = [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]
        >>> round(cka_rbf(points, points), 12)
        1.0

    References:
        Kornblith, Norouzi, Lee and Hinton, Similarity of Neural Network Representations Revisited
        (ICML, 2019), section 3.
    """
    if not bandwidth > 0.0:
        raise MetricError(f"cka_rbf needs a bandwidth above 0, not {bandwidth}")
    xp, a, b = centred_samples(x, y, "cka_rbf")
    if a is None or b is None:
        return math.nan
    first, second = _gaussian(xp, a, bandwidth), _gaussian(xp, b, bandwidth)
    if first is None or second is None:
        return math.nan
    within = math.sqrt(float(xp.sum(first**2))) * math.sqrt(float(xp.sum(second**2)))
    return min(1.0, max(0.0, float(xp.sum(first * second)) / within)) if within else math.nan


@register("pair")
def procrustes(x: Array, y: Array) -> float:
    """Procrustes similarity: how well the best rotation of one representation gives the other.

    ‖XᵀY‖_* of centred X and Y with ‖X‖_F = ‖Y‖_F = 1: 1 - d² / 2, where d is the distance that the
    best rotation leaves.

    Args:
        x: (n_samples, n_features_x); leading dimensions of more than two are samples too.
        y: (n_samples, n_features_y), the same samples in the same order.

    Returns:
        A float in [0, 1]; 1 where one is a rotation and scaling of the other.

    Raises:
        MetricError: The numbers of samples differ, an input has fewer than two dimensions, or the
            two lie on different devices.

    Edge cases:
        No variance in x or in y, or an entry NaN or infinite: NaN.

    Example:
        >>> round(procrustes([[1.0, 0.0], [0.0, 1.0]], [[0.0, 3.0], [3.0, 0.0]]), 12)
        1.0

    References:
        Ding, Denain and Steinhardt, Grounding Representation Similarity with Statistical Testing
        (NeurIPS, 2021); Williams et al., Generalized Shape Metrics (NeurIPS, 2021).
    """
    xp, a, b = centred_samples(x, y, "procrustes")
    if a is None or b is None:
        return math.nan
    within = math.sqrt(float(xp.sum(a**2))) * math.sqrt(float(xp.sum(b**2)))
    total = float(xp.sum(xp.linalg.svdvals(a.T @ b)))
    return min(1.0, total / within)


@register("pair")
def rsa(x: Array, y: Array) -> float:
    """Representational similarity analysis: whether the same pairs of samples lie far apart.

    Spearman's rank correlation of the dissimilarities 1 - r of all pairs i < j of samples, with r
    the Pearson correlation of their features (which are not centred over samples).

    Args:
        x: (n_samples, n_features_x); leading dimensions of more than two are samples too.
        y: (n_samples, n_features_y), the same samples in the same order.

    Returns:
        A float in [-1, 1].

    Raises:
        MetricError: The numbers of samples differ, an input has fewer than two dimensions, or the
            two lie on different devices.

    Edge cases:
        A sample whose features are all equal, dissimilarities that are all equal, fewer than three
        samples, or an entry NaN or infinite: NaN.

    Example:
        >>> points = [[1.0, 0.0, 0.0], [0.9, 0.1, 0.0], [0.0, 0.0, 1.0]]
        >>> round(rsa(points, points), 12)
        1.0

    References:
        Kriegeskorte, Mur and Bandettini, Representational similarity analysis (Front. Syst.
        Neurosci., 2008).
    """
    xp, a, b = samples(x, y, "rsa")
    first, second = _dissimilarities(xp, a), _dissimilarities(xp, b)
    if first is None or second is None or a.shape[0] < 3:
        return math.nan
    first, second = _ranks(xp, first), _ranks(xp, second)
    within = math.sqrt(float(xp.sum(first**2))) * math.sqrt(float(xp.sum(second**2)))
    return min(1.0, max(-1.0, float(xp.sum(first * second)) / within)) if within else math.nan


def centred_samples(x: Array, y: Array, metric: str) -> tuple[Any, Any, Any]:
    """Return namespace, x (n, p) and y (n, q) for a metric of samples, columns centred and scaled.

    Either is None if it has no variance or is not finite.

    Raises:
        MetricError: As the metrics that call it say.
    """
    xp, a, b = samples(x, y, metric)
    return xp, _centred(xp, a), _centred(xp, b)


def samples(x: Array, y: Array, metric: str) -> tuple[Any, Any, Any]:
    """Return the namespace and both inputs as (n_samples, n_features), not centred."""
    xp, a, b = arrays.of_one_device(x, y)
    for which, array in (("x", a), ("y", b)):
        if array.ndim < 2:
            raise MetricError(
                f"{metric} needs (n_samples, n_features), and {which} has shape "
                f"{tuple(array.shape)}"
            )
    a, b = (xp.reshape(z, (math.prod(z.shape[:-1]), z.shape[-1])) for z in (a, b))
    if a.shape[0] != b.shape[0]:
        raise MetricError(
            f"x has {a.shape[0]} samples and y has {b.shape[0]}; {metric} compares features of "
            "the same samples in the same order"
        )
    return xp, a, b


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


def _hsic(xp: Any, a: Any, b: Any) -> float:
    """Return the unbiased HSIC of linear kernels, from feature space or from sample space."""
    n, p, q = a.shape[0], a.shape[1], b.shape[1]
    own, other = xp.sum(a**2, axis=1), xp.sum(b**2, axis=1)  # the diagonals (n,)
    if p * q < n * n:
        cross = float(xp.sum((a.T @ b) ** 2))
        first, second = a @ xp.sum(a, axis=0) - own, b @ xp.sum(b, axis=0) - other
    else:
        gram_a, gram_b = a @ a.T, b @ b.T
        cross = float(xp.sum(gram_a * gram_b))
        first, second = xp.sum(gram_a, axis=1) - own, xp.sum(gram_b, axis=1) - other
    trace = cross - float(xp.sum(own * other))
    sums = float(xp.sum(first)) * float(xp.sum(second)) / ((n - 1) * (n - 2))
    estimate = trace + sums - 2.0 * float(xp.sum(first * second)) / (n - 2)
    return float(estimate / (n * (n - 3)))


def _gaussian(xp: Any, a: Any, bandwidth: float) -> Any:
    """Return the centred Gaussian kernel of a (n, n), or None for a median distance of 0."""
    squares = xp.sum(a**2, axis=1)
    distances = squares[:, None] + squares[None, :] - 2.0 * (a @ a.T)
    distances = xp.where(distances > 0.0, distances, xp.zeros_like(distances))
    above = xp.sort(distances[_above_diagonal(xp, distances)], stable=False)
    n = int(above.shape[0])
    median = 0.5 * (float(above[(n - 1) // 2]) + float(above[n // 2])) if n else 0.0
    if median <= 1e-14 * float(xp.max(squares)):  # rounding noise of equal samples
        return None
    distances = xp.where(_on_diagonal(xp, distances), xp.zeros_like(distances), distances)
    kernel = xp.exp(-distances / (2.0 * bandwidth**2 * median))
    kernel = kernel - xp.mean(kernel, axis=0, keepdims=True)
    return kernel - xp.mean(kernel, axis=1, keepdims=True)


def _dissimilarities(xp: Any, a: Any) -> Any:
    """Return 1 - r of all pairs of rows as a vector, or None where r is not defined."""
    largest = arrays.max_magnitude(xp, a)
    if not math.prod(a.shape) or not math.isfinite(largest) or largest == 0.0:
        return None
    a = a / arrays.power_of_two(largest)
    a = a - a[:, :1]  # equal features become exactly 0
    a = a - xp.mean(a, axis=1, keepdims=True)
    scale = xp.max(xp.abs(a), axis=1, keepdims=True)
    if float(xp.min(scale)) == 0.0:
        return None
    a = a / scale
    a = a / xp.sqrt(xp.sum(a**2, axis=1, keepdims=True))
    correlations = a @ a.T
    return 1.0 - correlations[_above_diagonal(xp, correlations)]


def _ranks(xp: Any, values: Any) -> Any:
    """Return centred ranks, equal values sharing the mean of theirs."""
    in_order = xp.sort(values, stable=False)
    below = xp.searchsorted(in_order, values, side="left")
    up_to = xp.searchsorted(in_order, values, side="right")
    ranks = xp.astype(below + up_to, xp.float64)
    return ranks - xp.mean(ranks)


def _above_diagonal(xp: Any, square: Any) -> Any:
    index = xp.arange(square.shape[0], device=arrays.device(square))
    return index[:, None] < index[None, :]


def _on_diagonal(xp: Any, square: Any) -> Any:
    index = xp.arange(square.shape[0], device=arrays.device(square))
    return index[:, None] == index[None, :]
