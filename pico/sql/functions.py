"""SQL functions of tensors, generated from the registry of metrics.

`session.connect` registers them on every connection. Each metric becomes one Arrow UDF with a
private name (`_pico_gini`) and a public macro over it, so that a name in SQL, in `pico.metrics` and
in the `metrics` table means the same number. Macros take the `tensor` column of a tensor table, a
list (a vector) or a list of lists (a matrix). Spectral metrics are macros over one
`_pico_spectrum(…)`, which DuckDB computes once a row however many of them stand in a SELECT; given
a list, they take it for the singular values: `per(ov_spectrum(v, o, …))`.

NULL gives NULL; so does a metric of matrices of a tensor with fewer than two dimensions, and one of
singular values of a list with a negative number. A NULL element of a list counts as NaN. Everything
else is as the metric's docstring says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import duckdb
import numpy as np
import pyarrow as pa

from pico import metrics
from pico.metrics import arrays, registry
from pico.sql import bridge, circuits, text
from pico.sql.bridge import MATRIX, TENSOR, VECTOR

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
    found |= circuits.functions() | text.functions()
    return [
        {"name": name, "signature": signature, "summary": summary}
        for name, (signature, summary) in sorted(found.items())
    ]


def register(connection: duckdb.DuckDBPyConnection) -> None:
    """Register the functions of every metric on a connection."""
    for source in _SOURCES:
        bridge.create(
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
    circuits.register(connection)
    text.register(connection)


def _register_tensor_metric(connection: duckdb.DuckDBPyConnection, metric: registry.Metric) -> None:
    overloads = []
    for source in _SOURCES:
        udf = f"_pico_{metric.name}{source.suffix}"
        bridge.create(connection, udf, source.types, "DOUBLE", _numbers(metric, source))
        overloads.append(f"(tensor {source.type}) AS {udf}({source.arguments('tensor')})")
    connection.execute(f"CREATE MACRO {metric.name}{', '.join(overloads)}")


def _register_spectral_metric(
    connection: duckdb.DuckDBPyConnection, metric: registry.Metric
) -> None:
    udf = f"_pico_{metric.name}"

    def of_spectra(spectra: pa.ChunkedArray, roundoff: pa.ChunkedArray) -> pa.Array:
        rows = zip(bridge.vectors(spectra), roundoff.to_pylist(), strict=True)
        return pa.array(bridge.apply(metric.name, metric.of_spectrum, rows), pa.float64())

    bridge.create(connection, udf, [VECTOR, "DOUBLE"], "DOUBLE", of_spectra)
    overloads = [
        f"(tensor {s.type}) AS {udf}({_spectrum_call(s)}, {s.roundoff!r}::DOUBLE)"
        for s in _SOURCES
        if s.type != VECTOR
    ]

    def of_list(lists: pa.ChunkedArray) -> pa.Array:
        rows = ((_descending(values), arrays.ROUNDOFF_FLOAT32) for values in bridge.vectors(lists))
        return pa.array(bridge.apply(metric.name, metric.of_spectrum, rows), pa.float64())

    bridge.create(connection, f"{udf}_list", [VECTOR], "DOUBLE", of_list)
    overloads.append(f"(tensor {VECTOR}) AS {udf}_list(tensor)")
    connection.execute(f"CREATE MACRO {metric.name}{', '.join(overloads)}")


def _descending(values: bridge.Tensor | None) -> bridge.Tensor | None:
    """Return a list of singular values in order; None for NULL and for what cannot be one."""
    if values is None or (values < 0.0).any():
        return None
    return np.sort(values)[::-1]  # NaN comes first, and makes the metric NaN


def _register_pair_metric(connection: duckdb.DuckDBPyConnection, metric: registry.Metric) -> None:
    overloads = []
    for source in _SOURCES:
        if metric.needs_matrix and source.type == VECTOR:
            continue
        udf = f"_pico_{metric.name}{source.suffix}"
        given = {key: _NUMBERS[type(value)] for key, value in metric.arguments.items()}
        types = [*source.types, *source.types, *given.values()]
        bridge.create(connection, udf, types, "DOUBLE", _pairs(metric, source))
        taken, passed = [f"x {source.type}", f"y {source.type}"], [*map(source.arguments, "xy")]
        defaults = [f"{value!r}::{given[key]}" for key, value in metric.arguments.items()]
        overloads.append(f"({', '.join(taken)}) AS {udf}({', '.join([*passed, *defaults])})")
        if given:
            taken += [f"{key} {kind}" for key, kind in given.items()]
            overloads.append(f"({', '.join(taken)}) AS {udf}({', '.join([*passed, *given])})")
    connection.execute(f"CREATE MACRO {metric.name}{', '.join(overloads)}")


def _numbers(metric: registry.Metric, source: _Source) -> Callable[..., pa.Array]:
    def udf(*columns: pa.ChunkedArray) -> pa.Array:
        tensors = source.rows(*columns)
        rows = ((_matrix_or_none(t) if metric.needs_matrix else t,) for t in tensors)
        return pa.array(bridge.apply(metric.name, metric.function, rows), pa.float64())

    return udf


def _spectra(source: _Source) -> Callable[..., pa.Array]:
    def udf(*columns: pa.ChunkedArray) -> pa.Array:
        rows = ((_matrix_or_none(tensor),) for tensor in source.rows(*columns))
        return pa.array(bridge.apply("spectrum", metrics.spectrum, rows), pa.list_(pa.float64()))

    return udf


def _pairs(metric: registry.Metric, source: _Source) -> Callable[..., pa.Array]:
    def with_arguments(x: bridge.Tensor, y: bridge.Tensor, *given: int | float) -> float:
        return metric.function(x, y, **dict(zip(metric.arguments, given, strict=True)))

    def udf(*columns: pa.ChunkedArray) -> pa.Array:
        half = len(source.types)
        first, second = source.rows(*columns[:half]), source.rows(*columns[half : 2 * half])
        if metric.needs_matrix:
            first, second = map(_matrix_or_none, first), map(_matrix_or_none, second)
        rows = zip(first, second, *(c.to_pylist() for c in columns[2 * half :]), strict=True)
        return pa.array(bridge.apply(metric.name, with_arguments, rows), pa.float64())

    return udf


def _matrix_or_none(tensor: bridge.Tensor | None) -> bridge.Tensor | None:
    return tensor if tensor is not None and tensor.ndim >= 2 else None


@dataclass(frozen=True)
class _Source:
    """One form in which SQL can hand over a tensor: an overload of every macro."""

    suffix: str
    type: str
    types: tuple[str, ...]
    fields: tuple[str, ...]
    rows: Callable[..., bridge.Rows]
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
        bridge.tensors,
        arrays.ROUNDOFF_FLOAT32,
    ),
    _Source("_vector", VECTOR, (VECTOR,), (), bridge.vectors, arrays.ROUNDOFF_FLOAT64),
    _Source("_matrix", MATRIX, (MATRIX,), (), bridge.matrices, arrays.ROUNDOFF_FLOAT64),
)
