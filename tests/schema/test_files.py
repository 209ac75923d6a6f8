"""Schema files as input: what is wrong with one is said, whatever it is."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from pico import schema
from pico.errors import SchemaError
from pico.schema.files import parse
from tests.fixtures import made_up

FILES = sorted(made_up.SCHEMAS.glob("*.json"))


def spec(**changes: Any) -> dict[str, Any]:
    """Return a small schema file's content of two versions."""
    made = {
        "name": "t",
        "version": 2,
        "kind": "rows",
        "description": "A table.",
        "partition": ["run"],
        "primary_key": ["run_id", "a"],
        "sort": ["a"],
        "columns": [made_up.column(name, "int64") for name in ("run_id", "a", "b")],
        "history": [{"version": 2, "why": "So.", "added": {"b": 0}}],
    }
    return {key: value for key, value in {**made, **changes}.items() if value is not None}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_shipped_file_is_read_as_it_is(path: Path) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    found = parse(path.read_text(encoding="utf-8"), path.name)
    assert found == (schema.log() if path.stem == "log" else schema.table(path.stem))
    assert (found.name, found.version, found.kind) == tuple(
        content[key] for key in ("name", "version", "kind")
    )
    for column, wanted in zip(found.columns, content["columns"], strict=True):
        assert {"unit": None, **wanted} == vars(column)


def test_a_file_with_a_history_is_read() -> None:
    found = parse(json.dumps(spec()), "t.json")
    assert found.known_versions == (1, 2)
    assert found.at(1).column_names == ["run_id", "a"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"columns": None}, "'columns' is missing"),
        ({"colums": []}, r"'colums' is not known. Did you mean 'columns'\?"),
        ({"version": "2"}, "'version' cannot be '2'"),
        ({"version": True}, "'version' cannot be True"),
        ({"version": 3}, "the history of version 3 must tell each from 2, not 2"),
        ({"version": 10**30}, "must tell each from 2, not 2"),
        ({"version": 0, "history": []}, "the history of version 0 must tell each from 2"),
        ({"history": None}, "must tell each from 2, not nothing"),
        ({"kind": "row"}, "kind 'row' is none of tensor, rows, data, vocab, log"),
        ({"primary_key": ["c"]}, "primary_key names 'c', which is no column"),
        ({"sort": [1]}, "sort names 1, which is no column"),
        ({"partition": [[]]}, r"partition names \[\], which is no column"),
        ({"columns": [1]}, "1 is no object"),
        ({"columns": [made_up.column("a", "float16")]}, "has the unknown type 'float16'"),
        ({"columns": [made_up.column("a", "int64")] * 2}, "two columns have the same name"),
        ({"columns": [{**made_up.column("a", "int64"), "nullable": 1}]}, "'nullable' cannot be 1"),
        ({"history": [{"version": 2}]}, "'why' is missing"),
        ({"history": [{"version": 2, "why": "", "add": {}}]}, "'add' is not known"),
        ({"history": [{"version": 2, "why": "", "renamed": {"a": 1}}]}, "'a' was renamed: 1"),
        ({"history": [{"version": 2, "why": "", "widened": {"a": "int"}}]}, "was widened: 'int'"),
        (
            {"history": [{"version": 2, "why": "", "dropped": [made_up.column("z", "bool")]}]},
            "'after' is missing",
        ),
    ],
)
def test_a_wrong_file_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SchemaError, match=message) as caught:
        parse(json.dumps(spec(**changes)), "t.json")
    assert "t.json" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "1", "\x00", '"' * 3, "[" * 100_000])
def test_what_is_no_schema_file_is_refused(text: str) -> None:
    with pytest.raises(SchemaError, match=r"t\.json"):
        parse(text, "t.json")
    with pytest.raises(SchemaError, match=r"t\.json"):
        parse(b"\xff\xfe\xfa", "t.json")


def test_mutated_files_are_read_or_refused() -> None:
    """300 files with a few bytes changed: no error but ours."""
    draw = random.Random(0)
    refused = 0
    for _ in range(300):
        data = bytearray(draw.choice(FILES).read_bytes())
        for _ in range(draw.randint(1, 4)):
            data[draw.randrange(len(data))] = draw.choice(b'{}[]",:0x \xc3nt-')
        try:
            parse(bytes(data), "mutated.json")
        except SchemaError:
            refused += 1
    assert 30 < refused < 300


def test_the_page_tells_what_changed(tmp_path: Path) -> None:
    assert "- Version" not in schema.markdown()
    with made_up.schemas(tmp_path, 3):
        page = schema.markdown()
    assert (
        "- Version 2: A number says what it is measured in. `value` became `number`; `unit` was "
        'added ("nat" in older rows); `is_exact` was added (true in older rows); `extra` (json) '
        "was dropped."
    ) in page
    assert "`layer` was int32." in page
    assert page.index("## `scalars` (version 3)") < page.index("- Version 2: A number")
