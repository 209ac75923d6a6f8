"""Data files of the lake's tables: how rows become Parquet, and how they come back.

`write` is called by everything that has rows for a transaction, `read` and `read_tensors` by
everything that wants them back. Row groups are cut here: about 175 KB of values each, a larger
tensor alone in its own; `datafile` decides the rest of the layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pico import schema
from pico.errors import CorruptError, PicoError, SchemaError, did_you_mean, one_line
from pico.lake import codec
from pico.lake.commit import Transaction
from pico.lake.datafile import PartitionFiles
from pico.lake.log import Entry
from pico.lake.storage import Storage
from pico.schema import TableSchema

ROW_GROUP_BYTES = -(-128 * 1024 // 3) * 4
"""A row group of small tensors is closed once its values have this size.

zstd compresses in blocks of 128 KB, and byte-stream-split puts the three bytes of a float32 that
do not compress before the one that does: at this size the former just fill a block, so that the
latter's block is not spoilt by them (measured: 3.37 bytes a weight, at 128 KB of values 3.6).
"""
ROW_GROUP_ROWS = 64 * 1024
"""Rows in one row group of a row table."""


@dataclass(frozen=True)
class TensorRow:
    """A tensor with the key columns of its row: `name`, `layer`, `component`, …."""

    keys: Mapping[str, Any]
    tensor: codec.Tensor


def write_rows(
    transaction: Transaction,
    table: str,
    partition: Mapping[str, Any],
    batches: pa.Table | Iterable[pa.Table],
    extra: str | None = None,
) -> None:
    """Write rows of a row table as files of a transaction, sorted as its schema says.

    Args:
        transaction: the commit that will publish the rows.
        table: name of the table.
        partition: path keys with their values, `{"run": "tiny"}`.
        batches: rows from `TableSchema.batch`; of several batches each is sorted by itself and
            becomes one or more row groups. No rows write no file.
        extra: noted in the log beside each file.
    """
    spec = schema.table(table)
    order = [(key, "ascending") for key in spec.sort]
    with PartitionFiles(transaction, spec, partition, extra) as files:
        for rows in [batches] if isinstance(batches, pa.Table) else batches:
            ordered = spec.check(rows).sort_by(order)
            for start in range(0, ordered.num_rows, ROW_GROUP_ROWS):
                files.write(ordered.slice(start, ROW_GROUP_ROWS))


def write_tensors(
    transaction: Transaction,
    table: str,
    partition: Mapping[str, Any],
    tensors: Iterable[TensorRow],
    part_limit: int | None = None,
) -> None:
    """Write tensors as files of a transaction, in the sort order of the table.

    Args:
        transaction: the commit that will publish them.
        table: name of a tensor table.
        partition: path keys with their values, `{"run": "tiny", "step": 100}`.
        tensors: tensors with their keys; encoded one by one, so that peak memory is one tensor.
        part_limit: see `codec.encode`.
    """
    spec = schema.table(table)
    fixed = {
        column: partition[key] for key, column in spec.path_columns.items() if key in partition
    }
    in_order = sorted(tensors, key=lambda row: _sort_key(spec, row.keys))
    parts = (
        (_part_columns(spec, {**fixed, **row.keys}, part), _size(part))
        for row in in_order
        for part in codec.encode(row.tensor, part_limit)
    )
    with PartitionFiles(transaction, spec, partition) as files:
        for group in _row_groups(parts):
            files.write(group)


def read(
    storage: Storage,
    entries: Iterable[Entry],
    columns: Sequence[str] | None = None,
    filter: pc.Expression | None = None,
) -> pa.Table:
    """Read rows of one table from the given files.

    Args:
        storage: where the files lie.
        entries: live files of one table.
        columns: stored columns to read; by default all.
        filter: rows to keep, over the columns read.

    Raises:
        CorruptError: if a file is missing or damaged.
        SchemaError: for a column that the table does not have.
    """
    entries = list(entries)
    if not entries:
        raise CorruptError("there is no file to read rows from")
    spec = schema.table(entries[0].table)
    for name in columns or ():
        if name not in spec.column_names:
            hint = did_you_mean(name, spec.column_names)
            raise SchemaError(f"table {spec.name} has no column {name!r}.{hint}")
    tables = []
    for entry in entries:
        table = open_file(storage, entry).read(columns)
        table = table.select(columns or spec.column_names)
        tables.append(table.filter(filter) if filter is not None else table)
    return pa.concat_tables(tables)


def read_tensors(
    storage: Storage,
    entries: Iterable[Entry],
    keep: Callable[[Mapping[str, Any]], bool] = lambda keys: True,
    verify: bool = True,
) -> Iterator[TensorRow]:
    """Yield whole tensors from files of a tensor table, parts assembled.

    Args:
        storage: where the files lie.
        entries: live files of one tensor table.
        keep: given the key columns of a row, whether the tensor is wanted.
        verify: compare each tensor's hash with the stored one.

    Raises:
        CorruptError: if a file is damaged, a part is missing or a hash differs.
    """
    waiting: dict[tuple[Any, ...], dict[int, Mapping[str, Any]]] = {}
    for entry in entries:
        for row in _matching_rows(storage, entry, keep):
            identity = tuple(str(v) for k, v in row.items() if k not in ("part", "value", "raw"))
            parts = waiting.setdefault(identity, {})
            parts[row["part"]] = row
            if len(parts) == row["n_parts"]:
                yield _assemble([parts[index] for index in sorted(parts)], entry, verify)
                del waiting[identity]
    if waiting:
        lacking = next(part for parts in waiting.values() for part in parts.values())
        raise CorruptError(
            f"tensor {lacking['name']!r} lacks some of its {lacking['n_parts']} parts"
        )


def _row_groups(parts: Iterable[tuple[pa.Table, int]]) -> Iterator[pa.Table]:
    """Yield row groups of rows that come with the size of their values."""
    pending: list[pa.Table] = []
    pending_bytes = 0
    for row, size in parts:
        if pending and size >= ROW_GROUP_BYTES:
            yield pa.concat_tables(pending).combine_chunks()
            pending, pending_bytes = [], 0
        pending.append(row)
        pending_bytes += size
        if pending_bytes >= ROW_GROUP_BYTES:
            yield pa.concat_tables(pending).combine_chunks()
            pending, pending_bytes = [], 0
    if pending:
        yield pa.concat_tables(pending).combine_chunks()


def _size(part: codec.EncodedPart) -> int:
    return len(part.raw or b"") if part.value is None else part.value.nbytes


def _part_columns(spec: TableSchema, keys: Mapping[str, Any], part: codec.EncodedPart) -> pa.Table:
    value = pa.nulls(1, pa.list_(pa.field("element", pa.float32(), nullable=False)))
    if part.value is not None:
        value = pa.ListArray.from_arrays(
            pa.array([0, part.value.size], pa.int32()), pa.array(part.value), type=value.type
        )
    columns: dict[str, Any] = {name: [item] for name, item in keys.items()}
    columns |= {
        "part": [part.part],
        "n_parts": [part.n_parts],
        "dtype": [part.dtype],
        "shape": [list(part.shape)],
        "content_hash": [part.content_hash],
        "value": value,
        "raw": [part.raw],
    }
    return spec.batch(columns)


def _sort_key(spec: TableSchema, keys: Mapping[str, Any]) -> tuple[Any, ...]:
    wanted = [keys.get(name) for name in spec.sort if name != "part"]
    return tuple((item is None, 0 if item is None else item) for item in wanted)


@dataclass(frozen=True)
class OpenFile:
    """An open data file that shows the current columns of its table, whatever its own version."""

    entry: Entry
    parquet: pq.ParquetFile
    """The file as it is stored."""
    spec: TableSchema
    version: int

    @property
    def schema_arrow(self) -> pa.Schema:
        """The current columns, which reading shows."""
        return self.spec.arrow

    @property
    def num_row_groups(self) -> int:
        """Number of row groups."""
        return int(self.parquet.num_row_groups)

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return all rows, of all or some columns; raises `CorruptError` where damaged."""
        return self._whole(self._upgraded(self.parquet.read, columns), self.entry.rows)

    def read_row_group(self, group: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows of a row group; raises `CorruptError` where damaged."""
        rows = self._upgraded(partial(self.parquet.read_row_group, group), columns)
        return self._whole(rows, self.parquet.metadata.row_group(group).num_rows)

    def _whole(self, rows: pa.Table, n_rows: int) -> pa.Table:
        """Return rows if they are as many as there must be; damaged columns may end early."""
        if rows.num_rows != n_rows and rows.num_columns:
            raise CorruptError(f"{self.entry.path} ends after {rows.num_rows} of {n_rows} rows")
        return rows

    def statistics(self, group: int, column: str) -> pq.Statistics | None:
        """Return what the footer tells of a column in a row group; None if it tells nothing."""
        stored = self.spec.stored_names(self.version, [column])
        if not stored:
            return None
        place = self.parquet.schema_arrow.get_field_index(stored[0])
        return self.parquet.metadata.row_group(group).column(place).statistics

    def _upgraded(self, read: Callable[..., pa.Table], columns: Sequence[str] | None) -> pa.Table:
        if self.version == self.spec.version:
            return guarded(self.entry, lambda: read(columns=columns))
        stored = self.spec.stored_names(self.version, columns)
        rows = guarded(self.entry, lambda: read(columns=stored))
        return self.spec.upgrade(rows, self.version, columns)


def open_file(storage: Storage, entry: Entry) -> OpenFile:
    """Open a data file that fits its schema and the log, page checksums compared on reading.

    Raises:
        CorruptError: if it is missing or damaged.
        SchemaError: if its table, version or columns are not those of the schema.
    """
    return guarded(entry, lambda: _open_checked(storage, entry))  # type: ignore[no-any-return]


def _open_checked(storage: Storage, entry: Entry) -> OpenFile:
    spec = schema.table(entry.table)
    file = pq.ParquetFile(storage.open(entry.path), page_checksum_verification=True)
    version = spec.accepts(file.schema_arrow, entry.path)
    if version != entry.schema_version:
        raise CorruptError(
            f"{entry.path} has schema version {version}, the log says {entry.schema_version}"
        )
    meta = file.metadata
    n_rows = sum(meta.row_group(group).num_rows for group in range(meta.num_row_groups))
    if not meta.num_rows == n_rows == entry.rows:
        raise CorruptError(f"{entry.path} has {n_rows} rows, the log says {entry.rows}")
    return OpenFile(entry, file, spec, version)


def _matching_rows(
    storage: Storage, entry: Entry, keep: Callable[[Mapping[str, Any]], bool]
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file whose keys match, opening only the row groups that hold one."""
    spec = schema.table(entry.table)
    key_columns = [name for name in spec.column_names if name not in ("value", "raw")]
    file = open_file(storage, entry)
    for group in range(file.num_row_groups):
        keys = file.read_row_group(group, key_columns)
        rows = guarded(entry, keys.to_pylist)
        wanted = [index for index, row in enumerate(rows) if keep(row)]
        if not wanted:
            continue
        heavy = file.read_row_group(group, ["value", "raw"])
        values = heavy["value"].combine_chunks()
        for index in wanted:
            scalar = values[index]
            value = guarded(entry, lambda s=scalar: s.values.to_numpy() if s.is_valid else None)  # type: ignore[misc]
            yield {**rows[index], "value": value, "raw": heavy["raw"][index].as_py()}


def _assemble(rows: Sequence[Mapping[str, Any]], entry: Entry, verify: bool) -> TensorRow:
    first = rows[0]
    tensor = codec.decode(
        first["dtype"], first["shape"], [r["value"] for r in rows], [r["raw"] for r in rows]
    )
    if verify and tensor.content_hash != first["content_hash"]:
        raise CorruptError(
            f"tensor {first['name']!r} in {entry.path} is damaged: its content hash differs"
        )
    hidden = {"part", "n_parts", "value", "raw", "dtype", "shape"}
    return TensorRow({k: v for k, v in first.items() if k not in hidden}, tensor)


def guarded(entry: Entry, action: Callable[[], Any]) -> Any:
    """Return what `action` reads of a file; a native reader's error becomes `CorruptError`."""
    try:
        return action()
    except PicoError:
        raise
    except FileNotFoundError:
        raise CorruptError(f"{entry.path} is missing although the log names it") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptError(f"{entry.path} cannot be read: {one_line(error)}") from None


def empty(table: str) -> pa.Table:
    """Return no rows of a table, with its columns."""
    return schema.table(table).arrow.empty_table()
