"""Reads the schema files and writes the page about them.

`pico.schema.table` and its like are what every other module asks. A file that is not as it should
be is refused with its name and the place; so is a history that does not fit its columns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any, NoReturn, get_args

from pico import resources
from pico.errors import SchemaError, did_you_mean, one_line
from pico.schema.columns import Column, is_type
from pico.schema.history import Change, Dropped
from pico.schema.tables import Kind, TableSchema

_TABLE = {
    "name": str,
    "version": int,
    "kind": str,
    "description": str,
    "partition": list,
    "primary_key": list,
    "sort": list,
    "columns": list,
}
_COLUMN = {"name": str, "type": str, "nullable": bool, "description": str}
_CHANGE = {"version": int, "why": str}
_CHANGES = {"added": dict, "renamed": dict, "dropped": list, "widened": dict}


@cache
def tables() -> dict[str, TableSchema]:
    """Return every table of the lake by name (the commit log is `log`, not a table)."""
    names = sorted(path.stem for path in resources.folder("schemas").glob("*.json"))
    found = {name: _read(name) for name in names}
    return {name: schema for name, schema in found.items() if schema.kind != "log"}


@cache
def log() -> TableSchema:
    """Return the schema of the commit log's files."""
    return _read("log")


def table(name: str) -> TableSchema:
    """Return the schema of one table.

    Raises:
        SchemaError: for a table that the lake does not have.
    """
    known = tables()
    if name not in known:
        raise SchemaError(
            f"no table {name!r}.{did_you_mean(name, known)} Tables: {', '.join(known)}"
        )
    return known[name]


def parse(text: str | bytes, where: str) -> TableSchema:
    """Return the table that the text of a schema file describes.

    Args:
        text: JSON.
        where: name of the file, for messages.

    Raises:
        SchemaError: naming the file and what is wrong with it.
    """
    try:
        spec = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"{where} is no JSON: {one_line(error)}") from None
    _fields(spec, where, _TABLE, {"history": list, "questions": list})
    columns = tuple(_column(item, where) for item in spec["columns"])
    known = [column.name for column in columns]
    if spec["kind"] not in get_args(Kind):
        _refuse(where, f"kind {spec['kind']!r} is none of {', '.join(get_args(Kind))}")
    if len(set(known)) < len(known):
        _refuse(where, "two columns have the same name")
    for key in ("primary_key", "sort", "partition"):
        for item in spec[key]:
            if not isinstance(item, str) or (key != "partition" and item not in known):
                _refuse(where, f"{key} names {item!r}, which is no column")
    questions = tuple(spec.get("questions", []))
    if not all(isinstance(question, str) for question in questions):
        _refuse(where, f"questions must be texts, not {spec['questions']!r}")
    history = tuple(_change(item, where) for item in spec.get("history", []))
    versions = [change.version for change in history]
    if versions != list(range(2, len(history) + 2)) or spec["version"] != len(history) + 1:
        told = ", ".join(map(str, versions)) or "nothing"
        _refuse(
            where, f"the history of version {spec['version']} must tell each from 2, not {told}"
        )
    found = TableSchema(
        name=spec["name"],
        version=spec["version"],
        kind=spec["kind"],
        description=spec["description"],
        partition=tuple(spec["partition"]),
        primary_key=tuple(spec["primary_key"]),
        sort=tuple(spec["sort"]),
        columns=columns,
        history=history,
        questions=questions,
    )
    try:
        found.at(1)
    except SchemaError as error:
        _refuse(where, str(error))
    return found


def markdown() -> str:
    """Return `schemas/README.md`: every table and column, generated from the JSON files."""
    lines = [
        "# Tables of a pico lake",
        "",
        "Generated from the JSON files beside it (`make schemas`); do not edit.",
        "",
        "Path keys (`run=`, `step=`, `dataset=`, `tokenizer=`) stand in the folder names; the same",
        "facts stand inside the files as `run_id`, `global_step`, `dataset_id`, `tokenizer_id`.",
        "",
        "Within a version the stored columns of a table never change; additions go into `extra`. A",
        "lake may hold files of several versions: `pico` shows them all with the columns of the",
        "newest, plain readers want one version, which `pico migrate` makes of them. A file of a",
        "newer version than the installed `pico` knows is refused by name.",
        "",
        "What components and sites are called elsewhere stands in [COMPONENTS.md](COMPONENTS.md).",
        "",
        "## Questions, and the table that answers them",
        "",
        "| table | what people ask of it |",
        "|---|---|",
    ]
    for schema in tables().values():
        link = f"[`{schema.name}`](#{schema.name}-version-{schema.version})"
        lines.append(f"| {link} | {' '.join(schema.questions)} |")
    for schema in [*tables().values(), log()]:
        lines += ["", f"## `{schema.name}` (version {schema.version})", "", schema.description, ""]
        lines += [
            f"Path: `{_path_form(schema)}`. Primary key: `{', '.join(schema.primary_key)}`.",
            "",
        ]
        lines += [_told(change) for change in schema.history]
        lines += [""] if schema.history else []
        lines += ["| column | type | null | unit | meaning |", "|---|---|---|---|---|"]
        lines += [
            f"| `{c.name}` | {c.type} | {'yes' if c.nullable else 'no'} | {c.unit or ''} "
            f"| {c.description.replace('|', chr(92) + '|')} |"
            for c in schema.columns
        ]
    return "\n".join(lines) + "\n"


def _told(change: Change) -> str:
    """Return a line of the page that says how a version was made."""
    told = [f"`{old}` became `{new}`" for old, new in change.renamed.items()]
    for name, value in change.added.items():
        told.append(f"`{name}` was added ({json.dumps(value)} in older rows)")
    told += [f"`{item.column.name}` ({item.column.type}) was dropped" for item in change.dropped]
    told += [f"`{name}` was {kind}" for name, kind in change.widened.items()]
    return f"- Version {change.version}: {change.why} {'; '.join(told)}."


def _path_form(schema: TableSchema) -> str:
    if schema.kind == "log":
        return "_log/STREAM/COMMIT.parquet"
    return "/".join([schema.name, *(f"{key}=…" for key in schema.partition), "….parquet"])


def _read(name: str) -> TableSchema:
    path = resources.folder("schemas") / f"{name}.json"
    return parse(path.read_bytes(), f"schemas/{path.name}")


def _column(item: Any, where: str) -> Column:
    _fields(item, f"a column of {where}", _COLUMN, {"unit": str})
    if not is_type(item["type"]):
        _refuse(where, f"column {item['name']!r} has the unknown type {item['type']!r}")
    return Column(**item)


def _change(item: Any, where: str) -> Change:
    _fields(item, f"the history of {where}", _CHANGE, _CHANGES)
    for key in ("renamed", "widened"):
        for name, value in item.get(key, {}).items():
            if not isinstance(value, str) or (key == "widened" and not is_type(value)):
                _refuse(where, f"the history says that {name!r} was {key}: {value!r}")
    dropped = []
    for gone in item.get("dropped", []):
        _fields(
            gone,
            f"a dropped column of {where}",
            {**_COLUMN, "after": (str, type(None))},
            {"unit": str},
        )
        column = {key: value for key, value in gone.items() if key != "after"}
        dropped.append(Dropped(_column(column, where), gone["after"]))
    return Change(**{**item, "dropped": tuple(dropped)})


def _fields(item: Any, where: str, needed: Mapping[str, Any], optional: Mapping[str, Any]) -> None:
    """Refuse what is no JSON object with these keys and types of values."""
    if not isinstance(item, dict):
        _refuse(where, f"{item!r} is no object")
    for key, kind in {**needed, **optional}.items():
        if key not in item:
            if key in needed:
                _refuse(where, f"{key!r} is missing")
        elif not isinstance(item[key], kind) or (kind is int and isinstance(item[key], bool)):
            _refuse(where, f"{key!r} cannot be {item[key]!r}")
    for key in item:
        if key not in needed and key not in optional:
            hint = did_you_mean(key, [*needed, *optional])
            _refuse(where, f"{key!r} is not known.{hint}")


def _refuse(where: str, reason: str) -> NoReturn:
    raise SchemaError(f"{where} is wrong: {reason}")
