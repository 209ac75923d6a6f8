"""The door by which arrays come into `pico.metrics`: float64, and in which library to compute.

Called by every metric before it computes. It promises that nothing behind it sees a narrow type,
a complex number or an autograd graph, and that torch is never imported here: a torch tensor brings
its own namespace. What lies in host memory is computed by numpy, whoever owns it (the memory is
shared, numpy sorts and factorises faster, and both kinds of input give the same bits); what lies
on another device is computed there by its own library.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from typing import Any, TypeAlias

import array_api_compat
import array_api_compat.numpy
import numpy as np
from numpy.typing import NDArray

from pico.errors import MetricError

Array: TypeAlias = Any  # a numpy array, a torch tensor, or what numpy.asarray accepts
FloatVector: TypeAlias = NDArray[np.float64]

ROUNDOFF_FLOAT32 = 2.0**-24
ROUNDOFF_FLOAT64 = 2.0**-53

_BLOCK = 1 << 16  # entries; 512 KiB as float64
_NO_NUMBERS = "OSUMm"  # numpy's kinds: object, bytes, string, date, duration; some would convert


def as_float64(array: Array) -> tuple[Any, Any]:
    """Return the namespace to compute in and the array there, as float64 and without a graph.

    Args:
        array: Any shape; real or integer entries.

    Returns:
        `(xp, x)`: numpy and an ndarray for what lies in host memory, otherwise the array's own
        Array API namespace and the array on its device. Narrower types widen exactly. The memory
        may be the input's own: do not write to it.

    Raises:
        MetricError: The entries are complex, or are not numbers.

    Example:
        >>> xp, x = as_float64([[1, 2], [3, 4]])
        >>> xp.__name__.split(".")[-1], x.dtype.name
        ('numpy', 'float64')
    """
    if isinstance(array, Prepared):
        return array.xp, array.wide
    return _widened(real(array))


def real(array: Array) -> Any:
    """Return an array of an Array API library, without a graph; raises for what has no order."""
    if not array_api_compat.is_array_api_obj(array):
        array = np.asarray(array)
    if array_api_compat.is_torch_array(array):
        array = array.detach()
    if "complex" in str(array.dtype):
        raise MetricError(
            f"metrics are defined for real tensors, and this one is {array.dtype}; "
            "take its real part, imaginary part or magnitude first"
        )
    if getattr(array.dtype, "kind", "f") in _NO_NUMBERS:
        raise MetricError(f"metrics need numbers, and these entries are of type {array.dtype}")
    return array


def _widened(array: Any) -> tuple[Any, Any]:
    xp = array_api_compat.array_namespace(array)
    wide = xp.astype(array, xp.float64, copy=False)
    if _lies_in_host_memory(wide):
        return array_api_compat.numpy, np.asarray(wide)
    return xp, wide


class Prepared:
    """An array on its way through several metrics: what more than one of them needs, made once.

    Where a float32 array in host memory can answer as well as its float64 copy, it does: the
    largest entry and the order are the same, and sums widen a block at a time. So no metric but
    those of the spectrum takes more memory than a copy of the array as it came.
    """

    def __init__(self, array: Array) -> None:
        """Look at `array`; everything is made when it is first asked for."""
        self.given = array
        """The array as it came in."""
        self._entries: Any = real(array)
        if str(self._entries.dtype) in ("float32", "torch.float32") and _lies_in_host_memory(
            self._entries
        ):
            self.xp, self._entries = array_api_compat.numpy, np.asarray(self._entries)
        else:
            self.xp, self._entries = _widened(self._entries)
        self.shape: tuple[int, ...] = tuple(self._entries.shape)
        self.n: int = math.prod(self.shape)
        """Number of entries."""

    @cached_property
    def wide(self) -> Any:
        """The entries as float64, shape kept."""
        return self.xp.astype(self._entries, self.xp.float64, copy=False)

    @cached_property
    def largest(self) -> float:
        """max |xᵢ|: 0 for an empty array, NaN as soon as one entry is NaN."""
        if not self.n:
            return 0.0
        low, high = (float(of(self._entries)) for of in (self.xp.min, self.xp.max))
        return high if math.isnan(high) else max(-low, high)

    @property
    def is_ordinary(self) -> bool:
        """Whether all entries are finite and one is not 0."""
        return 0.0 < self.largest < math.inf

    @property
    def is_finite(self) -> bool:
        """Whether all entries are finite."""
        return math.isfinite(self.largest)

    @cached_property
    def unit(self) -> float:
        """The power of two below `largest`, 1 for zeros; only of a finite array."""
        return power_of_two(self.largest) if self.largest else 1.0

    @property
    def flat(self) -> Any:
        """The entries as a vector (n,): float32 as it came, otherwise float64."""
        return self.xp.reshape(self._entries, (self.n,))

    @property
    def scaled(self) -> Any:
        """xᵢ / unit as float64, shape kept, magnitudes at most 2; only of a finite array."""
        return self._scale(self._entries)

    @cached_property
    def total(self) -> float:
        """Σ |xᵢ| / unit; only of a finite array."""
        return math.fsum(float(self.xp.sum(self.xp.abs(block))) for _, block in self.blocks())

    @cached_property
    def squares(self) -> float:
        """Σ (xᵢ / unit)²; only of a finite array."""
        return math.fsum(float(block @ block) for _, block in self.blocks())

    @cached_property
    def mean(self) -> float:
        """Σ xᵢ / (n unit), exact where all entries are equal; only of finite entries."""
        first = self._first
        return first + math.fsum(float(self.xp.sum(x - first)) for _, x in self.blocks()) / self.n

    def centred(self) -> Iterator[Any]:
        """Yield xᵢ / unit less their mean in blocks; only of finite entries.

        The first entry is taken off before the mean, so that equal entries become exactly 0.
        """
        first = self._first
        return ((block - first) - (self.mean - first) for _, block in self.blocks())

    def in_order(self, entries: Any) -> Any:
        """Return a vector of entries or magnitudes (n,), which it may overwrite, ascending."""
        if isinstance(entries, np.ndarray):
            entries.sort()
            return entries
        return self.xp.sort(entries, stable=False)  # equal ones need no order

    def blocks(self, array: Any = None) -> Iterator[tuple[int, Any]]:
        """Yield pieces of an array along its first axis, each with the index of where it begins.

        What lies in host memory comes in pieces that fit a processor's cache, so that only they
        are widened; anything else whole.

        Args:
            array: entries or magnitudes (k, …); by default `flat`.

        Yields:
            (start, piece): the piece is divided by `unit`, float64.
        """
        array = self.flat if array is None else array
        n_rows = array.shape[0]
        size = n_rows
        if isinstance(array, np.ndarray):
            size = max(1, _BLOCK * n_rows // max(1, self.n))
        for start in range(0, n_rows, max(1, size)):
            yield start, self._scale(array[start : start + size])

    @property
    def _first(self) -> float:
        return float(self.flat[0]) / self.unit

    def _scale(self, array: Any) -> Any:
        if array.dtype == np.float32:  # 1 / unit is exact, and at most 2¹⁴⁹
            wide = array.astype(np.float64)
            wide *= 1.0 / self.unit
            return wide
        return array / self.unit


def prepare(array: Array) -> Prepared:
    """Return what several metrics of one array share; one that is prepared already as it is."""
    return array if isinstance(array, Prepared) else Prepared(array)


def of_one_device(x: Array, y: Array) -> tuple[Any, Any, Any]:
    """Return the namespace to compute in and both arrays there, as `as_float64` does.

    Raises:
        MetricError: The two lie on different devices, or as `as_float64`.
    """
    xp, a = as_float64(x)
    xp_y, b = as_float64(y)
    if xp is not xp_y or device(a) != device(b):
        raise MetricError("x and y lie on different devices; move one to the device of the other")
    return xp, a, b


def of_one_shape(x: Array, y: Array, metric: str) -> tuple[Any, Any, Any]:
    """Return namespace and both arrays like `of_one_device`, of one and the same shape.

    Raises:
        MetricError: The shapes differ, or as `of_one_device`.
    """
    xp, a, b = of_one_device(x, y)
    if a.shape != b.shape:
        raise MetricError(
            f"{metric} compares tensors of one shape, not {tuple(a.shape)} and {tuple(b.shape)}"
        )
    return xp, a, b


def device(array: Any) -> Any:
    """Return where an array lies, as its namespace's creation functions want it."""
    return array_api_compat.device(array)


def _lies_in_host_memory(array: Any) -> bool:
    where = device(array)
    return str(getattr(where, "type", where)) == "cpu"


def like(result: Any, array: Array) -> Any:
    """Return `result` as an array of the kind of `array`: a torch tensor for a torch tensor."""
    array = array.given if isinstance(array, Prepared) else array
    if array_api_compat.is_torch_array(array) and isinstance(result, np.ndarray):
        return array_api_compat.array_namespace(array).asarray(result)
    return result


def to_host(array: Any) -> FloatVector:
    """Return a float64 array in host memory, whatever library and device it comes from."""
    if not array_api_compat.is_array_api_obj(array):
        return np.asarray(array, dtype=np.float64)
    return np.asarray(array_api_compat.to_device(array, "cpu"), dtype=np.float64)


def roundoff(array: Array) -> float:
    """Return the relative rounding error that the entries of `array` must be assumed to carry.

    2⁻⁵³ for float64 and integers, 2⁻²⁴ for every narrower floating type. The 16-bit and 8-bit
    types count as float32 on purpose: a lake stores them widened, so that a value computed from
    the tensor and one computed from the lake agree; and a bfloat16 weight is what the model
    multiplies by, not an approximation of something else.

    >>> roundoff(np.ones(3, dtype=np.float32)) == 2.0**-24
    True
    """
    array = array.given if isinstance(array, Prepared) else array
    dtype = array.dtype if hasattr(array, "dtype") else np.asarray(array).dtype
    narrow = "float" in str(dtype) and dtype.itemsize < 8
    return ROUNDOFF_FLOAT32 if narrow else ROUNDOFF_FLOAT64


def max_magnitude(xp: Any, x: Any) -> float:
    """Return max |xᵢ|: 0 for an empty array, NaN as soon as one entry is NaN."""
    return float(xp.max(xp.abs(x))) if math.prod(x.shape) else 0.0


def power_of_two(magnitude: float) -> float:
    """Return the largest power of two that is not above a positive finite `magnitude`.

    Dividing by it is exact, and leaves magnitudes below 2, whose squares cannot overflow.

    >>> power_of_two(5.0), power_of_two(5e-324)
    (4.0, 5e-324)
    """
    return math.ldexp(1.0, math.frexp(magnitude)[1] - 1)
