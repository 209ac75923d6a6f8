"""A table of the lake: its columns in every version, and the one door that its rows pass.

`lake.table` calls `TableSchema.check` before it writes a batch, `accepts` on every file that it
opens, and `upgrade` on what it reads of files of an older version. Files carry `pico.table` and
`pico.schema_version` in their Parquet metadata; within a version the stored columns never change
(`extra` takes additions), because plain readers break on files of one table that differ in columns.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from pico.errors import SchemaError, did_you_mean, one_line
from pico.schema.columns import PATH_COLUMNS, Column
from pico.schema.history import Change, Origin, follow

Kind = Literal["tensor", "rows", "data", "vocab", "log"]


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
    history: tuple[Change, ...] = ()
    """How each version but the first was made, oldest first."""
    questions: tuple[str, ...] = ()
    """What people ask of the table."""

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
        return tuple(range(1, self.version + 1))

    def at(self, version: int) -> TableSchema:
        """Return the table as it was in a version.

        Raises:
            SchemaError: for a version that is not known, and for a history that does not fit.
        """
        self.check_version(version, f"table {self.name}")
        return self._versions[version]

    @cached_property
    def _versions(self) -> dict[int, TableSchema]:
        newer = self
        found = {self.version: self}
        for change in reversed(self.history):
            gone = change.added
            newer = replace(
                newer,
                version=newer.version - 1,
                primary_key=tuple(map(change.older_name, _without(newer.primary_key, gone))),
                sort=tuple(map(change.older_name, _without(newer.sort, gone))),
                columns=change.undo(newer.columns),
                history=newer.history[:-1],
            )
            found[newer.version] = newer
        return found

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

    def origins(self, version: int) -> dict[str, Origin]:
        """Return where each column comes from in files of a version, in order.

        Raises:
            SchemaError: for a version that is not known.
        """
        self.check_version(version, f"table {self.name}")
        return self._origins[version]

    @cached_property
    def _origins(self) -> dict[int, dict[str, Origin]]:
        found = {}
        for version in self.known_versions:
            origins = tuple(Origin.itself(column) for column in self.at(version).columns)
            for change in self.history[version - 1 :]:
                origins = follow(origins, change, self.at(change.version).columns)
            found[version] = {origin.column.name: origin for origin in origins}
        return found

    def stored_names(self, version: int, columns: Iterable[str] | None = None) -> list[str]:
        """Return what to read of a file of a version to `upgrade` it to some columns, or all."""
        origins = self.origins(version)
        wanted = origins.values() if columns is None else [origins[name] for name in columns]
        return [origin.stored.name for origin in wanted if origin.stored is not None]

    def upgrade(
        self, rows: pa.Table, version: int, columns: Iterable[str] | None = None
    ) -> pa.Table:
        """Return rows of a version as rows of the current one; those that are already unchanged.

        Args:
            rows: rows with the columns `stored_names(version, columns)` at least.
            version: the version that they are of.
            columns: columns wanted, by their current names; by default all.

        Raises:
            SchemaError: for a version that is not known.
        """
        if version == self.version:
            return rows
        origins = self.origins(version)
        wanted = self.column_names if columns is None else list(columns)
        return pa.Table.from_arrays(
            [origins[name].of(rows) for name in wanted],
            schema=pa.schema([self.arrow.field(name) for name in wanted], self.arrow.metadata),
        )

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
            if column.is_list and _has_null_element(rows[column.name]):
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

    def accepts(self, stored: pa.Schema, path: str) -> int:
        """Return the version of a file of this table, of which the columns are as they must be.

        Raises:
            SchemaError: naming the file and what differs: table, version or columns.
        """
        metadata = stored.metadata or {}
        version = metadata.get(b"pico.schema_version", b"").decode(errors="replace")
        table = metadata.get(b"pico.table", b"").decode(errors="replace")
        if table != self.name:
            raise SchemaError(f"{path} says that it belongs to table {table!r}, not {self.name!r}")
        if not re.fullmatch(r"[1-9][0-9]{0,8}", version):
            raise SchemaError(f"{path} has no schema version of table {self.name}: {version!r}")
        self.check_version(int(version), path)
        then = self.at(int(version))
        if not stored.equals(then.arrow):
            raise SchemaError(f"{path}: {_difference(then, stored)}")
        return int(version)


def _without(names: Iterable[str], gone: Container[str]) -> list[str]:
    return [name for name in names if name not in gone]


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
