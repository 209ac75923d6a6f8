"""The data files of one partition as they are written: their Parquet layout, rolling and keys.

`table` hands over row groups. The layout (DESIGN 3) is decided here: byte-stream-split zstd values,
statistics on key columns only (DuckDB loses NaN rows where float statistics exclude them), page
checksums (our readers compare them), files that roll at 256 MB. Dictionaries and a page index come
with long row groups alone: in a group of a few rows they save nothing, and every reader pays for
them in each of a run's many files. A write that fails adds nothing to its transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pico.errors import SchemaError
from pico.lake.commit import Transaction
from pico.lake.log import Entry
from pico.lake.names import path_key
from pico.lake.sink import Sink
from pico.schema import TableSchema

FILE_BYTES = 256 * 1024 * 1024
"""A file that has reached this size is closed and another one begun."""
MANY_ROWS = 4096
"""A file whose first row group has this many rows gets dictionaries and a page index."""
STATISTICS = (
    "run_id",
    "global_step",
    "name",
    "layer",
    "component",
    "sequence_id",
    "token_id",
    "dataset_id",
    "metric",
    "probe",
    "site",
    "task",
)
"""Columns with statistics: the keys that queries filter on, never a float."""
_IN_PATH = ("run_id", "global_step")
"""In tensor tables the path tells these, and each file has one value of them."""


class PartitionFiles:
    """The open file of one partition, rolled when it is large; a context manager.

    Without an error the finished files' entries go to the transaction at the end; after one, every
    file begun is discarded.
    """

    def __init__(
        self,
        transaction: Transaction,
        spec: TableSchema,
        partition: Mapping[str, Any],
        extra: str | None = None,
    ) -> None:
        """Begin with no file; `extra` is noted in the log entry of each file.

        Raises:
            SchemaError: unless `partition` has exactly the table's path keys.
            RunNameError: for a value that cannot stand in a path.
        """
        if set(partition) != set(spec.partition):
            raise SchemaError(
                f"table {spec.name} is partitioned by {', '.join(spec.partition)}, "
                f"not by {', '.join(partition) or 'nothing'}"
            )
        self._transaction, self._spec, self._extra = transaction, spec, extra
        self._partition = {key: partition[key] for key in spec.partition}
        keys = "/".join(path_key(key, value) for key, value in self._partition.items())
        self._folder = f"{spec.name}/{keys}"
        self._keys: list[pa.Table] = []
        self._entries: list[Entry] = []
        self._begun: list[str] = []
        self._sink: Sink | None = None

    def __enter__(self) -> PartitionFiles:
        """Return the object itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Hand the entries over, or discard the files if there was an error."""
        try:
            if kind is None:
                self._close()
                self._check_keys()
                for entry in self._entries:
                    self._transaction.add(entry)
                self._begun = []
        finally:
            if self._sink is not None:
                self._writer.is_open = False  # else its destructor writes a footer
            for path in self._begun:
                self._transaction.drop(path)

    def write(self, rows: pa.Table) -> None:
        """Append one row group.

        Raises:
            SchemaError: if a row belongs to another partition.
        """
        for key, column in self._spec.path_columns.items():
            found = pc.unique(rows[column]).to_pylist()
            if found not in ([], [self._partition[key]]):
                raise SchemaError(
                    f"{self._spec.name}.{column} must be {self._partition[key]!r} as in the path, "
                    f"not {next(item for item in found if item != self._partition[key])!r}"
                )
        if self._sink is None:
            self._path, sink = self._transaction.create(self._folder)
            self._begun.append(self._path)
            self._writer = _parquet_writer(sink, self._spec, rows.num_rows >= MANY_ROWS)
            self._sink = sink
            self._rows, self._steps = 0, list[int]()
        self._writer.write_table(rows, row_group_size=max(rows.num_rows, 1))
        self._rows += rows.num_rows
        if "global_step" in rows.column_names and rows.num_rows:
            low_high = pc.min_max(rows["global_step"])
            self._steps += [low_high["min"].as_py(), low_high["max"].as_py()]
        self._keys.append(rows.select(list(self._spec.primary_key)))
        if self._sink.size >= FILE_BYTES:
            self._close()

    def _close(self) -> None:
        if self._sink is None:
            return
        self._writer.close()
        self._sink.finish()
        self._entries.append(
            Entry(
                action="add",
                table=self._spec.name,
                path=self._path,
                rows=self._rows,
                bytes=self._sink.size,
                hash=self._sink.hexdigest(),
                schema_version=self._spec.version,
                min_step=min(self._steps, default=None),
                max_step=max(self._steps, default=None),
                txn="",
                extra=self._extra,
            )
        )
        self._sink = None

    def _check_keys(self) -> None:
        if self._keys:
            self._spec.check_unique(pa.concat_tables(self._keys))


def _parquet_writer(sink: Sink, spec: TableSchema, has_many_rows: bool) -> pq.ParquetWriter:
    types = {column.name: column.type for column in spec.columns}
    told = _IN_PATH if spec.kind == "tensor" else ()
    strings = [name for name, kind in types.items() if kind in ("string", "json")]
    floats = [
        f"{name}.list.element" if kind.startswith("list<") else name
        for name, kind in types.items()
        if "float" in kind
    ]
    return pq.ParquetWriter(
        sink,
        spec.arrow,
        compression="zstd",
        compression_level=1,
        use_dictionary=strings if has_many_rows else False,
        column_encoding=dict.fromkeys(floats, "BYTE_STREAM_SPLIT"),
        write_statistics=[name for name in STATISTICS if name in types and name not in told],
        write_page_index=has_many_rows,
        write_page_checksum=True,
        use_content_defined_chunking=True,
    )
