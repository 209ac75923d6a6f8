"""Circuits in SQL: equal to `pico.metrics`, head by head, alone and over a whole run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from pico import metrics, schema
from pico.errors import QueryError
from pico.lake.codec import Tensor
from pico.lake.commit import Stream
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from pico.lake.table import TensorRow, write_rows, write_tensors
from pico.sql import bridge, session, statements

N_HEADS, N_KV_HEADS, D_HEAD, D_MODEL = 4, 2, 3, 10
SHAPES = {
    "q": (N_HEADS * D_HEAD, D_MODEL),
    "k": (N_KV_HEADS * D_HEAD, D_MODEL),
    "v": (N_KV_HEADS * D_HEAD, D_MODEL),
    "o": (D_MODEL, N_HEADS * D_HEAD),
}


def weight(step: int, layer: int, component: str) -> np.ndarray:
    seed = [step, layer, "qkvo".index(component)]
    return np.random.default_rng(seed).standard_normal(SHAPES[component], dtype=np.float32)


@pytest.fixture(scope="module")
def connection(tmp_path_factory: pytest.TempPathFactory) -> Iterator[duckdb.DuckDBPyConnection]:
    folder: Path = tmp_path_factory.mktemp("circuits")
    storage = Storage(str(folder / "lake"))
    keys = [
        {"name": f"layers.{layer}.{c}", "layer": layer, "component": c, "param": "weight"}
        for layer in (0, 1)
        for c in SHAPES
    ]
    with Stream(storage, "train.r") as stream:
        transaction = stream.begin()
        parameters = {key: [k[key] for k in keys] for key in keys[0]}
        parameters |= {
            "run_id": ["r"] * len(keys),
            "shape": [list(SHAPES[k["component"]]) for k in keys],
            "dtype": ["float32"] * len(keys),
            "numel": [int(np.prod(SHAPES[k["component"]])) for k in keys],
            "trainable": [True] * len(keys),
            "n_heads": [N_HEADS] * len(keys),
            "n_kv_heads": [N_KV_HEADS] * len(keys),
        }
        rows = schema.table("parameters").batch(parameters)
        write_rows(transaction, "parameters", {"run": "r"}, rows)
        for step in (0, 5):
            tensors = [
                TensorRow(k, Tensor.of(weight(step, k["layer"], k["component"]))) for k in keys
            ]
            write_tensors(transaction, "weights", {"run": "r", "step": step}, tensors)
        transaction.commit()
    found = session.connect(Snapshot.take(storage))
    yield found
    found.close()


def joined(first: str, second: str, columns: str) -> str:
    return (
        f"SELECT {columns} FROM weights a JOIN weights b USING (run, step, layer) "
        f"WHERE a.component = '{first}' AND b.component = '{second}' AND step = 5 AND layer = 1"
    )


@pytest.mark.parametrize("kind", ["ov", "qk"])
def test_one_head(connection: duckdb.DuckDBPyConnection, kind: str) -> None:
    first, second = ("v", "o") if kind == "ov" else ("q", "k")
    x, y = weight(5, 1, first), weight(5, 1, second)
    arguments = f"a.tensor, b.tensor, {N_HEADS}, {N_KV_HEADS}"
    for head in range(N_HEADS):
        columns = f"{kind}_circuit({arguments}, {head}), {kind}_spectrum({arguments}, {head})"
        columns += f", frobenius_norm({kind}_circuit({arguments}, {head}))"
        columns += f", per({kind}_spectrum({arguments}, {head}))"
        query = joined(first, second, columns)
        ((circuit, spectrum, norm, per),) = statements.query(connection, query).fetchall()
        wanted = getattr(metrics, f"{kind}_circuit")(x, y, N_HEADS, N_KV_HEADS, head)
        assert tuple(circuit["shape"]) == wanted.shape == (D_MODEL, D_MODEL)
        np.testing.assert_array_equal(circuit["value"], wanted.astype(np.float32).ravel())
        s = getattr(metrics, f"{kind}_spectrum")(x, y, N_HEADS, N_KV_HEADS, head)
        np.testing.assert_array_equal(spectrum, s)
        assert norm == pytest.approx(np.linalg.norm(wanted), rel=1e-6)
        assert per == pytest.approx(metrics.per(np.diag(s)), rel=1e-9)


@pytest.mark.parametrize("kind", ["ov", "qk"])
def test_all_heads_of_a_run(connection: duckdb.DuckDBPyConnection, kind: str) -> None:
    first, second = ("v", "o") if kind == "ov" else ("q", "k")
    rows = statements.query(connection, f"FROM {kind}_spectra_of('r')").fetchall()
    assert [row[:4] for row in rows] == [
        ("r", step, layer, head) for step in (0, 5) for layer in (0, 1) for head in range(N_HEADS)
    ]
    for _, step, layer, head, found in rows:
        x, y = weight(step, layer, first), weight(step, layer, second)
        spectrum = getattr(metrics, f"{kind}_spectrum")(x, y, N_HEADS, N_KV_HEADS, head)
        np.testing.assert_array_equal(found, spectrum)
    none = statements.query(connection, f"SELECT count(*) FROM {kind}_spectra_of('absent')")
    assert none.fetchall() == [(0,)]


def test_split_qkv(connection: duckdb.DuckDBPyConnection) -> None:
    fused = "{'shape': [6], 'value': [0, 1, 2, 3, 4, 5]::FLOAT[]}"
    query = f"SELECT split_qkv({fused}, 2, 'q'), split_qkv({fused}, 2, 'v')"
    ((q, v),) = statements.query(connection, query).fetchall()
    assert q == {"shape": [2], "value": [0.0, 3.0]}
    assert v == {"shape": [2], "value": [2.0, 5.0]}


def test_products_of_pico_analyze(connection: duckdb.DuckDBPyConnection) -> None:
    v, o = weight(5, 1, "v"), weight(5, 1, "o")
    counts = f"{N_HEADS}, {N_KV_HEADS}, 3"
    columns = f"vo_product(a.tensor, b.tensor, {counts})"
    columns += f", ov_gradient_pico(a.tensor, b.tensor, a.tensor, b.tensor, {counts})"
    query = joined("v", "o", columns)
    ((product, gradient),) = statements.query(connection, query).fetchall()
    wanted = metrics.vo_product(v, o, N_HEADS, N_KV_HEADS, 3)
    np.testing.assert_array_equal(product["value"], wanted.astype(np.float32).ravel())
    assert product["shape"] == [D_HEAD, D_HEAD]
    wanted = 2.0 * metrics.ov_circuit(v, o, N_HEADS, N_KV_HEADS, 3)
    np.testing.assert_allclose(gradient["value"], wanted.ravel(), rtol=1e-6)


TWO = "{'shape': [1, 2], 'value': [1, 2]::FLOAT[]}"
THREE = "{'shape': [1, 3], 'value': [3, 4, 5]::FLOAT[]}"


@pytest.mark.parametrize(
    ("call", "shape", "value"),
    [
        (f"reshape({TWO}, [2])", [2], [1, 2]),
        (f"reshape({TWO}, [-1, 1])", [2, 1], [1, 2]),
        (f"concat_tensors({TWO}, {THREE}, 1)", [1, 5], [1, 2, 3, 4, 5]),
        (f"concat_tensors({TWO}, {TWO})", [2, 2], [1, 2, 1, 2]),
        (f"concat_tensors([{THREE}, {TWO}, {TWO}], 1)", [1, 7], [3, 4, 5, 1, 2, 1, 2]),
        (f"concat_tensors([{TWO}, {TWO}])", [2, 2], [1, 2, 1, 2]),
        (f"reshape(concat_tensors({TWO}, {TWO}), [4])", [4], [1, 2, 1, 2]),
    ],
)
def test_shaping(
    connection: duckdb.DuckDBPyConnection, call: str, shape: list[int], value: list[int]
) -> None:
    ((found,),) = statements.query(connection, f"SELECT {call}").fetchall()
    assert found == {"shape": shape, "value": value}


def test_shaping_of_columns_and_groups(connection: duckdb.DuckDBPyConnection) -> None:
    query = (
        "SELECT step, concat_tensors(list(tensor ORDER BY layer), 1) AS both FROM weights "
        "WHERE component = 'o' GROUP BY step ORDER BY step"
    )
    for step, found in statements.query(connection, query).fetchall():
        wanted = np.concatenate([weight(step, layer, "o") for layer in (0, 1)], axis=1)
        assert found["shape"] == list(wanted.shape)
        np.testing.assert_array_equal(found["value"], wanted.ravel())
    query = "SELECT count(*), count(r) FROM (SELECT reshape(tensor, [-1]) AS r FROM weights)"
    assert statements.query(connection, query).fetchall() == [(16, 16)]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many rows each Python function was called for."""
    counted: Counter[str] = Counter()
    real = bridge.apply

    def counting(name: str, function: Any, rows: Any) -> list[Any]:
        found = real(name, function, rows)
        counted[name] += len(found)
        return found

    monkeypatch.setattr(bridge, "apply", counting)
    return counted


def test_a_component_is_computed_once_a_row(
    connection: duckdb.DuckDBPyConnection, calls: Counter[str]
) -> None:
    """However many metrics take it, each of which needs its shape and its values."""
    circuit = f"ov_circuit(a.tensor, b.tensor, {N_HEADS}, {N_KV_HEADS}, 0)"
    query = joined("v", "o", f"per({circuit}), gini({circuit}), condition_number({circuit})")
    statements.query(connection, query).fetchall()
    names = ("ov_circuit", "spectrum", "per", "gini", "condition_number")
    assert calls == dict.fromkeys(names, 1)


def test_shaping_of_null(connection: duckdb.DuckDBPyConnection) -> None:
    query = f"SELECT reshape(NULL, [1]), reshape({TWO}, NULL), concat_tensors({TWO}, NULL, 0)"
    query += f", concat_tensors([{TWO}, NULL]), concat_tensors(NULL::{bridge.TENSOR}[], 0)"
    assert statements.query(connection, query).fetchall() == [(None,) * 5]


def test_null_gives_null(connection: duckdb.DuckDBPyConnection) -> None:
    query = "SELECT ov_circuit(NULL, NULL, 2, 1, 0), ov_spectra(NULL, NULL, 2, 1)"
    assert statements.query(connection, query).fetchall() == [(None, None)]


def test_what_does_not_fit_is_one_line(connection: duckdb.DuckDBPyConnection) -> None:
    query = joined("v", "o", "ov_circuit(a.tensor, b.tensor, 4, 2, 4)")
    with pytest.raises(QueryError, match="there is no head 4; heads are 0 to 3") as caught:
        statements.fetch(statements.query(connection, query))
    assert "\n" not in str(caught.value)


def one(connection: duckdb.DuckDBPyConnection, sql: str) -> Any:
    """The one answer to an expression over two weights, `a` of step 0 and `b` of step 5."""
    rows = statements.query(
        connection,
        f"SELECT {sql} FROM weights a JOIN weights b ON b.name = a.name AND b.step = 5 "
        "WHERE a.step = 0 AND a.name = 'layers.1.q'",
    ).fetchall()
    return rows[0][0]


def array(tensor: dict[str, Any]) -> np.ndarray:
    return np.asarray(tensor["value"], np.float32).reshape(tensor["shape"])


A, B = weight(0, 1, "q"), weight(5, 1, "q")


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("head(a.tensor, 1, 3)", A[3:6]),
        ("head(a.tensor, 1, 5, 1)", A[:, 5:]),
        ("rows(a.tensor, 2, 4)", A[2:4]),
        ("cols(a.tensor, 0, 1)", A[:, :1]),
        ("transpose(a.tensor)", A.T),
        ("matmul(a.tensor, transpose(b.tensor))", A @ B.T),
        ("t_add(a.tensor, b.tensor)", A + B),
        ("t_sub(a.tensor, b.tensor)", A - B),
        ("t_mul(a.tensor, 0.5)", A / 2),
        ("t_div(a.tensor, 4)", A / 4),
        ("t_sqrt(t_mul(a.tensor, a.tensor))", np.abs(A)),
        ("tensor_mean(a.tensor, b.tensor)", (A + B) / 2),
        ("tensor_mean([a.tensor, b.tensor, a.tensor])", (2 * A + B) / 3),
        ("fold_norm(a.tensor, rows(reshape(b.tensor, [-1]), 0, 10))", A * B.reshape(-1)[:10]),
    ],
)
def test_tensors_are_computed_with(
    connection: duckdb.DuckDBPyConnection, sql: str, expected: np.ndarray
) -> None:
    found = array(one(connection, sql))
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "sql",
    [
        "head(a.tensor, 1, 3)",
        "rows(a.tensor, 2, 4)",
        "cols(a.tensor, 0, 1)",
        "transpose(a.tensor)",
        "t_add(a.tensor, b.tensor)",
        "t_mul(a.tensor, 0.5)",
        "t_sqrt(a.tensor)",
        "tensor_mean(a.tensor, b.tensor)",
        "tensor_mean([a.tensor, b.tensor])",
    ],
)
def test_an_expression_calls_its_function_once_a_row(
    connection: duckdb.DuckDBPyConnection, calls: Counter[str], sql: str
) -> None:
    one(connection, sql)
    assert len(calls) == 1 and set(calls.values()) == {1}
    calls.clear()
    one(connection, f"(gini({sql}), per({sql}), row_norms({sql}))")
    assert set(calls.values()) == {1}, calls


def test_norms_and_numbers_are_lists_and_numbers(connection: duckdb.DuckDBPyConnection) -> None:
    np.testing.assert_allclose(
        one(connection, "row_norms(a.tensor)"), np.linalg.norm(A, axis=1), rtol=1e-6
    )
    np.testing.assert_allclose(
        one(connection, "col_norms(a.tensor)"), np.linalg.norm(A, axis=0), rtol=1e-6
    )
    expected = metrics.induction_score(A, B[:, :5], 2, 1, 0)
    sql = "induction_score(a.tensor, cols(b.tensor, 0, 5), 2, 1, 0)"
    assert one(connection, sql) == pytest.approx(expected, rel=1e-6)
    expected = metrics.attention_entropy(A, B, 2, 2, 1, n_positions=4)
    sql = "attention_entropy(a.tensor, b.tensor, 2, 2, 1, 4)"
    assert one(connection, sql) == pytest.approx(expected, rel=1e-6)
    assert one(connection, "head(NULL, 1, 3)") is None
    assert one(connection, "t_mul(a.tensor, NULL::DOUBLE)") is None
    assert one(connection, "per(t_sub(a.tensor, b.tensor))") == pytest.approx(
        metrics.per(A - B), rel=1e-5
    )


def test_what_does_not_fit_is_said(connection: duckdb.DuckDBPyConnection) -> None:
    for sql, message in {
        "head(a.tensor, 4, 3)": "no head 4; heads are 0 to 3",
        "matmul(a.tensor, b.tensor)": "have no product",
        "tensor_mean([a.tensor, transpose(b.tensor)])": "tensors of one shape",
    }.items():
        with pytest.raises((QueryError, duckdb.Error), match=message):
            one(connection, sql)
