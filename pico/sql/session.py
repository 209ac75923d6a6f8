"""A DuckDB connection over one snapshot of a lake: views, settings and functions.

`pico.connect` and `Lake` call `connect`. The connection is an ordinary one: a view per table of the
lake over exactly the live files of the snapshot, so that commits made meanwhile change nothing, and
path keys (`run`, `step`, `dataset`, `tokenizer`) that prune files without opening them. Tensor
tables show `tensor`, which the functions of `functions` take.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence

import duckdb
import pyarrow as pa

from pico import schema
from pico.errors import CorruptError, PicoError, QueryError, SchemaError, StorageError
from pico.lake import intact
from pico.lake import table as lake_table
from pico.lake.log import Entry
from pico.lake.snapshot import Snapshot, partition
from pico.lake.storage import Storage
from pico.schema import TableSchema
from pico.sql import functions, statements
from pico.sql.bridge import TENSOR

_SQL_TYPES = {
    "string": "VARCHAR",
    "json": "VARCHAR",
    "binary": "BLOB",
    "bool": "BOOLEAN",
    "int16": "SMALLINT",
    "int32": "INTEGER",
    "int64": "BIGINT",
    "float32": "FLOAT",
    "float64": "DOUBLE",
    "timestamp": "TIMESTAMP WITH TIME ZONE",
}
_KEY_TYPES = {"run": "VARCHAR", "step": "BIGINT", "dataset": "VARCHAR", "tokenizer": "VARCHAR"}
_SETTINGS = {
    "TimeZone": "'UTC'",
    # It reads a table a second time, for whole partitions, and forgets which files a filter on path
    # keys had left: max(step) OVER (…) WHERE step = 4 gave the maximum of all steps (DuckDB 2.0.1).
    "disabled_optimizers": "'window_self_join'",
    "arrow_large_buffer_size": "true",  # a column of tensors exceeds 2^31 bytes sooner or later
    "parquet_can_have_nan": "true",  # else NaN rows vanish where a footer's maximum excludes them
    "parquet_metadata_cache": "true",
}
_MANY_LOST = 64
"""With more files missing than this their table is not shown in part."""
_TENSOR = "CASE WHEN n_parts = 1 AND value IS NOT NULL THEN {'shape': shape, 'value': value} END"


def connect(
    snapshot: Snapshot,
    runs: Collection[str] | None = None,
    steps: Collection[int] | None = None,
    threads: int | None = None,
    memory_limit: str | None = None,
    verify: bool = False,
) -> duckdb.DuckDBPyConnection:
    """Return a DuckDB connection with the tables of a snapshot as views and all functions.

    Args:
        snapshot: the files that count.
        runs: show only these runs; by default all.
        steps: show only rows of these steps, in tables that have steps; by default all.
        threads: DuckDB's threads; by default one per core.
        memory_limit: DuckDB's memory limit (`'4GB'`); by default its own, 80 % of the machine.
        verify: read all files that the views can show and compare them with the log first, for
            DuckDB compares no checksums and would answer from damaged bytes.

    Raises:
        CorruptError: with `verify`, for a file that is missing or holds other bytes.
        RunNameError: for a run that the lake does not have.
        QueryError: for a memory limit or a number of threads that DuckDB refuses.
    """
    for run in runs or ():
        snapshot.check_run(run)
    if verify:
        tables = schema.tables()
        intact.check(snapshot.storage, (e for t in tables for e in snapshot.files(t, runs, steps)))
    connection = duckdb.connect()
    settings = dict(_SETTINGS)
    if threads is not None:
        settings["threads"] = str(threads)
    if memory_limit is not None:
        settings["memory_limit"] = quote(memory_limit)
    root = _root(snapshot, connection, settings)
    # In Jupyter without ipywidgets DuckDB draws no bar, and refuses to be told to draw none.
    with contextlib.suppress(duckdb.InvalidInputException):
        connection.execute("SET enable_progress_bar = false")
    try:
        for name, value in settings.items():
            connection.execute(f"SET {name} = {value}")
    except duckdb.Error as error:
        connection.close()
        raise QueryError(f"DuckDB refuses {name} = {value}: {statements.message(error)}") from None
    for spec in schema.tables().values():
        try:
            entries = snapshot.files(spec.name, runs, steps)
            snapshot.storage.refuse_links(entry.path for entry in entries)
        except (CorruptError, SchemaError) as error:
            _create_broken_view(connection, spec, str(error))
        else:
            _create_view(connection, snapshot.storage, spec, entries, root, steps)
    _create_files_view(connection, snapshot)
    functions.register(connection)
    return connection


def quote(text: str) -> str:
    """Return `text` as an SQL string literal.

    >>> quote("it's")
    "'it''s'"
    """
    return "'" + text.replace("'", "''") + "'"


def sql_type(column_type: str) -> str:
    """Return the DuckDB type of a column type in words of the schema files.

    >>> sql_type("list<float32>")
    'FLOAT[]'
    """
    if column_type.startswith("list<"):
        return _SQL_TYPES[column_type.removeprefix("list<").removesuffix(">")] + "[]"
    return _SQL_TYPES[column_type]


def _root(
    snapshot: Snapshot, connection: duckdb.DuckDBPyConnection, settings: dict[str, str]
) -> str:
    """Return the prefix that makes a path of the lake one that DuckDB opens."""
    folder = snapshot.storage.folder
    if folder is not None and not set(str(folder.absolute())) & set("*?[]{}="):
        # A local read costs less than fetching whole row groups ahead (measured: a fifth of the
        # time and five sixths of the bytes of a query for one small tensor).
        settings["disable_parquet_prefetching"] = "true"
        return f"{folder.absolute()}/"
    # Also for local folders whose own name DuckDB would take for a pattern or a path key.
    files = {entry.path: entry.bytes for entry in snapshot.all_files()}
    filesystem, protocol = snapshot.storage.snapshot_filesystem(files)
    connection.register_filesystem(filesystem)
    return f"{protocol}://"


def _create_view(
    connection: duckdb.DuckDBPyConnection,
    storage: Storage,
    spec: TableSchema,
    entries: Sequence[Entry],
    root: str,
    steps: Collection[int] | None,
) -> None:
    """Create a table's view; files that are missing fail the queries alone that need them."""
    readable, lost = list(entries), dict[str, str]()
    while True:
        body = _scans(spec, readable, root, steps) + [
            _failing(spec, *item) for item in lost.items()
        ]
        sql = "\nUNION ALL BY NAME\n".join(body) or _no_rows(spec)
        try:
            connection.execute(f"CREATE VIEW {spec.name} AS {sql}")
            return
        except (duckdb.Error, UnicodeDecodeError) as error:
            found = _unreadable(storage, readable)
            lost |= found
            readable = [entry for entry in readable if entry.path not in found]
            if not found or len(lost) > _MANY_LOST:
                reason = next(iter(lost.values()), statements.message(error))
                _create_broken_view(connection, spec, reason)
                return


def _scans(
    spec: TableSchema, entries: Iterable[Entry], root: str, steps: Collection[int] | None
) -> list[str]:
    """Return a SELECT for each version and layout of paths among the files."""
    layouts: dict[tuple[int, tuple[str, ...]], list[str]] = {}
    for entry in entries:
        layout = entry.schema_version, tuple(partition(entry.path))
        layouts.setdefault(layout, []).append(root + entry.path)
    return [_scan(spec, *layout, paths, steps) for layout, paths in layouts.items()]


def _unreadable(storage: Storage, entries: Iterable[Entry]) -> dict[str, str]:
    """Return the files that are missing, or that come first and cannot be opened, and why.

    DuckDB asks for all files and opens the first of each scan when a view is made, so it is those
    that can keep it from making one.
    """
    lost: dict[str, str] = {}
    try:
        folders = {entry.path.partition("/")[0] for entry in entries}
        present = {file.path for folder in folders for file in storage.list(folder)}
    except StorageError:
        return lost
    first: dict[tuple[int, tuple[str, ...]], Entry] = {}
    for entry in entries:
        if entry.path in present:
            first.setdefault((entry.schema_version, tuple(partition(entry.path))), entry)
        else:
            lost[entry.path] = f"{entry.path} is missing although the log names it"
    for entry in first.values():
        try:
            lake_table.open_file(storage, entry)
        except PicoError as error:
            lost[entry.path] = str(error)
    return lost


def _failing(spec: TableSchema, path: str, reason: str) -> str:
    """Return a SELECT that stands for a file and fails unless its path keys are filtered out."""
    keys = partition(path)
    failure = _failure(spec, reason)
    columns = ", ".join(
        f'CAST({quote(keys[name]) if name in keys else failure} AS {kind}) AS "{name}"'
        for name, kind in _columns(spec).items()
    )
    return f"SELECT {columns} WHERE {failure} IS NULL"


def _create_broken_view(
    connection: duckdb.DuckDBPyConnection, spec: TableSchema, reason: str
) -> None:
    """Create a view that fails: the other tables stay usable, who asks for this one hears why."""
    failure = _failure(spec, reason)
    # In every column too: a filter on columns that are NULL would be decided without the failure.
    columns = _typed(_columns(spec), failure)
    connection.execute(f"CREATE VIEW {spec.name} AS SELECT {columns} WHERE {failure} IS NULL")


def _failure(spec: TableSchema, reason: str) -> str:
    return f"error({quote(f'table {spec.name} cannot be read: {reason}; see pico verify')})"


def _scan(
    spec: TableSchema,
    version: int,
    keys: tuple[str, ...],
    paths: Iterable[str],
    steps: Collection[int] | None,
) -> str:
    """Return the SELECT over files that share a version and a layout of path keys."""
    files = ", ".join(quote(path) for path in paths)
    types = ", ".join(f"{quote(key)}: {quote(_KEY_TYPES[key])}" for key in keys)
    hidden = set(spec.path_columns.values()) | {"global_step"}
    stored = [f'"{name}"' for name in spec.column_names if name not in hidden]
    columns = [*keys, *stored]
    has_step = "global_step" in spec.column_names
    if has_step and "step" not in keys:
        columns.insert(len(keys), "global_step AS step")
    if spec.kind == "tensor":
        columns.append(f"{_TENSOR} AS tensor")
    where = ""
    if steps is not None and has_step:
        wanted = ", ".join(str(int(step)) for step in steps) or "NULL"
        where = f" WHERE {'step' if 'step' in keys else 'global_step'} IN ({wanted})"
    scan = f"read_parquet([{files}], hive_partitioning = true, hive_types = {{{types}}})"
    if version != spec.version:
        scan = f"(SELECT {_upgraded(spec, version, keys)} FROM {scan})"
    return f"SELECT {', '.join(columns)} FROM {scan}{where}"


def _upgraded(spec: TableSchema, version: int, keys: Iterable[str]) -> str:
    """Return what to select from files of an older version to have the columns of the current."""
    columns = list(keys)
    for name, origin in spec.origins(version).items():
        default = origin.default.as_py()
        source = "NULL" if default is None else quote(str(default))
        if origin.stored is not None:
            source = f'"{origin.stored.name}"'
        columns.append(f'CAST({source} AS {sql_type(origin.column.type)}) AS "{name}"')
    return ", ".join(columns)


def _no_rows(spec: TableSchema) -> str:
    """Return a SELECT of no rows with the columns that the view has when there are some."""
    return f"SELECT {_typed(_columns(spec), 'NULL')} WHERE false"


def _columns(spec: TableSchema) -> dict[str, str]:
    """Return the columns of a table's view with their types."""
    columns = {key: _KEY_TYPES[key] for key in spec.partition}
    if "global_step" in spec.column_names:
        columns["step"] = _KEY_TYPES["step"]
    hidden = set(spec.path_columns.values()) | {"global_step"}
    columns |= {c.name: sql_type(c.type) for c in spec.columns if c.name not in hidden}
    if spec.kind == "tensor":
        columns["tensor"] = TENSOR
    return columns


def _typed(columns: Mapping[str, str], value: str) -> str:
    return ", ".join(f'CAST({value} AS {kind}) AS "{name}"' for name, kind in columns.items())


def _create_files_view(connection: duckdb.DuckDBPyConnection, snapshot: Snapshot) -> None:
    """Create the view `files`: what the snapshot is made of."""
    entries = snapshot.all_files()
    rows = pa.table(
        {
            "table_name": pa.array([e.table for e in entries], pa.string()),
            "path": pa.array([e.path for e in entries], pa.string()),
            "rows": pa.array([e.rows for e in entries], pa.int64()),
            "bytes": pa.array([e.bytes for e in entries], pa.int64()),
            "min_step": pa.array([e.min_step for e in entries], pa.int64()),
            "max_step": pa.array([e.max_step for e in entries], pa.int64()),
            "hash": pa.array([e.hash for e in entries], pa.string()),
        }
    )
    connection.register("files", rows)
