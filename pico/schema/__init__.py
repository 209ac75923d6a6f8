"""The tables of a lake, read from `schemas/*.json`: the one place that says what columns there are.

The JSON files are the specification; nothing about a table's columns is written twice. `tables`
holds what a table is and does, `history` how its versions follow each other, `files` reads the JSON
files and writes the page about them.
"""

from pico.schema.columns import PATH_COLUMNS, Column
from pico.schema.files import log, markdown, table, tables
from pico.schema.history import Change, Origin
from pico.schema.tables import TableSchema

__all__ = [
    "PATH_COLUMNS",
    "Change",
    "Column",
    "Origin",
    "TableSchema",
    "log",
    "markdown",
    "table",
    "tables",
]
