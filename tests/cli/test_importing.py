"""`pico import pico-train` and `pico analyze`: what they print, where, and their exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

import pico
from pico.cli import run_command
from pico.lake.commit import Stream
from tests.importers.pico_run import Writer
from tests.importers.test_analysis import metric, part


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Writer(tmp_path_factory.mktemp("runs") / "small").run(2).path


@pytest.fixture(scope="module")
def lake(run: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    url = str(tmp_path_factory.mktemp("lakes") / "lake")
    pico.Lake(url).import_pico_train(run, devices=1)
    return url


@pytest.fixture
def config(tmp_path: Path) -> str:
    parts = [part("weights", "simple"), part("weights")]
    (tmp_path / "c.yaml").write_text(
        yaml.safe_dump({"metrics": [metric("per", parts)], "steps": [0, 2]})
    )
    return str(tmp_path / "c.yaml")


def test_import_shows_a_row_per_checkpoint(run, tmp_path, capsys):
    command = ["import", "pico-train", str(run), "--as", "mine", "--devices", "1"]
    command += ["--lake", str(tmp_path / "lake"), "--format", "json"]
    assert run_command([*command, "--dry-run"]) == 0
    out, err = capsys.readouterr()
    assert [row["step"] for row in json.loads(out)] == [0, 2]
    assert err.startswith("run 'mine': 2 checkpoints to import (")
    assert not (tmp_path / "lake").exists()
    assert run_command([*command, "--steps", "0"]) == 0
    out, err = capsys.readouterr()
    counts = {"step": 0, "weights": 21, "activations": 12, "gradients": 12, "optimizer": 0}
    assert json.loads(out) == [counts | {"activations": 6, "gradients": 6}]
    assert err.startswith("run 'mine': 1 checkpoints imported (33 tensors, ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent"], "error: no folder absent"),
        (["RUN"], "say on how many it ran with --devices 1 or --devices N"),
        (["RUN", "--devices", "0"], "error: --devices must be at least 1, not 0"),
        (["RUN", "--devices", "1", "--steps", "0,two"], "'0,two' is no list of steps"),
        (["RUN", "--devices", "1", "--steps", "1"], "has no checkpoint step_1; it has 0, 2"),
        (["RUN", "--devices", "1", "--as", "a/b"], "error: 'a/b' cannot name a run"),
    ],
)
def test_import_says_in_a_line_what_is_wrong(run, tmp_path, capsys, arguments, message):
    given = [str(run) if word == "RUN" else word for word in arguments]
    code = run_command(["import", "pico-train", *given, "--lake", str(tmp_path / "lake")])
    out, err = capsys.readouterr()
    assert code == 2 and out == "" and message in err and err.count("\n") == 1


def test_a_run_that_is_being_written_is_refused(run, lake, capsys):
    storage = pico.Lake(lake).storage
    command = ["import", "pico-train", str(run), "--as", "other", "--devices", "1", "--lake", lake]
    with Stream(storage, "train.other"):
        assert run_command(command) == 2
    assert "run 'other' is held by process" in capsys.readouterr().err


def test_an_imported_run_can_be_copied_and_compacted(lake, tmp_path, capsys):
    there = str(tmp_path / "there")
    assert run_command(["copy", there, "--run", "small", "--lake", lake]) == 0
    assert run_command(["compact", "--lake", there]) == 0
    assert run_command(["verify", "--deep", "--lake", there]) == 0
    capsys.readouterr()


def test_analyze_shows_what_was_computed_and_then_nothing_new(lake, config, capsys):
    command = ["analyze", config, "--run", "small", "--lake", lake, "--format", "json"]
    assert run_command([*command, "--dry-run"]) == 0
    out, err = capsys.readouterr()
    assert [row["to compute"] for row in json.loads(out)] == [8, 32]
    assert err == "run 'small': 40 values to compute, 0 there already, 0 not defined\n"
    assert run_command(command) == 0
    out, err = capsys.readouterr()
    assert [row["computed"] for row in json.loads(out)] == [8, 32]
    assert err == "run 'small': 40 values computed, 0 there already, 0 not defined\n"
    assert run_command(command) == 0
    assert "0 values computed, 40 there already" in capsys.readouterr().err
    question = "SELECT metric, component, count(*) AS n FROM metrics GROUP BY ALL ORDER BY ALL"
    assert run_command(["sql", question, "--lake", lake, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"metric": "per", "component": "down", "n": 4},
        {"metric": "per", "component": "ov_circuit", "n": 16},
        {"metric": "per_pico", "component": "down", "n": 4},
        {"metric": "per_pico", "component": "vo_product", "n": 16},
    ]


def test_analyze_says_in_a_line_what_is_wrong(lake, tmp_path, capsys):
    (tmp_path / "c.yaml").write_text("metrics: [{metric_name: ginni}]\nsteps: [0]\n")
    assert run_command(["analyze", str(tmp_path / "c.yaml"), "--run", "small", "--lake", lake]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: metrics[0]: no metric 'ginni'. Did you mean")
