"""Writing a result: a table for people, JSON, CSV or Parquet for programs.

The command line hands over what `statements.fetch` returned. Formats promise that every value comes
out in a form that says what it was: in JSON and CSV, times are ISO 8601, bytes are hexadecimal, and
numbers that JSON does not have are the strings "NaN", "Infinity" and "-Infinity" (as `float()`
reads them); NULL is `null` in JSON and an empty field in CSV; lists are lists, in CSV as JSON text.

Names and values of a lake are input. What is shown in a terminal has control characters and marks
of writing direction spelled as escapes; JSON spells them everywhere, as it may. CSV in a file or a
pipe keeps each character, also of a text such as `=cmd()` that a spreadsheet would take for a
formula: it is data, and a spreadsheet should import it as text.
"""

from __future__ import annotations

import csv
import datetime
import decimal
import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import pyarrow as pa
import pyarrow.parquet as pq
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pico.errors import STEERING, QueryError, did_you_mean, one_line, printable

MAX_ROWS = 200
"""Rows that the format `table` shows at most; it says how many it left out."""
_MAX_ELEMENTS = 6
_MAX_CHARACTERS = 200


def write(rows: pa.Table, format: str = "table", out: Path | str | None = None) -> None:
    """Write rows to a file, or to standard output.

    Args:
        rows: the result.
        format: `table`, `json` (a list of objects), `csv` (with a header line) or `parquet`.
        out: path of the file; None for standard output.

    Raises:
        QueryError: an unknown format, a file that cannot be written, columns of equal names where
            names are keys (JSON), or Parquet for a terminal.
    """
    if format == "parquet":
        _to(out, lambda file: _write_parquet(rows, file), binary=True)
    elif format in _TEXT_FORMATS:
        _to(out, lambda file: _TEXT_FORMATS[format](rows, file), binary=False)
    else:
        formats = (*_TEXT_FORMATS, "parquet")
        raise QueryError(
            f"no format {format!r}.{did_you_mean(format, formats)} Formats: {', '.join(formats)}"
        )


def plain(value: Any) -> Any:
    """Return a value as JSON has it; see the module's docstring.

    >>> plain([1.0, float("nan"), b"ab"])
    [1.0, 'NaN', '6162']
    """
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, decimal.Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return [plain(item) for item in value]
    return str(value)


def _to(out: Path | str | None, action: Callable[[Any], None], *, binary: bool) -> None:
    if out is None:
        if binary and sys.stdout.isatty():
            raise QueryError("Parquet is not for a terminal; give a file with -o")
        action(sys.stdout.buffer if binary else sys.stdout)
        return
    try:
        with open(out, "wb") if binary else open(out, "w", encoding="utf-8", newline="") as file:
            action(file)
    except OSError as error:
        raise QueryError(f"cannot write {str(out)!r}: {one_line(error)}") from None


def _write_json(rows: pa.Table, file: TextIO) -> None:
    names = rows.column_names
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise QueryError(f"two columns are named {twice!r}; JSON needs AS to tell them apart")
    file.write("[")
    for index, row in enumerate(_rows(rows)):
        values = dict(zip(names, map(plain, row), strict=True))
        file.write(",\n " if index else "\n ")
        text = json.dumps(values, ensure_ascii=False)
        file.write(STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text))
    file.write("\n]\n" if rows.num_rows else "]\n")


def _write_csv(rows: pa.Table, file: TextIO) -> None:
    writer = csv.writer(file, lineterminator="\n")
    is_seen = file.isatty()  # by a person: a program gets every character as it is

    def shown(value: Any) -> Any:
        return printable(value) if is_seen and isinstance(value, str) else value

    writer.writerow(map(shown, rows.column_names))
    for row in _rows(rows):
        writer.writerow([shown(_csv_field(plain(value))) for value in row])


def _csv_field(value: Any) -> Any:
    if isinstance(value, (list, dict)):
        return json.dumps(value, ensure_ascii=False)
    return str(value).lower() if isinstance(value, bool) else value


def _write_table(rows: pa.Table, file: TextIO) -> None:
    console = Console(file=file)
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for field in rows.schema:
        numeric = pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
        grid.add_column(
            Text(printable(field.name)), justify="right" if numeric else "left", overflow="fold"
        )
    for row in _rows(rows.slice(0, MAX_ROWS)):
        grid.add_row(*[_cell(value) for value in row])
    if not console.is_terminal:  # a pipe has no width to wrap at
        console = Console(file=file, width=1000)
    console.print(grid)
    hidden = rows.num_rows - MAX_ROWS
    if hidden > 0:
        console.print(f"… {hidden} more rows; --format csv|json|parquet writes all", markup=False)


def _cell(value: Any) -> Text:
    if value is None:
        return Text("NULL", style="dim")
    return Text(printable(_short(value)))


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        shown = [_short(item) for item in value[:_MAX_ELEMENTS]]
        more = [f"… {len(value)} elements"] if len(value) > _MAX_ELEMENTS else []
        return f"[{', '.join(shown + more)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_short(item)}' for key, item in value.items())}}}"
    text = value if isinstance(value, str) else str(plain(value))
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}…"


def _write_parquet(rows: pa.Table, file: BinaryIO) -> None:
    try:
        pq.write_table(rows, file, compression="zstd")
    except pa.ArrowException as error:
        raise QueryError(f"Parquet cannot hold these columns: {one_line(error)}") from None


def _rows(rows: pa.Table) -> Sequence[tuple[Any, ...]]:
    """Return rows as tuples: columns may share a name."""
    return list(zip(*(column.to_pylist() for column in rows.columns), strict=True))


_TEXT_FORMATS: dict[str, Callable[[pa.Table, TextIO], None]] = {
    "table": _write_table,
    "json": _write_json,
    "csv": _write_csv,
}
