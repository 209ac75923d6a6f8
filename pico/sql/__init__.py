"""SQL over a lake: connections, functions of tensors, the query library, dataframes.

`session` makes a DuckDB connection over one snapshot, `functions` puts the metrics into it,
`statements` runs SQL and words its errors, `library` holds `queries/*.sql`, `frames` gives the same
tables to Polars, `output` prints and writes results. Nothing here imports torch.
"""

from pico.sql.library import Query, get_query, list_queries, run
from pico.sql.session import connect
from pico.sql.statements import fetch, query

__all__ = [
    "Query",
    "connect",
    "fetch",
    "get_query",
    "list_queries",
    "query",
    "run",
]
