"""SQL functions: equal to `pico.metrics`, defined for every odd tensor, one UDF call a row."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

import duckdb
import numpy as np
import pytest

from pico import metrics
from pico.errors import QueryError
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from pico.metrics import registry
from pico.sql import bridge, circuits, functions, session, statements, text
from tests.sql import small_lake as lake

SPECTRAL = registry.names("spectrum")
OF_TENSOR = registry.names("tensor")
OF_MATRICES = {name for name in registry.names() if registry.get(name).needs_matrix}
PAIRS = registry.names("pair")
CASES: dict[str, Any] = {
    "ordinary": np.arange(12, dtype=np.float32).reshape(3, 4),
    "zeros": np.zeros((3, 3), np.float32),
    "nan": np.asarray([[1.0, math.nan], [2.0, 3.0]], np.float32),
    "inf": np.asarray([[1.0, math.inf], [2.0, 3.0]], np.float32),
    "no rows": np.zeros((0, 4), np.float32),
    "one row": np.asarray([[1.0, 2.0, 3.0]], np.float32),
    "three dimensions": np.arange(24, dtype=np.float32).reshape(2, 3, 4),
    "vector": np.asarray([1.0, -2.0, 0.0], np.float32),
    "empty vector": np.zeros((0,), np.float32),
    "scalar": np.asarray(2.5, np.float32),
    "rank deficient": np.ones((4, 4), np.float32),
}


@pytest.fixture(scope="module")
def local(local_lake: Storage) -> Iterator[duckdb.DuckDBPyConnection]:
    found = session.connect(Snapshot.take(local_lake))
    yield found
    found.close()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the rows for which each metric is called from SQL."""
    counted: Counter[str] = Counter()
    real = bridge.apply

    def counting(name: str, function: Any, rows: Any) -> list[Any]:
        found = real(name, function, rows)
        counted[name] += len(found)
        return found

    monkeypatch.setattr(bridge, "apply", counting)
    return counted


def ask(connection: duckdb.DuckDBPyConnection, sql: str, *values: Any) -> Any:
    return connection.execute(sql, list(values)).fetchall()


def struct(tensor: np.ndarray[Any, Any]) -> dict[str, Any]:
    return {"shape": list(tensor.shape), "value": tensor.reshape(-1).tolist()}


def same(found: float | None, wanted: float) -> bool:
    return found is not None and bool(
        np.isclose(found, wanted, rtol=1e-9, atol=1e-12, equal_nan=True)
    )


@pytest.mark.parametrize("name", OF_TENSOR + SPECTRAL)
def test_stored_tensors_give_the_value_of_pico_metrics(
    local: duckdb.DuckDBPyConnection, name: str
) -> None:
    rows = ask(local, f"SELECT run, step, name, len(shape), {name}(tensor) FROM weights")
    assert len(rows) == len(lake.RUNS) * len(lake.STEPS) * len(lake.WEIGHTS)
    for run, step, tensor, n_dims, found in rows:
        if name in OF_MATRICES and n_dims < 2:
            assert found is None
        else:
            assert same(found, getattr(metrics, name)(lake.weight(run, step, tensor)))


@pytest.mark.parametrize("name", OF_TENSOR + SPECTRAL)
@pytest.mark.parametrize("case", CASES)
def test_odd_tensors(local: duckdb.DuckDBPyConnection, name: str, case: str) -> None:
    tensor = CASES[case]
    sql = f"SELECT {name}(CAST(? AS {bridge.TENSOR}))"
    ((found,),) = ask(local, sql, struct(tensor))
    if name in OF_MATRICES and tensor.ndim < 2:
        assert found is None
    else:
        assert same(found, getattr(metrics, name)(tensor))


@pytest.mark.parametrize("name", [*OF_TENSOR, *SPECTRAL, "spectrum"])
def test_null_gives_null(local: duckdb.DuckDBPyConnection, name: str) -> None:
    for kind in (bridge.TENSOR, bridge.VECTOR, bridge.MATRIX):
        assert ask(local, f"SELECT {name}(CAST(NULL AS {kind}))") == [(None,)]
    for partial in ({"shape": None, "value": [1.0]}, {"shape": [1], "value": None}):
        assert ask(local, f"SELECT {name}(CAST(? AS {bridge.TENSOR}))", partial) == [(None,)]


@pytest.mark.parametrize("name", [name for name in OF_TENSOR if name not in OF_MATRICES])
def test_a_list_is_a_vector_in_float64(local: duckdb.DuckDBPyConnection, name: str) -> None:
    values = [0.1, 0.7, 1e-9, 3.0]
    ((found,),) = ask(local, f"SELECT {name}(?::DOUBLE[])", values)
    assert found == getattr(metrics, name)(np.asarray(values))
    assert ask(local, f"SELECT {name}([1, 2, 3])") == ask(local, f"SELECT {name}([1.0, 2, 3])")


@pytest.mark.parametrize("name", OF_TENSOR + SPECTRAL)
def test_a_list_of_lists_is_a_matrix_in_float64(
    local: duckdb.DuckDBPyConnection, name: str
) -> None:
    values = [[0.1, 0.7, 3.0], [1.0, 1e-9, 2.0]]
    ((found,),) = ask(local, f"SELECT {name}(?::DOUBLE[][])", values)
    assert found == pytest.approx(getattr(metrics, name)(np.asarray(values)), rel=1e-12)


@pytest.mark.parametrize("name", SPECTRAL)
def test_spectral_metrics_take_a_list_for_the_singular_values(
    local: duckdb.DuckDBPyConnection, name: str
) -> None:
    values = [0.5, 3.0, 1.0]  # in any order
    ((found,),) = ask(local, f"SELECT {name}(?::DOUBLE[])", values)
    assert found == pytest.approx(getattr(metrics, name)(np.diag(values)), rel=1e-12)
    assert ask(local, f"SELECT {name}([1.0, -2.0])") == [(None,)]
    ((damaged,),) = ask(local, f"SELECT {name}([1.0, NULL])")
    assert math.isnan(damaged)
    assert ask(local, "SELECT spectrum([1.0, 2.0])") == [(None,)]


def test_the_precision_of_the_source_decides_when_a_condition_number_is_infinite(
    local: duckdb.DuckDBPyConnection,
) -> None:
    matrix = [[1.0, 0.0], [0.0, 1e-10]]
    assert ask(local, "SELECT condition_number(?::DOUBLE[][])", matrix) == [(pytest.approx(1e10),)]
    stored = struct(np.asarray(matrix))
    assert ask(local, f"SELECT condition_number(CAST(? AS {bridge.TENSOR}))", stored) == [
        (math.inf,)
    ]


def test_a_null_element_counts_as_nan(local: duckdb.DuckDBPyConnection) -> None:
    ((found,),) = ask(local, "SELECT l1_norm([1.0, NULL])")
    assert math.isnan(found)


def test_spectrum_is_descending(local: duckdb.DuckDBPyConnection) -> None:
    rows = ask(local, "SELECT run, step, name, spectrum(tensor) FROM weights WHERE len(shape) = 2")
    for run, step, name, found in rows:
        np.testing.assert_allclose(
            found, np.linalg.svd(lake.weight(run, step, name), compute_uv=False), rtol=1e-5
        )
    assert ask(local, "SELECT spectrum([[3, 0], [0, 4]])") == [([4.0, 3.0],)]


def test_cka_of_a_join(local: duckdb.DuckDBPyConnection) -> None:
    rows = ask(
        local,
        "SELECT a.run, a.step, a.name, cka(a.tensor, b.tensor) FROM activations a "
        "JOIN activations b USING (run, name) WHERE b.step = 5",
    )
    assert len(rows) == len(lake.RUNS) * len(lake.STEPS) * len(lake.SITES)
    for run, step, name, found in rows:
        x, y = lake.activation(run, step, name), lake.activation(run, 5, name)
        assert same(found, metrics.cka(x, y))
        assert step != 5 or found == pytest.approx(1.0)


def test_cka_of_lists_vectors_and_null(local: duckdb.DuckDBPyConnection) -> None:
    x, y = [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]], [[0.0, 3.0], [3.0, 0.0], [0.0, 0.0]]
    assert ask(local, "SELECT cka(?::DOUBLE[][], ?::DOUBLE[][])", x, y) == [(1.0,)]
    assert ask(local, "SELECT cka(?::DOUBLE[][], NULL)", x) == [(None,)]
    vector = struct(np.ones(3))
    sql = f"SELECT cka(CAST(? AS {bridge.TENSOR}), CAST(? AS {bridge.TENSOR}))"
    assert ask(local, sql, vector, vector) == [(None,)]
    assert ask(local, sql, struct(np.asarray(x)), None) == [(None,)]


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT cka([[1.0], [2.0]], [[1.0]])", "x has 2 samples and y has 1"),
        ("SELECT gini([[1.0, 2.0], [3.0]])", "equal length"),
        ("SELECT per([[1.0, 2.0], NULL])", "equal length"),
        ("SELECT gini({'shape': [3], 'value': [1.0, 2.0]})", "2 values cannot fill"),
        ("SELECT gini('text')", "does not support the supplied arguments"),
    ],
)
def test_what_a_metric_refuses_is_one_line(
    local: duckdb.DuckDBPyConnection, sql: str, message: str
) -> None:
    with pytest.raises(QueryError, match=message) as caught:
        statements.fetch(statements.query(local, sql))
    assert "\n" not in str(caught.value)
    assert "Python exception" not in str(caught.value)


@pytest.mark.parametrize("name", [*OF_TENSOR, *SPECTRAL, "spectrum"])
def test_a_macro_calls_each_udf_once_a_row(
    local: duckdb.DuckDBPyConnection, calls: Counter[str], name: str
) -> None:
    rows = ask(local, f"SELECT {name}(tensor) FROM weights")
    wanted = {name: len(rows)} | ({"spectrum": len(rows)} if name in SPECTRAL else {})
    assert calls == wanted
    calls.clear()
    ask(local, f"SELECT {name}([[1.0, 2.0], [3.0, 4.0 + i]]) FROM range(5) r(i)")
    assert set(calls.values()) == {5}
    calls.clear()
    ask(local, f"SELECT step, {name}(tensor) AS found FROM gradients WHERE step = 2 ORDER BY step")
    assert set(calls.values()) == {16}


@pytest.mark.parametrize("name", PAIRS)
def test_a_macro_of_a_pair_calls_its_udf_once_a_row(
    local: duckdb.DuckDBPyConnection, calls: Counter[str], name: str
) -> None:
    sql = f"SELECT {name}(a.tensor, b.tensor) FROM activations a JOIN activations b USING (name)"
    rows = ask(local, sql)
    assert calls == {name: len(rows)}
    calls.clear()
    ask(local, f"SELECT {name}([[1.0], [2.0 + i]], [[1.0], [2.0]]) FROM range(5) r(i)")
    assert calls == {name: 5}


def test_all_spectral_metrics_of_a_select_share_one_spectrum(
    local: duckdb.DuckDBPyConnection, calls: Counter[str]
) -> None:
    every = ", ".join(f"{name}(tensor)" for name in (*SPECTRAL, "spectrum"))
    rows = ask(local, f"SELECT {every} FROM weights ORDER BY run, step, name")
    assert calls == dict.fromkeys((*SPECTRAL, "spectrum"), len(rows))


def test_arguments_of_pairs_have_defaults(local: duckdb.DuckDBPyConnection) -> None:
    x, y = "[[2, 0], [0, 1], [1, 1]]", "[[1, 1], [0, 2], [3, 0]]"
    call = f"subspace_overlap({x}, {y}"
    ((one, two, none),) = ask(local, f"SELECT {call}, 1), {call}, k := 2), {call})")
    arrays = [np.array(json.loads(text), dtype=float) for text in (x, y)]
    assert one == metrics.subspace_overlap(*arrays, k=1)
    assert two == metrics.subspace_overlap(*arrays, k=2)
    assert np.isnan(none)
    assert ask(local, f"SELECT {call}, NULL)") == [(None,)]
    row = next(row for row in functions.functions() if row["name"] == "subspace_overlap")
    assert row["signature"] == "subspace_overlap(x, y, k = 8) -> DOUBLE"


def test_metrics_compose(local: duckdb.DuckDBPyConnection, calls: Counter[str]) -> None:
    ((found,),) = ask(local, "SELECT gini(spectrum([[3, 0], [0, 4]]))")
    assert found == metrics.gini([3.0, 4.0])
    assert calls == {"gini": 1, "spectrum": 1}


def test_every_metric_is_a_public_function_and_shadows_none(
    local: duckdb.DuckDBPyConnection,
) -> None:
    names = {row["name"] for row in functions.functions()}
    assert names == {*registry.names(), "spectrum", *circuits.functions(), *text.functions()}
    built_in = duckdb.connect().execute("SELECT DISTINCT function_name FROM duckdb_functions()")
    assert not names & {row[0] for row in built_in.fetchall()}
    added = ask(local, "SELECT DISTINCT function_name FROM duckdb_functions()")
    assert names <= {row[0] for row in added}


def test_udfs_have_private_names_and_no_side_effects(local: duckdb.DuckDBPyConnection) -> None:
    rows = ask(
        local,
        "SELECT function_name, has_side_effects, stability FROM duckdb_functions() "
        "WHERE starts_with(function_name, '_pico_')",
    )
    assert len(rows) == len({row[0] for row in rows}) >= 3 * len(OF_TENSOR) + len(SPECTRAL)
    assert not any(row[1] for row in rows)


def test_signatures_and_summaries() -> None:
    for row in functions.functions():
        assert row["signature"].startswith(f"{row['name']}(")
        assert row["summary"].endswith(".")
