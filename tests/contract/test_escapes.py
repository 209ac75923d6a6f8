"""Names and values of a lake are input: whatever they hold, a terminal obeys nothing of it."""

from __future__ import annotations

import csv
import datetime
import io
import json
import unicodedata
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pico import schema
from pico.cli import run_command
from pico.lake.codec import Tensor
from pico.lake.commit import Stream
from pico.lake.storage import Storage
from pico.lake.table import TensorRow, write_rows, write_tensors
from pico.sql import output

HOSTILE = {
    "colour": "\x1b[31mred",
    "title": "\x1b]0;owned\x07",
    "8-bit escape": "\x9b31mred",
    "line": "one\nerror: two\r\nthree",
    "column": "a | b ││ c",
    "back": "secret\b\b\b\b\b\bpublic",
    "direction": "abc\u202e\u2066fed",
    "page": "<script>alert(1)</script>",
    "formula": '=cmd|" /C calc"!A0',
    "markup": "[red]x[/red] [link=file:///]y[/link]",
    "nul": "a\x00b",
    "separator": "a\u2028b\u2029c",
}
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake in which everything that may hold any text holds the worst."""
    folder = tmp_path_factory.mktemp("escapes") / "lake"
    with Stream(Storage(str(folder)), "train.r") as stream:
        transaction = stream.begin()
        run = {
            "run_id": ["r"],
            "run_uuid": ["0" * 32],
            "created_at": [datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)],
            "family": ["".join(HOSTILE.values())],
            "dataset": [HOSTILE["title"]],
        }
        write_rows(transaction, "runs", {"run": "r"}, schema.table("runs").batch(run))
        n = len(HOSTILE)
        scalars = {
            "run_id": ["r"] * n,
            "global_step": [0] * n,
            "name": list(HOSTILE.values()),
            "value": [1.0] * n,
        }
        write_rows(transaction, "scalars", {"run": "r"}, schema.table("scalars").batch(scalars))
        tensors = [
            TensorRow({"name": name, "component": name}, Tensor.of(np.ones((2, 2), np.float32)))
            for name in HOSTILE.values()
        ]
        write_tensors(transaction, "weights", {"run": "r", "step": 0}, tensors)
        transaction.commit()
    return folder


@pytest.fixture
def run(place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("PICO_LAKE", str(place))

    def command(*arguments: str) -> tuple[int, str, str]:
        code = run_command(list(arguments))
        out, err = capsys.readouterr()
        return code, out, err

    return command


def is_harmless(text: str) -> bool:
    """By Unicode's own classes: no control, format, line or paragraph separator."""
    return not {unicodedata.category(c) for c in text if c != "\n"} & {"Cc", "Cf", "Zl", "Zp"}


COMMANDS = [
    ("runs",),
    ("coverage", "r"),
    ("sql", "SELECT name, value FROM scalars"),
    ("sql", "SELECT name, component, tensor FROM weights"),
    ("sql", "SELECT [name] AS list, {'a': name} AS struct, map {name: 1} AS map FROM scalars"),
    ("sql", 'SELECT 1 AS "a\x1b[31m\nb"'),
    ("query", "sparsity_by_layer", "-p", "run=r"),
    ("query", "loss", "-p", "run=r"),
]


@pytest.mark.parametrize("format", ["table", "json"])
@pytest.mark.parametrize("command", COMMANDS, ids=range(len(COMMANDS)))
def test_answers_obey_nothing(run: Run, command: tuple[str, ...], format: str) -> None:
    code, out, err = run(*command, "--format", format)
    assert code == 0, err
    assert out
    assert is_harmless(out)
    assert is_harmless(err)


def test_a_table_has_a_line_per_row(run: Run) -> None:
    _, out, _ = run("sql", "SELECT name FROM scalars")
    lines = [line for line in out.splitlines() if line.strip()]
    assert len(lines) == 2 + len(HOSTILE)  # heading and rule


def test_json_keeps_every_character(run: Run) -> None:
    _, out, _ = run("sql", "SELECT name FROM scalars ORDER BY name", "--format", "json")
    assert [row["name"] for row in json.loads(out)] == sorted(HOSTILE.values())


def test_csv_is_data_for_a_program_and_harmless_for_a_terminal(run: Run) -> None:
    sql = "SELECT name FROM scalars ORDER BY name"
    _, out, _ = run("sql", sql, "--format", "csv")
    names = [row["name"] for row in csv.DictReader(io.StringIO(out, newline=""))]
    assert names == sorted(HOSTILE.values())

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    output._write_csv(pa.table({"name\x1b[1m": names}), screen)
    assert is_harmless(screen.getvalue())


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_errors_are_one_harmless_line(run: Run, text: str) -> None:
    quoted = text.replace("'", "''").replace("\x00", "")
    for command in [
        ("sql", f"SELECT error('{quoted}')"),
        ("sql", f"SELECT CAST('{quoted}' AS INTEGER)"),
        ("sql", f'SELECT "{quoted}" FROM weights'.replace('" /C calc"', "")),
        ("coverage", text),
        ("query", text),
        ("query", "loss", "-p", f"run={text}"),
        ("query", "loss", "-p", f"{text}=1"),
        ("metrics", "compute", "--metric", text),
        ("runs", "--lake", text.replace("\x00", "")),
        ("train", text.replace("\x00", ""), "--run", text),
    ]:
        code, out, err = run(*command)
        assert code == 2, (command, out, err)
        assert err.startswith("error: ")
        assert err.count("\n") == 1, err
        assert is_harmless(err), err
