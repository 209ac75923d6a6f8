"""The facade: what a lake answers, on a local disk and in memory."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

import pico
from pico import config as configs
from pico import schema
from pico.data import order
from pico.errors import (
    ConfigError,
    MetricError,
    NotALakeError,
    QueryError,
    RecordError,
    RunNameError,
    SchemaError,
)
from tests.train import tiny

torch.set_num_threads(1)
TABLES = ["weights", "gradients", "activations", "optimizer", "scalars", "batches", "runs"]
TABLES += ["checkpoints", "parameters", "sequences", "vocab", "probes", "spectra", "documents"]


@pytest.fixture(scope="module", params=["local", "memory"])
def lake(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[pico.Lake]:
    folder = tmp_path_factory.mktemp("api")
    url = None if request.param == "local" else f"memory://{uuid.uuid4().hex}"
    yield pico.Lake.open(tiny.two_runs(folder, url))


def plain(frame: pl.DataFrame) -> list[Any]:
    rows = frame.sort(frame.columns[:4]).rows() if frame.width < 12 else frame.rows()
    return sorted(map(repr, rows))


@pytest.mark.parametrize("table", TABLES)
def test_a_scan_is_the_view(lake: pico.Lake, table: str) -> None:
    scanned = lake.scan(table).collect()
    asked = lake.sql(f"SELECT * FROM {table}").pl()
    assert set(scanned.columns) == set(asked.columns)
    columns = sorted(asked.columns)
    assert scanned.height == asked.height
    if table != "spectra":
        assert scanned.height > 0
    assert plain(scanned.select(columns)) == plain(asked.select(columns))


def test_a_scan_is_lazy_and_narrow(lake: pico.Lake) -> None:
    frame = lake.scan("weights", run="first", steps=[0, 5])
    assert isinstance(frame, pl.LazyFrame)
    found = frame.select("run", "step").unique().sort("step").collect()
    assert found.rows() == [("first", 0), ("first", 5)]
    assert lake.scan("scalars", run=["first", "second"]).collect()["run"].n_unique() == 2
    with pytest.raises(SchemaError, match=r"no table 'wieghts'. Did you mean 'weights'"):
        lake.scan("wieghts")


def test_sql_answers_in_every_form(lake: pico.Lake) -> None:
    answer = lake.sql("SELECT run, count(*) AS n FROM scalars GROUP BY ALL ORDER BY ALL")
    assert [run for run, _ in answer.fetchall()] == ["first", "second"]
    assert answer.pl()["run"].to_list() == answer.df()["run"].tolist() == ["first", "second"]


def test_connect(lake: pico.Lake) -> None:
    with pico.connect(lake, runs=["second"], steps=[3]) as connection:
        found = connection.execute("SELECT DISTINCT run, step FROM weights").fetchall()
        assert found == [("second", 3)]
    with pytest.raises(RunNameError, match="no run 'third'"):
        pico.connect(lake, runs=["third"])


def test_runs(lake: pico.Lake) -> None:
    first, second = lake.runs()
    assert (first["run"], second["run"]) == ("first", "second")
    assert (first["seed_init"], second["seed_init"]) == (3, 4)
    assert first["last_step"] == first["max_steps"] == 6
    assert first["checkpoints"] == 3
    assert first["dataset"] == "text"
    assert first["bytes"] > 0
    expected = lake.sql("SELECT sum(numel) FROM parameters WHERE run = 'first'").fetchall()[0][0]
    assert first["n_params"] == expected


def test_coverage(lake: pico.Lake) -> None:
    every = lake.coverage("first")
    rows = {row["table"]: row for row in every if row["site"] is None}
    sites = {(row["site"], row["probe"]): row for row in every if row["site"]}
    assert sites.keys() == {(site, "text") for site in ("attn.out", "mlp.hidden", "resid.post")}
    for row in sites.values():
        assert (row["steps"], row["first_step"], row["last_step"], row["rows"]) == (7, 0, 6, 14)
    assert sum(row["rows"] for row in sites.values()) == rows["activations"]["rows"]
    assert rows["weights"]["steps"] == 7 and rows["scalars"]["steps"] is None
    counted = {
        table: lake.sql(f"SELECT count(*) FROM {table} WHERE run = 'first'").fetchall()[0][0]
        for table in rows
    }
    assert {table: row["rows"] for table, row in rows.items()} == counted
    assert (rows["weights"]["first_step"], rows["weights"]["last_step"]) == (0, 6)
    assert (rows["gradients"]["first_step"], rows["gradients"]["last_step"]) == (0, 5)
    assert "sequences" not in rows
    assert rows.keys() <= schema.tables().keys()
    with pytest.raises(RunNameError, match=r"no run 'fist'.* Did you mean 'first'"):
        lake.coverage("fist")


def test_batch(lake: pico.Lake) -> None:
    rows = dict(
        lake.sql("SELECT sequence_id, tokens FROM sequences WHERE dataset='text'").fetchall()
    )
    for step in (0, 5):
        ids = order.sequence_ids(order.SHUFFLED, 5, step, 8, len(rows))
        assert lake.batch("first", step).tolist() == [list(rows[i]) for i in ids]
        assert (lake.batch("first", step) == lake.batch("second", step)).all()
    with pytest.raises(RecordError, match="recorded no batch of one data set at step 6"):
        lake.batch("first", 6)
    with pytest.raises(RunNameError):
        lake.batch("third", 0)


def test_queries(lake: pico.Lake) -> None:
    names = [query.name for query in lake.queries()]
    assert len(names) >= 6
    losses = lake.query("loss", run="first").pl()
    assert losses["step"].max() == 6
    with pytest.raises(QueryError, match=r"no query 'lose'. Did you mean 'loss'"):
        lake.query("lose")
    with pytest.raises(QueryError, match="it needs step"):
        lake.query("text_seen", run="first")
    with pytest.raises(RunNameError, match="no run 'third'"):
        lake.query("loss", run="third")


def test_metrics_are_computed_once(lake: pico.Lake) -> None:
    first = lake.compute_metrics(["gini"], run="first")
    again = lake.compute_metrics(["gini"], run="first")
    assert first.computed > 0
    assert again.computed == 0
    stored, computed = (
        lake.sql(f"SELECT {what} AND run = 'first' AND step = 6 ORDER BY name").fetchall()
        for what in (
            "name, value FROM metrics WHERE metric = 'gini'",
            "name, gini(tensor) FROM weights WHERE true",
        )
    )
    assert stored == computed
    with pytest.raises(MetricError, match="no metric 'ginni'"):
        lake.compute_metrics(["ginni"])


def test_functions(lake: pico.Lake) -> None:
    rows = lake.functions()
    assert {"gini", "per", "cka", "spectrum"} <= {row["name"] for row in rows}


def test_a_model_comes_back(lake: pico.Lake) -> None:
    model = lake.load_model("first", 0)
    stored = lake.scan("weights", "first", [0]).filter(pl.col("name") == "output_norm.weight")
    value = stored.select("value").collect().item()
    assert np.allclose(model.output_norm.weight.detach().numpy(), value.to_numpy())


def test_what_is_no_lake(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for url in (tmp_path / "absent", tmp_path / "empty"):
        with pytest.raises(NotALakeError, match="no lake at"):
            pico.Lake.open(str(url))
        with pytest.raises(NotALakeError):
            pico.connect(str(url))
    assert not (tmp_path / "absent").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    mapping = tiny.config(tiny.write_text(tmp_path / "text.txt"))
    with pytest.raises(NotALakeError, match="holds no lake; choose another folder"):
        pico.Lake(str(tmp_path / "full")).train(mapping, "a")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["thesis.txt"]


def test_a_path_object_is_a_url(lake: pico.Lake, tmp_path: Path) -> None:
    if lake.storage.folder is None:
        pytest.skip("in memory there is no folder")
    assert pico.Lake.open(lake.storage.folder).runs() == lake.runs()  # type: ignore[arg-type]
    assert repr(lake) == f"Lake({lake.storage.url!r})"


def test_a_reader_sees_what_was_committed_since(tmp_path: Path) -> None:
    mapping = tiny.config(tiny.write_text(tmp_path / "text.txt"), max_steps=1)
    lake = pico.Lake(str(tmp_path / "lake"))
    lake.train(mapping, "first")
    opened = pico.Lake.open(str(tmp_path / "lake"))
    connection = opened.connect()
    lake.train(mapping, "second", ["seeds.init=9"])
    assert [row["run"] for row in opened.runs()] == ["first", "second"]
    assert connection.execute("SELECT count(*) FROM runs").fetchall() == [(1,)]


def test_train_takes_a_config_in_every_form(tmp_path: Path) -> None:
    mapping = tiny.config(tiny.write_text(tmp_path / "text.txt"), max_steps=1)
    file = tiny.write_config(tmp_path / "config.yaml", mapping)
    lake = pico.Lake(str(tmp_path / "lake"))
    seen: list[Any] = []
    for number, config in enumerate((mapping, str(file), configs.load(mapping))):
        lake.train(config, f"run-{number}", on_step=seen.append)
    hashes = [tiny.content(tmp_path / "lake", "weights", f"run-{n}") for n in range(3)]
    assert hashes[0] == hashes[1] == hashes[2]
    assert [(p.step, p.max_steps) for p in seen] == [(1, 1)] * 3
    assert all(p.loss > 0 and p.heldout_loss > 0 and p.tokens_per_second > 0 for p in seen)
    lake.train(mapping, "over", ["max_steps=2", "seeds.init=1"])
    assert lake.runs()[0]["run"] == "over"
    assert lake.runs()[0]["max_steps"] == 2
    with pytest.raises(ConfigError, match="unknown config key 'max_step'"):
        lake.train(mapping, "bad", ["max_step=2"])


def test_text_of_tokens(lake: pico.Lake) -> None:
    ((tokenizer,),) = lake.sql("SELECT DISTINCT tokenizer FROM datasets").fetchall()
    shown = lake.query("text_seen", run="first", step=2).pl().row(0, named=True)
    tokens = lake.batch("first", step=2)[shown["position"]].tolist()
    assert lake.detokenize(tokens, tokenizer) == shown["text"] and len(shown["text"]) > 10
    assert lake.detokenize([], tokenizer) == ""
    assert lake.detokenize([1], "nosuch") is None
