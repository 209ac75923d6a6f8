"""SQL over a lake: connections, functions of tensors, the query library, kept metrics.

`session` makes a DuckDB connection over one snapshot, `functions` puts the metrics into it,
`statements` runs SQL and words its errors, `library` holds `queries/*.sql`, `materialize` keeps
metrics in the lake, `frames` gives the same tables to Polars, `output` prints and writes results.
Nothing here imports torch.
"""

from pico.sql.library import Query, get_query, list_queries, run
from pico.sql.materialize import compute
from pico.sql.session import connect
from pico.sql.statements import fetch, query
from pico.sql.summary import Summary

__all__ = [
    "Query",
    "Summary",
    "compute",
    "connect",
    "fetch",
    "get_query",
    "list_queries",
    "query",
    "run",
]
