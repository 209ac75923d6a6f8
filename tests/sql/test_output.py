"""Results as table, JSON, CSV and Parquet."""

from __future__ import annotations

import csv
import datetime
import io
import json
import math
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pico.errors import QueryError
from pico.sql import output

ROWS = pa.table(
    {
        "step": pa.array([1, 2], pa.int64()),
        "value": pa.array([math.nan, -math.inf], pa.float64()),
        "name": pa.array(['a,"b"\n', None], pa.string()),
        "raw": pa.array([b"\x00\xff", None], pa.binary()),
        "shape": pa.array([[2, 3], []], pa.list_(pa.int32())),
        "at": pa.array(
            [datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC), None],
            pa.timestamp("us", "UTC"),
        ),
        "tensor": pa.array(
            [{"shape": [1], "value": [math.inf]}, None],
            pa.struct({"shape": pa.list_(pa.int32()), "value": pa.list_(pa.float32())}),
        ),
        "flag": pa.array([True, False]),
    }
)
PLAIN = [
    {
        "step": 1,
        "value": "NaN",
        "name": 'a,"b"\n',
        "raw": "00ff",
        "shape": [2, 3],
        "at": "2026-01-02T03:04:05+00:00",
        "tensor": {"shape": [1], "value": ["Infinity"]},
        "flag": True,
    },
    {
        "step": 2,
        "value": "-Infinity",
        "name": None,
        "raw": None,
        "shape": [],
        "at": None,
        "tensor": None,
        "flag": False,
    },
]


def written(rows: pa.Table, format: str, path: Path) -> str:
    output.write(rows, format, path)
    return path.read_text(encoding="utf-8")


def test_json(tmp_path: Path) -> None:
    text = written(ROWS, "json", tmp_path / "out")
    assert json.loads(text, parse_constant=lambda name: pytest.fail(name)) == PLAIN
    assert json.loads(written(ROWS.slice(0, 0), "json", tmp_path / "out")) == []


def test_json_refuses_two_columns_of_one_name(tmp_path: Path) -> None:
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    with pytest.raises(QueryError, match="two columns are named 'x'"):
        output.write(twice, "json", tmp_path / "out")
    assert written(twice, "csv", tmp_path / "out") == "x,x\n1,2\n"
    assert "1" in written(twice, "table", tmp_path / "out")


def test_csv(tmp_path: Path) -> None:
    text = written(ROWS, "csv", tmp_path / "out")
    header, first, second = csv.reader(io.StringIO(text))
    assert header == ROWS.column_names
    assert first == [
        "1",
        "NaN",
        'a,"b"\n',
        "00ff",
        "[2, 3]",
        "2026-01-02T03:04:05+00:00",
        '{"shape": [1], "value": ["Infinity"]}',
        "true",
    ]
    assert second == ["2", "-Infinity", "", "", "[]", "", "", "false"]


def test_parquet(tmp_path: Path) -> None:
    output.write(ROWS, "parquet", tmp_path / "out")
    back = pq.read_table(tmp_path / "out")
    assert back.schema.equals(ROWS.schema)
    assert back.drop(["value"]).equals(ROWS.drop(["value"]))


def test_table_is_for_people(tmp_path: Path) -> None:
    long = pa.table({"values": [list(range(1000))], "x": [0.1234567891], "y": [None]})
    text = written(long, "table", tmp_path / "out")
    assert "[0, 1, 2, 3, 4, 5, … 1000 elements]" in text
    assert "0.123457" in text
    assert "NULL" in text


def test_table_says_what_it_leaves_out(tmp_path: Path) -> None:
    text = written(pa.table({"i": range(output.MAX_ROWS + 7)}), "table", tmp_path / "out")
    assert "… 7 more rows" in text
    assert str(output.MAX_ROWS - 1) in text
    assert "more rows" not in written(ROWS, "table", tmp_path / "out")


def test_markup_in_values_is_text(tmp_path: Path) -> None:
    assert "[bold]x[/bold]" in written(
        pa.table({"[a]": ["[bold]x[/bold]"]}), "table", tmp_path / "o"
    )


@pytest.mark.parametrize("format", ["table", "json", "csv"])
def test_standard_output(capsys: pytest.CaptureFixture[str], format: str) -> None:
    output.write(pa.table({"number": [17]}), format)
    assert "17" in capsys.readouterr().out


def test_parquet_goes_to_standard_output(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    output.write(pa.table({"number": [17]}), "parquet")
    assert pq.read_table(io.BytesIO(capfdbinary.readouterr().out)).to_pydict() == {"number": [17]}


@pytest.mark.parametrize("format", ["table", "json", "csv", "parquet"])
def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path, format: str) -> None:
    with pytest.raises(QueryError, match="cannot write"):
        output.write(ROWS, format, tmp_path / "absent" / "out")


def test_an_unknown_format_is_answered_with_the_nearest() -> None:
    with pytest.raises(QueryError, match=r"no format 'jsn'\. Did you mean 'json'"):
        output.write(ROWS, "jsn")
