"""`lake.metrics`: the kept values as a frame to plot from, long and wide."""

from __future__ import annotations

import datetime
import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pico import schema
from pico.api import Lake
from pico.errors import MetricError, QueryError, RunNameError, SchemaError
from pico.lake.commit import Stream
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from pico.lake.table import write_rows
from pico.sql import tidy
from tests.sql.small_lake import STEPS, WEIGHTS, weight

COLUMNS = [*tidy.KEYS, "metric", "args", "value"]
DEFAULTS = {"table_name": "weights", "metric": "gini", "tensor_hash": "h", "metric_version": 1}


def keep(storage: Storage, rows: list[dict[str, Any]], run: str = "first") -> None:
    """Write rows of the table `metrics`, as any writer of derived rows may."""
    filled = [{"run_id": run, **DEFAULTS, **row} for row in rows]
    names = [n for n in schema.table("metrics").column_names if any(n in row for row in filled)]
    batch = schema.table("metrics").batch({n: [row.get(n) for row in filled] for n in names})
    with Stream(storage, f"derive.{run}.metrics") as stream:
        transaction = stream.begin()
        write_rows(transaction, "metrics", {"run": run}, batch)
        transaction.commit()


def keep_about_run(storage: Storage, table: str, columns: dict[str, list[Any]]) -> None:
    with Stream(storage, "derive.first.told") as stream:
        transaction = stream.begin()
        n_rows = len(next(iter(columns.values())))
        batch = schema.table(table).batch({"run_id": ["first"] * n_rows, **columns})
        write_rows(transaction, table, {"run": "first"}, batch)
        transaction.commit()


@pytest.fixture
def computed(new_lake: Callable[..., Storage]) -> Lake:
    """A lake of two runs, with two metrics of the weights of the first."""
    lake = Lake(new_lake("lake", "first", "second").url)
    lake.compute_metrics(["frobenius_norm", "gini"], run="first")
    return lake


def test_the_columns_and_the_order(computed: Lake) -> None:
    found = computed.metrics()
    assert found.columns == COLUMNS
    assert found.height == len(STEPS) * len(WEIGHTS) * 2
    assert found["step"].is_sorted()
    first = found.filter(pl.col("step") == 0)
    assert first["layer"].to_list() == [0, 0, 1, 1, None, None, None, None]
    assert first["metric"].to_list() == ["frobenius_norm", "gini"] * len(WEIGHTS)
    assert found.schema["value"] == pl.Float64
    assert (found.schema["step"], found.schema["tokens"]) == (pl.Int64, pl.Int64)


def test_values_by_hand(computed: Lake) -> None:
    """The last norm is the vector 1, 2, 3, 4 at every step: norm √30, Gini 1/4."""
    found = computed.metrics(components="norm.final")
    assert found["value"].to_list() == [pytest.approx(math.sqrt(30)), pytest.approx(0.25)] * 3
    found = computed.metrics("frobenius_norm", "first", layers=[0, 1])
    expected = [
        float(np.linalg.norm(weight("first", step, f"layers.{layer}.attention.o_proj.weight")))
        for step in STEPS
        for layer in (0, 1)
    ]
    assert found["value"].to_list() == pytest.approx(expected, rel=1e-6)
    assert found["step"].to_list() == [0, 0, 2, 2, 5, 5]


def test_what_was_asked_for_and_no_more(computed: Lake) -> None:
    assert set(computed.metrics("gini")["metric"]) == {"gini"}
    assert computed.metrics(steps=[2, 5])["step"].unique().sort().to_list() == [2, 5]
    assert computed.metrics(steps=2)["step"].unique().to_list() == [2]
    assert computed.metrics(layers=1)["layer"].unique().to_list() == [1]
    assert set(computed.metrics(layers=[1, None])["layer"]) == {1, None}
    assert set(computed.metrics(components=["o", "embed"])["component"]) == {"o", "embed"}
    assert computed.metrics(table="weights").height == computed.metrics().height
    # what was computed, only not of these steps or layers, is an empty frame of the same columns
    for nothing in (computed.metrics(steps=3), computed.metrics(layers=7)):
        assert nothing.schema == computed.metrics().schema and nothing.is_empty()
    assert computed.metrics("gini", steps=3, wide=True).columns == [*tidy.KEYS, "gini"]


@pytest.mark.parametrize(
    ("asked", "error", "message"),
    [
        (("ginni",), MetricError, r"no metric 'ginni'\. Did you mean 'gini'\? List them: pico"),
        (("gini", "frist"), RunNameError, "no run 'frist' in .* Did you mean 'first'"),
        (
            ("gini", ["first", "second"]),
            MetricError,
            "the lake keeps no gini of run 'second'; compute them: "
            "pico metrics compute --run second --metrics gini$",
        ),
        (
            (["gini", "per"],),
            MetricError,
            "the lake keeps no per; compute them: pico metrics compute --metrics per$",
        ),
        (
            ("cka", "first"),
            MetricError,
            "no cka of run 'first'; compute .* --run first --metrics cka --reference-step last$",
        ),
        (
            (None, "second"),
            MetricError,
            "keeps no metrics of run 'second'; compute them: pico metrics compute --run second$",
        ),
    ],
)
def test_what_is_not_kept_is_an_error_with_the_way_out(
    computed: Lake, asked: tuple[Any, ...], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        computed.metrics(*asked)
    assert "\n" not in str(caught.value)


def test_unknown_tables_and_components(computed: Lake) -> None:
    with pytest.raises(SchemaError, match=r"no tensor table 'weigths'\. Did you mean 'weights'\?"):
        computed.metrics(table="weigths")
    with pytest.raises(SchemaError, match="no tensor table 'scalars'"):
        computed.metrics(table="scalars")
    with pytest.raises(MetricError, match=r"keeps no metrics of gradients; .* --table gradients$"):
        computed.metrics(table="gradients")
    wrong = r"no metrics of component 'emb' are kept. Did you mean 'embed'\? There are: embed, norm"
    with pytest.raises(MetricError, match=wrong):
        computed.metrics(components="emb")
    assert computed.metrics("gini", components=["o", "emb"]).height == 6


def test_a_lake_without_any_metric_says_how_to_have_some(new_lake: Callable[..., Storage]) -> None:
    lake = Lake(new_lake().url)
    with pytest.raises(MetricError, match=r"keeps no metrics; compute them: pico metrics compute$"):
        lake.metrics()
    assert lake.metrics("gini", compute=True).height == len(STEPS) * len(WEIGHTS)
    found = lake.metrics(["gini"], ["first"], table="gradients", compute=True, wide=True)
    assert found.height == len(STEPS) * len(WEIGHTS) * 2
    assert set(found["stage"]) == {"raw", "clipped"}


def test_without_tensors_there_is_nothing_to_compute(new_lake: Callable[..., Storage]) -> None:
    storage = new_lake()
    keep(storage, [{"name": "w", "global_step": 0, "value": 1.0}], "measured")
    lake = Lake(storage.url)
    message = (
        r"keeps no per of run 'measured', and no tensors to compute them from; ask for them in"
    )
    for compute in (False, True):
        with pytest.raises(MetricError, match=message):
            lake.metrics(["gini", "per"], "measured", compute=compute)
    with pytest.raises(MetricError, match="no metrics of optimizer, and no tensors to"):
        lake.metrics(table="optimizer")
    assert lake.metrics("gini", "measured").height == 1


def test_wide_has_a_column_per_metric(computed: Lake) -> None:
    long, wide = computed.metrics(), computed.metrics(wide=True)
    assert wide.columns == [*tidy.KEYS, "frobenius_norm", "gini"]
    assert wide.height == long.height / 2
    named = computed.metrics(["gini", "frobenius_norm"], wide=True)
    assert named.columns == [*tidy.KEYS, "gini", "frobenius_norm"]
    for name in ("frobenius_norm", "gini"):
        of_name = long.filter(pl.col("metric") == name)
        expected = of_name.select(*tidy.KEYS, pl.col("value").alias(name))
        assert wide.select(*tidy.KEYS, name).equals(expected)


def test_heads_references_and_arguments(new_lake: Callable[..., Storage]) -> None:
    storage = new_lake()
    ov = {"name": "layers.3.attention.ov_circuit", "component": "ov_circuit", "layer": 3}
    of_o = {"name": "o", "component": "o", "layer": 0, "ref_step": 5}
    keep(
        storage,
        [
            *({"global_step": 0, **ov, "head": h, "value": 1.0 + h} for h in (0, 1)),
            {"global_step": 0, **of_o, "metric": "cka", "value": 0.5},
            {"global_step": 0, **of_o, "metric": "cka", "ref_run": "second", "value": 0.25},
            *(
                {"global_step": 0, **of_o, "metric": "subspace_overlap", "args": a, "value": v}
                for a, v in ((None, 0.1), ('{"k": 4}', 0.2))
            ),
        ],
    )
    lake = Lake(storage.url)
    long = lake.metrics()
    assert long.height == 6
    wide = lake.metrics(wide=True)
    assert wide.columns[-4:] == ["cka", "gini", "subspace_overlap", "subspace_overlap(k=4)"]
    shown = wide.select("head", "ref_run", *wide.columns[-4:]).rows()
    assert shown == [
        (None, "second", 0.25, None, None, None),
        (None, None, 0.5, None, 0.1, 0.2),
        (0, None, None, 1.0, None, None),
        (1, None, None, 2.0, None, None),
    ]
    named = lake.metrics(["subspace_overlap", "cka"], wide=True)
    assert named.columns[-3:] == ["subspace_overlap", "subspace_overlap(k=4)", "cka"]


def test_the_latest_version_only(new_lake: Callable[..., Storage]) -> None:
    storage = new_lake()
    row = {"name": "w", "value": 1.0}
    keep(storage, [{**row, "global_step": step} for step in (0, 1)])
    keep(storage, [{**row, "global_step": 1, "metric_version": 2, "value": 7.0}])
    keep(storage, [{**row, "global_step": 0, "metric": "per", "value": 3.0}])
    found = Lake(storage.url).metrics()
    assert found.select("step", "metric", "value").rows() == [(0, "per", 3.0), (1, "gini", 7.0)]


def test_one_value_once(new_lake: Callable[..., Storage]) -> None:
    """The same value from two writers is one row; two values for one thing are refused."""
    storage = new_lake()
    row = {"name": "w", "global_step": 0, "value": 1.0}
    keep(storage, [row])
    keep(storage, [row])
    assert Lake(storage.url).metrics().height == 1
    keep(storage, [{**row, "tensor_hash": "other", "value": 2.0}])
    with pytest.raises(QueryError, match=r"gini of 'w' at step 0 of run 'first' stands twice"):
        Lake(storage.url).metrics()


def test_tokens_come_from_checkpoints_and_else_from_the_rate(
    new_lake: Callable[..., Storage],
) -> None:
    storage = new_lake()
    keep(storage, [{"name": "w", "global_step": step, "value": 1.0} for step in (0, 2, 3)])
    lake = Lake(storage.url)
    assert lake.metrics()["tokens"].to_list() == [None, None, None]
    state = {"planned": [True] * 2, "complete": [True] * 2}
    keep_about_run(storage, "checkpoints", {"global_step": [2, 3], "tokens": [999, None], **state})
    assert lake.metrics()["tokens"].to_list() == [None, 999, None]


def test_tokens_of_a_trained_run(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path / "lake"))
    now = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    run = {"run_uuid": ["u"], "created_at": [now], "tokens_per_step": [128]}
    keep_about_run(storage, "runs", run)
    keep(storage, [{"name": "w", "global_step": step, "value": 1.0} for step in (0, 5)])
    assert Lake(storage.url).metrics()["tokens"].to_list() == [0, 640]


_numbers = itertools.count()
VALUES = st.one_of(st.floats(), st.none())
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "global_step": st.integers(0, 3),
            "name": st.sampled_from(["a", "b"]),
            "layer": st.sampled_from([None, 0]),
            "head": st.sampled_from([None, 0, 1]),
            "stage": st.sampled_from([None, "raw"]),
            "metric": st.sampled_from(["gini", "per", "cka"]),
            "args": st.sampled_from([None, '{"k": 4}']),
            "ref_step": st.sampled_from([None, 5]),
            "value": VALUES,
        }
    ),
    min_size=1,
    max_size=25,
    unique_by=lambda row: tuple(row[k] for k in sorted(row) if k not in ("value", "layer")),
)


@given(ROWS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_long_and_wide_agree(rows: list[dict[str, Any]]) -> None:
    """Unpivoting the wide frame gives the long one, for any rows."""
    layers = {"a": None, "b": 0}  # a tensor is in one layer
    rows = [{**row, "layer": layers[row["name"]]} for row in rows]
    storage = Storage(f"memory://tidy-{next(_numbers)}")
    keep(storage, rows)
    snapshot = Snapshot.take(storage)
    long, wide = tidy.metrics(snapshot), tidy.metrics(snapshot, wide=True)
    assert long.height == len(rows)
    back = wide.unpivot(index=tidy.KEYS, variable_name="label").drop_nulls("value")
    call = pl.when(pl.col("args").is_null()).then(pl.lit("")).otherwise(pl.lit("(k=4)"))
    label = pl.concat_str("metric", call)
    expected = long.with_columns(label=label).drop("metric", "args").drop_nulls("value")
    columns = [*tidy.KEYS, "label", "value"]
    assert back.select(columns).sort(columns).equals(expected.select(columns).sort(columns))
    assert wide.select(tidy.KEYS).is_unique().all()
