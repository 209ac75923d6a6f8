"""Polars expressions: the numbers and edges of SQL, lazily, over the tensors of a lake."""

from __future__ import annotations

import math

import numpy as np
import polars as pl
import pytest

from pico import metrics
from pico.errors import MetricError
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from pico.metrics import registry
from pico.sql import frames, session, statements
from tests.sql import small_lake as lake

SINGLE = [*registry.names("tensor"), *registry.names("spectrum")]
PAIRS = registry.names("pair")
TENSOR = pl.Struct({"shape": pl.List(pl.Int32), "value": pl.List(pl.Float32)})


def frame(*arrays: np.ndarray | None, name: str = "tensor") -> pl.DataFrame:
    rows = [
        None if a is None else {"shape": list(a.shape), "value": a.ravel().tolist()} for a in arrays
    ]
    return pl.DataFrame({name: rows}, schema={name: TENSOR})


@pytest.mark.parametrize("name", SINGLE)
def test_equals_sql_over_a_lake(local_lake: Storage, name: str) -> None:
    snapshot = Snapshot.take(local_lake)
    connection = session.connect(snapshot)
    query = f"SELECT run, step, name, {name}(tensor) FROM weights ORDER BY ALL"
    wanted = statements.query(connection, query).fetchall()
    connection.close()
    column = getattr(pl.col("tensor").tensor, name)()
    found = (
        frames.scan(snapshot, "weights")
        .select("run", "step", "name", column.alias("metric"))
        .sort("run", "step", "name")
        .collect()
    )
    assert found.schema["metric"] == pl.Float64
    assert [row[:3] for row in found.rows()] == [row[:3] for row in wanted]
    for row, other in zip(found.rows(), wanted, strict=True):
        assert (row[3] is None) == (other[3] is None)
        assert row[3] is None or row[3] == pytest.approx(other[3], rel=1e-12, nan_ok=True)


@pytest.mark.parametrize("name", PAIRS)
def test_pairs(name: str) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((40, 12)).astype(np.float32) for _ in range(4)]
    both = frame(arrays[0], arrays[1], None).hstack(
        frame(arrays[2], arrays[3], arrays[0], name="other")
    )
    expression = getattr(pl.col("tensor").tensor, name)("other")
    found = both.lazy().select(expression).collect().to_series().to_list()
    function = getattr(metrics, name)
    assert found == [function(arrays[0], arrays[2]), function(arrays[1], arrays[3]), None]
    same = both.select(getattr(pl.col("tensor").tensor, name)(pl.col("other"))).to_series()
    assert same.to_list() == found


def test_arguments_of_pairs() -> None:
    x, y = np.eye(4, dtype=np.float32), np.diag([1.0, 2.0, 3.0, 4.0]).astype(np.float32)
    both = frame(x).hstack(frame(y, name="other"))
    column = pl.col("tensor").tensor.subspace_overlap("other", k=2)
    assert both.select(column).item() == metrics.subspace_overlap(x, y, k=2)
    with pytest.raises(MetricError, match=r"has no argument 'kk'\. Did you mean 'k'"):
        pl.col("tensor").tensor.subspace_overlap("other", kk=2)


def test_components() -> None:
    rng = np.random.default_rng(0)
    v, o = rng.standard_normal((4, 10)), rng.standard_normal((10, 8))
    v, o = v.astype(np.float32), o.astype(np.float32)
    both = frame(v, None).hstack(frame(o, o, name="o"))
    tensor = pl.col("tensor").tensor
    found = both.lazy().select(
        circuit=tensor.ov_circuit("o", 4, 2, head=1),
        spectrum=tensor.ov_spectrum(o="o", n_heads=4, n_kv_heads=2, head=1),
        spectra=tensor.ov_spectra(pl.col("o"), 4, 2),
        norm=tensor.ov_circuit("o", 4, 2, 1).tensor.frobenius_norm(),
        flat=tensor.reshape([-1]),
        twice=tensor.concat_tensors("tensor"),
    )
    schema, found = found.collect_schema(), found.collect()
    assert found.schema == schema
    circuit = metrics.ov_circuit(v, o, 4, 2, 1)
    assert found["circuit"][0]["shape"] == [10, 10]
    np.testing.assert_array_equal(found["circuit"][0]["value"], circuit.astype(np.float32).ravel())
    np.testing.assert_array_equal(found["spectrum"][0], metrics.ov_spectrum(v, o, 4, 2, 1))
    np.testing.assert_array_equal(found["spectra"][0].to_list(), metrics.ov_spectra(v, o, 4, 2))
    assert found["norm"][0] == pytest.approx(np.linalg.norm(circuit), rel=1e-6)
    assert found["flat"][0]["shape"] == [40]
    assert found["twice"][0]["shape"] == [8, 10]
    assert found.row(1) == (None,) * 6


def test_components_say_what_they_lack() -> None:
    tensor = pl.col("tensor").tensor
    with pytest.raises(MetricError, match="ov_circuit needs the columns of o too"):
        tensor.ov_circuit(n_heads=4)
    with pytest.raises(MetricError, match="ov_circuit needs the argument 'head' too"):
        tensor.ov_circuit("o", 4, 2)
    with pytest.raises(MetricError, match=r"no argument 'haed' .*Did you mean 'head'"):
        tensor.ov_circuit("o", 4, 2, haed=0)
    with pytest.raises(MetricError, match="has no argument 'head' beside those given"):
        tensor.ov_circuit("o", 4, 2, 1, head=0)
    with pytest.raises(MetricError, match=r"has no argument number 2 .* It takes: shape"):
        tensor.reshape([1], 3)


def test_null_vectors_and_empty_tensors() -> None:
    found = frame(None, np.ones(3, np.float32), np.zeros((0, 2), np.float32)).select(
        gini=pl.col("tensor").tensor.gini(),
        per=pl.col("tensor").tensor.per(),
        spectrum=pl.col("tensor").tensor.spectrum(),
        several=pl.col("tensor").tensor.compute("per", "l1_norm"),
    )
    assert found["gini"].to_list()[:2] == [None, 0.0] and math.isnan(found["gini"][2])
    assert found["per"].to_list()[:2] == [None, None] and math.isnan(found["per"][2])
    assert found["spectrum"].to_list() == [None, None, []]
    assert found["several"][1] == {"per": None, "l1_norm": 3.0}


def test_a_frame_without_rows_keeps_the_types() -> None:
    empty = frame().lazy().select(pl.col("tensor").tensor.compute("per", "gini"))
    assert empty.collect().schema["tensor"] == pl.Struct({"per": pl.Float64, "gini": pl.Float64})
    assert empty.collect().height == 0


def test_several_share_one_spectrum(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = registry.spectra
    monkeypatch.setattr(registry, "spectra", lambda tensors: calls.extend(tensors) or real(tensors))
    two = frame(np.eye(3, dtype=np.float32), np.ones((2, 2), np.float32))
    found = two.select(pl.col("tensor").tensor.compute(*registry.names("spectrum")))
    assert len(calls) == 2
    assert found.unnest("tensor")["nuclear_norm"].to_list() == pytest.approx([3.0, 2.0])


def test_filters_and_groups_stay_lazy(local_lake: Storage) -> None:
    found = (
        frames.scan(Snapshot.take(local_lake), "weights", runs=["first"])
        .filter(pl.col("component") == "o")
        .group_by("step")
        .agg(pl.col("tensor").tensor.gini().mean().alias("gini"))
        .sort("step")
        .collect()
    )
    names = [name for name, _, component, _ in lake.WEIGHTS if component == "o"]
    for step, value in found.rows():
        wanted = [metrics.gini(lake.weight("first", step, name)) for name in names]
        assert value == pytest.approx(np.mean(wanted), rel=1e-12)


def test_mistakes_are_told() -> None:
    with pytest.raises(AttributeError, match=r"no metric 'perr'\. Did you mean 'per'"):
        pl.col("tensor").tensor.perr()
    with pytest.raises(MetricError, match=r"compares two tensors: \.tensor\.cka\(other\)"):
        pl.col("tensor").tensor.compute("gini", "cka")
    with pytest.raises(MetricError, match="no metric 'ginni'"):
        pl.col("tensor").tensor.compute("ginni")
    with pytest.raises(MetricError, match="holds Int64, not tensors"):
        pl.DataFrame({"x": [1, 2]}).select(pl.col("x").tensor.gini())
    assert {"per", "cka", "spectrum", "compute"} <= set(dir(pl.col("tensor").tensor))
