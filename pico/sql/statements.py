"""Running a user's SQL, with every error of DuckDB worded as one line.

`library` and the command line run statements through `query` and read results through `fetch`;
DuckDB works lazily, so a damaged file shows itself only there. Both promise that nothing but
`QueryError` comes out of a statement that does not run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import duckdb
import pyarrow as pa

from pico.errors import QueryError, one_line, printable

_TRACEBACK = "Traceback (most recent call last):\n"
_UDF_PREFIX = "Invalid Input Error: Python exception occurred while executing the UDF: "
_OWN = re.compile(r"Invalid Input Error: (?P<text>table \w+ cannot be read: .*)")
_MISSING = re.compile(
    r"(?:No files found that match the pattern \"|FileNotFoundError: )(?P<path>[^\"]+\.parquet)"
)
_NAMED = (
    "Failed to read file ",
    "Failed to read Parquet file ",
    "No magic bytes found at end of file ",
    "too small to be a Parquet file",
    "Footer length error in file ",
    "Could not read enough bytes from file ",
    "Invalid string encoding found in Parquet file ",
    "Malformed Parquet schema in file ",
)
"""What DuckDB says of a damaged file that it names."""
_NAMELESS = (
    "TProtocolException: ",
    "don't know what type:",
    "invalid TType",
    "Out of buffer",
    "from Python file at offset ",
    "Payload value bigger than allowed",
    "missing dictionary",
)
"""What DuckDB says of a damaged file without naming it."""


@contextmanager
def guarded() -> Iterator[None]:
    """Turn whatever DuckDB raises inside the `with` into a `QueryError` of one line."""
    try:
        yield
    except duckdb.Error as error:
        raise QueryError(message(error)) from None
    except UnicodeDecodeError as error:  # a damaged file, in a value or in DuckDB's own message
        raise QueryError(f"text that is not UTF-8: {one_line(error)}") from None
    except RuntimeError as error:
        if "interrupted" in str(error):  # DuckDB's word for Ctrl-C
            raise KeyboardInterrupt from None
        raise


def message(error: duckdb.Error | UnicodeDecodeError) -> str:
    """Return DuckDB's message in one line, without the copy of the statement that follows it."""
    text = str(error).partition("\n\nLINE ")[0]
    if _TRACEBACK in text:  # of a file system in Python; its last line says it
        text = text.strip().splitlines()[-1].removeprefix("OSError: ")
    text = printable(" ".join(text.split()))
    if text.startswith(_UDF_PREFIX):
        _, _, text = text.removeprefix(_UDF_PREFIX).partition(": ")
    return _about_files(text)


def _about_files(text: str) -> str:
    """Return a message with what a reader needs where it is about a missing or damaged file."""
    if found := _OWN.match(text):
        return found["text"]
    if found := _MISSING.search(text):
        return f"{found['path']} is missing; see pico verify"
    if any(words in text for words in _NAMELESS):
        return f"a Parquet file is damaged ({text}); pico verify names it if it is the lake's"
    return f"{text}; see pico verify" if any(words in text for words in _NAMED) else text


def query(
    connection: duckdb.DuckDBPyConnection, sql: str, parameters: Mapping[str, Any] | None = None
) -> duckdb.DuckDBPyRelation:
    """Return the relation of an SQL statement (of several: the last), not yet computed.

    Args:
        connection: from `session.connect`.
        sql: the statement; `$name` stands for a parameter.
        parameters: values of the parameters by name.

    Raises:
        QueryError: the SQL does not parse or bind, or is no statement at all.
    """
    with guarded():
        relation = connection.sql(sql, params=dict(parameters) if parameters else None)
    if relation is None:
        raise QueryError("there is no SQL statement to run; try 'SELECT * FROM runs'")
    return relation


def fetch(relation: duckdb.DuckDBPyRelation) -> pa.Table:
    """Compute a relation and return its rows.

    Raises:
        QueryError: it cannot be computed: a damaged file, a value out of range, too little memory.
    """
    with guarded():
        return relation.to_arrow_table()
