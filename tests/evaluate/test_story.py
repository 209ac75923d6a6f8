"""The report of trained runs, read as text, and opened in a browser where there is one."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import pico
from pico.cli import run_command
from pico.errors import PicoError, QueryError, RunNameError
from pico.evaluate import story
from tests.train import tiny

pytest.importorskip("matplotlib")
torch.set_num_threads(1)
SECTIONS = [
    *("Config", "Loss", "Norms of weights", "Rank of weights", "Sparsity of weights"),
    *("Gradients", "Which tokens are learned when", "Attention heads"),
    *("Similarity of representations", "What it writes", "Size"),
]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> pico.Lake:
    found = pico.Lake(tiny.two_runs(tmp_path_factory.mktemp("story")))
    source = tiny.write_text(tmp_path_factory.mktemp("text") / "text.txt")
    found.train(tiny.config(source, max_steps=2, record={"scalars": False}), "bare")
    return found


def test_a_page_with_everything(lake: pico.Lake, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    titles = lake.report(
        ["first", "second"], tmp_path / "r.html", lambda done, total: seen.append((done, total))
    )
    assert titles == SECTIONS and seen[-1] == (len(SECTIONS), len(SECTIONS))
    text = (tmp_path / "r.html").read_text("utf-8")
    assert "Nothing of it was recorded" not in text
    assert text.count("<figure>") >= 14
    assert "seeds.init" in text and re.search(r"gives \d\.\d{3} nats", text)
    assert html.unescape(text).count("▸") == 1 + 2 * 5
    assert "first, step 6" in text and "second, step 0" in text
    held = lake.sql("SELECT sum(bytes) FROM files WHERE path LIKE 'weights/run=first/%'")
    assert f"{held.fetchall()[0][0] / 1e6:.4g}</td>" in text
    assert "In numbers, at step 6" in text


@pytest.fixture
def own(lake: pico.Lake, tmp_path: Path) -> pico.Lake:
    """A copy of the lake, for one test alone."""
    shutil.copytree(lake.storage.url, tmp_path / "own")
    return pico.Lake.open(str(tmp_path / "own"))


def test_an_average_is_no_trajectory(own: pico.Lake, tmp_path: Path) -> None:
    """Its norms are told in a table; beside its run nothing of it has grown."""
    own.average("first", [2, 4], as_run="mean")
    own.report("mean", tmp_path / "r.html")
    text = html.unescape((tmp_path / "r.html").read_text("utf-8"))
    assert "the mean of first at steps 2, 4" in text and "One step is stored." in text
    assert "Knowing only" not in text and "frobenius_norm</th>" in text
    own.report(["mean", "first"], tmp_path / "both.html")
    both = (tmp_path / "both.html").read_text("utf-8")
    assert both.count("<figure>") >= 10 and both.index("mean</th>") < both.index("first</th>")


def test_a_module_of_no_known_family(own: pico.Lake, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
    recorder = pico.Recorder(own, run="plain", model=model, record={"weights": {"every": 1}})
    for _ in range(3):
        recorder.step(loss=0.5)
    recorder.close()
    own.report("plain", tmp_path / "r.html")
    text = html.unescape((tmp_path / "r.html").read_text("utf-8"))
    assert "Frobenius norm of the weights" in text and "Gini coefficient of the entries" in text
    assert text.count("<figure>") >= 3


def test_what_was_not_recorded_is_said(lake: pico.Lake, tmp_path: Path) -> None:
    lake.report("bare", tmp_path / "r.html")
    text = html.unescape((tmp_path / "r.html").read_text("utf-8"))
    assert "No loss was recorded." in text
    assert "record: {probes: {repeat: {every: 50, record: [attention]}}}" in text
    assert "record: {tensor_stats: {gradients: {every: 10}}}" in text


def test_the_command(lake: pico.Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--lake", lake.storage.url]
    out = str(tmp_path / "r.html")
    assert run_command(["report", "first", "-o", out, *where]) == 0
    assert run_command(["report", "nosuch", "-o", out, *where]) == 2
    assert run_command(["report", "first", "-o", str(tmp_path / "r.pdf"), *where]) == 2
    assert run_command(["report", "first", "-o", str(tmp_path / "no" / "r.html"), *where]) == 2
    errors = capsys.readouterr().err
    assert "no run 'nosuch'" in errors and "is written as .html, not 'r.pdf'" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    "arguments",
    [
        ["effective_rank_by_layer", "-p", "run=first", "-p", "component=o"],
        ["induction_by_head", "-p", "run=first"],
        ["cka_steps", "-p", "run=first"],
        ["loss_by_tokens"],
        ["induction_by_head"],
        ["norm_growth"],
        [
            "--sql",
            "SELECT step, name, frobenius_norm FROM tensor_stats WHERE layer = 0 "
            "AND table_name = 'weights' AND run = 'first' AND component IN ('q', 'k')",
        ],
        ["--sql", "SELECT run, step, value FROM scalars WHERE name = 'grad_norm'"],
    ],
    ids=lambda given: given[0],
)
def test_plots(lake: pico.Lake, tmp_path: Path, arguments: list[str]) -> None:
    out = tmp_path / "figure.svg"
    assert run_command(["plot", *arguments, "-o", str(out), "--lake", lake.storage.url]) == 0
    assert out.read_text("utf-8").count("<path") > 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give the name of a query, or --sql"),
        (["loss", "--sql", "SELECT 1"], "give the name of a query, or --sql"),
        (["los"], "no query 'los'. Did you mean 'loss'"),
        (["loss", "-p", "run"], "parameters are KEY=VALUE, not 'run'"),
        (["loss", "-p", "run=nosuch"], "no run 'nosuch'"),
        (["cka_layers", "-p", "run=bare"], "it needs activations of the probe text: pico probe"),
        (["text_seen"], "gives rows to read, not a series to draw"),
        (["loss", "--value", "run"], "column 'run' holds String, no numbers"),
        (["loss", "--x", "run"], "column 'run' holds String, no numbers"),
        (["loss", "--kind", "heatmap"], "a heat map needs a column --y; the answer has no layer"),
        (["--sql", "SELECT now() AS step, 1.0 AS v"], "holds Datetime"),
        (["--sql", "SELECT 1 AS step, i AS v FROM range(3) t(i)"], "several values of v for one"),
        (["--sql", "SELECT nosuch"], "nosuch"),
        (["loss", "--value", "losss"], "no column 'losss'. Did you mean 'loss'"),
    ],
)
def test_plots_that_cannot_be(
    lake: pico.Lake,
    tmp_path: Path,
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = ["-o", str(tmp_path / "a.png"), "--lake", lake.storage.url]
    assert run_command(["plot", *arguments, *out]) == 2
    error = capsys.readouterr().err
    assert message in error and len(error.strip().splitlines()) == 1
    assert not (tmp_path / "a.png").exists()


def test_mistakes(lake: pico.Lake, tmp_path: Path) -> None:
    mistakes: list[tuple[Any, type[PicoError], str]] = [
        ([], QueryError, "about one to 6 runs, not 0"),
        ([f"r{n}" for n in range(7)], QueryError, "about one to 6 runs, not 7"),
        (["nosuch"], RunNameError, "no run 'nosuch'"),
    ]
    for runs, error, message in mistakes:
        with pytest.raises(error, match=message):
            lake.report(runs, tmp_path / "r.html")


CHECK = """
<script>
window.problems = [];
window.onerror = (message) => problems.push(message);
addEventListener("load", () => setTimeout(() => {
  const frame = document.querySelector("iframe").contentDocument;
  const root = frame.documentElement;
  const figures = [...frame.querySelectorAll("figure svg")];
  document.title = "done";
  document.body.append(Object.assign(document.createElement("pre"), {id: "found",
    textContent: JSON.stringify({
      problems,
      overflow: root.scrollWidth - root.clientWidth,
      figures: figures.length,
      drawn: figures.filter(f => f.querySelectorAll("path").length > 5
        && f.getBoundingClientRect().height > 100).length,
      cut: figures.filter(f => f.getBoundingClientRect().right > root.clientWidth + 1).length,
      scripts: frame.querySelectorAll("script").length,
      lead: frame.querySelector("p.lead").textContent,
    })}));
}, 300));
</script>
"""


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
def test_in_a_browser(
    lake: pico.Lake, tmp_path: Path, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("no chromium here (Debian's package chromium)")
    hostile = "<script>alert(1)</script>\"'&amp;"
    monkeypatch.setattr(story._Story, "lead", lambda self: hostile)
    lake.report(["first", "second"], tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text("utf-8")
    inside = html.escape(page, quote=True)
    frame = f'<iframe srcdoc="{inside}" style="width:{width}px;height:9000px;border:0"></iframe>'
    (tmp_path / "outer.html").write_text(f"<!doctype html>{CHECK}{frame}", encoding="utf-8")
    done = subprocess.run(
        [
            *(chromium, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"),
            *(f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=4000"),
            *("--dump-dom", (tmp_path / "outer.html").as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    match = re.search(r'<pre id="found">(.*?)</pre>', done.stdout)
    assert match, done.stdout[-500:]
    found = json.loads(html.unescape(match[1]))
    assert found["problems"] == [] and "CONSOLE" not in done.stderr
    assert found["overflow"] <= 0 and found["cut"] == 0
    assert found["figures"] == found["drawn"] >= 14
    assert found["scripts"] == 0 and found["lead"] == hostile
