"""The command line: every command, every format, help with examples, and twins in `Lake`."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
import typer

import pico
from pico import metrics
from pico.cli import app, run_command
from tests.train import tiny

torch.set_num_threads(1)
Ask = Callable[..., str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("cli")
    tiny.two_runs(made)
    return made


@pytest.fixture
def ask(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Run a command that must succeed on the fixture's lake; returns its standard output."""
    monkeypatch.setenv("PICO_LAKE", str(folder / "lake"))

    def run(*arguments: str, stdin: str = "") -> str:
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        capsys.readouterr()
        code = run_command(list(arguments))
        out, err = capsys.readouterr()
        assert code == 0, err
        return out

    return run


def commands(group: Any = None, before: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in (group or typer.main.get_command(app)).commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{name} ")
        else:
            yield f"{before}{name}", command


NAMES = [name for name, _ in commands()]


def test_there_are_the_commands_that_were_promised() -> None:
    promised = {"demo", "train", "runs", "sql", "query", "functions"}
    assert promised | {"metrics list", "metrics compute"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_help_says_what_and_shows_an_example(ask: Ask, name: str) -> None:
    text = " ".join(ask(*name.split(), "--help").split())
    assert f"Usage: pico {name}" in text
    assert re.search(rf"Examples?: pico {name.split()[0]}", text)
    command = dict(commands())[name]
    for parameter in command.params:
        assert parameter.help, f"{name}: {parameter.name} has no help"


@pytest.mark.parametrize("name", NAMES)
def test_examples_name_existing_options(name: str) -> None:
    """Each example parses with the command that it shows."""
    command = dict(commands())[name]
    shown = re.findall(r"pico [^|]+", command.epilog)
    assert shown
    for example in shown:
        words = shlex.split(example.split(" < ")[0])[1:]
        target = max((n for n in NAMES if words[: len(n.split())] == n.split()), key=len)
        assert target == name
        options = {option for parameter in command.params for option in parameter.opts}
        used = {word for word in words if word.startswith("-") and len(word) > 1}
        assert used <= options


def test_every_command_is_a_method() -> None:
    twins = {"query": "query", "metrics compute": "compute_metrics", "metrics list": None}
    twins["rm"] = "remove"
    twins["import pico-train"] = "import_pico_train"
    twins["demo"] = None  # trains and shows; `Lake.train` and `Lake.sql` are what it calls
    for name in NAMES:
        method = twins.get(name, name)
        assert method is None or callable(getattr(pico.Lake, method)), name


def test_without_arguments_there_is_help(ask: Ask) -> None:
    assert ask() == ask("--help")
    assert "train" in ask()


def test_runs(ask: Ask) -> None:
    rows = json.loads(ask("runs", "--format", "json"))
    assert [row["run"] for row in rows] == ["first", "second"]
    assert rows[0]["last_step"] == 6
    assert "first" in ask("runs")


def test_coverage(ask: Ask) -> None:
    rows = json.loads(ask("coverage", "first", "--format", "json"))
    assert {row["table"] for row in rows} >= {"weights", "gradients", "scalars", "batches"}


SQL = "SELECT run, count(*) AS n, [1.5, 2.0] AS list FROM scalars WHERE name = 'loss' GROUP BY ALL"
SQL += " ORDER BY run"


def test_a_format_that_is_none_is_told_in_our_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["sql", "SELECT 1", "--format", "xml"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: Invalid value for '--format': 'xml' is not one of 'table',")


def test_formats_hold_the_same(ask: Ask, tmp_path: Path) -> None:
    expected = [
        {"run": "first", "n": 6, "list": [1.5, 2.0]},
        {"run": "second", "n": 6, "list": [1.5, 2.0]},
    ]
    assert json.loads(ask("sql", SQL, "--format", "json")) == expected
    rows = list(csv.DictReader(io.StringIO(ask("sql", SQL, "--format", "csv"))))
    assert [
        {**row, "n": int(row["n"]), "list": json.loads(row["list"])} for row in rows
    ] == expected
    out = tmp_path / "answer.parquet"
    assert ask("sql", SQL, "--format", "parquet", "-o", str(out)) == ""
    assert pq.read_table(out).to_pylist() == expected
    table = ask("sql", SQL)
    assert [line.split()[:2] for line in table.splitlines() if "second" in line] == [
        ["second", "6"]
    ]


@pytest.mark.parametrize("format", ["json", "csv", "table"])
def test_a_file_holds_what_would_have_been_printed(ask: Ask, tmp_path: Path, format: str) -> None:
    printed = ask("sql", SQL, "--format", format)
    assert ask("sql", SQL, "--format", format, "--out", str(tmp_path / "answer")) == ""
    assert (tmp_path / "answer").read_text("utf-8") == printed


def test_sql_from_standard_input(ask: Ask) -> None:
    assert ask("sql", "-", "--format", "csv", stdin=SQL) == ask("sql", SQL, "--format", "csv")


def test_numbers_that_json_does_not_have(ask: Ask) -> None:
    text = "SELECT 'nan'::DOUBLE AS a, 'inf'::DOUBLE AS b, '-inf'::FLOAT AS c, NULL AS d"
    (row,) = json.loads(ask("sql", text, "--format", "json"), parse_constant=pytest.fail)
    assert math.isnan(float(row["a"]))
    assert (float(row["b"]), float(row["c"]), row["d"]) == (math.inf, -math.inf, None)


def test_the_option_wins_over_the_environment(
    ask: Ask, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PICO_LAKE", str(folder / "absent"))
    assert "first" in ask("runs", "--lake", str(folder / "lake"))


def test_queries(ask: Ask) -> None:
    listed = json.loads(ask("query", "list", "--format", "json"))
    assert len(listed) >= 6
    for row in listed:
        shown = ask("query", "show", row["query"])
        assert f"-- name: {row['query']}" in shown
        assert row["answers"] in shown
    rows = json.loads(ask("query", "loss", "-p", "run=first", "--format", "json"))
    assert {row["run"] for row in rows} == {"first"}


@pytest.mark.parametrize("query", pico.Lake("x").queries(), ids=lambda query: query.name)
def test_every_query_answers_on_a_trained_lake(ask: Ask, query: Any) -> None:
    given = {"run": "first", "other": "second", "step": "3", "text": "a"}
    given |= {"first_step": "1", "last_step": "3"}
    needed = [p.name for p in query.parameters if p.required]
    options = [word for name in needed for word in ("-p", f"{name}={given[name]}")]
    rows = json.loads(ask("query", query.name, *options, "--format", "json"))
    assert rows or query.topic == "integrity"  # a sound lake has no faults to show
    assert all(tuple(row) == query.returns for row in rows)


def test_functions_and_metrics(ask: Ask) -> None:
    functions = {row["name"] for row in json.loads(ask("functions", "--format", "json"))}
    assert {"gini", "hoyer", "spectrum", "per", "cka", "effective_rank"} <= functions
    listed = [row["metric"] for row in json.loads(ask("metrics", "list", "--format", "json"))]
    assert listed == list(metrics.names())


def test_metrics_are_kept(ask: Ask, capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    arguments = ["metrics", "compute", "--metric", "gini", "--metric", "per", "--run", "second"]
    lake = ["--lake", str(folder / "lake")]
    assert run_command([*arguments, *lake]) == 0
    first = capsys.readouterr().err
    assert run_command([*arguments, *lake]) == 0
    second = capsys.readouterr().err
    assert not first.startswith("0 values computed")
    assert second.startswith("0 values computed, 0 taken")
    kept = "SELECT DISTINCT run, metric FROM metrics WHERE head IS NULL ORDER BY ALL"
    assert json.loads(ask("sql", kept, "--format", "json")) == [
        {"run": "second", "metric": "gini"},
        {"run": "second", "metric": "per"},
    ]


def test_train_takes_files_and_overrides(
    ask: Ask, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mapping = tiny.config(tiny.write_text(tmp_path / "text.txt"))
    file = tiny.write_config(tmp_path / "config.yaml", mapping)
    new = ["--lake", str(tmp_path / "lake"), "--run", "mine"]
    words = ["seeds.init=7", "max_steps=2", "optimizer.lr=3e-3", "record.weights.every=1"]
    assert run_command(["train", str(file), "record.weights=[0]", *words[:3], *new]) == 0
    assert "run mine finished at step 2" in capsys.readouterr().err
    (row,) = tiny.rows(tmp_path / "lake", "runs")
    config = json.loads(row["config"])
    assert config["seeds"] == {"init": 7, "data": 5, "dropout": 7}
    assert (config["max_steps"], config["optimizer"]["lr"]) == (2, 3e-3)
    assert config["record"]["weights"] == [0]
    # the same again: nothing to do; from the lake alone the run can be repeated
    assert run_command(["train", str(file), "record.weights=[0]", *words[:3], *new]) == 0
    assert "already stands at step 2; nothing to do" in capsys.readouterr().err
    repeated = tiny.write_config(tmp_path / "again.yaml", config)
    assert run_command(["train", str(repeated), *new[:-1], "again"]) == 0
    contents = [tiny.content(tmp_path / "lake", "weights", run) for run in ("mine", "again")]
    assert contents[0] == contents[1]


def test_a_closed_pipe_is_no_error(folder: Path) -> None:
    text = "SELECT range FROM range(200000)"
    child = tiny.start("sql", text, "--format", "csv", "--lake", str(folder / "lake"))
    assert child.stdout is not None
    assert child.stdout.readline() == "range\n"
    child.stdout.close()
    assert child.wait(60) == 0
    assert child.stderr is not None
    assert child.stderr.read() == ""
    child.stderr.close()


def test_errors_in_a_process_of_its_own(folder: Path) -> None:
    """What a shell sees: exit code 2, one line, and no warning of any library."""
    child = subprocess.run(
        [sys.executable, "-c", "from pico.cli import main; main()", "query", "lose"],
        env=tiny.environment(PICO_LAKE=str(folder / "lake")),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (child.returncode, child.stdout) == (2, "")
    assert (
        child.stderr == "error: no query 'lose'. Did you mean 'loss'? List them: pico query list\n"
    )


def test_asking_loads_no_torch(folder: Path) -> None:
    code = (
        "import sys; from pico.cli import run_command; "
        "code = run_command(sys.argv[1:]); "
        "sys.exit(code or 9 * ('torch' in sys.modules))"
    )
    words = ["sql", "SELECT gini(tensor) FROM weights WHERE step = 0 AND component = 'o'"]
    child = subprocess.run(
        [sys.executable, "-c", code, *words],
        env=tiny.environment(PICO_LAKE=str(folder / "lake")),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert child.returncode == 0, child.stderr
