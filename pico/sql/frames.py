"""Tables of a lake as Polars LazyFrames, with the columns that the SQL views show.

`Lake.scan` calls it. Files of other runs and steps are left out before anything is opened; what is
left is scanned lazily, so that filters and projections reach the Parquet readers: of the files that
are opened they read only the row groups whose footers tell of the layers and components asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import polars as pl
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow import fs

from pico import schema
from pico.errors import SchemaError
from pico.lake.log import Entry
from pico.lake.snapshot import Snapshot, partition
from pico.schema import TableSchema
from pico.sql import expressions  # noqa: F401 (registers the namespace `tensor`)


def scan(
    snapshot: Snapshot,
    table: str,
    runs: Collection[str] | None = None,
    steps: Collection[int] | None = None,
    layers: Collection[int | None] | None = None,
    components: Collection[str | None] | None = None,
) -> pl.LazyFrame:
    """Return the rows of a table as a LazyFrame.

    Args:
        snapshot: which files count.
        table: name of the table.
        runs: only these runs; by default all.
        steps: only these steps; by default all.
        layers: only these blocks, None among them for what lies outside blocks; by default all.
        components: only these roles, None among them for what has none; by default all.

    Returns:
        The stored columns, with `run`, `step`, `dataset`, `tokenizer` for the stored `run_id`,
        `global_step`, `dataset_id`, `tokenizer_id`, and for tensor tables `tensor`, a struct of
        `shape` and `value` (NULL for one part of a tensor that was split).

    Raises:
        SchemaError: if there is no such table, or it has no layers or components.
    """
    spec = schema.table(table)
    chosen = {"layer": layers, "component": components}
    for column, values in chosen.items():
        if values is not None and column not in spec.column_names:
            raise SchemaError(
                f"table {table!r} has no column {column!r}; leave {column}s out, or scan "
                "weights, gradients, activations, optimizer or metrics"
            )
    files = snapshot.files(table, runs, steps)
    by_version: dict[int, list[Entry]] = {}
    for entry in files:
        by_version.setdefault(entry.schema_version, []).append(entry)
    frames = [_upgraded(spec, v, _scan_files(snapshot, of_it)) for v, of_it in by_version.items()]
    frame = pl.concat(frames) if frames else _empty(table)
    for column, values in chosen.items():
        if values is not None:
            frame = frame.filter(_is_one_of(column, values))
    renamed = {
        column: key for key, column in schema.PATH_COLUMNS.items() if column in spec.column_names
    }
    frame = frame.rename(renamed)
    if runs is not None and "run" in renamed.values():
        frame = frame.filter(pl.col("run").is_in(list(runs)))
    if steps is not None and "step" in renamed.values():
        frame = frame.filter(pl.col("step").is_in(list(steps)))
    if spec.kind == "tensor":
        whole = (pl.col("n_parts") == 1) & pl.col("value").is_not_null()
        frame = frame.with_columns(tensor=pl.when(whole).then(pl.struct("shape", "value")))
    return frame


def _is_one_of(column: str, values: Collection[int | str | None]) -> pl.Expr:
    """Return what holds where a column has one of the values; None stands for NULL."""
    named = pl.col(column).is_in([value for value in values if value is not None])
    return named | pl.col(column).is_null() if None in values else named


def _scan_files(snapshot: Snapshot, files: Sequence[Entry]) -> pl.LazyFrame:
    storage = snapshot.storage
    if storage.folder is not None:
        storage.refuse_links(entry.path for entry in files)
        sources = [storage.folder / entry.path for entry in files]
        return pl.scan_parquet(sources, hive_partitioning=False, glob=False)
    # Polars would read file objects to their ends at once; Arrow reads what is asked for.
    return pl.scan_pyarrow_dataset(_dataset(snapshot, files))


def _dataset(snapshot: Snapshot, files: Sequence[Entry]) -> ds.FileSystemDataset:
    """Return files of one table and version, each with what log and path say of its rows."""
    spec = schema.table(files[0].table).at(files[0].schema_version)
    sizes = {entry.path: entry.bytes for entry in files}
    filesystem = fs.PyFileSystem(fs.FSSpecHandler(snapshot.storage.snapshot_filesystem(sizes)[0]))
    layout = ds.ParquetFileFormat()
    fragments = [layout.make_fragment(e.path, filesystem, _known(spec, e)) for e in files]
    return ds.FileSystemDataset(fragments, spec.arrow, layout, filesystem)


def _known(spec: TableSchema, entry: Entry) -> pc.Expression:
    """Return what holds for every row of a file, so that others are left out without a request."""
    known = pc.scalar(True)
    keys = partition(entry.path)
    for key, column in spec.path_columns.items():
        if key in keys and column != "global_step":
            known &= pc.field(column) == keys[key]
    if "global_step" in spec.column_names and None not in (entry.min_step, entry.max_step):
        known &= pc.field("global_step") >= entry.min_step
        known &= pc.field("global_step") <= entry.max_step
    return known


def _upgraded(spec: TableSchema, version: int, frame: pl.LazyFrame) -> pl.LazyFrame:
    """Return the columns of the current version from files of another."""
    if version == spec.version:
        return frame
    types = _empty(spec.name).collect_schema()
    return frame.select(
        (pl.lit(origin.default.as_py()) if origin.stored is None else pl.col(origin.stored.name))
        .cast(types[name])
        .alias(name)
        for name, origin in spec.origins(version).items()
    )


def _empty(table: str) -> pl.LazyFrame:
    frame = pl.from_arrow(schema.table(table).arrow.empty_table())
    assert isinstance(frame, pl.DataFrame)
    return frame.lazy()
