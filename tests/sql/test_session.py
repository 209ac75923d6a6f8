"""Views over a snapshot: columns, pruning, NULL and NaN rows, odd paths, damaged files."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from pico import schema
from pico.errors import QueryError, RunNameError
from pico.lake.codec import Tensor
from pico.lake.commit import Stream
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from pico.lake.table import TensorRow, write_rows, write_tensors
from pico.sql import session, statements
from tests.sql import small_lake as lake


def columns(connection: duckdb.DuckDBPyConnection, table: str) -> dict[str, str]:
    return {row[0]: row[1] for row in connection.execute(f"DESCRIBE {table}").fetchall()}


def files_read(connection: duckdb.DuckDBPyConnection, sql: str) -> int:
    plan = connection.execute(f"EXPLAIN ANALYZE {sql}").fetchall()[0][1]
    return sum(int(found) for found in re.findall(r"Total Files Read: (\d+)", plan))


def test_views_show_run_and_step_and_neither_run_id_nor_global_step(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    for name, spec in schema.tables().items():
        shown = columns(connection, name)
        hidden = {"run_id", "global_step", "dataset_id", "tokenizer_id"}
        assert not hidden & set(shown)
        assert set(spec.partition) <= set(shown)
        assert ("global_step" in spec.column_names) == ("step" in shown)
        assert set(spec.column_names) - hidden <= set(shown)


def test_an_empty_table_has_the_columns_of_a_full_one(
    connection: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    other = Storage(str(tmp_path / "other"))
    with Stream(other, "data.empty") as stream:
        stream._publish([], "0")
    empty = session.connect(Snapshot.take(other))
    for name in ("weights", "gradients", "activations", "scalars", "batches", "runs", "vocab"):
        assert columns(empty, name) == columns(connection, name)
        assert empty.execute(f"SELECT count(*) FROM {name}").fetchall() == [(0,)]


def test_tensor_holds_shape_and_value(connection: duckdb.DuckDBPyConnection) -> None:
    rows = connection.execute(
        "SELECT run, step, name, tensor, shape, value FROM weights ORDER BY ALL"
    ).fetchall()
    assert len(rows) == len(lake.RUNS) * len(lake.STEPS) * len(lake.WEIGHTS)
    for run, step, name, tensor, shape, value in rows:
        wanted = lake.weight(run, step, name)
        assert tensor == {"shape": shape, "value": value}
        np.testing.assert_array_equal(np.reshape(value, shape), wanted)


def test_rows_without_a_layer_are_kept(connection: duckdb.DuckDBPyConnection) -> None:
    sql = "SELECT count(*) FROM weights WHERE layer IS NULL AND run = 'first' AND step = 2"
    assert connection.execute(sql).fetchall() == [(2,)]


def test_a_filter_on_run_and_step_opens_only_their_files(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    sql = "SELECT sum(len(value)) FROM weights"
    assert files_read(connection, sql) == len(lake.RUNS) * len(lake.STEPS)
    assert files_read(connection, f"{sql} WHERE step = 2") == len(lake.RUNS)
    assert files_read(connection, f"{sql} WHERE step = 2 AND run = 'first'") == 1
    assert files_read(connection, f"{sql} WHERE run = 'first' AND step BETWEEN 1 AND 9") == 2
    assert files_read(connection, "SELECT max(value) FROM scalars WHERE run = 'first'") == 3


def test_windows_see_what_a_filter_on_path_keys_left(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    """DuckDB's own rewriting of windows forgets the files that were pruned."""
    steps = [row[0] for row in connection.execute("SELECT DISTINCT step FROM weights").fetchall()]
    assert len(steps) > 1
    for step in steps:
        seen = connection.execute(
            f"SELECT DISTINCT max(step) OVER (PARTITION BY run) FROM weights WHERE step = {step}"
        ).fetchall()
        assert seen == [(step,)]


def test_pruned_files_are_never_opened(new_lake: Callable[..., Storage]) -> None:
    storage = new_lake()
    snapshot = Snapshot.take(storage)
    connection = session.connect(snapshot)
    assert storage.folder is not None
    for entry in snapshot.files("weights", steps=[5]):
        (storage.folder / entry.path).write_bytes(b"x")
    kept = "SELECT count(*), sum(len(value)) FROM weights WHERE step < 5"
    assert connection.execute(kept).fetchall()[0][0] == 2 * len(lake.WEIGHTS)
    with pytest.raises(duckdb.Error):
        connection.execute("SELECT sum(len(value)) FROM weights").fetchall()


def test_runs_and_steps_narrow_every_table(storage: Storage) -> None:
    narrow = session.connect(Snapshot.take(storage), runs=["second"], steps=[0, 5])
    for table in ("weights", "gradients", "activations", "scalars", "batches"):
        found = narrow.execute(f"SELECT DISTINCT run, step FROM {table} ORDER BY ALL").fetchall()
        assert found == [("second", 0), ("second", 5)], table
    assert narrow.execute("SELECT run FROM runs").fetchall() == [("second",)]
    assert narrow.execute("SELECT count(*) FROM vocab").fetchall() == [(len(lake.TOKENS),)]
    nothing = session.connect(Snapshot.take(storage), steps=[])
    assert nothing.execute("SELECT count(*) FROM scalars").fetchall() == [(0,)]


def test_an_unknown_run_is_named(storage: Storage) -> None:
    with pytest.raises(RunNameError, match=r"'firts'.*Did you mean 'first'"):
        session.connect(Snapshot.take(storage), runs=["firts"])


def test_nan_rows_are_found(connection: duckdb.DuckDBPyConnection) -> None:
    sql = "SELECT step FROM scalars WHERE isnan(value) AND run = 'first'"
    assert connection.execute(sql).fetchall() == [(5,)]
    assert connection.execute("SELECT count(*) FROM scalars WHERE value > 1e9").fetchall() == [(2,)]


def test_settings(storage: Storage) -> None:
    connection = session.connect(Snapshot.take(storage), threads=1, memory_limit="1GB")
    for name, value in {
        "threads": 1,
        "memory_limit": "953.6 MiB",
        "TimeZone": "UTC",
        "parquet_metadata_cache": True,
        "parquet_can_have_nan": True,
        "arrow_large_buffer_size": True,
        "enable_progress_bar": False,
    }.items():
        assert connection.execute(f"SELECT current_setting('{name}')").fetchall() == [(value,)]
    stamp = connection.execute("SELECT created_at FROM runs WHERE run = 'first'").fetchall()[0][0]
    assert stamp.isoformat() == "2026-01-02T00:00:00+00:00"


def test_a_refused_setting_is_one_line(storage: Storage) -> None:
    with pytest.raises(QueryError, match="memory_limit = 'lots'"):
        session.connect(Snapshot.take(storage), memory_limit="lots")


def test_files_view_is_the_snapshot(storage: Storage) -> None:
    snapshot = Snapshot.take(storage)
    connection = session.connect(snapshot)
    sql = "SELECT table_name, path, rows, bytes, min_step, max_step FROM files ORDER BY path"
    wanted = sorted(
        (e.table, e.path, e.rows, e.bytes, e.min_step, e.max_step) for e in snapshot.all_files()
    )
    assert sorted(connection.execute(sql).fetchall()) == wanted


def test_commits_made_meanwhile_do_not_appear(new_lake: Callable[..., Storage]) -> None:
    storage = new_lake()
    connection = session.connect(Snapshot.take(storage))
    before = connection.execute("SELECT count(*) FROM weights").fetchall()
    lake.write_run(storage, "second")
    assert connection.execute("SELECT count(*) FROM weights").fetchall() == before
    assert connection.execute("SELECT DISTINCT run FROM weights").fetchall() == [("first",)]
    later = session.connect(Snapshot.take(storage))
    assert len(later.execute("SELECT DISTINCT run FROM weights").fetchall()) == 2


@pytest.mark.parametrize(
    "name", ["it's", "a b", "x[1]y", "q?", "st*r", "run=other/step=7", "br{a,b}", 'quo"te']
)
def test_a_lake_may_lie_in_a_folder_of_any_name(
    new_lake: Callable[..., Storage], name: str
) -> None:
    connection = session.connect(Snapshot.take(new_lake(f"{name}/lake")))
    sql = "SELECT DISTINCT run, step FROM weights ORDER BY ALL"
    assert connection.execute(sql).fetchall() == [("first", step) for step in lake.STEPS]


def test_split_and_complex_tensors_have_no_tensor(new_lake: Callable[..., Storage]) -> None:
    storage = new_lake()
    with Stream(storage, "train.odd") as stream:
        transaction = stream.begin()
        rows = [
            TensorRow({"name": "big"}, Tensor.of(np.ones((4, 4), np.float32))),
            TensorRow({"name": "complex"}, Tensor.of(np.ones((2, 2), np.complex64))),
        ]
        write_tensors(transaction, "weights", {"run": "odd", "step": 0}, rows, part_limit=8)
        transaction.commit()
    connection = session.connect(Snapshot.take(storage))
    found = connection.execute(
        "SELECT name, n_parts, tensor, gini(tensor), per(tensor) FROM weights WHERE run = 'odd' "
        "ORDER BY name, part"
    ).fetchall()
    assert found == [
        ("big", 2, None, None, None),
        ("big", 2, None, None, None),
        ("complex", 1, None, None, None),
    ]


def test_files_of_both_layouts_are_one_table(new_lake: Callable[..., Storage]) -> None:
    """Frequent captures lie under `run=` alone; the view shows them beside the others."""
    snapshot = Snapshot.take(new_lake())
    entry = snapshot.files("weights", steps=[2])[0]
    assert snapshot.storage.folder is not None
    dense = "weights_dense/run=first/dense.parquet"
    (snapshot.storage.folder / dense).parent.mkdir(parents=True)
    (snapshot.storage.folder / entry.path).rename(snapshot.storage.folder / dense)
    moved = [replace(e, path=dense) if e == entry else e for e in snapshot.all_files()]
    connection = session.connect(Snapshot(snapshot.storage, moved))
    sql = "SELECT step, count(*) FROM weights WHERE run = 'first' GROUP BY step ORDER BY step"
    assert connection.execute(sql).fetchall() == [(s, len(lake.WEIGHTS)) for s in lake.STEPS]


@pytest.mark.parametrize("content", [b"", b"not parquet", b"PAR1" + b"x" * 100 + b"PAR1"])
def test_a_damaged_file_spoils_only_its_table(
    new_lake: Callable[..., Storage], content: bytes
) -> None:
    storage = new_lake()
    snapshot = Snapshot.take(storage)
    assert storage.folder is not None
    for entry in snapshot.files("weights"):
        (storage.folder / entry.path).write_bytes(content)
    (storage.folder / snapshot.files("gradients")[-1].path).write_bytes(content)
    connection = session.connect(snapshot)
    assert len(connection.execute("SELECT * FROM scalars").fetchall()) == 7
    assert columns(connection, "weights")["tensor"] == 'STRUCT(shape INTEGER[], "value" FLOAT[])'
    for table in ("weights", "gradients"):
        with pytest.raises(QueryError) as caught:
            statements.fetch(statements.query(connection, f"SELECT * FROM {table}"))
        assert "\n" not in str(caught.value)
        assert ".parquet" in str(caught.value)


SPOILS: dict[str, Callable[[bytes], bytes | None]] = {
    "missing": lambda data: None,
    "empty": lambda data: b"",
    "cut": lambda data: data[:-30],
}


@pytest.fixture(params=["local", "memory"])
def spoilt(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Snapshot]:
    """A function that spoils some files of a table of a lake of two runs."""
    url = str(tmp_path / "lake") if request.param == "local" else f"memory://{tmp_path.name}"

    def spoil(how: str, table: str, places: Collection[int], run: str = "first") -> Snapshot:
        storage = lake.write_lake(Storage(url))
        snapshot = Snapshot.take(storage)
        files = [e for e in snapshot.files(table) if f"/run={run}/" in e.path]
        for place in places:
            data = SPOILS[how](storage.read(files[place].path))
            storage.delete([files[place].path])
            if data is not None:
                storage.put(files[place].path, data)
        return snapshot

    return spoil


@pytest.mark.parametrize("how", SPOILS)
@pytest.mark.parametrize("places", [(0,), (1,), (0, 1, 2)])
def test_a_lost_file_fails_only_the_queries_that_need_it(
    spoilt: Callable[..., Snapshot], how: str, places: tuple[int, ...]
) -> None:
    snapshot = spoilt(how, "weights", places)
    connection = session.connect(snapshot)
    n_rows = len(lake.STEPS) * len(lake.WEIGHTS)
    count = "SELECT count(len(value)) FROM weights"
    assert connection.execute(f"{count} WHERE run = 'second'").fetchall() == [(n_rows,)]
    (kept,) = connection.execute(f"{count} WHERE run = $run", {"run": "second"}).fetchall()
    assert kept == (n_rows,)
    for place, step in enumerate(lake.STEPS):
        one = f"{count} WHERE run = 'first' AND step = {step}"
        if place in places:
            assert failure(connection, one)
        else:
            assert connection.execute(one).fetchall() == [(len(lake.WEIGHTS),)]
    for needing in (count, f"{count} WHERE layer = 0", "SELECT sum(gini(tensor)) FROM weights"):
        message = failure(connection, needing)
        assert "verify" in message
    only = session.connect(snapshot, runs=["second"])
    assert only.execute(count).fetchall() == [(n_rows,)]
    with pytest.raises(QueryError):
        statements.fetch(statements.query(connection, "SELECT run FROM weights"))


def failure(connection: duckdb.DuckDBPyConnection, sql: str) -> str:
    with pytest.raises(QueryError) as caught:
        statements.fetch(statements.query(connection, sql))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_missing_file_is_named(spoilt: Callable[..., Snapshot]) -> None:
    snapshot = spoilt("missing", "scalars", (0,))
    path = snapshot.files("scalars")[0].path
    connection = session.connect(snapshot)
    assert failure(connection, "SELECT step FROM scalars WHERE step = 2") == (
        f"table scalars cannot be read: {path} is missing although the log names it; "
        "see pico verify"
    )
    other = "SELECT count(*) FROM scalars WHERE run = 'second'"
    assert connection.execute(other).fetchall() == [(7,)]
    assert len(columns(connection, "scalars")) == len(schema.table("scalars").columns)


def test_a_file_that_goes_missing_later_is_named(spoilt: Callable[..., Snapshot]) -> None:
    snapshot = spoilt("missing", "weights", ())
    connection = session.connect(snapshot)
    path = snapshot.files("weights")[1].path
    snapshot.storage.delete([path])
    message = failure(connection, "SELECT sum(len(value)) FROM weights")
    assert path in message and message.endswith("is missing; see pico verify")


def test_a_table_that_lost_most_of_its_files_is_not_shown_in_part(
    spoilt: Callable[..., Snapshot], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "_MANY_LOST", 2)
    connection = session.connect(spoilt("missing", "weights", (0, 1, 2)))
    message = failure(connection, "SELECT count(*) FROM weights WHERE run = 'second'")
    assert message.startswith("table weights cannot be read: weights/run=first/step=0/")


def test_rows_of_a_row_table_keep_their_own_step(new_lake: Callable[..., Storage]) -> None:
    storage = new_lake()
    with Stream(storage, "train.long") as stream:
        transaction = stream.begin()
        rows = {
            "run_id": ["long"] * 3,
            "global_step": [1, 2, 3],
            "name": ["loss"] * 3,
            "value": pa.array([1.0, 2.0, None]),
        }
        batch = schema.table("scalars").batch(rows)
        write_rows(transaction, "scalars", {"run": "long"}, batch)
        transaction.commit()
    connection = session.connect(Snapshot.take(storage), steps=[2, 3])
    sql = "SELECT step, value FROM scalars WHERE run = 'long' ORDER BY step"
    assert connection.execute(sql).fetchall() == [(2, 2.0), (3, None)]
