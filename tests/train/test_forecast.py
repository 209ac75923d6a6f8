"""What is forecast of a run against what the run then wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pico
from pico.errors import ConfigError, RecordError
from tests.train import tiny

RECORD = {
    "checkpoints": {"every": 3},
    "weights": {"every": 2, "names": ["*.o_proj.*", "embedding_proj.*"]},
    "gradients": {"every": 2, "stages": ["raw", "clipped"]},
    "pairs": True,
    "activations": [
        {"probe": "text", "schedule": {"every": 2}, "sites": ["resid.post", "mlp.hidden", "k.rot"]},
        {"schedule": {"every": 3}, "sites": ["z"], "positions": "all", "layers": [1]},
    ],
    "metrics": {"names": ["per", "gini"], "every": 2, "tables": ["weights"]},
    "tensor_stats": {"weights": {"every": 1}},
    "probes": {
        "text": {"n_sequences": 3, "every": 2, "record": ["token_scores"], "layer_scores": True},
        "repeat": {"n_sequences": 2, "seq_len": 8, "every": 3, "record": ["attention"]},
    },
}


def test_counts_are_those_of_the_run(tmp_path: Path) -> None:
    config = tiny.config(tiny.write_text(tmp_path / "text.txt"), record=RECORD)
    found = pico.Lake.plan(config)
    lake = pico.Lake(str(tmp_path / "lake"))
    lake.train(config, "first")
    rows = {r["table"]: r["rows"] for r in lake.coverage("first") if r["site"] is None}
    moments = lake.sql("SELECT count(*) FROM optimizer WHERE state LIKE 'exp_avg%'").fetchall()
    values = lake.sql("SELECT sum(len(value)) FROM activations").fetchall()[0][0]
    for table in ("weights", "gradients", "activations", "token_scores", "parameters", "batches"):
        assert found.tables[table].rows == rows[table], table
    assert found.tables["optimizer"].rows == moments[0][0]
    assert found.tables["checkpoints"].rows == rows["checkpoints"] == found.n_checkpoints == 3
    assert found.tables["metrics"].rows >= rows["metrics"] > 0  # some have no such metric
    assert found.tables["activations"].n_bytes > 3 * values
    assert found.n_params == lake.runs()[0]["n_params"]
    assert [row["table"] for row in found.rows()][-1] == "all"
    assert "parameters; about" in str(found)


def test_nothing_is_allocated_for_a_large_model() -> None:
    found = pico.Lake.plan("pico-large", ["max_steps=1000", "record.weights=pythia"])
    assert found.n_params == 569_808_384
    assert found.checkpoint_bytes > 3 * 3 * found.n_params
    assert found.memory_bytes > 16 * found.n_params


def test_a_million_steps_are_planned_at_once() -> None:
    few, many = (pico.Lake.plan("nano", [f"max_steps={n}"]) for n in (10_000, 1_000_000))
    assert many.n_checkpoints == pytest.approx(100 * few.n_checkpoints, rel=0.02)
    assert many.tables["scalars"].rows == 100 * few.tables["scalars"].rows
    assert many.memory_bytes == few.memory_bytes


def test_sequences_that_are_made_up_are_counted_too() -> None:
    found = pico.Lake.plan("nano", ["data.source=induction", "data.induction.n_sequences=500"])
    assert found.tables["sequences"].rows == 500


@pytest.mark.parametrize(
    "record",
    [
        {"probes": {"rpeat": {"record": ["attention"]}}},
        {"activations": [{"probe": "rpeat", "sites": ["z"], "every": 1}]},
    ],
)
def test_probes_that_training_lacks_are_refused_at_once(
    tmp_path: Path, record: dict[str, Any]
) -> None:
    config = tiny.config(tiny.write_text(tmp_path / "text.txt"), record=record)
    message = "pico train has no probe 'rpeat', but text, repeat. Did you mean 'repeat'"
    with pytest.raises(ConfigError, match=message):
        pico.Lake.plan(config)
    with pytest.raises(ConfigError, match=message):
        pico.Lake(str(tmp_path / "lake")).train(config, "first")
    assert not (tmp_path / "lake").exists()


def test_mistakes_are_those_of_training(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no config file or shipped config 'nanoo'"):
        pico.Lake.plan("nanoo")
    config = tiny.config(tiny.write_text(tmp_path / "text.txt"))
    config["record"] = {"activations": [{"schedule": True, "sites": ["zz"]}]}
    with pytest.raises(RecordError, match="no site 'zz'"):
        pico.Lake.plan(config)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [[], ["model.d_model=48", "data.vocab_size=600"]])
def test_bytes_are_within_15_percent(tmp_path: Path, changes: list[str]) -> None:
    given: list[Any] = ["max_steps=40", "data.max_bytes=3000000", *changes]
    found = pico.Lake.plan("nano", given)
    lake = pico.Lake(str(tmp_path / "lake"))
    lake.train("nano", "first", given)
    measured = lake.sql("SELECT sum(bytes) FROM files").fetchall()[0][0]
    assert found.n_bytes == pytest.approx(measured, rel=0.15)
