"""`pico metrics compute`: every option does what its method does, and mistakes are one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pico import Lake
from pico.cli import run_command
from pico.lake.storage import Storage
from tests.sql import small_lake


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    storage = Storage(str(tmp_path / "lake"))
    for run in small_lake.RUNS:
        small_lake.write_run(storage, run)
    monkeypatch.setenv("PICO_LAKE", storage.url)
    return Lake.open(storage.url)


def kept(lake: Lake) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = lake.snapshot().read("metrics").to_pylist()
    return rows


def compute(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[str, str]:
    capsys.readouterr()
    assert run_command(["metrics", "compute", *arguments]) == code
    out, err = capsys.readouterr()
    return out, err


def test_metrics_after_commas_and_tables(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = compute(
        capsys, "--metrics", "gini,per", "--table", "weights", "--table", "gradients"
    )
    assert out == "" and "taken from identical tensors" in err
    assert {(r["table_name"], r["metric"]) for r in kept(lake)} == {
        (table, metric) for table in ("weights", "gradients") for metric in ("gini", "per")
    }


def test_a_dry_run(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = compute(capsys, "--metrics", "gini", "--dry-run", "--format", "json")
    rows = json.loads(out)
    assert [(row["run"], row["table"], row["values"]) for row in rows] == [
        ("first", "weights", 12),
        ("second", "weights", 12),
    ]
    assert sum(row["to_compute"] for row in rows) == 19 and rows[0]["bytes"] > 0
    assert err.startswith(
        "24 values are missing, 19 to be computed from 19 tensors (0.0 MB to read)"
    )
    assert kept(lake) == []
    out, _ = compute(capsys, "--metrics", "gini", "--dry-run")
    assert "to_compute" in out and "second" in out
    compute(capsys, "--metrics", "gini", "--workers", "1")
    out, err = compute(capsys, "--metrics", "gini", "--dry-run")
    assert out == "" and "0 values computed" in err


def test_references(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    compute(capsys, "--metrics", "cka,subspace_overlap(k=1)", "--reference-step", "last")
    compute(
        capsys,
        *("--metric", "cka", "--run", "second"),
        *("--reference-run", "first", "--reference-step", "2"),
    )
    found = {(r["run_id"], r["metric"], r["args"], r["ref_run"], r["ref_step"]) for r in kept(lake)}
    assert found == {
        *((run, "cka", None, run, 5) for run in small_lake.RUNS),
        *((run, "subspace_overlap", '{"k": 1}', run, 5) for run in small_lake.RUNS),
        ("second", "cka", None, "first", 2),
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--metrics cka", "error: metric 'cka' compares two tensors; say with which"),
        ("--metrics gini --reference-step last", "error: a reference is for metrics of two"),
        ("--metrics cka --reference-step later", "error: a reference step is a number or last"),
        ("--metrics cka --reference-step 4", "error: there are no tensors at the reference step 4"),
        ("--table weight", "error: no tensor table 'weight'. Did you mean 'weights'?"),
        ("--device nowhere", "error: no device 'nowhere' to compute metrics on"),
        ("--workers 0", "error: Invalid value for '--workers'"),
    ],
)
@pytest.mark.usefixtures("lake")
def test_mistakes(capsys: pytest.CaptureFixture[str], arguments: str, message: str) -> None:
    out, err = compute(capsys, *arguments.split(), code=2)
    assert out == "" and err.startswith(message) and err.count("\n") == 1
