"""Files of tensors in the safetensors format: read whole or lazily, and written.

Importers read a model's weights with it, and what the child process of `ptfile` hands back. The
format is eight bytes of length, a JSON header of names, types, shapes and places, then the bytes;
everything that a header claims is checked before a byte is used. Own code, because the library
reads bfloat16 and float8 with torch only, and other types into copies of the whole file.
"""

from __future__ import annotations

import json
import math
import mmap
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from pico.errors import DataError
from pico.lake import codec

_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
    "C64": "complex64",
}
CODES: Mapping[str, str] = {name: code for code, name in _DTYPES.items()}
"""Name of an element type: its code in the header."""
_LONGEST_HEADER = 100 << 20


def read(path: str | os.PathLike[str]) -> dict[str, codec.Tensor]:
    """Return the tensors of a safetensors file by name, their bytes still on the disk.

    Args:
        path: the file; it stays mapped for as long as one of its tensors is in use.

    Raises:
        DataError: if it is no such file, is cut short, or its header contradicts itself.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            header, start = _header(file, size, path)
            if size == start:
                data: Any = b""
            else:
                data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))[start:]
    except DataError:
        raise
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"cannot read {path}: {reason}") from None
    tensors, end = {}, 0
    places = sorted(header.items(), key=lambda item: item[1].get("data_offsets", [0]))
    for name, entry in places:
        tensors[name], end = _tensor(name, entry, data, end, path)
    if end != size - start:
        raise DataError(f"{path} holds {size - start} bytes of tensors, its header tells of {end}")
    return tensors


def write(
    file: BinaryIO, layout: Iterable[tuple[str, str, Sequence[int]]], pieces: Iterable[bytes]
) -> None:
    """Write tensors as a safetensors file, one in memory at a time.

    Args:
        file: open for writing.
        layout: name, element type and shape of each.
        pieces: their row-major little-endian bytes, in the same order.
    """
    header, end = {}, 0
    for name, dtype, shape in layout:
        offsets = [end, end + math.prod(shape) * codec.storage(dtype).itemsize]
        header[name] = {"dtype": CODES[dtype], "shape": list(shape), "data_offsets": offsets}
        end = offsets[1]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for piece in pieces:
        file.write(piece)


def _header(file: BinaryIO, size: int, path: Path) -> tuple[dict[str, dict[str, Any]], int]:
    """Return the header's entries, and where the bytes of the tensors begin."""
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(size - 8, _LONGEST_HEADER):
        raise DataError(f"{path} is no safetensors file, or was cut short")
    try:
        header = json.loads(file.read(length), object_pairs_hook=_without_twins)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise DataError(f"{path} is no safetensors file: its header is not JSON")
    header.pop("__metadata__", None)
    if not all(isinstance(entry, dict) for entry in header.values()):
        raise DataError(f"{path} is no safetensors file: its header holds no tensors")
    return header, 8 + length


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice")
    return found


def _tensor(
    name: str, entry: Mapping[str, Any], data: Any, end: int, path: Path
) -> tuple[codec.Tensor, int]:
    """Return a tensor whose bytes begin where the one before ends, and where they end."""
    dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
    if dtype not in _DTYPES:
        raise DataError(f"{path}: tensor {name!r} is of type {dtype!r}, which pico cannot store")
    if not _is_counts(shape) or not _is_counts(offsets) or len(offsets) != 2:  # type: ignore[arg-type]
        raise DataError(f"{path}: the header's entry of tensor {name!r} makes no sense")
    assert isinstance(shape, list) and isinstance(offsets, list)
    kind = codec.storage(_DTYPES[dtype])
    n_bytes = math.prod(shape) * kind.itemsize
    if offsets != [end, end + n_bytes] or offsets[1] > len(data):
        raise DataError(f"{path}: the bytes of tensor {name!r} are not where its header says")
    flat = np.frombuffer(data, kind, math.prod(shape), offsets[0]) if n_bytes else np.empty(0, kind)
    return codec.Tensor(_DTYPES[dtype], tuple(shape), flat), offsets[1]


def _is_counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)
