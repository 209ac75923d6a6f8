"""Older versions of a table: worked out by going back, and rows carried forward."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pico import schema
from pico.errors import SchemaError
from pico.schema import TableSchema
from pico.schema.files import parse
from tests.fixtures import made_up

REAL = {name: schema.table(name) for name in ("scalars", "weights")}


def evolved(folder: Path, name: str, version: int) -> TableSchema:
    with made_up.schemas(folder, version):
        return schema.table(name)


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("version", [2, 3])
def test_going_back_gives_what_there_was(tmp_path: Path, name: str, version: int) -> None:
    spec = evolved(tmp_path, name, version)
    assert spec.known_versions == tuple(range(1, version + 1))
    assert spec.at(1) == REAL[name]
    assert spec.at(1).arrow.equals(REAL[name].arrow, check_metadata=True)
    assert spec.at(version) is spec
    if version == 3:
        two = evolved(tmp_path, name, 2)
        assert spec.at(2) == two
        assert spec.at(2).arrow.equals(two.arrow, check_metadata=True)


def test_keys_go_back_with_their_columns() -> None:
    spec = table(
        [("run_id", "string"), ("new", "int64"), ("extra_key", "int64")],
        {"renamed": {"old": "new"}, "added": {"extra_key": 0}},
        primary_key=["run_id", "new", "extra_key"],
        sort=["extra_key", "new"],
    )
    assert spec.at(1).primary_key == ("run_id", "old")
    assert spec.at(1).sort == ("old",)


def test_rows_are_carried_forward_through_every_version(tmp_path: Path) -> None:
    old = REAL["scalars"].batch(
        {
            "run_id": ["r", "r"],
            "global_step": [0, 1],
            "name": ["loss", "loss"],
            "value": [0.1, None],
            "extra": ["{}", None],
        }
    )
    spec = evolved(tmp_path, "scalars", 3)
    new = spec.upgrade(old, 1)
    assert new.schema.equals(spec.arrow, check_metadata=True)
    assert spec.check(new) is new
    assert new.to_pydict() == {
        "run_id": ["r", "r"],
        "global_step": [0, 1],
        "measured_in": ["nat", "nat"],
        "name": ["loss", "loss"],
        "amount": [0.1, None],
        "is_exact": [True, True],
        "n": [1, 1],
    }
    two = spec.upgrade(evolved(tmp_path, "scalars", 2).upgrade(old, 1), 2)
    assert two.equals(new)
    assert spec.upgrade(new, 3) is new


def test_some_columns_need_some_stored_ones(tmp_path: Path) -> None:
    spec = evolved(tmp_path, "scalars", 3)
    assert spec.stored_names(1, ["n", "amount"]) == ["value"]
    assert spec.stored_names(1) == ["run_id", "global_step", "name", "value"]
    rows = pa.table({"value": [2.0, 3.0]})
    found = spec.upgrade(rows, 1, ["n", "amount"])
    assert found.to_pydict() == {"n": [1, 1], "amount": [2.0, 3.0]}
    assert found.schema.field("n").type == pa.int32()


def test_widening_keeps_every_value() -> None:
    spec = table(
        [("run_id", "string"), ("a", "int64"), ("b", "float64"), ("c", "list<float64>")],
        {"widened": {"a": "int32", "b": "float32", "c": "list<float32>"}},
    )
    rows = spec.at(1).batch(
        {"run_id": ["r", "s"], "a": [2**31 - 1, None], "b": [0.1, None], "c": [[0.1], None]}
    )
    assert [field.type for field in rows.schema][1:3] == [pa.int32(), pa.float32()]
    narrow = float(pa.scalar(0.1, pa.float32()).as_py())
    new = spec.check(spec.upgrade(rows, 1))
    assert new["a"].to_pylist() == [2**31 - 1, None]
    assert new["b"].to_pylist() == [narrow, None] != [0.1, None]
    assert new["c"].to_pylist() == [[narrow], None]


def test_a_default_of_a_column_widened_later_is_what_the_version_between_had() -> None:
    spec = table(
        [("run_id", "string"), ("a", "float64")],
        {"added": {"a": 0.1}},
        {"widened": {"a": "float32"}},
    )
    one = spec.upgrade(pa.table({"run_id": ["r"]}), 1)
    between = table([("run_id", "string"), ("a", "float32")], {"added": {"a": 0.1}})
    stored = between.upgrade(pa.table({"run_id": ["r"]}), 1)
    assert spec.upgrade(stored, 2)["a"].to_pylist() == one["a"].to_pylist() != [0.1]


def test_names_may_be_swapped() -> None:
    spec = table(
        [("run_id", "string"), ("a", "int64"), ("b", "string")], {"renamed": {"a": "b", "b": "a"}}
    )
    assert spec.at(1).column_names == ["run_id", "b", "a"]
    rows = spec.at(1).batch({"run_id": ["r"], "a": ["text"], "b": [1]})
    assert spec.upgrade(rows, 1).to_pylist() == [{"run_id": "r", "a": 1, "b": "text"}]


def test_a_name_may_be_given_to_another_column() -> None:
    """`a` is dropped, and what was `b` is called so from then on."""
    spec = table(
        [("run_id", "string"), ("a", "int64")],
        {"renamed": {"b": "a"}, "dropped": [{**made_up.column("a", "string"), "after": None}]},
    )
    assert spec.at(1).column_names == ["a", "run_id", "b"]
    rows = spec.at(1).batch({"a": ["gone"], "run_id": ["r"], "b": [7]})
    assert spec.upgrade(rows, 1).to_pylist() == [{"run_id": "r", "a": 7}]


COLUMNS = [
    ("run_id", "string"),
    ("a", "int64"),
    ("b", "float64"),
    ("s", "string"),
    ("l", "list<int32>"),
]
GONE = made_up.column("gone", "int64")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"added": {"c": None}}, "version 2 has no column 'c'"),
        ({"renamed": {"old": "c"}}, "version 2 has no column 'c'"),
        ({"widened": {"c": "int32"}}, "version 2 has no column 'c'"),
        ({"renamed": {"x": "a", "y": "a"}}, "two columns are renamed to the same name"),
        ({"renamed": {"b": "a"}}, "two columns of version 1 would be named 'b'"),
        ({"dropped": [{**GONE, "name": "a", "after": None}]}, "version 1 would be named 'a'"),
        ({"dropped": [{**GONE, "after": "zzz"}]}, "'gone' stood after no 'zzz'"),
        ({"added": {"a": 0}, "renamed": {"x": "a"}}, "'a' is added, so it was neither renamed"),
        ({"added": {"a": 0}, "widened": {"a": "int32"}}, "'a' is added, so it was neither"),
        ({"added": {"a": 0.5}}, "default 0.5 is no int64 for column 'a'"),
        ({"added": {"a": True}}, "default True is no int64"),
        ({"added": {"a": 2**63}}, "default 9223372036854775808 of column 'a'"),
        ({"added": {"s": 1}}, "default 1 is no string"),
        ({"added": {"l": [1]}}, r"default \[1\] is no list<int32>"),
        ({"added": {"must": None}}, "'must' is not nullable and has no default"),
        ({"widened": {"a": "int16"}}, "'a' cannot be widened from int16 to int64"),
        ({"widened": {"a": "int64"}}, "'a' cannot be widened from int64 to int64"),
        ({"widened": {"b": "int64"}}, "'b' cannot be widened from int64 to float64"),
        ({"widened": {"a": "list<int32>"}}, "'a' cannot be widened from list<int32> to int64"),
        ({"renamed": {"name_of_run": "run_id"}}, "'run_id' says what the path says"),
        ({"renamed": {"global_step": "a"}}, "'global_step' says what the path says"),
        ({"added": {"run_id": "r"}}, "'run_id' says what the path says"),
    ],
)
def test_a_history_that_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    columns = content(COLUMNS, [change])
    columns["columns"].append(made_up.column("must", "string", nullable=False))
    with pytest.raises(SchemaError, match=message) as caught:
        parse(json.dumps(columns), "t.json")
    assert str(caught.value).startswith("t.json is wrong: the step of the history to version 2")


def test_an_older_file_is_accepted_and_a_newer_or_mixed_one_is_not(tmp_path: Path) -> None:
    spec = evolved(tmp_path, "scalars", 2)
    assert spec.accepts(REAL["scalars"].arrow, "x.parquet") == 1
    assert spec.accepts(spec.arrow, "x.parquet") == 2
    newer = evolved(tmp_path, "scalars", 3).arrow
    message = (
        "x.parquet has schema version 3 of table scalars; this pico reads versions 1 to 2; "
        "a newer pico wrote it: upgrade pico-lake"
    )
    with pytest.raises(SchemaError, match=message):
        spec.accepts(newer, "x.parquet")
    mixed = REAL["scalars"].arrow.with_metadata(spec.arrow.metadata)
    with pytest.raises(SchemaError, match=r"x.parquet: table scalars needs column 'unit'"):
        spec.accepts(mixed, "x.parquet")
    mixed = spec.arrow.with_metadata(REAL["scalars"].arrow.metadata)
    with pytest.raises(SchemaError, match=r"x.parquet: table scalars needs column 'value'"):
        spec.accepts(mixed, "x.parquet")


@pytest.mark.parametrize("version", [0, -1, 3, 10**9])
def test_an_unknown_version_is_refused(tmp_path: Path, version: int) -> None:
    spec = evolved(tmp_path, "weights", 2)
    for ask in (spec.at, spec.origins, lambda v: spec.upgrade(spec.arrow.empty_table(), v)):
        with pytest.raises(SchemaError, match=f"version {version} of table weights"):
            ask(version)


def content(
    columns: list[tuple[str, str]], changes: list[dict[str, Any]], **others: Any
) -> dict[str, Any]:
    """Return a schema file's content whose history makes these changes in turn."""
    history = [{"version": n, "why": "So.", **change} for n, change in enumerate(changes, 2)]
    return {
        "name": "t",
        "version": len(changes) + 1,
        "kind": "rows",
        "description": "A table.",
        "partition": ["run"],
        "primary_key": ["run_id"],
        "sort": ["run_id"],
        "columns": [made_up.column(*column) for column in columns],
        "history": history,
        **others,
    }


def table(columns: list[tuple[str, str]], *changes: dict[str, Any], **others: Any) -> TableSchema:
    return parse(json.dumps(content(columns, list(changes), **others)), "t.json")
