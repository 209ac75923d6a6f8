"""The demo: its numbers are those of the lake, and its commands work as printed."""

from __future__ import annotations

import io
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from pico import config as configs
from pico import demo
from pico.api import Lake
from pico.cli import run_command
from tests.train import tiny

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The demo on a small text and a smaller model, in a folder whose name needs quotes."""
    folder = tmp_path_factory.mktemp("demo of pico")
    source = tiny.write_text(folder / "text.txt")
    small = tiny.config(
        source,
        model={"context": 128},
        record={
            "checkpoints": {"every": 100},
            "weights": "pythia",
            "gradients": "pythia",
            "activations": [
                {"probe": "text", "schedule": "pythia", "sites": ["resid.post"], "positions": "all"}
            ],
        },
    )
    load = configs.load
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(configs, "load", lambda config, overrides=(): load(
            small if config == "nano" else config, overrides))  # fmt: skip
        out = io.StringIO()
        console = Console
        patch.setattr(demo, "Console", lambda **options: console(file=out, width=200, **options))
        demo.run(str(folder / "lake"), 12)
    return str(folder / "lake"), out.getvalue()


def test_what_is_shown_stands_in_the_lake(made: tuple[str, str]) -> None:
    url, text = made
    lake = Lake.open(url)
    assert [row["run"] for row in lake.runs()] == ["seed-0", "seed-1"]
    for run in demo.RUNS:
        for step in (0, 12):
            ((loss,),) = lake.sql(
                f"SELECT value FROM scalars WHERE run = '{run}' AND step = {step} "
                "AND name = 'heldout_loss'"
            ).fetchall()
            assert f"{loss:.3f}" in text
            ((rank,),) = lake.sql(
                f"SELECT effective_rank(tensor) FROM weights WHERE run = '{run}' "
                f"AND step = {step} AND component = 'o' AND layer = 1"
            ).fetchall()
            assert f"{rank:.1f}" in text
    ((similarity,),) = lake.sql(
        "SELECT cka(a.tensor, b.tensor) FROM activations a JOIN activations b "
        "USING (step, name, site, probe) "
        "WHERE a.run = 'seed-0' AND b.run = 'seed-1' AND step = 12 AND a.layer = 1"
    ).fetchall()
    assert f"{similarity:.3f}" in text
    assert f"{demo.unigram_entropy(lake, 'seed-0'):.3f}" in text
    assert demo.sample(lake, "seed-0").startswith(demo.PROMPT)
    assert demo.sample(lake, "seed-0") in text


def test_the_runs_differ_in_their_initialisation_alone(made: tuple[str, str]) -> None:
    lake = Lake.open(made[0])
    assert all((lake.batch("seed-0", s) == lake.batch("seed-1", s)).all() for s in range(12))
    first, second = (tiny.content(made[0], "weights", run) for run in demo.RUNS)
    assert first.keys() == second.keys()
    differing = sum(first[key] != second[key] for key in first)
    assert differing > len(first) - 10


def test_entropy_is_that_of_the_token_frequencies(made: tuple[str, str]) -> None:
    rows = tiny.rows(made[0], "vocab")
    counts = np.array([row["count"] for row in rows if row["count"]])
    p = counts / counts.sum()
    expected = -(p * np.log(p)).sum()
    assert demo.unigram_entropy(Lake.open(made[0]), "seed-0") == pytest.approx(expected)


def test_the_commands_work_as_printed(
    made: tuple[str, str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PICO_LAKE", raising=False)
    url, text = made
    printed = [line.strip() for line in text.splitlines() if line.strip().startswith("pico ")]
    assert printed == demo.next_commands(url, 12)
    assert len(printed) == 4
    run_commands(printed[:3], capsys)
    assert run_command(shlex.split(printed[3])[1:]) == 0
    assert (tmp_path / "rank.svg").read_text("utf-8").count("<path") > 10


def test_a_page_is_written_beside_the_lake(made: tuple[str, str]) -> None:
    url, text = made
    page = Path(f"{url}-report.html")
    assert f"A page with figures: {page}" in text
    assert page.read_text("utf-8").count("<figure>") >= 8


def run_commands(lines: list[str], capsys: Any) -> None:
    for line in lines:
        words = shlex.split(line)
        assert words[0] == "pico"
        capsys.readouterr()
        assert run_command([*words[1:], "--format", "csv"]) == 0
        out = capsys.readouterr().out
        assert len(out.splitlines()) > 4, line


@pytest.mark.parametrize(("steps", "step"), [(1, 0), (5, 4), (300, 10)])
def test_the_step_asked_for_is_one_that_was_trained(steps: int, step: int) -> None:
    assert f"-p step={step} " in demo.next_commands("lake", steps)[1]


def test_again_nothing_is_trained_twice(made: tuple[str, str]) -> None:
    files = set(Path(made[0]).rglob("*.parquet"))
    lake = Lake.open(made[0])
    console = Console(file=io.StringIO(), width=200)
    demo.show(lake, console)
    assert set(Path(made[0]).rglob("*.parquet")) == files
    assert lake.compute_metrics(demo._METRICS).computed == 0


@pytest.mark.parametrize(
    ("values", "bars"),
    [([0.0, 1.0, 2.0, 7.0], "▁▂▃█"), ([3.0], "▁"), ([2.0, 2.0], "▁▁"), ([1.0, 0.0], "█▁")],
)
def test_charts(values: list[float], bars: str) -> None:
    assert demo.chart(values) == bars


@pytest.mark.slow
def test_the_real_demo(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thirty steps on the standard library; then the commands that it prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PICO_LAKE", raising=False)
    assert run_command(["demo", "--steps", "30"]) == 0
    text = capsys.readouterr().out
    printed = [line.strip() for line in text.splitlines() if line.strip().startswith("pico ")]
    assert len(printed) == 4
    run_commands(printed[:3], capsys)
    assert run_command(shlex.split(printed[3])[1:]) == 0
    assert (tmp_path / "rank.svg").read_text("utf-8").count("<path") > 10

    lake = Lake.open("demo-lake")
    rows = tiny.rows(tmp_path / "demo-lake", "scalars")
    for run in demo.RUNS:
        losses = {
            r["global_step"]: r["value"]
            for r in rows
            if r["run_id"] == run and r["name"] == "heldout_loss"
        }
        assert losses[30] < losses[0] - 0.5
    sizes = [row["n_params"] for row in lake.runs()]
    assert all(500_000 < size < 2_000_000 for size in sizes)
    assert re.search(r"held-out loss by step; knowing token frequencies alone gives \d", text)
