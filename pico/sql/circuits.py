"""SQL functions that give tensors and spectra: the components of `pico.metrics`, and whole runs.

`functions.register` calls `register`. A component takes `tensor` columns and then numbers; what it
gives is a tensor again, which every metric takes, or a spectrum. An argument with a default may be
left out. The table macros `ov_spectra_of(run)` and `qk_spectra_of(run)` give all layers, steps and
heads from one reading of the weights, with the counts that `parameters` holds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import duckdb
import pyarrow as pa

from pico.metrics import arithmetic, components, shaping
from pico.metrics.components import Argument, Component
from pico.sql import bridge
from pico.sql.bridge import MATRIX, TENSOR, VECTOR

RETURNS = {"tensor": TENSOR, "number": "DOUBLE", "vector": VECTOR, "matrix": MATRIX}
"""SQL type of what a component gives."""
_ARGUMENTS = {
    "bool": "BOOLEAN",
    "float": "DOUBLE",
    "int": "BIGINT",
    "int list": "BIGINT[]",
    "str": "VARCHAR",
}
_OF_LISTS: dict[str, tuple[Callable[..., Any], tuple[Argument, ...]]] = {
    "concat_tensors": (shaping.joined, (Argument("axis", "int"),)),
    "tensor_mean": (arithmetic.mean_of, ()),
}
_WITH_NUMBERS = ("t_add", "t_sub", "t_mul", "t_div")
_OF_RUN = {"ov_spectra_of": ("ov_spectra", "v", "o"), "qk_spectra_of": ("qk_spectra", "q", "k")}


def functions() -> dict[str, tuple[str, str]]:
    """Return signature and summary of every function here, by name."""
    found = {}
    for name in components.names():
        item = components.get(name)
        given = [a.name + (f" = {a.default}" if a.is_optional else "") for a in item.arguments]
        returns = "TENSOR" if item.returns == "tensor" else RETURNS[item.returns]
        signature = f"{name}({', '.join([*item.tensors, *given])}) -> {returns}"
        found[name] = (signature, item.summary)
    for name, (spectra, *_) in _OF_RUN.items():
        signature = f"{name}(run) -> TABLE(run, step, layer, head, singular_values)"
        found[name] = (signature, f"The {spectra} of all steps, layers and heads of a run.")
    return found


def register(connection: duckdb.DuckDBPyConnection) -> None:
    """Register the functions on a connection that has the views of a lake."""
    for name in components.names():
        item = components.get(name)
        overloads = [
            _overload(connection, item, n) for n in range(item.n_required, len(item.arguments) + 1)
        ]
        if name in _OF_LISTS:
            overloads += _of_lists(connection, name)
        if name in _WITH_NUMBERS:
            overloads.append(_with_number(item))
        connection.execute(f"CREATE MACRO {name}{', '.join(overloads)}")
    for name, (spectra, first, second) in _OF_RUN.items():
        with contextlib.suppress(duckdb.Error):  # a table that cannot be read has no such columns
            sql = _OF_RUN_SQL.format(name=name, spectra=spectra, first=first, second=second)
            connection.execute(sql)


def _overload(connection: duckdb.DuckDBPyConnection, item: Component, n_given: int) -> str:
    """Register the function with `n_given` arguments and return the macro's overload for it."""
    given = item.arguments[:n_given]
    udf = f"_pico_{item.name}_{n_given}"
    types = ["INTEGER[]", "FLOAT[]"] * len(item.tensors)
    types += [_ARGUMENTS[argument.kind] for argument in given]
    bridge.create(connection, udf, types, RETURNS[item.returns], _columns(item))
    taken = [f'"{tensor}" {TENSOR}' for tensor in item.tensors]
    taken += [f'"{argument.name}" {_ARGUMENTS[argument.kind]}' for argument in given]
    passed = [f'"{tensor}".{part}' for tensor in item.tensors for part in ("shape", "value")]
    passed += [f'"{argument.name}"' for argument in given]
    return f"({', '.join(taken)}) AS {udf}({', '.join(passed)})"


def _columns(item: Component) -> Callable[..., pa.Array]:
    def udf(*columns: pa.ChunkedArray) -> pa.Array:
        n = 2 * len(item.tensors)
        arrays = [bridge.tensors(*columns[at : at + 2]) for at in range(0, n, 2)]
        rows = zip(*arrays, *(column.to_pylist() for column in columns[n:]), strict=True)
        found = bridge.apply(item.name, item.function, rows)
        return bridge.column_of(found, RETURNS[item.returns])

    return udf


def _with_number(item: Component) -> str:
    """Return the macro's overload for a number in place of the second tensor."""
    first, second = item.tensors
    value = f'CASE WHEN "{second}" IS NOT NULL THEN ["{second}"]::FLOAT[] END'
    udf = f'_pico_{item.name}_0("{first}".shape, "{first}".value, []::INTEGER[], {value})'
    return f'("{first}" {TENSOR}, "{second}" DOUBLE) AS {udf}'


def _of_lists(connection: duckdb.DuckDBPyConnection, name: str) -> list[str]:
    """Register the function of a list of tensors and return the macro's overloads for it."""
    overloads = []
    function, arguments = _OF_LISTS[name]
    for given in [arguments[:n] for n in range(len(arguments) + 1)]:
        udf = f"_pico_{name}_list_{len(given)}"
        types = [f"{TENSOR}[]", *(_ARGUMENTS[argument.kind] for argument in given)]
        bridge.create(connection, udf, types, TENSOR, _of_list_columns(name, function))
        taken = [f"tensors {TENSOR}[]", *(f"{a.name} {_ARGUMENTS[a.kind]}" for a in given)]
        passed = ["tensors", *(argument.name for argument in given)]
        overloads.append(f"({', '.join(taken)}) AS {udf}({', '.join(passed)})")
    return overloads


def _of_list_columns(name: str, function: Callable[..., Any]) -> Callable[..., pa.Array]:
    def udf(lists: pa.ChunkedArray, *given: pa.ChunkedArray) -> pa.Array:
        rows = zip(map(_tensors, lists), *(column.to_pylist() for column in given), strict=True)
        return bridge.column_of(bridge.apply(name, function, rows), TENSOR)

    return udf


def _tensors(row: Any) -> list[bridge.Tensor] | None:
    """Return the tensors of one row's list; None for NULL and if one of them is NULL."""
    if not row.is_valid:
        return None
    fields = (pa.chunked_array([row.values.field(part)]) for part in ("shape", "value"))
    found = list(bridge.tensors(*fields))
    present = [tensor for tensor in found if tensor is not None]
    return present if len(present) == len(found) and not row.values.null_count else None


_OF_RUN_SQL = """
CREATE MACRO {name}(run_name) AS TABLE
WITH both_weights AS (
    SELECT a.run, a.step, a.layer, p.n_heads,
           {spectra}(a.tensor, b.tensor, p.n_heads, p.n_kv_heads) AS spectra
    FROM weights a
    JOIN weights b ON b.run = a.run AND b.step = a.step AND b.layer = a.layer
    JOIN parameters p ON p.run = a.run AND p.name = a.name
    WHERE a.run = run_name AND a.component = '{first}' AND b.component = '{second}'
      AND a.param = 'weight' AND b.param = 'weight'
)
SELECT run, step, layer,
       unnest(range(n_heads))::INTEGER AS head,
       unnest(spectra) AS singular_values
FROM both_weights
ORDER BY step, layer, head
"""
