"""Lakes that earlier versions of pico wrote are read for ever, by every reader and unchanged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pico import schema
from pico.api import Lake
from pico.lake import log
from pico.lake.codec import Tensor
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from tests.fixtures import make_lake_v1

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
LAKE = FIXTURES / "lake-v1"
EXPECTED = json.loads((FIXTURES / "lake-v1.json").read_text(encoding="utf-8"))
KEYS = {column: key for key, column in schema.PATH_COLUMNS.items()}


def as_stored(table: str, rows: list[dict[str, Any]]) -> Any:
    """Return rows of a table as the JSON file would have them, with the columns of version 1."""
    columns = EXPECTED[table]["columns"]
    values = sorted(([make_lake_v1.plain(row[name]) for name in columns] for row in rows), key=repr)
    text = make_lake_v1.as_text({table: {"columns": columns, "rows": values}})
    return json.loads(text)[table]


def same(found: Any, wanted: Any) -> bool:
    return json.dumps(found) == json.dumps(wanted)  # NaN differs from itself


@pytest.fixture(scope="module")
def snapshot() -> Snapshot:
    return Snapshot.take(Storage(str(LAKE)))


def test_the_lake_has_rows_in_every_table_of_version_1() -> None:
    versions = {name: spec.known_versions for name, spec in schema.tables().items()}
    assert EXPECTED.keys() == {name for name, known in versions.items() if 1 in known}
    assert all(table["rows"] for table in EXPECTED.values())


def test_plain_pyarrow_reads_what_is_expected() -> None:
    found = json.loads(make_lake_v1.as_text(make_lake_v1.read_plainly(LAKE)))
    assert same(found, EXPECTED)


@pytest.mark.parametrize("table", EXPECTED)
def test_a_snapshot_reads_every_row(snapshot: Snapshot, table: str) -> None:
    assert same(as_stored(table, snapshot.read(table).to_pylist()), EXPECTED[table])


@pytest.mark.parametrize("table", EXPECTED)
def test_sql_and_polars_read_every_row(snapshot: Snapshot, table: str) -> None:
    lake = Lake.open(str(LAKE))
    shown = [KEYS.get(name, name) for name in EXPECTED[table]["columns"]]
    quoted = ", ".join(f'"{name}"' for name in shown)
    sql = lake.sql(f"SELECT {quoted} FROM {table}").to_arrow_table()
    polars = lake.scan(table).select(shown).collect().to_arrow()
    for rows in (sql, polars):
        stored = pa.table(rows.columns, names=EXPECTED[table]["columns"])
        assert same(as_stored(table, utc(stored).to_pylist()), EXPECTED[table])


def utc(rows: pa.Table) -> pa.Table:
    """Return times as Arrow's UTC, by whatever name a reader calls it."""
    for place, field in enumerate(rows.schema):
        if pa.types.is_timestamp(field.type):
            stamp = rows[field.name].cast(pa.timestamp("us", tz="UTC"))
            rows = rows.set_column(place, field.name, stamp)
    return rows


def test_tensors_are_assembled_and_verified(snapshot: Snapshot) -> None:
    tensors = {row.keys["name"]: row.tensor for row in snapshot.tensors("weights", "hand", 0)}
    assert tensors["bfloat16"].data.tolist() == [0x3F80, 0x7F81, 0x8000]
    assert tensors["float64"].to_numpy().tolist() == [0.1, 1e300]
    assert tensors["int64"].to_numpy().tolist() == [1, 2**62]
    assert tensors["complex64"].to_numpy().tolist() == [1j]
    assert tensors["scalar"].to_numpy() == 2.5
    assert tensors["empty"].shape == (0, 4)
    assert tensors["parts"].to_numpy().tolist() == [[2.0 * i, 2.0 * i + 1] for i in range(6)]
    trained = list(snapshot.tensors("weights", "tiny", 2))
    assert len(trained) == 12
    assert all(isinstance(row.tensor, Tensor) for row in trained)


def test_the_log_of_version_1_is_read() -> None:
    actions = [entry.action for entry in log.LogReader(Storage(str(LAKE))).entries()]
    assert {"add", "withdraw"} == set(actions)


def test_a_stored_state_becomes_a_model() -> None:
    model = Lake.open(str(LAKE)).load_model("tiny", 2)
    stored = Snapshot.take(Storage(str(LAKE))).tensors("weights", "tiny", 2)
    state = {name: tensor.detach().numpy() for name, tensor in model.named_parameters()}
    found = {row.keys["name"]: row.tensor.to_numpy() for row in stored}
    assert found.keys() == state.keys()
    assert all((found[name] == state[name]).all() for name in found)
