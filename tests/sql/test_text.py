"""Token ids back into text, in SQL: bytes, not words, are put together."""

from __future__ import annotations

import duckdb
import pytest

from pico.sql import text

WORDS = {0: "a", 1: " b", 2: "é", 3: "漢"}


@pytest.fixture
def connection() -> duckdb.DuckDBPyConnection:
    """Bytes 10 and up are single bytes of UTF-8; token 3 has a text alone."""
    found = duckdb.connect()
    found.execute("CREATE TABLE vocab (tokenizer TEXT, token_id INTEGER, bytes BLOB, text TEXT)")
    rows = [("t", i, None if i == 3 else word.encode(), word) for i, word in WORDS.items()]
    rows += [("t", 10 + i, bytes([byte]), None) for i, byte in enumerate("漢".encode())]
    found.executemany("INSERT INTO vocab VALUES (?, ?, ?, ?)", [*rows, ("other", 0, b"x", "x")])
    text.register(found)
    return found


@pytest.mark.parametrize(
    ("tokens", "tokenizer", "expected"),
    [
        ([0, 1, 2, 3], "t", "a bé漢"),
        ([10, 11, 12], "t", "漢"),
        ([10, 11], "t", "??"),
        ([0, 0], "other", "xx"),
        ([0, 99, 1], "t", "a\ufffd b"),
        ([99, 98], "t", "\ufffd\ufffd"),
        ([], "t", ""),
        (None, "t", None),
        ([0], "unknown", None),
        ([0], None, None),
    ],
)
def test_bytes_are_joined_and_read(
    connection: duckdb.DuckDBPyConnection,
    tokens: list[int] | None,
    tokenizer: str | None,
    expected: str | None,
) -> None:
    row = connection.execute("SELECT detokenize(?::INTEGER[], ?)", [tokens, tokenizer]).fetchone()
    assert row == (expected,)


def test_over_rows(connection: duckdb.DuckDBPyConnection) -> None:
    rows = connection.execute(
        "SELECT id, detokenize([id % 2, 0], 't') FROM range(1000) r(id) ORDER BY id"
    ).fetchall()
    assert rows == [(i, ("a" if i % 2 == 0 else " b") + "a") for i in range(1000)]
