"""Tensors to columns and back, bit for bit.

`record` hands over a `Tensor` (numpy bytes plus the name of the element type, because numpy has no
bfloat16 or float8); `encode` makes the columns `dtype, shape, content_hash, value, raw` of a tensor
table, `decode` undoes it. Types of at most 16 bits are widened by integer tables, never by a float
conversion: those quieten signalling NaNs. `value` is exact for them; for float64 and large integers
it holds the nearest float32 and `raw` the exact bytes; complex numbers have `raw` alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from pico.errors import CorruptError, SchemaError

PART_LIMIT = 1 << 27
"""Elements in one row at most: a Parquet page cannot exceed 2^31 bytes."""

_STORAGE: dict[str, np.dtype[Any]] = {
    name: np.dtype(kind)
    for name, kind in {
        "float32": "<f4",
        "bfloat16": "<u2",
        "float16": "<u2",
        "float8_e4m3fn": "u1",
        "float8_e5m2": "u1",
        "float64": "<f8",
        "bool": "u1",
        "uint8": "u1",
        "int8": "i1",
        "int16": "<i2",
        "uint16": "<u2",
        "int32": "<i4",
        "uint32": "<u4",
        "int64": "<i8",
        "uint64": "<u8",
        "complex64": "<c8",
        "complex128": "<c16",
    }.items()
}
# exponent bits, mantissa bits, whether the top exponent means infinity and NaN
_SMALL_FLOATS = {
    "float16": (5, 10, True),
    "float8_e5m2": (5, 2, True),
    "float8_e4m3fn": (4, 3, False),
}
_EXACT_IN_FLOAT32 = {"bool", "uint8", "int8", "int16", "uint16"}
_LARGEST_EXACT = 1 << 24


@dataclass(frozen=True)
class Tensor:
    """A tensor as bytes: element type by name, shape, and row-major data.

    `data` is flat; its numpy type is the storage type of `dtype` (bfloat16 and float16 lie in
    uint16, float8 in uint8), so that no bit can change on the way.
    """

    dtype: str
    shape: tuple[int, ...]
    data: npt.NDArray[Any]

    @classmethod
    def of(cls, array: npt.ArrayLike) -> Tensor:
        """Make a tensor of a numpy array of a type that numpy has.

        >>> Tensor.of([[1.0, 2.0]]).shape
        (1, 2)
        """
        values = np.asarray(array)
        name = values.dtype.name
        if name not in _STORAGE or name == "bfloat16":
            raise SchemaError(f"a lake stores no tensors of type {name}")
        little = values.astype(values.dtype.newbyteorder("<"), copy=False)
        return cls(name, values.shape, np.ascontiguousarray(little).reshape(-1).view(storage(name)))

    @property
    def content_hash(self) -> str:
        """xxh3-128 over dtype, shape and bytes, in hexadecimal."""
        digest = xxhash.xxh3_128(f"{self.dtype}{[int(n) for n in self.shape]}".encode())
        digest.update(np.ascontiguousarray(self.data).view(np.uint8).data)
        return digest.hexdigest()

    def to_numpy(self) -> npt.NDArray[Any]:
        """Return an array of the tensor's shape, of its own type; small floats as float32."""
        if self.dtype in _SMALL_FLOATS or self.dtype == "bfloat16":
            return _widen(self.dtype, self.data).reshape(self.shape)
        kind = np.dtype("?") if self.dtype == "bool" else np.dtype(self.dtype)
        return self.data.view(kind).reshape(self.shape)


def storage(dtype: str) -> np.dtype[Any]:
    """Return the numpy type that holds the bytes of an element type.

    Raises:
        SchemaError: for an element type that a lake does not store.
    """
    if dtype not in _STORAGE:
        raise SchemaError(
            f"a lake stores no tensors of type {dtype!r}; it knows {', '.join(_STORAGE)}"
        )
    return _STORAGE[dtype]


@dataclass(frozen=True)
class EncodedPart:
    """One row's share of a tensor: the columns that depend on its content."""

    part: int
    n_parts: int
    dtype: str
    shape: tuple[int, ...]
    content_hash: str
    value: npt.NDArray[np.float32] | None
    raw: bytes | None


def encode(tensor: Tensor, part_limit: int | None = None) -> Iterator[EncodedPart]:
    """Yield the rows of a tensor: one, or several beyond the part limit.

    Args:
        tensor: the tensor.
        part_limit: elements in one part at most; by default `PART_LIMIT`.

    Raises:
        SchemaError: when the data do not fill the shape, or one slice along the first dimension
            is itself beyond the limit.
    """
    limit = PART_LIMIT if part_limit is None else part_limit
    size = tensor.data.size
    if size != math.prod(tensor.shape) or tensor.data.dtype != storage(tensor.dtype):
        raise SchemaError(
            f"{size} elements of {tensor.data.dtype} are no {tensor.dtype} tensor of shape "
            f"{list(tensor.shape)}"
        )
    step = size
    if size > limit:
        slice_size = size // tensor.shape[0]
        if slice_size > limit:
            raise SchemaError(
                f"a slice of {slice_size} elements along the first dimension of shape "
                f"{list(tensor.shape)} exceeds the limit of {limit} elements in a row"
            )
        step = limit // slice_size * slice_size
    starts = range(0, size, step) if size else [0]
    digest = tensor.content_hash
    for part, start in enumerate(starts):
        value, raw = _columns(tensor.dtype, tensor.data[start : start + step])
        yield EncodedPart(part, len(starts), tensor.dtype, tensor.shape, digest, value, raw)


def decode(
    dtype: str,
    shape: Sequence[int],
    values: Sequence[npt.NDArray[np.float32] | None],
    raws: Sequence[bytes | None],
) -> Tensor:
    """Rebuild a tensor from the `value` and `raw` columns of its parts, in order.

    Raises:
        CorruptError: when the parts do not fill the shape or hold what the type cannot.
        SchemaError: for an element type that a lake does not store.
    """
    kind = storage(dtype)
    if any(n < 0 for n in shape):
        raise CorruptError(f"a tensor cannot have the shape {list(shape)}")
    pieces = []
    for value, raw in zip(values, raws, strict=True):
        if raw is not None:
            if len(raw) % kind.itemsize:
                raise CorruptError(f"{len(raw)} raw bytes are no whole number of {dtype} elements")
            pieces.append(np.frombuffer(raw, dtype=kind))
        elif value is None:
            raise CorruptError(f"a {dtype} tensor has neither value nor raw bytes")
        else:
            pieces.append(_narrow(dtype, value))
    data = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
    if data.size != math.prod(int(n) for n in shape):
        raise CorruptError(f"{data.size} elements cannot fill a tensor of shape {list(shape)}")
    return Tensor(dtype, tuple(int(n) for n in shape), data)


def _columns(
    dtype: str, data: npt.NDArray[Any]
) -> tuple[npt.NDArray[np.float32] | None, bytes | None]:
    """Return `value` and `raw` of one part."""
    if dtype.startswith("complex"):
        return None, data.tobytes()
    if dtype in _SMALL_FLOATS or dtype in ("bfloat16", "float32"):
        return _widen(dtype, data), None
    nearest: npt.NDArray[np.float32]
    with np.errstate(over="ignore", invalid="ignore"):
        nearest = data.astype(np.float32)
    if dtype in _EXACT_IN_FLOAT32:
        return nearest, None
    if dtype != "float64" and _fits_exactly(data):
        return nearest, None
    return nearest, data.tobytes()


def _fits_exactly(integers: npt.NDArray[Any]) -> bool:
    if not integers.size:
        return True
    return bool(integers.max() <= _LARGEST_EXACT and integers.min() >= -_LARGEST_EXACT)


def _widen(dtype: str, data: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Return the float32 elements of a float type of at most 32 bits, exactly."""
    if dtype == "float32":
        return data.view(np.float32)
    if dtype == "bfloat16":
        wide = data.astype(np.uint32)
        wide <<= 16
        return wide.view(np.float32)
    bits: npt.NDArray[np.uint32] = _table(dtype)[data]
    return bits.view(np.float32)


def _narrow(dtype: str, value: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
    """Return the storage elements of float32 values that `_columns` made of type `dtype`."""
    kind = storage(dtype)
    bits = value.view(np.uint32)
    if dtype == "float32":
        return value.view(kind)
    if dtype == "bfloat16":
        return (bits >> 16).astype(kind)
    if dtype == "float16":
        with np.errstate(over="ignore", invalid="ignore"):
            narrow = value.astype(np.float16).view(kind)
        nan = np.isnan(value)
        if nan.any():
            payload = ((bits[nan] >> 16) & 0x8000) | 0x7C00 | ((bits[nan] >> 13) & 0x3FF)
            narrow = narrow.copy()
            narrow[nan] = payload.astype(kind)
        return narrow
    if dtype in _SMALL_FLOATS:
        table = _table(dtype)
        order = np.argsort(table)
        places = np.searchsorted(table, bits, sorter=order)
        codes: npt.NDArray[Any] = order[np.minimum(places, table.size - 1)]
        if not np.array_equal(table[codes], bits):
            raise CorruptError(f"a value is none of the {table.size} that {dtype} has")
        return codes.astype(kind)
    with np.errstate(invalid="ignore"):  # damaged values; the content hash tells
        return value.astype(kind)


@cache
def _table(dtype: str) -> npt.NDArray[np.uint32]:
    """Return the float32 bits of every code of a small float type, NaN payloads kept apart."""
    exponent_bits, mantissa_bits, ieee = _SMALL_FLOATS[dtype]
    width = 1 + exponent_bits + mantissa_bits
    code = np.arange(1 << width, dtype=np.uint32)
    sign = code >> (width - 1)
    exponent = (code >> mantissa_bits) & ((1 << exponent_bits) - 1)
    mantissa = code & ((1 << mantissa_bits) - 1)
    bias = (1 << (exponent_bits - 1)) - 1
    significand = np.where(exponent == 0, mantissa, mantissa + (1 << mantissa_bits))
    power = np.maximum(exponent, 1).astype(np.int32) - bias - mantissa_bits
    finite = np.ldexp(significand.astype(np.float32), power).view(np.uint32)
    top = (1 << exponent_bits) - 1
    payload = mantissa << (23 - mantissa_bits)
    special = exponent == top
    if not ieee:  # e4m3fn has no infinity and one NaN per sign
        special &= mantissa == 7
    bits = np.where(special, 0x7F800000 | payload, finite)
    table: npt.NDArray[np.uint32] = (bits | (sign << 31)).astype(np.uint32)
    return table
