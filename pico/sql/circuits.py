"""SQL functions of attention heads: circuits and spectra from the weights of the projections.

`functions.register` calls `register`. The functions take `tensor` columns and the numbers of heads;
a circuit is a tensor again, which every metric takes. `ov_spectra` and `qk_spectra` give all heads
of a layer from one reading of its weights, and the table macros `ov_spectra_of(run)` and
`qk_spectra_of(run)` all layers and steps, with the counts that `parameters` holds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from pico.metrics import circuits
from pico.sql import bridge
from pico.sql.bridge import MATRIX, TENSOR, VECTOR


@dataclass(frozen=True)
class _Function:
    """One SQL function: `name(tensors…, arguments…)`."""

    function: Callable[..., Any]
    tensors: tuple[str, ...]
    arguments: dict[str, str]
    returns: str
    summary: str

    def signature(self, name: str) -> str:
        parameters = ", ".join([*self.tensors, *self.arguments])
        return f"{name}({parameters}) -> {'TENSOR' if self.returns == TENSOR else self.returns}"


def functions() -> dict[str, tuple[str, str]]:
    """Return signature and summary of every function here, by name."""
    found = {name: (item.signature(name), item.summary) for name, item in _FUNCTIONS.items()}
    for name in ("ov_spectra", "qk_spectra"):
        signature = f"{name}_of(run) -> TABLE(run, step, layer, head, singular_values)"
        found[f"{name}_of"] = (signature, f"The {name} of all steps, layers and heads of a run.")
    return found


def register(connection: duckdb.DuckDBPyConnection) -> None:
    """Register the functions on a connection that has the views of a lake."""
    for name, item in _FUNCTIONS.items():
        types = ["INTEGER[]", "FLOAT[]"] * len(item.tensors) + list(item.arguments.values())
        bridge.create(connection, f"_pico_{name}", types, item.returns, _columns(name, item))
        taken = [f"{tensor} {TENSOR}" for tensor in item.tensors]
        taken += [f"{key} {kind}" for key, kind in item.arguments.items()]
        passed = [f"{tensor}.{part}" for tensor in item.tensors for part in ("shape", "value")]
        call = f"_pico_{name}({', '.join([*passed, *item.arguments])})"
        connection.execute(f"CREATE MACRO {name}({', '.join(taken)}) AS {call}")
    for name, first, second in (("ov_spectra", "v", "o"), ("qk_spectra", "q", "k")):
        with contextlib.suppress(duckdb.Error):  # a table that cannot be read has no such columns
            connection.execute(_OF_RUN.format(name=name, first=first, second=second))


def _columns(name: str, item: _Function) -> Callable[..., pa.Array]:
    def udf(*columns: pa.ChunkedArray) -> pa.Array:
        n = 2 * len(item.tensors)
        arrays = [bridge.tensors(*columns[at : at + 2]) for at in range(0, n, 2)]
        rows = zip(*arrays, *(column.to_pylist() for column in columns[n:]), strict=True)
        return bridge.column_of(bridge.apply(name, item.function, rows), item.returns)

    return udf


def _of_all_heads(function: Callable[..., Any]) -> Callable[..., Any]:
    def spectra(first: Any, second: Any, n_heads: int, n_kv_heads: int) -> Any:
        heads = range(n_heads)
        return np.stack([function(first, second, n_heads, n_kv_heads, head) for head in heads])

    return spectra


_COUNTS = {"n_heads": "INTEGER", "n_kv_heads": "INTEGER"}
_HEAD = {**_COUNTS, "head": "INTEGER"}
_FUNCTIONS = {
    "ov_circuit": _Function(
        circuits.ov_circuit,
        ("v", "o"),
        _HEAD,
        TENSOR,
        "What a head writes for what it attends to: O_h V_g, (d_model, d_model).",
    ),
    "qk_circuit": _Function(
        circuits.qk_circuit,
        ("q", "k"),
        _HEAD,
        TENSOR,
        "Which residual vectors attend to which in a head: Q_hᵀ K_g, (d_model, d_model).",
    ),
    "ov_spectrum": _Function(
        circuits.ov_spectrum,
        ("v", "o"),
        _HEAD,
        VECTOR,
        "Singular values of a head's output-value circuit, descending, without forming it.",
    ),
    "qk_spectrum": _Function(
        circuits.qk_spectrum,
        ("q", "k"),
        _HEAD,
        VECTOR,
        "Singular values of a head's query-key circuit, descending, without forming it.",
    ),
    "ov_spectra": _Function(
        _of_all_heads(circuits.ov_spectrum),
        ("v", "o"),
        _COUNTS,
        MATRIX,
        "The output-value spectra of all heads of a layer, head by head.",
    ),
    "qk_spectra": _Function(
        _of_all_heads(circuits.qk_spectrum),
        ("q", "k"),
        _COUNTS,
        MATRIX,
        "The query-key spectra of all heads of a layer, head by head.",
    ),
    "split_qkv": _Function(
        circuits.split_qkv,
        ("qkv",),
        {"n_heads": "INTEGER", "which": "VARCHAR"},
        TENSOR,
        "Query, key or value weight (`'q'`, `'k'`, `'v'`) of GPT-NeoX's fused projection.",
    ),
}
_OF_RUN = """
CREATE MACRO {name}_of(run_name) AS TABLE
WITH both_weights AS (
    SELECT a.run, a.step, a.layer, p.n_heads,
           {name}(a.tensor, b.tensor, p.n_heads, p.n_kv_heads) AS spectra
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
