"""Queries over files that path keys leave out answer as over tables that hold every row.

DuckDB prunes files by filters on `run` and `step` and then rewrites the rest of the query; what it
rewrites must not see the files again. Each query is asked of the lake's views, and of the same rows
in tables in memory, of which nothing can be pruned.
"""

from __future__ import annotations

import duckdb
import pytest

from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from pico.sql import session
from tests.sql.small_lake import write_run

FILTERS = [
    "step = 0",
    "step > 0",
    "step IN (0, 5)",
    "run = 'first'",
    "run <> 'first' AND step >= 5",
    "run || 'x' = 'firstx' AND step % 5 = 0",
    "step = (SELECT max(step) FROM weights)",
]
QUERIES = [
    "SELECT name, max(step) OVER (PARTITION BY run), min(step) OVER (PARTITION BY run) FROM {t}",
    "SELECT run, name FROM {t} QUALIFY step = max(step) OVER (PARTITION BY run)",
    "SELECT run, name FROM {t} QUALIFY step = max(step) OVER ()",
    "SELECT run, step, step - avg(step) OVER (PARTITION BY run) FROM {t}",
    "SELECT count(*) OVER (PARTITION BY run, name), run, step FROM {t}",
    "SELECT * FROM {t} QUALIFY row_number() OVER (PARTITION BY run, name ORDER BY step) = 1",
    "SELECT sum(step) OVER (PARTITION BY run ORDER BY step, name ROWS 2 PRECEDING) FROM {t}",
    "SELECT lag(step) OVER (PARTITION BY run, name ORDER BY step), run, step, name FROM {t}",
    "SELECT * FROM {t} ORDER BY step DESC, run, name LIMIT 3",
    "SELECT * FROM {t} ORDER BY name DESC, run, step LIMIT 5",
    "SELECT count(DISTINCT name), count(DISTINCT run), count(DISTINCT step), sum(step) FROM {t}",
    "SELECT run, count(DISTINCT name), count(DISTINCT step) FROM {t} GROUP BY run",
    "SELECT run, step, count(*) FROM {t} GROUP BY ROLLUP (run, step)",
    "SELECT run, step, count(*) FROM {t} GROUP BY GROUPING SETS ((run), (step), ())",
    "WITH a AS (FROM {t}) SELECT x.run, count(*) FROM a x JOIN a y USING (name) GROUP BY ALL",
    "FROM {t} WHERE (run, step) IN (SELECT (run, max(step)) FROM {t} GROUP BY run)",
    "FROM {t} a WHERE step = (SELECT max(step) FROM {t} b WHERE b.run = a.run)",
    "FROM {t} a WHERE NOT EXISTS (FROM {t} b WHERE b.run = a.run AND b.step > a.step)",
    "SELECT run, max(step) FROM {t} GROUP BY run HAVING max(step) = (SELECT max(step) FROM {t})",
    "SELECT count(*) FROM {t} UNION ALL SELECT count(*) FROM {t}",
    "SELECT run, name FROM {t} EXCEPT SELECT run, name FROM {t} WHERE step < 5",
    "PIVOT (SELECT run, step FROM {t}) ON step IN (0, 5) USING count(*) GROUP BY run",
    "SELECT a.run, a.step, b.step FROM weights a ASOF JOIN (SELECT DISTINCT run, step FROM {t}) b "
    "ON a.run = b.run AND a.step >= b.step",
]


@pytest.fixture(scope="module")
def both(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[duckdb.DuckDBPyConnection, duckdb.DuckDBPyConnection]:
    """The lake's views, and its rows in memory."""
    storage = Storage(str(tmp_path_factory.mktemp("pruned") / "lake"))
    for run in ("first", "second"):
        write_run(storage, run)
    views, tables = session.connect(Snapshot.take(storage)), duckdb.connect()
    rows = views.execute("SELECT run, step, name, layer FROM weights").fetchall()
    tables.execute("CREATE TABLE weights (run VARCHAR, step BIGINT, name VARCHAR, layer INTEGER)")
    tables.executemany("INSERT INTO weights VALUES (?, ?, ?, ?)", rows)
    assert len(rows) > 8
    return views, tables


@pytest.mark.parametrize("query", QUERIES)
def test_pruning_changes_no_answer(
    both: tuple[duckdb.DuckDBPyConnection, duckdb.DuckDBPyConnection], query: str
) -> None:
    for where in FILTERS:
        part = f"(SELECT run, step, name, layer FROM weights WHERE {where})"
        found, expected = (
            sorted(map(repr, connection.sql(query.format(t=part)).fetchall()))
            for connection in both
        )
        assert found == expected, where
