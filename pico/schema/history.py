"""How the versions of a table follow each other, and where a column comes from in an older file.

A schema file describes the current version; its `history` says of each earlier version how it
became the next (columns added, renamed, dropped, widened), so that older versions are worked out by
going back and no column is described twice. `tables` calls it; a history that does not fit its
columns is refused when the schema file is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from pico.errors import SchemaError, one_line
from pico.schema.columns import PATH_COLUMNS, Column

WIDENINGS = {"int32": "int64", "float32": "float64"}
"""Old element type → the wider one that it may become; every value stays exact."""
_DEFAULTS: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "json": (str,),
    "bool": (bool,),
    "int16": (int,),
    "int32": (int,),
    "int64": (int,),
    "float32": (int, float),
    "float64": (int, float),
}


@dataclass(frozen=True)
class Dropped:
    """A column that the next version no longer has, and the column that it stood after."""

    column: Column
    after: str | None
    """A column of the older version; None for the first place."""


@dataclass(frozen=True)
class Change:
    """How the version before `version` became it."""

    version: int
    why: str
    added: Mapping[str, Any] = field(default_factory=dict)
    """Column → its value in rows that were written before."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Older name → newer name."""
    dropped: tuple[Dropped, ...] = ()
    widened: Mapping[str, str] = field(default_factory=dict)
    """Column (by its newer name) → the type that it had."""

    def older_name(self, name: str) -> str:
        """Return what the older version called a column of the newer one."""
        return next((old for old, new in self.renamed.items() if new == name), name)

    def undo(self, columns: Sequence[Column]) -> tuple[Column, ...]:
        """Return the columns of the older version.

        Args:
            columns: those of the version that the change made.

        Raises:
            SchemaError: if the change does not fit them.
        """
        known = {column.name: column for column in columns}
        self._check(known)
        older = []
        for column in columns:
            if column.name not in self.added:
                kind = self.widened.get(column.name, column.type)
                older.append(replace(column, name=self.older_name(column.name), type=kind))
        for item in self.dropped:
            names = [column.name for column in older]
            if item.after is not None and item.after not in names:
                self._refuse(f"dropped column {item.column.name!r} stood after no {item.after!r}")
            older.insert(0 if item.after is None else names.index(item.after) + 1, item.column)
        names = [column.name for column in older]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            self._refuse(f"two columns of version {self.version - 1} would be named {twice[0]!r}")
        return tuple(older)

    def _check(self, known: Mapping[str, Column]) -> None:
        """Refuse changes of columns that are not there, or that cannot have been made."""
        for name in [*self.added, *self.renamed.values(), *self.widened]:
            if name not in known:
                self._refuse(f"version {self.version} has no column {name!r}")
        newer = list(self.renamed.values())
        for name in self.added:
            if name in newer or name in self.widened:
                self._refuse(f"column {name!r} is added, so it was neither renamed nor widened")
            self._check_default(known[name])
        if len(set(newer)) < len(newer):
            self._refuse("two columns are renamed to the same name")
        for name, kind in self.widened.items():
            column = known[name]
            older = replace(column, type=kind)
            wider = WIDENINGS.get(older.element_type)
            if older.is_list != column.is_list or wider != column.element_type:
                self._refuse(f"column {name!r} cannot be widened from {kind} to {column.type}")
        gone = [item.column.name for item in self.dropped]
        for name in [*self.added, *self.renamed, *newer, *self.widened, *gone]:
            if name in PATH_COLUMNS.values():
                self._refuse(f"column {name!r} says what the path says and cannot change")

    def _check_default(self, column: Column) -> None:
        default = self.added[column.name]
        if default is None:
            if not column.nullable:
                self._refuse(f"added column {column.name!r} is not nullable and has no default")
            return
        fits = isinstance(default, _DEFAULTS.get(column.type, ()))
        if not fits or (isinstance(default, bool) and column.type != "bool"):
            self._refuse(f"default {default!r} is no {column.type} for column {column.name!r}")
        try:
            pa.scalar(default, column.arrow)
        except (pa.ArrowException, OverflowError) as error:
            self._refuse(f"default {default!r} of column {column.name!r}: {one_line(error)}")

    def _refuse(self, reason: str) -> None:
        raise SchemaError(f"the step of the history to version {self.version} is wrong: {reason}")


@dataclass(frozen=True)
class Origin:
    """Where a column of a newer version comes from in files of an older one."""

    column: Column
    """The column as it is in the newer version."""
    stored: Column | None
    """The column as it is stored; None where the older version lacks it."""
    default: pa.Scalar
    """What rows have where nothing is stored."""

    @classmethod
    def itself(cls, column: Column) -> Origin:
        """Return the origin of a column in files of its own version."""
        return cls(column, column, pa.scalar(None, column.arrow))

    @property
    def is_unchanged(self) -> bool:
        """Whether the stored column has the same name and type."""
        return (
            self.stored is not None
            and self.stored.name == self.column.name
            and self.stored.type == self.column.type
        )

    def of(self, rows: pa.Table) -> pa.ChunkedArray | pa.Array:
        """Return the column of rows that hold the stored one."""
        if self.stored is not None:
            found = rows[self.stored.name]
            return found if self.stored.type == self.column.type else found.cast(self.column.arrow)
        if not self.default.is_valid:
            return pa.nulls(rows.num_rows, self.column.arrow)
        return pa.repeat(self.default, rows.num_rows)


def follow(
    origins: Sequence[Origin], change: Change, newer: Sequence[Column]
) -> tuple[Origin, ...]:
    """Carry the origins of a version's columns on to the version that a change made.

    Args:
        origins: of the columns that the change started from.
        change: the step to the next version.
        newer: the columns of that version.
    """
    known = {origin.column.name: origin for origin in origins}
    found = []
    for column in newer:
        if column.name in change.added:
            default = pa.scalar(change.added[column.name], column.arrow)
            found.append(Origin(column, None, default))
        else:
            before = known[change.older_name(column.name)]
            found.append(Origin(column, before.stored, before.default.cast(column.arrow)))
    return tuple(found)
