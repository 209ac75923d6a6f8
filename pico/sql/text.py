"""The SQL function that turns token ids back into text.

`functions.register` calls `register`. It is a macro over the view `vocab`, without Python, so that
it costs a join and reads only one tokenizer's rows.
"""

from __future__ import annotations

import duckdb


def functions() -> dict[str, tuple[str, str]]:
    """Return signature and summary of the function, by name."""
    summary = "Text of a list of token ids: the bytes of the lake's vocab, read as UTF-8."
    return {"detokenize": ("detokenize(tokens, tokenizer) -> VARCHAR", summary)}


def register(connection: duckdb.DuckDBPyConnection) -> None:
    """Register the function on a connection that has the view `vocab`."""
    connection.execute(_DETOKENIZE)


# A list may begin or end inside a character, whose bytes then become '?'; an id that the tokenizer
# lacks becomes U+FFFD, and a tokenizer that the lake lacks gives NULL.
_DETOKENIZE = """
CREATE MACRO detokenize(tokens, tokenizer_name) AS (
    SELECT CASE
        WHEN len(tokens) = 0 THEN ''
        WHEN EXISTS (FROM vocab WHERE tokenizer = tokenizer_name) THEN decode(
            unhex(string_agg(hex(coalesce(v.bytes, encode(v.text), encode('\ufffd'))), ''
                ORDER BY given.place)),
            'replace'
        )
    END
    FROM (
        SELECT unnest(tokens) AS token_id, generate_subscripts(tokens, 1) AS place
    ) given
    LEFT JOIN vocab v ON v.tokenizer = tokenizer_name AND v.token_id = given.token_id
)
"""
