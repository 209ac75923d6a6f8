"""The registry of metrics: every metric by name, and several of them computed at once.

Called by `pico.sql` (a function per metric, and the versions that are stored with the results), by
`pico metrics list` and by in-training capture. It promises that a name means the same numbers
everywhere, and that any number of spectral metrics of one tensor costs one spectrum.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

from pico.errors import MetricError, did_you_mean
from pico.metrics import arrays
from pico.metrics.arrays import Array
from pico.metrics.spectrum import spectra, spectrum

Kind: TypeAlias = Literal["tensor", "spectrum", "pair"]
MetricFunction: TypeAlias = Callable[..., float]
_F = TypeVar("_F", bound=MetricFunction)

_METRICS: dict[str, Metric] = {}
_WAITING: list[Callable[[], None]] = []
_LOCK = threading.RLock()


@dataclass(frozen=True)
class Metric:
    """One metric, as the registry holds it."""

    name: str
    """The name in SQL, in the `metrics` table and in `pico.metrics`."""

    function: MetricFunction
    """Of the array for kind `tensor`, of the singular values (float64, descending) for kind
    `spectrum`, of two arrays for kind `pair`. Returns a float."""

    kind: Kind
    """What `function` takes."""

    version: int
    """Stored with every result; raised when the numbers change, so that they are recomputed."""

    summary: str
    """The first line of the documentation."""

    takes_roundoff: bool = False
    """Whether `function` takes the keyword `roundoff`, the relative rounding error of the entries
    (see `pico.metrics.arrays.roundoff`). Without it, float32 entries are assumed."""

    @property
    def arguments(self) -> dict[str, int | float]:
        """Further arguments of a metric of two tensors, by keyword, with their defaults."""
        if self.kind != "pair":
            return {}
        parameters = inspect.signature(self.function).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}

    any_shape: bool = False
    """Whether a metric of two tensors takes vectors and scalars too."""

    takes_prepared: bool = False
    """Whether `function` takes an `arrays.Prepared`, and so shares work with its siblings."""

    only_matrices: bool = False
    """Whether a metric of one tensor takes no tensor of fewer than two dimensions."""

    on_request: bool = False
    """Whether it is left out where all metrics are computed, and must be asked for by name."""

    @property
    def needs_matrix(self) -> bool:
        """Whether the metric is defined only for tensors of two or more dimensions."""
        return self.only_matrices or not (self.kind == "tensor" or self.any_shape)

    def of_spectrum(self, singular_values: arrays.FloatVector, roundoff: float) -> float:
        """Return the value of a metric of kind `spectrum` for entries of the given `roundoff`."""
        if self.takes_roundoff:
            return self.function(singular_values, roundoff=roundoff)
        return self.function(singular_values)


def register(
    kind: Literal["tensor", "pair"], version: int = 1, **flags: bool
) -> Callable[[_F], _F]:
    """Return a decorator that registers a function of one array or of two, under its own name.

    Args:
        kind: whether the function takes one array or two.
        version: of its numbers.
        flags: `any_shape`, `takes_prepared`, `only_matrices` or `on_request` of `Metric`.
    """

    def decorate(function: _F) -> _F:
        summary = first_line(function)
        add(Metric(function.__name__, function, kind, version, summary, **flags))
        return function

    return decorate


def register_spectral(
    version: int = 1, *, takes_roundoff: bool = False
) -> Callable[[MetricFunction], Callable[[Array], float]]:
    """Return a decorator for a function of singular values; what it leaves takes the matrix.

    One definition gives both: `get(name).function` takes singular values that somebody has, and
    the decorated name computes them first. The docstring is the one of the matrix function.
    """

    def decorate(function: MetricFunction) -> Callable[[Array], float]:
        metric = Metric(
            function.__name__, function, "spectrum", version, first_line(function), takes_roundoff
        )
        add(metric)

        @functools.wraps(function, assigned=("__module__", "__name__", "__qualname__", "__doc__"))
        def of_matrix(matrix: Array) -> float:
            return metric.of_spectrum(arrays.to_host(spectrum(matrix)), arrays.roundoff(matrix))

        del of_matrix.__wrapped__  # its signature is not this function's
        return of_matrix

    return decorate


def names(kind: Kind | None = None) -> tuple[str, ...]:
    """Return the names of all metrics, or of one kind.

    Args:
        kind: `tensor` (any shape), `spectrum` (matrices) or `pair` (two arrays); None for all.

    Returns:
        Names in alphabetical order.

    Edge cases:
        An unknown kind has no metrics: an empty tuple.

    Example:
        >>> names(kind="pair")[:2]
        ('cka', 'cka_debiased')
    """
    load_waiting()
    return tuple(sorted(name for name, m in _METRICS.items() if kind in (None, m.kind)))


def get(name: str) -> Metric:
    """Return the metric of that name.

    Args:
        name: One of `names()`.

    Returns:
        The `Metric`: its function, what that takes, and its version.

    Raises:
        MetricError: There is none; the message names the nearest.

    Edge cases:
        Names are matched exactly, capitals included.

    Example:
        >>> get("gini").function([0.0, 0.0, 1.0, 1.0])
        0.5
        >>> get("ginni")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        pico.errors.MetricError: no metric 'ginni'. Did you mean 'gini'? List them: ...
    """
    load_waiting()
    if name not in _METRICS:
        raise MetricError(
            f"no metric {name!r}.{did_you_mean(name, _METRICS)} List them: pico metrics list"
        )
    return _METRICS[name]


def compute(array: Array, names: Iterable[str]) -> dict[str, float]:
    """Return several metrics of one tensor, sharing one spectrum and one float64 copy.

    Args:
        array: A tensor of any shape; (m, n) or more dimensions if a spectral metric is asked for.
        names: Names of metrics of kind `tensor` or `spectrum`; one name may stand alone.

    Returns:
        The value by name, in the order asked for; each equals that of the single function.

    Raises:
        MetricError: A name is unknown or compares two tensors, or the tensor is no matrix and a
            spectral metric is asked for.

    Edge cases:
        Those of each metric; no names: an empty dict.

    Example:
        >>> compute([[3.0, 0.0], [0.0, 4.0]], ["frobenius_norm", "nuclear_norm"])
        {'frobenius_norm': 5.0, 'nuclear_norm': 7.0}
    """
    return compute_many([array], names)[0]


def compute_many(tensors: Sequence[Array], names: Iterable[str]) -> list[dict[str, float]]:
    """Return several metrics of each of several tensors, as `compute` does of one.

    Singular values of matrices with the same smaller side come from one call
    (`pico.metrics.spectra`), which several threads can make at once.

    Args:
        tensors: Tensors as `compute` takes them, all on one device.
        names: Names of metrics of kind `tensor` or `spectrum`; one name may stand alone.

    Returns:
        For each tensor the value by name, in the order asked for.

    Raises:
        MetricError: As `compute`.

    Edge cases:
        No tensors: an empty list.

    Example:
        >>> compute_many([[[2.0]], [[0.0, 3.0]]], "nuclear_norm")
        [{'nuclear_norm': 2.0}, {'nuclear_norm': 3.0}]
    """
    metrics = [get(name) for name in ([names] if isinstance(names, str) else names)]
    pair = next((metric.name for metric in metrics if metric.kind == "pair"), None)
    if pair is not None:
        raise MetricError(
            f"metric {pair!r} compares two tensors and compute takes one; "
            f"call pico.metrics.{pair}(x, y)"
        )
    if not metrics:
        return [{} for _ in tensors]
    prepared = [arrays.prepare(array) for array in tensors]
    values: Sequence[Any] = [None] * len(prepared)
    if any(metric.kind == "spectrum" for metric in metrics):
        values = [arrays.to_host(each) for each in spectra(prepared)]
    return [measured(metrics, x, each) for x, each in zip(prepared, values, strict=True)]


def measured(
    metrics: Sequence[Metric], x: arrays.Prepared, singular_values: Any
) -> dict[str, float]:
    """Return metrics of one tensor whose singular values, if they need them, are known."""
    return {
        metric.name: metric.of_spectrum(singular_values, arrays.roundoff(x))
        if metric.kind == "spectrum"
        else metric.function(x if metric.takes_prepared else x.wide)
        for metric in metrics
    }


def add(metric: Metric) -> None:
    """Register a metric.

    Raises:
        MetricError: There is one of that name.
    """
    if metric.name in _METRICS:
        raise MetricError(f"metric {metric.name!r} is registered already; choose another name")
    _METRICS[metric.name] = metric


def knows(name: str) -> bool:
    """Tell whether a metric of that name is registered, without loading what waits."""
    return name in _METRICS


def remove(name: str) -> None:
    """Forget a metric, if there is one of that name."""
    _METRICS.pop(name, None)


def on_first_lookup(load: Callable[[], None]) -> None:
    """Have `load` called once, before a name is looked up here or among the components."""
    _WAITING.append(load)


def load_waiting() -> None:
    """Call what waits for the first lookup; what fails waits on."""
    with _LOCK:
        while _WAITING:
            load = _WAITING.pop()
            try:
                load()
            except BaseException:
                _WAITING.append(load)
                raise


def stop_waiting() -> None:
    """Forget what waits for the first lookup."""
    _WAITING.clear()


def first_line(function: Callable[..., Any]) -> str:
    """Return the first line of a function's documentation, or an empty string."""
    lines = (function.__doc__ or "").strip().splitlines()
    return lines[0] if lines else ""
