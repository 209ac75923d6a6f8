"""SQL functions of tensors, generated from the registry of metrics.

`session.connect` registers them on every connection. Each metric becomes one Arrow UDF with a
private name (`_pico_gini`) and a public macro over it, so that a name in SQL, in `pico.metrics` and
in the `metrics` table means the same number. Macros take the `tensor` column of a tensor table, a
list (a vector) or a list of lists (a matrix). Spectral metrics are macros over one
`_pico_spectrum(…)`, which DuckDB computes once a row however many of them stand in a SELECT.

NULL gives NULL; so does a metric of matrices of a tensor with fewer than two dimensions. A NULL
element of a list counts as NaN. Everything else is as the metric's docstring says.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from duckdb.func import FunctionNullHandling, PythonUDFType

from pico import metrics
from pico.errors import MetricError
from pico.metrics import arrays, registry

TENSOR = "STRUCT(shape INTEGER[], value FLOAT[])"
"""Type of the `tensor` column of every tensor table."""
VECTOR = "DOUBLE[]"
MATRIX = "DOUBLE[][]"

_Tensor: TypeAlias = npt.NDArray[Any]
_Rows: TypeAlias = Iterator[_Tensor | None]

_NUMBERS = {int: "BIGINT", float: "DOUBLE"}
_SPECTRUM = "Singular values of a matrix, descending."


def functions() -> list[dict[str, str]]:
    """Return name, signature and summary of every public SQL function, sorted by name.

    >>> [row["signature"] for row in functions() if row["name"] in ("cka", "gini")]
    ['cka(x, y) -> DOUBLE', 'gini(tensor) -> DOUBLE']
    """
    found = {"spectrum": (f"spectrum(tensor) -> {VECTOR}", _SPECTRUM)}
    for name in registry.names():
        metric = registry.get(name)
        arguments = ["x", "y"] if metric.kind == "pair" else ["tensor"]
        arguments += [f"{key} = {value}" for key, value in metric.arguments.items()]
        found[name] = (f"{name}({', '.join(arguments)}) -> DOUBLE", metric.summary)
    return [
        {"name": name, "signature": signature, "summary": summary}
        for name, (signature, summary) in sorted(found.items())
    ]


def register(connection: duckdb.DuckDBPyConnection) -> None:
    """Register the functions of every metric on a connection."""
    for source in _SOURCES:
        _create(
            connection, f"_pico_spectrum{source.suffix}", source.types, VECTOR, _spectra(source)
        )
    overloads = [f"(tensor {s.type}) AS {_spectrum_call(s)}" for s in _SOURCES]
    connection.execute(f"CREATE MACRO spectrum{', '.join(overloads)}")
    for name in registry.names():
        metric = registry.get(name)
        if metric.kind == "tensor":
            _register_tensor_metric(connection, metric)
        elif metric.kind == "spectrum":
            _register_spectral_metric(connection, metric)
        else:
            _register_pair_metric(connection, metric)


def apply(name: str, function: Callable[..., Any], rows: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Call a metric for each row, NULL where an argument is; every UDF goes through here."""
    return [None if any(a is None for a in row) else function(*row) for row in rows]


def _register_tensor_metric(connection: duckdb.DuckDBPyConnection, metric: registry.Metric) -> None:
    overloads = []
    for source in _SOURCES:
        udf = f"_pico_{metric.name}{source.suffix}"
        _create(connection, udf, source.types, "DOUBLE", _numbers(metric, source))
        overloads.append(f"(tensor {source.type}) AS {udf}({source.arguments('tensor')})")
    connection.execute(f"CREATE MACRO {metric.name}{', '.join(overloads)}")


def _register_spectral_metric(
    connection: duckdb.DuckDBPyConnection, metric: registry.Metric
) -> None:
    udf = f"_pico_{metric.name}"

    def of_spectra(spectra: pa.ChunkedArray, roundoff: pa.ChunkedArray) -> pa.Array:
        rows = zip(_vectors(spectra), roundoff.to_pylist(), strict=True)
        return pa.array(apply(metric.name, metric.of_spectrum, rows), pa.float64())

    _create(connection, udf, [VECTOR, "DOUBLE"], "DOUBLE", of_spectra)
    overloads = [
        f"(tensor {s.type}) AS {udf}({_spectrum_call(s)}, {s.roundoff!r}::DOUBLE)" for s in _SOURCES
    ]
    connection.execute(f"CREATE MACRO {metric.name}{', '.join(overloads)}")


def _register_pair_metric(connection: duckdb.DuckDBPyConnection, metric: registry.Metric) -> None:
    overloads = []
    for source in _SOURCES:
        if metric.needs_matrix and source.type == VECTOR:
            continue
        udf = f"_pico_{metric.name}{source.suffix}"
        given = {key: _NUMBERS[type(value)] for key, value in metric.arguments.items()}
        types = [*source.types, *source.types, *given.values()]
        _create(connection, udf, types, "DOUBLE", _pairs(metric, source))
        taken, passed = [f"x {source.type}", f"y {source.type}"], [*map(source.arguments, "xy")]
        defaults = [f"{value!r}::{given[key]}" for key, value in metric.arguments.items()]
        overloads.append(f"({', '.join(taken)}) AS {udf}({', '.join([*passed, *defaults])})")
        if given:
            taken += [f"{key} {kind}" for key, kind in given.items()]
            overloads.append(f"({', '.join(taken)}) AS {udf}({', '.join([*passed, *given])})")
    connection.execute(f"CREATE MACRO {metric.name}{', '.join(overloads)}")


def _create(
    connection: duckdb.DuckDBPyConnection,
    name: str,
    types: Sequence[str],
    returns: str,
    function: Callable[..., pa.Array],
) -> None:
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


def _numbers(metric: registry.Metric, source: _Source) -> Callable[..., pa.Array]:
    def udf(*columns: pa.ChunkedArray) -> pa.Array:
        rows = ((tensor,) for tensor in source.rows(*columns))
        return pa.array(apply(metric.name, metric.function, rows), pa.float64())

    return udf


def _spectra(source: _Source) -> Callable[..., pa.Array]:
    def udf(*columns: pa.ChunkedArray) -> pa.Array:
        rows = ((_matrix_or_none(tensor),) for tensor in source.rows(*columns))
        return pa.array(apply("spectrum", metrics.spectrum, rows), pa.list_(pa.float64()))

    return udf


def _pairs(metric: registry.Metric, source: _Source) -> Callable[..., pa.Array]:
    def with_arguments(x: _Tensor, y: _Tensor, *given: int | float) -> float:
        return metric.function(x, y, **dict(zip(metric.arguments, given, strict=True)))

    def udf(*columns: pa.ChunkedArray) -> pa.Array:
        half = len(source.types)
        first, second = source.rows(*columns[:half]), source.rows(*columns[half : 2 * half])
        if metric.needs_matrix:
            first, second = map(_matrix_or_none, first), map(_matrix_or_none, second)
        rows = zip(first, second, *(c.to_pylist() for c in columns[2 * half :]), strict=True)
        return pa.array(apply(metric.name, with_arguments, rows), pa.float64())

    return udf


def _matrix_or_none(tensor: _Tensor | None) -> _Tensor | None:
    return tensor if tensor is not None and tensor.ndim >= 2 else None


def _tensors(shapes: pa.ChunkedArray, values: pa.ChunkedArray) -> _Rows:
    for shape, value in zip(_vectors(shapes), _vectors(values), strict=True):
        if shape is None or value is None:
            yield None
        elif value.size != np.prod(shape, dtype=np.int64):
            raise MetricError(f"{value.size} values cannot fill a tensor of shape {shape.tolist()}")
        else:
            yield value.reshape(shape)


def _vectors(lists: pa.ChunkedArray) -> _Rows:
    for chunk in lists.chunks:
        offsets = chunk.offsets.to_numpy()
        values = chunk.values.to_numpy(zero_copy_only=False)
        valid = chunk.is_valid().to_pylist() if chunk.null_count else [True] * len(chunk)
        for index, present in enumerate(valid):
            yield values[offsets[index] : offsets[index + 1]] if present else None


def _matrices(nested: pa.ChunkedArray) -> _Rows:
    for matrix in nested:
        if not matrix.is_valid:
            yield None
            continue
        rows = [row for row in _vectors(pa.chunked_array([matrix.values])) if row is not None]
        if len(rows) < len(matrix.values) or len({row.size for row in rows}) > 1:
            raise MetricError("the rows of a matrix must be lists of equal length")
        yield np.stack(rows) if rows else np.empty((0, 0))


@dataclass(frozen=True)
class _Source:
    """One form in which SQL can hand over a tensor: an overload of every macro."""

    suffix: str
    type: str
    types: tuple[str, ...]
    fields: tuple[str, ...]
    rows: Callable[..., _Rows]
    roundoff: float

    def arguments(self, name: str) -> str:
        """Return what the macro hands to the UDF for its parameter `name`."""
        return ", ".join(f"{name}.{field}" for field in self.fields) or name


def _spectrum_call(source: _Source) -> str:
    return f"_pico_spectrum{source.suffix}({source.arguments('tensor')})"


_SOURCES = (
    # shape and value are handed over by themselves: a struct costs more on the way to Arrow
    _Source(
        "",
        TENSOR,
        ("INTEGER[]", "FLOAT[]"),
        ("shape", "value"),
        _tensors,
        arrays.ROUNDOFF_FLOAT32,
    ),
    _Source("_vector", VECTOR, (VECTOR,), (), _vectors, arrays.ROUNDOFF_FLOAT64),
    _Source("_matrix", MATRIX, (MATRIX,), (), _matrices, arrays.ROUNDOFF_FLOAT64),
)
