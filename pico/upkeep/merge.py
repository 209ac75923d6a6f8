"""Merging the files of one row table into one, checked before anything is published.

`compact` calls `write` for each group of files that it has found to belong together. What goes in
is compared with the log, what comes out is read back and compared with what went in, row for row
and bit for bit.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from pico import schema
from pico.errors import CorruptError
from pico.lake import table
from pico.lake.commit import Stream, Transaction
from pico.lake.datafile import PartitionFiles
from pico.lake.entries import replacement
from pico.lake.log import Entry
from pico.lake.sink import Sink
from pico.lake.storage import Storage
from pico.upkeep import filecheck


@dataclass(frozen=True)
class Merge:
    """Files of one table and run whose rows can stand in one file."""

    run: str
    table: str
    stream: str
    """The stream that the rows came from, …"""
    txn: str
    """… and the last of its commits that brought some of them."""
    files: tuple[Entry, ...]

    @property
    def rows(self) -> int:
        """Rows of all files."""
        return sum(entry.rows for entry in self.files)

    @property
    def bytes(self) -> int:
        """Bytes of all files."""
        return sum(entry.bytes for entry in self.files)


class CheckedTransaction(Transaction):
    """A transaction that keeps what it writes, for a comparison before the commit."""

    def __init__(self, stream: Stream) -> None:
        """Begin with no files."""
        super().__init__(stream)
        self.written: dict[str, io.BytesIO] = {}

    def create(self, folder: str) -> tuple[str, Sink]:
        """Begin a data file; see `Transaction.create`."""
        path, sink = super().create(folder)
        self.written[path] = io.BytesIO()
        return path, _Twofold(sink, self.written[path])


class _Twofold(io.RawIOBase):
    """Passes bytes on to a sink and keeps them as well."""

    def __init__(self, sink: Sink, kept: io.BytesIO) -> None:
        self._sink, self._kept = sink, kept
        self.hexdigest, self.finish = sink.hexdigest, sink.finish
        self.publish, self.discard = sink.publish, sink.discard

    @property
    def size(self) -> int:
        return self._sink.size

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._sink.size

    def write(self, data: Any) -> int:
        self._kept.write(data)
        return self._sink.write(data)


def read(storage: Storage, merge: Merge) -> pa.Table:
    """Return the rows of a group's files, each compared with the log.

    Raises:
        CorruptError: if a file is damaged.
        SchemaError: if rows do not fit the table, or two share a primary key.
    """
    for entry in merge.files:
        problem = filecheck.check(storage, entry, None, deep=False)
        if problem is not None:
            raise CorruptError(problem.message)
    return schema.table(merge.table).check(table.read(storage, merge.files))


def write(transaction: CheckedTransaction, merge: Merge, rows: pa.Table) -> None:
    """Write rows, sorted, as a file that takes the place of a group's files.

    Raises:
        CorruptError: if what was written differs from `rows`; the transaction must not be
            committed then.
    """
    spec = schema.table(merge.table)
    ordered = rows.sort_by([(key, "ascending") for key in spec.sort])
    extra = replacement(merge.stream, merge.txn)
    with PartitionFiles(transaction, spec, {"run": merge.run}, extra) as files:
        for start in range(0, ordered.num_rows, table.ROW_GROUP_ROWS):
            files.write(ordered.slice(start, table.ROW_GROUP_ROWS))
    written = [pq.read_table(pa.BufferReader(b.getvalue())) for b in transaction.written.values()]
    keys = spec.primary_key
    if fingerprint(pa.concat_tables(written), keys) != fingerprint(rows, keys):
        raise CorruptError(
            f"merging {len(merge.files)} files of {merge.table} of run {merge.run!r} would have "
            "changed their rows; nothing was committed"
        )
    transaction.take_away(merge.files, withdraw=False)
    transaction.written.clear()


def fingerprint(rows: pa.Table, keys: Sequence[str]) -> str:
    """Return a hash of rows as a set, by the bits of their values; `keys` tell them apart."""
    digest = xxhash.xxh3_128()
    ordered = rows.sort_by([(key, "ascending") for key in keys]).combine_chunks()
    for name in ordered.column_names:
        chunks = ordered[name].chunks
        digest.update(name.encode())
        for chunk in chunks:
            _update(digest, chunk)
    return digest.hexdigest()


def _update(digest: Any, values: pa.Array) -> None:
    """Add an array's nulls and bits to a hash; NaNs with different bits differ."""
    digest.update(values.is_valid().cast(pa.uint8()).to_numpy().tobytes())
    kind = values.type
    if pa.types.is_list(kind):
        digest.update(pc.list_value_length(values).fill_null(0).to_numpy().tobytes())
        _update(digest, values.flatten())
    elif pa.types.is_string(kind) or pa.types.is_binary(kind):
        texts = values.cast(pa.binary()).fill_null(b"")
        digest.update(pc.binary_length(texts).to_numpy().tobytes())
        digest.update(b"".join(texts.to_pylist()))
    elif pa.types.is_boolean(kind):
        digest.update(values.fill_null(False).cast(pa.uint8()).to_numpy().tobytes())
    else:
        same_width = {2: pa.int16(), 4: pa.int32(), 8: pa.int64()}[kind.bit_width // 8]
        digest.update(values.view(same_width).fill_null(0).to_numpy().tobytes())
