"""Every example in the README runs: Python as it stands, commands with their training shortened."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import pico
from pico.cli import run_command
from tests.metrics.conftest import fresh

__all__ = ["fresh"]
README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
SHELL = re.findall(r"^```bash\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
SMALL = ["max_steps=20", "data.max_bytes=300000", "data.vocab_size=512", "data.seq_len=32"]
STEPS = {"200,300": "16,20", "0,100:300": "0,8:20"}  # of the shorter runs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("fresh"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def command_lines() -> list[list[str]]:
    text = "\n".join(SHELL).replace("\\\n", " ")
    lines: list[list[str]] = []
    for line in re.split(r"\n(?=pico |make |pip )", text):
        words = shlex.split(line, comments=True)
        if words and words[0] == "pico":
            lines.append(words[1:])
    return lines


@pytest.fixture(scope="module")
def demo_lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a lake such as the demo leaves behind, with shorter runs."""
    folder = tmp_path_factory.mktemp("readme")
    lake = pico.Lake(str(folder / "demo-lake"))
    for name, seed in (("seed-0", 0), ("seed-1", 1)):
        lake.train("nano", name, [*SMALL, f"seeds.init={seed}"])
    return folder


def test_there_are_examples() -> None:
    assert len(PYTHON) >= 4
    assert len(command_lines()) >= 6


def test_python_examples_run(demo_lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(demo_lake)
    namespace: dict[str, object] = {}
    for example in PYTHON:  # in the order of the page: later ones use what earlier ones made
        exec(compile(example, "README.md", "exec"), namespace)


def test_commands_run(
    demo_lake: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(demo_lake)
    (own,) = [example for example in PYTHON if "@pico.metric" in example]
    (demo_lake / "mine.py").write_text(own, encoding="utf-8")
    for words in command_lines():
        if words[0] == "demo":
            continue  # tests/test_demo.py runs it
        shortened = [*words, *SMALL] if words[0] == "train" else words
        shortened = [STEPS.get(word, word) for word in shortened]
        assert run_command(shortened) == 0, (words, capsys.readouterr().err)
