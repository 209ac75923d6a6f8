"""A user's metrics and components from end to end: SQL, Polars, the command line, the lake."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import pico
from pico.cli import run_command
from pico.errors import PicoError, QueryError
from pico.metrics import registry
from pico.sql import statements
from tests.contract.make_lake import make_lake
from tests.metrics.conftest import fresh
from tests.train import tiny

__all__ = ["fresh"]
pytestmark = pytest.mark.usefixtures("fresh")

PLUGIN = '''
import numpy as np
import pico

@pico.metric
def tail_share(tensor):
    """Share of the entries above half the largest."""
    return np.mean(np.abs(tensor) > np.abs(tensor).max() / 2)

@pico.metric(of="spectrum", version=2)
def spectral_gap(singular_values):
    """Difference of the two largest singular values."""
    return singular_values[0] - singular_values[1]

@pico.metric
def largest_gap(x, y, *, scale=1.0):
    """Largest difference."""
    return scale * np.max(np.abs(x - y))

@pico.component
def low_rank(weight, k: int = 1):
    """The nearest matrix of rank k."""
    u, s, v = np.linalg.svd(weight)
    return (u[:, :k] * s[:k]) @ v[:k]

@pico.metric
def not_for_vectors(tensor):
    return tensor[0, 0]

@pico.metric
def wordy(tensor):
    return "much"
'''
ROWS = "WHERE name LIKE '%o_proj%' ORDER BY step"


@pytest.fixture
def plugin(tmp_path: Path) -> str:
    file = tmp_path / "mine.py"
    file.write_text(PLUGIN, encoding="utf-8")
    return str(file)


@pytest.fixture
def lake(tmp_path: Path) -> str:
    make_lake(str(tmp_path / "lake"))
    return str(tmp_path / "lake")


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    capsys.readouterr()
    code = run_command([*arguments, "--format", "json"])
    out, error = capsys.readouterr()
    assert code == 0, error
    return json.loads(out)


def test_sql(lake: str, plugin: str) -> None:
    connection = pico.connect(lake, plugins=[plugin])
    query = f"SELECT tail_share(tensor), spectral_gap(tensor) FROM weights {ROWS}"
    rows = connection.execute(query).fetchall()
    assert rows == [(1.0, pytest.approx(8.0)), (1 / 8, pytest.approx(0.0, abs=1e-12))]
    query = "SELECT largest_gap(a.tensor, b.tensor), largest_gap(a.tensor, b.tensor, 4) "
    query += "FROM weights a JOIN weights b USING (name) WHERE a.step < b.step ORDER BY ALL"
    assert connection.execute(query).fetchall() == [(0.0, 0.0), (1.0, 4.0)]
    query = f"SELECT frobenius_norm(low_rank(tensor)), per(low_rank(tensor, 2)) FROM weights {ROWS}"
    found = np.asarray(connection.execute(query).fetchall())
    np.testing.assert_allclose(found, [[8.0, 1 / 8], [1.0, 2 / 8]], rtol=1e-5)
    assert connection.execute("SELECT spectral_gap([5.0, 3.0, 1.0])").fetchall() == [(2.0,)]
    query = "SELECT tail_share(NULL::DOUBLE[]), low_rank(NULL)"
    assert connection.execute(query).fetchall() == [(None, None)]
    connection.close()


def test_what_fails_in_sql_is_one_line_that_names_it(lake: str, plugin: str) -> None:
    pico.load_plugin(plugin)
    opened = pico.Lake.open(lake)
    wanted = r"metric 'not_for_vectors' failed for a tensor of shape \(8,\): IndexError: "
    for call, message in (
        ("not_for_vectors(tensor)", wanted),
        ("wordy(tensor)", "metric 'wordy' returned 'much', not a number"),
        ("low_rank(tensor)", r"component 'low_rank' failed for a tensor of shape \(8,\): LinAlg"),
    ):
        with pytest.raises(QueryError, match=message) as caught:
            statements.fetch(opened.sql(f"SELECT {call} FROM weights"))
        assert "\n" not in str(caught.value)


def test_polars(lake: str, plugin: str) -> None:
    pico.load_plugin(plugin)
    weights = pico.Lake.open(lake).scan("weights")  # brings the namespace
    tensor = pl.col("tensor").tensor
    found = (
        weights.filter(pl.col("component") == "o")
        .sort("step")
        .select(
            share=tensor.tail_share(),
            gap=tensor.spectral_gap(),
            apart=tensor.largest_gap("tensor", scale=3.0),
            norm=tensor.low_rank(k=3).tensor.frobenius_norm(),
            several=tensor.compute("tail_share", "per"),
        )
        .collect()
    )
    assert found["share"].to_list() == [1.0, 1 / 8]
    assert found["gap"].to_list() == pytest.approx([8.0, 0.0], abs=1e-12)
    assert found["apart"].to_list() == [0.0, 0.0]
    assert found["norm"].to_list() == pytest.approx([8.0, np.sqrt(3.0)], rel=1e-5)
    assert found["several"][1] == {"tail_share": 1 / 8, "per": pytest.approx(1.0)}


def test_command_line(lake: str, plugin: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--plugin", plugin)
    listed = answer(capsys, "metrics", "list", *options)
    (row,) = [row for row in listed if row["metric"] == "spectral_gap"]
    assert (row["of"], row["version"]) == ("spectrum", 2)
    assert row["is"] == "Difference of the two largest singular values."
    shown = {row["name"]: row["signature"] for row in answer(capsys, "functions", *options)}
    assert shown["low_rank"] == "low_rank(weight, k = 1) -> TENSOR"
    assert shown["largest_gap"] == "largest_gap(x, y, scale = 1.0) -> DOUBLE"
    query = f"SELECT tail_share(tensor) AS share FROM weights {ROWS}"
    assert answer(capsys, "sql", query, "--lake", lake, *options) == [
        {"share": 1.0},
        {"share": 1 / 8},
    ]
    assert answer(capsys, "query", "list", *options)


def test_training_measures_it_too(
    plugin: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tiny.config(tiny.write_text(tmp_path / "text.txt"), max_steps=2)
    metrics = {"names": ["tail_share"], "every": 1, "tables": ["weights"], "tensors": ["*o_proj*"]}
    config["record"] = {"weights": True, "metrics": metrics}
    (tmp_path / "c.yaml").write_text(json.dumps(config))
    lake = str(tmp_path / "lake")
    command = ["train", str(tmp_path / "c.yaml"), "--run", "first", "--lake", lake]
    assert run_command(command) == 2
    assert "no metric 'tail_share'" in capsys.readouterr().err
    assert run_command([*command, "--plugin", plugin]) == 0
    kept = pico.Lake(lake).sql(
        "SELECT m.value, w.tensor.value FROM metrics m JOIN weights w USING (run, step, name) "
        "WHERE metric = 'tail_share'"
    )
    found = kept.fetchall()
    assert len(found) == 3 * 2
    for value, entries in found:
        large = np.abs(np.asarray(entries)) > np.abs(np.asarray(entries)).max() / 2
        assert value == pytest.approx(large.mean())
    assert run_command(["plan", str(tmp_path / "c.yaml"), "--plugin", plugin]) == 0


def test_values_are_kept_by_version(
    lake: str, plugin: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["metrics", "compute", "--metric", "spectral_gap", "--lake", lake]
    assert run_command(command) == 2
    assert "no metric 'spectral_gap'" in capsys.readouterr().err
    assert run_command([*command, "--plugin", plugin]) == 0
    query = "SELECT step, metric, metric_version AS v, value FROM metrics ORDER BY step"
    rows = answer(capsys, "sql", query, "--lake", lake)
    assert [(row["step"], row["metric"], row["v"]) for row in rows] == [
        (0, "spectral_gap", 2),
        (1, "spectral_gap", 2),
    ]
    assert [row["value"] for row in rows] == pytest.approx([8.0, 0.0], abs=1e-12)


def test_a_failing_metric_is_one_line_of_the_command(
    lake: str, plugin: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["metrics", "compute", "--metric", "wordy", "--lake", lake, "--plugin", plugin]
    assert run_command(command) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error == "error: metric 'wordy' returned 'much', not a number"
    assert run_command(["metrics", "list", "--plugin", "absent.py"]) == 2
    error = capsys.readouterr().err.strip()
    assert error == "error: there is no plugin 'absent.py'; name a Python file, FILE.py"


def test_untrusted_sql_has_no_plugins(
    lake: str, plugin: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["sql", "SELECT 1", "--lake", lake, "--untrusted"]
    assert run_command([*command, "--plugin", plugin]) == 2
    assert "--plugin is not for --untrusted SQL" in capsys.readouterr().err
    assert not registry.knows("tail_share")
    pico.load_plugin(plugin)
    with pytest.raises(QueryError, match="tail_share"):
        pico.Lake.open(lake).sql_untrusted("SELECT tail_share(tensor) FROM weights")
    rows = pico.Lake.open(lake).sql_untrusted("SELECT gini(tensor) AS g FROM weights")
    assert rows.num_rows == 4


PROBE = "import pathlib; pathlib.Path({path!r}).write_text('loaded')\n"


def test_entry_points_of_an_installed_package(tmp_path: Path, lake: str) -> None:
    """In processes of their own, as a user has it: a distribution on the path, no option given."""
    site, mark = tmp_path / "site", tmp_path / "mark"
    info = site / "spectral_tools-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "spectral_tools.py").write_text(PROBE.format(path=str(mark)) + PLUGIN)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: spectral-tools\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[pico.metrics]\ntail_share = spectral_tools:tail_share\n"
        "[pico.components]\nlow_rank = spectral_tools:low_rank\n"
    )
    root = Path(pico.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), str(root)])}

    def pico_cli(*arguments: str) -> tuple[int, str, str]:
        command = [sys.executable, "-m", "pico.cli", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    query = f"SELECT tail_share(low_rank(tensor)) AS t FROM weights {ROWS}"
    code, _, error = pico_cli("sql", query, "--lake", lake, "--untrusted", "--format", "json")
    assert code == 2 and "tail_share" in error and error.count("\n") == 1
    assert not mark.exists()
    code, out, error = pico_cli("sql", query, "--lake", lake, "--format", "json")
    assert (code, error) == (0, "")
    assert [row["t"] for row in json.loads(out)] == [1.0, 1 / 64]
    assert mark.exists()
    code, out, error = pico_cli("metrics", "list", "--format", "csv")
    assert code == 0 and "tail_share,tensor,1," in out
    (site / "spectral_tools.py").write_text("def tail_share(tensor): return 0\n")
    code, _, error = pico_cli("metrics", "list")
    assert code == 2 and error.startswith("error: entry point 'tail_share' of spectral-tools")
    assert error.count("\n") == 1


def test_a_duplicate_is_one_line(lake: str, tmp_path: Path) -> None:
    file = tmp_path / "again.py"
    file.write_text("import pico\n@pico.metric\ndef gini(tensor): return 0\n")
    with pytest.raises(PicoError, match=r"^plugin again.py, line 2: metric 'gini' is registered"):
        pico.connect(lake, plugins=[str(file)])
