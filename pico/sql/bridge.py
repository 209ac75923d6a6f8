"""The bridge between DuckDB's columns and arrays: how a Python function becomes an SQL function.

`functions` and `circuits` register through it. Every function is an Arrow UDF with a private name;
shape and value of a tensor come as two columns, for a struct costs more on the way to Arrow. All
rows of all functions go through `apply`, so that calls can be counted.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from duckdb.func import FunctionNullHandling, PythonUDFType

from pico.errors import MetricError

TENSOR = "STRUCT(shape INTEGER[], value FLOAT[])"
"""Type of the `tensor` column of every tensor table."""
VECTOR = "DOUBLE[]"
MATRIX = "DOUBLE[][]"

Tensor: TypeAlias = npt.NDArray[Any]
Rows: TypeAlias = Iterator[Tensor | None]

_TENSOR_ARROW = pa.struct([("shape", pa.list_(pa.int32())), ("value", pa.list_(pa.float32()))])


def apply(name: str, function: Callable[..., Any], rows: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Call a metric for each row, NULL where an argument is; every UDF goes through here."""
    return [None if any(a is None for a in row) else function(*row) for row in rows]


def create(
    connection: duckdb.DuckDBPyConnection,
    name: str,
    types: Sequence[str],
    returns: str,
    function: Callable[..., pa.Array],
) -> None:
    """Register a function of Arrow columns that gives one; NULL is passed on to it."""

    def udf(*columns: pa.ChunkedArray) -> pa.Array:
        return function(*columns)

    # DuckDB reads the number of arguments from the signature, and knows no *columns
    places = inspect.Parameter.POSITIONAL_ONLY
    parameters = [inspect.Parameter(f"column{i}", places) for i in range(len(types))]
    udf.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    connection.create_function(
        name,
        udf,
        [connection.sqltype(item) for item in types],
        connection.sqltype(returns),
        type=PythonUDFType.ARROW,
        null_handling=FunctionNullHandling.SPECIAL,
        side_effects=False,
    )


def tensors(shapes: pa.ChunkedArray, values: pa.ChunkedArray) -> Rows:
    """Yield the tensor of each row, None for NULL.

    Raises:
        MetricError: if the values cannot fill the shape.
    """
    for shape, value in zip(vectors(shapes), vectors(values), strict=True):
        if shape is None or value is None:
            yield None
        elif value.size != np.prod(shape, dtype=np.int64):
            raise MetricError(f"{value.size} values cannot fill a tensor of shape {shape.tolist()}")
        else:
            yield value.reshape(shape)


def vectors(lists: pa.ChunkedArray) -> Rows:
    """Yield the list of each row as a vector, None for NULL."""
    for chunk in lists.chunks:
        offsets = chunk.offsets.to_numpy()
        values = chunk.values.to_numpy(zero_copy_only=False)
        valid = chunk.is_valid().to_pylist() if chunk.null_count else [True] * len(chunk)
        for index, present in enumerate(valid):
            yield values[offsets[index] : offsets[index + 1]] if present else None


def matrices(nested: pa.ChunkedArray) -> Rows:
    """Yield the list of lists of each row as a matrix, None for NULL.

    Raises:
        MetricError: if its rows differ in length.
    """
    for matrix in nested:
        if not matrix.is_valid:
            yield None
            continue
        rows = [row for row in vectors(pa.chunked_array([matrix.values])) if row is not None]
        if len(rows) < len(matrix.values) or len({row.size for row in rows}) > 1:
            raise MetricError("the rows of a matrix must be lists of equal length")
        yield np.stack(rows) if rows else np.empty((0, 0))


def column_of(found: Sequence[Any], returns: str) -> pa.Array:
    """Return results as the column that an SQL type asks for: numbers, lists, or tensors."""
    if returns != TENSOR:
        return pa.array([_nested(item) for item in found], _ARROW[returns])
    shapes = [None if item is None else list(item.shape) for item in found]
    flat = [None if item is None else np.asarray(item, np.float32).reshape(-1) for item in found]
    columns = [pa.array(shapes, _TENSOR_ARROW[0].type), pa.array(flat, _TENSOR_ARROW[1].type)]
    missing = pa.array([item is None for item in found], pa.bool_())
    return pa.StructArray.from_arrays(columns, fields=list(_TENSOR_ARROW), mask=missing)


_ARROW = {
    "DOUBLE": pa.float64(),
    VECTOR: pa.list_(pa.float64()),
    MATRIX: pa.list_(pa.list_(pa.float64())),
}


def _nested(item: Any) -> Any:
    return item.tolist() if isinstance(item, np.ndarray) else item
