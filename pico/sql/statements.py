"""Running a user's SQL, with every error of DuckDB worded as one line.

`library` and the command line run statements through `query` and read results through `fetch`;
DuckDB works lazily, so a damaged file shows itself only there. Both promise that nothing but
`QueryError` comes out of a statement that does not run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import duckdb
import pyarrow as pa

from pico.errors import QueryError, one_line, printable

_TRACEBACK = "Traceback (most recent call last):\n"
_UDF_PREFIX = "Invalid Input Error: Python exception occurred while executing the UDF: "


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


def message(error: duckdb.Error) -> str:
    """Return DuckDB's message in one line, without the copy of the statement that follows it."""
    text = str(error).partition("\n\nLINE ")[0]
    if _TRACEBACK in text:  # of a file system in Python; its last line says it
        text = text.strip().splitlines()[-1]
    text = printable(" ".join(text.split()))
    if text.startswith(_UDF_PREFIX):
        _, _, text = text.removeprefix(_UDF_PREFIX).partition(": ")
    return text


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
