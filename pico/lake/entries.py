"""What the log says of a file, and how that becomes the bytes of a log file and back.

`log` decides which files of the log there are, `live` which data files count; both work on Arrow
tables with the columns of `schemas/log.json`, checked here once and for all. An `Entry` is made
only for a file that somebody asks for.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pico import schema
from pico.errors import CorruptError, SchemaError, one_line
from pico.lake import names

STANDS_FOR = "stands_for"
_ACTIONS = ("add", "remove", "withdraw")
_REPEATED = ["action", "table", "txn"]
_FEW = 64


@dataclass(frozen=True)
class Entry:
    """One row of the log: a file that a commit adds, removes or withdraws."""

    action: Literal["add", "remove", "withdraw"]
    table: str
    path: str
    rows: int
    bytes: int
    hash: str
    schema_version: int
    min_step: int | None
    max_step: int | None
    txn: str
    extra: str | None = None

    @property
    def stands_for(self) -> tuple[str, str] | None:
        """Stream and transaction of the commit whose place a replacement takes; else None.

        Raises:
            CorruptError: if the note about it is damaged.
        """
        return origin(self.extra, self.path)


def origin(extra: str | None, path: str = "a file") -> tuple[str, str] | None:
    """Return the stream and the transaction that `extra` says a file stands for, if it does.

    >>> origin('{"stands_for": {"stream": "train.r", "txn": "5f"}}')
    ('train.r', '5f')

    Raises:
        CorruptError: if the note is damaged, with the file's path.
    """
    if extra is None or f'"{STANDS_FOR}"' not in extra:
        return None
    try:
        noted = json.loads(extra)
        if not isinstance(noted, dict) or STANDS_FOR not in noted:
            return None
        place = noted[STANDS_FOR]["stream"], noted[STANDS_FOR]["txn"]
        if all(isinstance(part, str) and part for part in place):
            return place
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise CorruptError(f"the log does not say clearly what {path} stands for: {extra!r:.200}")


def replacement(stream: str, txn: str) -> str:
    """Return the `extra` of a file that takes the place of what a commit published.

    Args:
        stream: the stream of that commit, `train.<run>` and the like.
        txn: its transaction; of several commits the last one's.
    """
    return json.dumps({STANDS_FOR: {"stream": stream, "txn": txn}})


def to_rows(entries: Iterable[Entry]) -> pa.Table:
    """Return entries as a table of the log's schema.

    Raises:
        SchemaError: for values that do not fit it.
    """
    listed = list(entries)
    return schema.log().batch(
        {name: [getattr(entry, name) for entry in listed] for name in schema.log().column_names}
    )


def from_rows(rows: pa.Table) -> list[Entry]:
    """Return the rows of a table of the log's schema as entries."""
    columns = (rows[name].to_pylist() for name in schema.log().column_names)
    return [Entry(*values) for values in zip(*columns, strict=True)]


def encode(entries: pa.Table | Iterable[Entry], metadata: Mapping[str, str]) -> bytes:
    """Return the bytes of a log file; `metadata` goes into the Parquet footer as `pico.*` keys."""
    rows = entries if isinstance(entries, pa.Table) else to_rows(entries)
    kept = {**schema.log().arrow.metadata, **{f"pico.{k}": v for k, v in metadata.items()}}
    sink = io.BytesIO()
    pq.write_table(
        rows.replace_schema_metadata(kept),
        sink,
        compression="zstd",
        # In a commit of a few files both would be most of the bytes; nothing is pruned by them.
        use_dictionary=_REPEATED if rows.num_rows > _FEW else False,
        write_statistics=False,
        write_page_checksum=True,
    )
    return sink.getvalue()


def decode(data: bytes, path: str) -> tuple[pa.Table, Mapping[bytes, bytes]]:
    """Return the rows of a log file, each one fit to become an `Entry`, and the file's metadata.

    Raises:
        CorruptError: for a damaged file, an unknown action, or a path that leaves the lake.
        SchemaError: if it is not a log file of a known version.
    """
    try:
        file = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True)
        stored = file.read(use_threads=False)
        version = schema.log().accepts(stored.schema, path)
        rows = schema.log().upgrade(stored, version)
        rows.validate(full=True)  # text that is no UTF-8 would fail later, at whoever reads it
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, SchemaError):
            raise
        raise CorruptError(f"log file {path} cannot be read: {one_line(error)}") from None
    _check_paths(rows["path"])
    _check_actions(rows["action"], path)
    return rows.replace_schema_metadata(None), stored.schema.metadata or {}


def _check_paths(paths: pa.ChunkedArray) -> None:
    fits = pc.match_substring_regex(paths, rf"\A(?:{names.PATH.pattern})\z")
    if not pc.all(fits, min_count=0).as_py():
        for path in paths.filter(pc.invert(fits)).to_pylist():
            names.check_path(path)


def _check_actions(actions: pa.ChunkedArray, path: str) -> None:
    known = pc.is_in(actions, value_set=pa.array(_ACTIONS))
    if not pc.all(known, min_count=0).as_py():
        action = actions.filter(pc.invert(known))[0].as_py()
        raise CorruptError(f"log file {path} has the unknown action {action!r}")
