"""The functions of SQL as Polars expressions: `pl.col("tensor").tensor.per()`.

`pico` registers the namespace when `Lake.scan` is first used, or on `import pico.sql.expressions`.
Names, numbers and edges are those of SQL: both call the functions of `pico.metrics`. NULL gives
NULL, and so does a metric of matrices of a tensor with fewer than two dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from pico import metrics
from pico.errors import MetricError, did_you_mean
from pico.metrics import components, registry
from pico.metrics.components import Component
from pico.sql import bridge, circuits

_Row: TypeAlias = npt.NDArray[Any] | None
Other: TypeAlias = "pl.Expr | str"
_SPECTRUM = pl.List(pl.Float64)
_DTYPES = {
    "tensor": pl.Struct({"shape": pl.List(pl.Int32), "value": pl.List(pl.Float32)}),
    "number": pl.Float64(),
    "vector": _SPECTRUM,
    "matrix": pl.List(_SPECTRUM),
}


@pl.api.register_expr_namespace("tensor")
class TensorExpressions:
    """Metrics of a `tensor` column (a struct of `shape` and `value`) as Polars expressions.

    Each metric of `pico.metrics.names()` is a method: of one tensor without arguments, of two with
    the other column, `pl.col("tensor").tensor.cka("other", …)`. So is each component, with the
    columns of its other tensors and then its arguments: `.tensor.ov_spectrum("o", 12, 4, head=0)`.
    `compute` gives several metrics at once from one spectrum.
    """

    def __init__(self, expression: pl.Expr) -> None:
        """Take the expression; Polars calls it."""
        self._expression = expression

    def __getattr__(self, name: str) -> Callable[..., pl.Expr]:
        """Return the metric or the component of that name as a method."""
        if not name.startswith("_") and name in components.names():
            item = components.get(name)
            return lambda *given, **named: self._of_component(item, given, named)
        if name.startswith("_") or name not in registry.names():
            known = [*registry.names(), *components.names(), "spectrum", "compute"]
            hint = did_you_mean(name, known)
            raise AttributeError(f"no metric {name!r}.{hint} List them: pico metrics list")
        metric = registry.get(name)
        if metric.kind == "pair":
            return lambda other, **given: self._of_pair(metric, other, given)
        return lambda: self._map(lambda row: _single(metric, row), pl.Float64)

    def __dir__(self) -> list[str]:
        """List the metrics and components, for completion."""
        return [*super().__dir__(), *registry.names(), *components.names()]

    def spectrum(self) -> pl.Expr:
        """Return the singular values of each matrix, descending; see `pico.metrics.spectrum`."""
        return self._map(_spectrum, _SPECTRUM)

    def compute(self, *names: str) -> pl.Expr:
        """Return several metrics of each tensor as a struct, from one spectrum.

        Args:
            names: of metrics of one tensor; `.struct.unnest()` makes columns of them.

        Raises:
            MetricError: for an unknown name, or a metric that compares two tensors.
        """
        chosen = [registry.get(name) for name in names]
        pair = next((metric.name for metric in chosen if metric.kind == "pair"), None)
        if pair is not None:
            raise MetricError(f"metric {pair!r} compares two tensors: .tensor.{pair}(other)")
        fields = pl.Struct({metric.name: pl.Float64 for metric in chosen})
        return self._map(lambda row: _several(chosen, row), fields)

    def _map(self, function: Callable[[npt.NDArray[Any]], Any], dtype: Any) -> pl.Expr:
        def of_batch(column: pl.Series) -> pl.Series:
            found = [None if row is None else function(row) for row in _rows(column)]
            return pl.Series(column.name, found, dtype=dtype)

        return self._expression.map_batches(of_batch, return_dtype=dtype, is_elementwise=True)

    def _of_pair(self, metric: registry.Metric, other: Other, given: Mapping[str, Any]) -> pl.Expr:
        unknown = next((key for key in given if key not in metric.arguments), None)
        if unknown is not None:
            hint = did_you_mean(unknown, metric.arguments)
            raise MetricError(f"{metric.name} has no argument {unknown!r}.{hint}")

        def of_batch(columns: Sequence[pl.Series]) -> pl.Series:
            rows = zip(_rows(columns[0]), _rows(columns[1]), strict=True)
            found = [_both(metric, x, y, given) for x, y in rows]
            return pl.Series(columns[0].name, found, dtype=pl.Float64)

        second = pl.col(other) if isinstance(other, str) else other
        return pl.map_batches([self._expression, second], of_batch, return_dtype=pl.Float64)

    def _of_component(
        self, item: Component, given: Sequence[Any], named: Mapping[str, Any]
    ) -> pl.Expr:
        columns = [*given[: len(item.tensors) - 1]]
        columns += [named[tensor] for tensor in item.tensors[len(columns) + 1 :] if tensor in named]
        if len(columns) + 1 < len(item.tensors):
            raise MetricError(f"{item.name} needs the columns of {', '.join(item.tensors[1:])} too")
        arguments = _arguments(
            item,
            given[len(item.tensors) - 1 :],
            {key: value for key, value in named.items() if key not in item.tensors},
        )

        def of_batch(batch: Sequence[pl.Series]) -> pl.Series:
            rows = zip(*map(_rows, batch), strict=True)
            found = bridge.apply(item.name, lambda *row: item.function(*row, *arguments), rows)
            arrow = bridge.column_of(found, circuits.RETURNS[item.returns])
            return pl.Series(batch[0].name, pl.from_arrow(arrow), dtype=_DTYPES[item.returns])

        others = [pl.col(other) if isinstance(other, str) else other for other in columns]
        every = [self._expression, *others]
        return pl.map_batches(every, of_batch, return_dtype=_DTYPES[item.returns])


def _arguments(item: Component, given: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
    """Return the arguments of a component in order, those left out at the end by their defaults."""
    names = [argument.name for argument in item.arguments]
    unknown = next((key for key in named if key not in names[len(given) :]), None)
    if unknown is not None or len(given) > len(names):
        what = repr(unknown) if unknown is not None else f"number {len(given)}"
        raise MetricError(
            f"{item.name} has no argument {what} beside those given."
            f"{did_you_mean(unknown or '', names)} It takes: {', '.join(names) or 'none'}"
        )
    values = dict(zip(names, given, strict=False)) | dict(named)
    missing = [a.name for a in item.arguments if not a.is_optional and a.name not in values]
    if missing:
        raise MetricError(f"{item.name} needs the argument {missing[0]!r} too")
    return [values.get(argument.name, argument.default) for argument in item.arguments]


def _rows(column: pl.Series) -> Iterator[_Row]:
    """Yield the tensor of each row, None for NULL.

    Raises:
        MetricError: if the column holds no tensors.
    """
    if not isinstance(column.dtype, pl.Struct) or {"shape", "value"} - {
        field.name for field in column.dtype.fields
    }:
        raise MetricError(
            f"column {column.name!r} holds {column.dtype}, not tensors (a struct of shape and "
            "value, as in the column tensor of Lake.scan)"
        )
    table = pl.DataFrame(
        {"shape": column.struct.field("shape"), "value": column.struct.field("value")}
    )
    arrow = table.to_arrow()
    shapes, values = (arrow[name] for name in ("shape", "value"))
    present = column.is_not_null().to_list()
    for row, is_there in zip(bridge.tensors(shapes, values), present, strict=True):
        yield row if is_there else None


def _single(metric: registry.Metric, row: npt.NDArray[Any]) -> float | None:
    if metric.needs_matrix and row.ndim < 2:
        return None
    return metrics.compute(row, [metric.name])[metric.name]


def _several(chosen: list[registry.Metric], row: npt.NDArray[Any]) -> dict[str, float | None]:
    defined = [m.name for m in chosen if row.ndim >= 2 or not m.needs_matrix]
    values = metrics.compute(row, defined)
    return {metric.name: values.get(metric.name) for metric in chosen}


def _both(metric: registry.Metric, x: _Row, y: _Row, given: Mapping[str, Any]) -> float | None:
    if x is None or y is None or (metric.needs_matrix and min(x.ndim, y.ndim) < 2):
        return None
    return metric.function(x, y, **given)


def _spectrum(row: npt.NDArray[Any]) -> list[float] | None:
    return None if row.ndim < 2 else np.asarray(metrics.spectrum(row)).tolist()
