"""Every shipped query answers on the demo's lake, and the README shows what some of them say."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from pico import demo
from pico.api import Lake
from pico.cli import run_command
from pico.sql import library

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"^```bash\npico query (\S+)(.*)\n```\n\n```text\n(.*)\n", README, re.M)
NO_FAULTS = {"shared_weights", "unchanged_weights", "tensor_jumps"}
"""What these look for is not in a sound lake."""
SMALL = ["max_steps=20", "data.max_bytes=300000", "data.vocab_size=512", "data.seq_len=32"]
SMALL += ["record.optimizer.every=5"]  # the demo's checkpoints are far apart


@pytest.fixture(scope="module")
def demo_lake(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Make a lake such as the demo leaves behind, with shorter runs on less text."""
    lake = Lake(str(tmp_path_factory.mktemp("queries") / "lake"))
    for name, seed in demo.RUNS.items():
        lake.train("nano", name, [*SMALL, f"seeds.init={seed}"])
    return lake.storage.url


@pytest.mark.slow
def test_every_example_answers_on_the_demo_lake(
    demo_lake: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for query in library.list_queries():
        words = shlex.split(query.example)[1:]
        written = tmp_path / "corpus.parquet"
        if "-o" not in words:
            written = tmp_path / f"{query.name}.json"
            words += ["--format", "json", "-o", str(written)]
        assert run_command([*words, "--lake", demo_lake]) == 0, capsys.readouterr().err
        if written.suffix == ".json":
            rows = json.loads(written.read_text())
            assert (rows == []) == (query.name in NO_FAULTS), query.name
            assert all(tuple(row) == query.returns for row in rows), query.name
        else:
            assert written.stat().st_size > 0


@pytest.mark.slow
def test_what_the_answers_say_of_the_demo_lake(demo_lake: str) -> None:
    lake = Lake.open(demo_lake)
    first, second = demo.RUNS
    (order,) = lake.query("order_equality", run=first, other=second).fetchall()
    assert order[:4] == (True, 20 * 8 * 32, 20 * 8, 0)
    inits = lake.query("init_std", run=first).pl()
    assert inits.height == 39  # three of them have no layer
    assert inits["declared_std"].null_count() == 0
    assert inits["standard_errors"].abs().max() < 5
    checkpoints = lake.query("planned_checkpoints").fetchall()
    assert {row[1:] for row in checkpoints} == {
        (step, True, True, True, 39, 39) for step in (0, 20)
    }
    corpus = lake.query("corpus_by_step", run=second).pl()
    assert corpus["step"].to_list() == [step for step in range(20) for _ in range(8)]
    tokens = lake.batch(second, step=3)
    assert corpus.filter(corpus["step"] == 3)["tokens"].to_list() == tokens.tolist()


def test_headers_say_what_a_picture_shows() -> None:
    """Or that rows are to be read; what is drawn by step is drawn by what varies."""
    for query in library.list_queries():
        assert query.draws is not None, query.name
        assert set(query.draws) <= set(query.returns), query.name


def test_help_of_a_query_tells_its_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    for query in library.list_queries():
        assert run_command(["query", query.name, "--help"]) == 0
        out = capsys.readouterr().out
        assert all(parameter.description in out for parameter in query.parameters)
        assert query.example in out
    assert run_command(["query", "los", "--help"]) == 2
    assert "Did you mean 'loss'" in capsys.readouterr().err
    for words in (["query", "--help"], ["query", "list", "--help"]):
        assert run_command(words) == 0
        out = capsys.readouterr().out
        assert "--param" in out and "--help" in out and "Examples:" in out


def test_the_readme_shows_answers_with_the_columns_that_queries_return() -> None:
    assert len({name for name, _, _ in SHOWN}) >= 5
    for name, words, columns in SHOWN:
        query = library.get_query(name)
        assert tuple(columns.split()) == query.returns, name
        given = dict(word.split("=", 1) for word in shlex.split(words) if "=" in word)
        library.convert(query, given)
