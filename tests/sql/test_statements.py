"""A statement that does not run is a `QueryError` of one line, whenever it shows itself."""

from __future__ import annotations

from collections.abc import Callable

import duckdb
import pyarrow as pa
import pytest

from pico.errors import QueryError
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from pico.sql import session, statements


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELEC 1", "syntax error at or near"),
        ("SELECT stepp FROM weights", "stepp"),
        ("SELECT * FROM weight", "weight"),
        ("SELECT nothing(1)", "nothing"),
        ("SELECT 'x'::INTEGER", "Could not convert"),
        ("SELECT error('a\nb')", "a b"),
        ("", "no SQL statement"),
        ("  -- only a comment", "no SQL statement"),
        ("SELECT $run", "run"),
        ("SELECT 1; SELEC 2", "syntax error"),
    ],
)
def test_a_statement_that_does_not_run_is_one_line(
    connection: duckdb.DuckDBPyConnection, sql: str, message: str
) -> None:
    with pytest.raises(QueryError, match=message) as caught:
        statements.fetch(statements.query(connection, sql))
    assert "\n" not in str(caught.value)
    assert "LINE 1" not in str(caught.value)


def test_of_several_statements_the_last_one_answers(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    rows = statements.fetch(statements.query(connection, "SELECT 1 AS a; SELECT 2 AS b"))
    assert rows.to_pydict() == {"b": [2]}


def test_parameters_are_values_and_never_text(connection: duckdb.DuckDBPyConnection) -> None:
    hostile = "x'; DROP VIEW weights; --"
    rows = statements.fetch(statements.query(connection, "SELECT $a AS a", {"a": hostile}))
    assert rows.to_pydict() == {"a": [hostile]}
    assert connection.execute("SELECT count(*) > 0 FROM weights").fetchall() == [(True,)]


def test_fetch_gives_arrow(connection: duckdb.DuckDBPyConnection) -> None:
    rows = statements.fetch(statements.query(connection, "SELECT step FROM scalars"))
    assert isinstance(rows, pa.Table)
    assert rows.schema.field("step").type == pa.int64()


def test_a_file_damaged_after_the_statement_was_bound_is_one_line(
    new_lake: Callable[..., Storage],
) -> None:
    storage = new_lake()
    snapshot = Snapshot.take(storage)
    connection = session.connect(snapshot)
    relation = statements.query(connection, "SELECT sum(len(value)) FROM weights")
    assert storage.folder is not None
    for entry in snapshot.files("weights"):
        path = storage.folder / entry.path
        path.write_bytes(path.read_bytes()[:-300] + b"\0" * 300)
    with pytest.raises(QueryError) as caught:
        statements.fetch(relation)
    assert "\n" not in str(caught.value)
    assert ".parquet" in str(caught.value)


def test_damaged_values_are_one_line(new_lake: Callable[..., Storage]) -> None:
    storage = new_lake()
    snapshot = Snapshot.take(storage)
    assert storage.folder is not None
    for entry in snapshot.files("weights"):
        path = storage.folder / entry.path
        content = bytearray(path.read_bytes())
        content[40:600] = bytes(560)
        path.write_bytes(content)
    connection = session.connect(snapshot)
    with pytest.raises(QueryError) as caught:
        statements.fetch(statements.query(connection, "SELECT * FROM weights"))
    assert "\n" not in str(caught.value)
