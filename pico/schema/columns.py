"""A column of a table: its type in words of the schema files, and what Arrow and paths call it."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

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
        if self.is_list:
            element = _ARROW[self.element_type]
            return pa.list_(pa.field("element", element, nullable=False))
        return _ARROW[self.type]

    @property
    def is_list(self) -> bool:
        """Whether a value is a list."""
        return self.type.startswith("list<")

    @property
    def element_type(self) -> str:
        """The type of a list's elements; of another column its own."""
        return self.type.removeprefix("list<").removesuffix(">") if self.is_list else self.type


def is_type(word: object) -> bool:
    """Say whether a word names a type of a column.

    >>> is_type("list<int32>"), is_type("float16")
    (True, False)
    """
    if not isinstance(word, str):
        return False
    is_list = word.startswith("list<") and word.endswith(">")
    return (word[5:-1] if is_list else word) in _ARROW
