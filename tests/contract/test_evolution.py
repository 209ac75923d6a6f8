"""Files of several versions of a table are one table to every reader of ours.

The lake of version 1 that is kept in `tests/fixtures` gets files of a made-up version 2, in which
columns were renamed, added, dropped and widened. What is expected of the old rows is worked out
here by hand from the JSON file beside that lake.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from pico import schema
from pico.api import Lake
from pico.errors import CorruptError, SchemaError
from pico.lake import log
from pico.lake.commit import Stream
from pico.lake.log import Entry
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from tests.fixtures import made_up

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
V1 = json.loads((FIXTURES / "lake-v1.json").read_text(encoding="utf-8"))
NEW = {"unit": "bit", "name": "loss", "number": 0.5, "is_exact": False}


def old_scalars() -> list[dict[str, Any]]:
    """Return the fixture's scalars as rows of version 2, as SQL and Polars name the keys."""
    rows = [dict(zip(V1["scalars"]["columns"], row, strict=True)) for row in V1["scalars"]["rows"]]
    return [
        {
            "run": row["run_id"],
            "step": row["global_step"],
            "unit": "nat",
            "name": row["name"],
            "number": row["value"],
            "is_exact": True,
        }
        for row in rows
    ]


def in_order(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["run"], row["step"], row["name"]))


SCALARS = in_order(
    [*old_scalars(), {"run": "later", "step": 0, **NEW}, {"run": "tiny", "step": 7, **NEW}]
)


@pytest.fixture(scope="module", params=["local", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Storage]:
    """The lake of version 1 with files of version 2, which pico knows meanwhile."""
    folder = tmp_path_factory.mktemp("evolution")
    found = copied(folder) if request.param == "local" else in_memory(folder.name)
    with made_up.schemas(folder, 2):
        made_up.write_version_2(found)
        yield found


def copied(folder: Path) -> Storage:
    shutil.copytree(FIXTURES / "lake-v1", folder / "lake")
    return Storage(str(folder / "lake"))


def in_memory(name: str) -> Storage:
    storage = Storage(f"memory://{name}")
    for path in (FIXTURES / "lake-v1").rglob("*.parquet"):
        storage.put(path.relative_to(FIXTURES / "lake-v1").as_posix(), path.read_bytes())
    return storage


@pytest.fixture
def connection(storage: Storage) -> Iterator[duckdb.DuckDBPyConnection]:
    found = Lake(storage.url).connect()
    yield found
    found.close()


def dicts(relation: Any) -> list[dict[str, Any]]:
    return in_order(relation.to_arrow_table().to_pylist())


def test_the_lake_holds_both_versions(storage: Storage) -> None:
    for table in ("scalars", "weights"):
        files = Snapshot.take(storage).files(table)
        assert {entry.schema_version for entry in files} == {1, 2}


def test_sql_shows_one_table(connection: duckdb.DuckDBPyConnection) -> None:
    assert dicts(connection.sql("FROM scalars")) == SCALARS
    described = dict(row[:2] for row in connection.sql("DESCRIBE scalars").fetchall())
    assert described == {
        "run": "VARCHAR",
        "step": "BIGINT",
        "unit": "VARCHAR",
        "name": "VARCHAR",
        "number": "DOUBLE",
        "is_exact": "BOOLEAN",
    }
    sql = "SELECT run, step, name FROM scalars WHERE NOT is_exact AND unit = 'bit' AND number = 0.5"
    assert [row["run"] for row in dicts(connection.sql(sql))] == ["later", "tiny"]
    assert connection.sql("SELECT max(number) FROM scalars WHERE unit = 'nat'").fetchall() == [
        (max(row["number"] for row in old_scalars() if row["number"] is not None),)
    ]


def test_sql_shows_tensors_of_both(connection: duckdb.DuckDBPyConnection) -> None:
    described = dict(row[:2] for row in connection.sql("DESCRIBE weights").fetchall())
    assert described["layer"] == "BIGINT" and described["scale"] == "DOUBLE"
    assert "expert" not in described and "param" not in described
    rows = connection.sql(
        "SELECT run, step, name, layer, role, scale, tensor.shape, l1_norm(tensor) AS norm "
        "FROM weights WHERE component = 'o' ORDER BY ALL"
    ).fetchall()
    assert [row[:6] for row in rows if row[2] == "new"] == [
        ("later", 0, "new", 2**40, "bias", 2.0),
        ("tiny", 7, "new", 2**40, "bias", 2.0),
    ]
    old = [row for row in rows if row[2] != "new"]
    assert [(row[1], row[3], row[4], row[5]) for row in old] == [
        (0, 0, "weight", None),
        (2, 0, "weight", None),
    ]
    assert all(row[7] > 0 for row in rows)
    parts = connection.sql("SELECT tensor FROM weights WHERE n_parts > 1").fetchall()
    assert parts == [(None,), (None,)]


def test_sql_still_opens_only_the_files_that_can_match(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    def files_read(condition: str) -> int:
        sql = f"EXPLAIN ANALYZE SELECT sum(len(value)) FROM weights WHERE {condition}"
        plan = connection.sql(sql).fetchall()[0][1]
        return sum(int(found) for found in re.findall(r"Total Files Read: (\d+)", plan))

    assert files_read("true") == 5
    assert files_read("step = 2") == 1
    assert files_read("run = 'tiny'") == 3
    assert files_read("run = 'tiny' AND step = 7") == 1
    assert files_read("run = 'later'") == 1


def test_steps_and_runs_narrow_both(storage: Storage) -> None:
    narrow = Lake(storage.url).connect(runs=["tiny"], steps=[1, 7])
    wanted = [row for row in SCALARS if row["run"] == "tiny" and row["step"] in (1, 7)]
    assert dicts(narrow.sql("FROM scalars")) == wanted
    assert {row["unit"] for row in wanted} == {"nat", "bit"}


def test_a_view_of_one_version_is_one_plain_scan(storage: Storage) -> None:
    def view(runs: list[str], table: str) -> str:
        with Lake(storage.url).connect(runs=runs) as found:
            sql = f"SELECT sql FROM duckdb_views() WHERE view_name = '{table}'"
            return str(found.sql(sql).fetchall()[0][0])

    assert view(["later"], "scalars").count("SELECT") == 1
    assert "UNION" not in view(["tiny"], "gradients")
    assert view(["tiny"], "scalars").count("read_parquet") == 2


def test_a_snapshot_reads_one_table(storage: Storage) -> None:
    snapshot = Snapshot.take(storage)
    rows = snapshot.read("scalars")
    assert rows.schema.equals(schema.table("scalars").arrow)
    assert (
        in_order(rows.rename_columns({"run_id": "run", "global_step": "step"}).to_pylist())
        == SCALARS
    )
    assert snapshot.read("scalars", ["number"], runs=["tiny"], steps=[7]).to_pydict() == {
        "number": [0.5]
    }
    added = snapshot.read("scalars", ["unit"], filter=pc.field("unit") == "nat")
    assert added.to_pydict() == {"unit": ["nat"] * len(old_scalars())}
    layers = snapshot.read("weights", ["layer", "scale"])
    assert layers.schema.types == [pa.int64(), pa.float64()]
    with pytest.raises(SchemaError, match="table scalars has no column 'value'"):
        snapshot.read("scalars", ["value"])


def test_tensors_of_both_are_verified(storage: Storage) -> None:
    snapshot = Snapshot.take(storage)
    (new,) = snapshot.tensors("weights", "later", 0)
    assert new.tensor.to_numpy().tolist() == [1.0, 2.0]
    assert (new.keys["role"], new.keys["scale"]) == ("bias", 2.0)
    old = {row.keys["name"]: row for row in snapshot.tensors("weights", "hand", 0)}
    assert old["parts"].tensor.to_numpy().tolist() == [[2.0 * i, 2.0 * i + 1] for i in range(6)]
    assert old["int64"].tensor.to_numpy().tolist() == [1, 2**62]
    assert old["parts"].keys["scale"] is None
    assert not {"expert", "param"} & old["parts"].keys.keys()
    biases = list(snapshot.tensors("weights", "tiny", 2, lambda keys: keys["role"] == "bias"))
    assert not biases
    assert len(list(snapshot.tensors("weights", "tiny", 2))) == 12


def test_polars_scans_one_table(storage: Storage) -> None:
    lake = Lake(storage.url)
    assert in_order(lake.scan("scalars").collect().to_dicts()) == SCALARS
    found = lake.scan("scalars").filter(pl.col("unit") == "bit").select("run").collect()
    assert sorted(found["run"]) == ["later", "tiny"]
    weights = lake.scan("weights", run=["tiny", "later"])
    assert weights.collect_schema()["layer"] == pl.Int64
    steps = weights.filter(pl.col("name") == "new").select("step", "scale", "tensor").collect()
    assert sorted(steps["step"]) == [0, 7]
    assert steps["tensor"].to_list() == [{"shape": [2], "value": [1.0, 2.0]}] * 2
    old = weights.filter(pl.col("name") != "new").select("scale", "role").unique().collect()
    assert old.rows() == [(None, "weight")]


def test_plain_readers_need_migrate(storage: Storage) -> None:
    """What is documented: a glob over both versions fails, or shows the columns of one file."""
    if storage.folder is None:
        pytest.skip("a plain glob needs a folder")
    pattern = str(storage.folder / "scalars/*/*.parquet")
    with pytest.raises((pl.exceptions.SchemaError, pl.exceptions.ColumnNotFoundError)):
        pl.scan_parquet(pattern).collect()
    with pytest.raises(duckdb.Error):
        duckdb.sql(f"SELECT number, value FROM '{pattern}'").fetchall()


@pytest.fixture
def newer(tmp_path: Path) -> Iterator[Storage]:
    """The lake with files of version 3, while pico knows version 2."""
    storage = copied(tmp_path)
    with made_up.schemas(tmp_path, 3), Stream(storage, "derive.tiny.future") as stream:
        transaction = stream.begin()
        row = {"run_id": "tiny", "global_step": 9, "measured_in": "nat", "name": "loss"}
        row |= {"amount": 0.5, "is_exact": False, "n": 2}
        rows = schema.table("scalars").batch({name: [value] for name, value in row.items()})
        made_up.write_rows(transaction, "scalars", {"run": "tiny"}, rows)
        transaction.commit()
    with made_up.schemas(tmp_path, 2):
        yield storage


def test_a_newer_version_is_refused_for_its_table_alone(newer: Storage) -> None:
    message = (
        r"scalars/run=tiny/\S+\.parquet has schema version 3 of table scalars; "
        r"this pico reads versions 1 to 2; a newer pico wrote it: upgrade pico-lake$"
    )
    snapshot = Snapshot.take(newer)
    with pytest.raises(SchemaError, match=message):
        snapshot.read("scalars")
    with pytest.raises(SchemaError, match=message):
        Lake(newer.url).scan("scalars")
    assert snapshot.read("weights").num_rows > 0
    with Lake(newer.url).connect() as connection:
        assert connection.sql("SELECT count(*) FROM weights").fetchall()[0][0] > 0
        with pytest.raises(duckdb.Error, match=message[:-1]):
            connection.sql("SELECT count(*) FROM scalars").fetchall()


def test_a_file_of_another_version_than_the_log_says_is_damaged(newer: Storage) -> None:
    files = {e.schema_version: e for e in Snapshot.take(newer).all_files() if e.table == "scalars"}
    entry, old = files[3], files[1]
    lying = Entry(**{**vars(entry), "schema_version": 2})
    snapshot = Snapshot(newer, [lying])
    with pytest.raises(SchemaError, match="has schema version 3 of table scalars"):
        snapshot.read("scalars")
    snapshot = Snapshot(newer, [Entry(**{**vars(old), "schema_version": 2})])
    with pytest.raises(CorruptError, match="has schema version 1, the log says 2"):
        snapshot.read("scalars")


def test_a_log_of_a_newer_version_makes_the_lake_unreadable(tmp_path: Path) -> None:
    storage = copied(tmp_path)
    path = log.commit_path("train.tiny", 0)
    assert storage.folder is not None
    rows = pq.read_table(storage.folder / path)
    metadata = {**rows.schema.metadata, b"pico.schema_version": b"2"}
    pq.write_table(rows.replace_schema_metadata(metadata), storage.folder / path)
    message = (
        rf"{path} has schema version 2 of table log; this pico reads version 1; "
        "a newer pico wrote it: upgrade pico-lake"
    )
    with pytest.raises(SchemaError, match=message) as caught:
        Snapshot.take(storage)
    assert "\n" not in str(caught.value)
