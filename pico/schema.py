"""Reads `schemas/*.json` and is the one door that rows pass on their way into or out of a lake.

The JSON files are the specification; nothing about a table's columns is written twice. `lake.table`
calls `TableSchema.check` before it writes a batch and `TableSchema.accepts` on every file it opens.
Files carry `pico.table` and `pico.schema_version` in their Parquet metadata; within a version the
stored columns never change (`extra` takes additions), because plain readers break on files of one
table that differ in columns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from pico import resources
from pico.errors import SchemaError, did_you_mean, one_line

Kind = Literal["tensor", "rows", "data", "vocab", "log"]

_ARROW: dict[str, pa.DataType] = {
    "string": pa.string(),
    "json": pa.string(),
    "binary": pa.binary(),
    "bool": pa.bool_(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
PATH_COLUMNS = {
    "run": "run_id",
    "step": "global_step",
    "dataset": "dataset_id",
    "tokenizer": "tokenizer_id",
}
"""Path key → the stored column that says the same."""


@dataclass(frozen=True)
class Column:
    """One stored column: its type in words of the schema files, unit and meaning."""

    name: str
    type: str
    nullable: bool
    description: str
    unit: str | None = None

    @property
    def arrow(self) -> pa.DataType:
        """The column's Arrow type; list elements are never null."""
        if self.type.startswith("list<"):
            element = _ARROW[self.type.removeprefix("list<").removesuffix(">")]
            return pa.list_(pa.field("element", element, nullable=False))
        return _ARROW[self.type]


@dataclass(frozen=True)
class TableSchema:
    """One table of the lake: columns, keys, and how its files are laid out."""

    name: str
    version: int
    kind: Kind
    description: str
    partition: tuple[str, ...]
    primary_key: tuple[str, ...]
    sort: tuple[str, ...]
    columns: tuple[Column, ...]

    @cached_property
    def arrow(self) -> pa.Schema:
        """The Arrow schema of the table's files, table name and version in its metadata."""
        return pa.schema(
            [pa.field(item.name, item.arrow, item.nullable) for item in self.columns],
            metadata={"pico.table": self.name, "pico.schema_version": str(self.version)},
        )

    @property
    def column_names(self) -> list[str]:
        """Names of the stored columns, in order."""
        return [item.name for item in self.columns]

    @property
    def path_columns(self) -> dict[str, str]:
        """Path key to the stored column with the same content: `run` → `run_id`, …."""
        return {key: PATH_COLUMNS[key] for key in self.partition if key in PATH_COLUMNS}

    @property
    def known_versions(self) -> tuple[int, ...]:
        """Versions that can be read, ascending; the last is the current one."""
        return (self.version,)

    def at(self, version: int) -> TableSchema:
        """Return the table as it was in a version.

        Raises:
            SchemaError: for a version that is not known.
        """
        self.check_version(version, f"table {self.name}")
        return self

    def check_version(self, version: int, path: str) -> None:
        """Refuse a version that is not known, with the file that has it.

        Raises:
            SchemaError: naming file, version and the way out.
        """
        known = self.known_versions
        if version in known:
            return
        readable = f"version {known[0]}" if len(known) == 1 else f"versions 1 to {known[-1]}"
        newer = "; a newer pico wrote it: upgrade pico-lake" if version > known[-1] else ""
        raise SchemaError(
            f"{path} has schema version {version} of table {self.name}; "
            f"this pico reads {readable}{newer}"
        )

    def upgrade(self, rows: pa.Table, version: int) -> pa.Table:
        """Return rows of a version as rows of the current one; those that are already unchanged.

        Raises:
            SchemaError: for a version that is not known.
        """
        self.at(version)
        return rows

    def batch(self, columns: Mapping[str, Any]) -> pa.Table:
        """Make a checked table from columns by name; absent nullable columns become NULL.

        Raises:
            SchemaError: as `check` does, and for a column that the table does not have.
        """
        unknown = sorted(set(columns) - set(self.column_names))
        if unknown:
            hint = did_you_mean(unknown[0], self.column_names)
            raise SchemaError(f"table {self.name} has no column {unknown[0]!r}.{hint}")
        n_rows = max((len(values) for values in columns.values()), default=0)
        arrays = []
        for column in self.columns:
            values = columns.get(column.name)
            try:
                if values is None:
                    values = pa.nulls(n_rows, column.arrow)
                elif not isinstance(values, (pa.Array, pa.ChunkedArray)):
                    values = _array(values, column.arrow)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                raise SchemaError(
                    f"{self.name}.{column.name} takes {column.type}: {one_line(error)}"
                ) from None
            arrays.append(values)
        try:
            return self.check(pa.Table.from_arrays(arrays, schema=self.arrow))
        except (pa.ArrowException, TypeError) as error:
            raise SchemaError(f"rows do not fit table {self.name}: {one_line(error)}") from None

    def check(self, rows: pa.Table) -> pa.Table:
        """Return `rows` if they fit the table, else raise; the only door into a data file.

        Columns, order and types must be the schema's; columns that are not nullable hold no NULL;
        no two rows share the primary key (NULLs in a key count as equal).
        """
        if not rows.schema.equals(self.arrow):
            raise SchemaError(_difference(self, rows.schema))
        for column in self.columns:
            if not column.nullable and rows[column.name].null_count:
                raise SchemaError(f"{self.name}.{column.name} must not be NULL")
            if column.type.startswith("list<") and _has_null_element(rows[column.name]):
                raise SchemaError(f"{self.name}.{column.name} must not hold NULL elements")
        self.check_unique(rows)
        return rows

    def check_unique(self, rows: pa.Table) -> None:
        """Refuse rows (their key columns suffice) of which two share the primary key."""
        keys = list(self.primary_key)
        if self.kind == "log" or rows.num_rows < 2:
            return
        counted = rows.select(keys).group_by(keys).aggregate([([], "count_all")])
        if counted.num_rows < rows.num_rows:
            twice = counted.filter(pc.greater(counted["count_all"], 1)).select(keys)
            first = {k: v for k, v in twice.slice(0, 1).to_pylist()[0].items() if v is not None}
            raise SchemaError(f"two rows of {self.name} share the primary key {first}")

    def accepts(self, stored: pa.Schema, path: str) -> None:
        """Refuse a file whose table, version or columns are not these.

        Raises:
            SchemaError: naming the file and what differs.
        """
        metadata = stored.metadata or {}
        version = metadata.get(b"pico.schema_version", b"").decode(errors="replace")
        table = metadata.get(b"pico.table", b"").decode(errors="replace")
        if table != self.name:
            raise SchemaError(f"{path} says that it belongs to table {table!r}, not {self.name!r}")
        if version != str(self.version):
            raise SchemaError(
                f"{path} has schema version {version!r} of table {self.name}; "
                f"this pico reads version {self.version}"
            )
        if not stored.equals(self.arrow):
            raise SchemaError(f"{path}: {_difference(self, stored)}")


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


def markdown() -> str:
    """Return `schemas/README.md`: every table and column, generated from the JSON files."""
    lines = [
        "# Tables of a pico lake",
        "",
        "Generated from the JSON files beside it (`make schemas`); do not edit.",
        "",
        "Path keys (`run=`, `step=`, `dataset=`, `tokenizer=`) stand in the folder names; the same",
        "facts stand inside the files as `run_id`, `global_step`, `dataset_id`, `tokenizer_id`.",
    ]
    for schema in [*tables().values(), log()]:
        lines += ["", f"## `{schema.name}` (version {schema.version})", "", schema.description, ""]
        lines += [
            f"Path: `{_path_form(schema)}`. Primary key: `{', '.join(schema.primary_key)}`.",
            "",
        ]
        lines += ["| column | type | null | unit | meaning |", "|---|---|---|---|---|"]
        lines += [
            f"| `{c.name}` | {c.type} | {'yes' if c.nullable else 'no'} | {c.unit or ''} "
            f"| {c.description.replace('|', chr(92) + '|')} |"
            for c in schema.columns
        ]
    return "\n".join(lines) + "\n"


def _path_form(schema: TableSchema) -> str:
    if schema.kind == "log":
        return "_log/STREAM/COMMIT.parquet"
    return "/".join([schema.name, *(f"{key}=…" for key in schema.partition), "….parquet"])


def _read(name: str) -> TableSchema:
    text = (resources.folder("schemas") / f"{name}.json").read_text(encoding="utf-8")
    spec = json.loads(text)
    return TableSchema(
        name=spec["name"],
        version=spec["version"],
        kind=spec["kind"],
        description=spec["description"],
        partition=tuple(spec["partition"]),
        primary_key=tuple(spec["primary_key"]),
        sort=tuple(spec["sort"]),
        columns=tuple(Column(**column) for column in spec["columns"]),
    )


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    """Return values as an array; a fraction is no integer (`pa.array` would cut it off)."""
    if not pa.types.is_integer(kind):
        return pa.array(values, kind)
    inferred = pa.array(values)
    if not (pa.types.is_integer(inferred.type) or pa.types.is_null(inferred.type)):
        raise TypeError(f"values of type {inferred.type} are no integers")
    return inferred.cast(kind)


def _has_null_element(lists: pa.ChunkedArray) -> bool:
    return any(chunk.flatten().null_count for chunk in lists.chunks)


def _difference(schema: TableSchema, stored: pa.Schema) -> str:
    """Say in a clause how a stored schema departs from the table's."""
    wanted = {field.name: field.type for field in schema.arrow}
    found = {field.name: field.type for field in stored}
    missing = [name for name in wanted if name not in found]
    if missing:
        return f"table {schema.name} needs column {missing[0]!r}"
    unknown = [name for name in found if name not in wanted]
    if unknown:
        return f"table {schema.name} has no column {unknown[0]!r}"
    for name, kind in wanted.items():
        if found[name] != kind:
            return f"{schema.name}.{name} must be {kind}, not {found[name]}"
    for name in wanted:
        if stored.field(name).nullable != schema.arrow.field(name).nullable:
            word = "" if schema.arrow.field(name).nullable else "not "
            return f"{schema.name}.{name} must be declared {word}nullable"
    return f"the columns of {schema.name} are not in the order of its schema"
