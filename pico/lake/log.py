"""The commit log: immutable Parquet files, one per commit, in one folder per writer.

    _log/<stream>/<seq>.parquet                    a commit: one row per file it adds or takes away
    _log/<stream>/level=<n>/<last seq>.parquet     16^n consecutive commits in one file

The level files are copies made to open a long log with a handful of reads (each commit is copied
once per level, and only every 16th starts a copy); without them the commits themselves say the
same. `commit` writes entries, `snapshot` reads them; neither knows how they are encoded.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from pico import schema
from pico.errors import CorruptError, SchemaError, one_line
from pico.lake.names import check_path
from pico.lake.storage import Storage

ROOT = "_log"
FANOUT = 16
_READERS = 8
_FILE = re.compile(rf"{ROOT}/[^/]+/(?:level=\d/)?\d{{12}}\.parquet")


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


@dataclass(frozen=True)
class Commit:
    """One commit as read back: its place, its transaction and its entries."""

    seq: int
    txn: str
    entries: tuple[Entry, ...]


def commit_path(stream: str, seq: int) -> str:
    """Return the path of a commit's file."""
    return f"{ROOT}/{stream}/{seq:012d}.parquet"


def encode(entries: Iterable[Entry], metadata: Mapping[str, str]) -> bytes:
    """Return the bytes of a log file; `metadata` goes into the Parquet footer as `pico.*` keys."""
    rows = list(entries)
    columns = {name: [getattr(row, name) for row in rows] for name in schema.log().column_names}
    table = schema.log().batch(columns)
    kept = {**(table.schema.metadata or {}), **{f"pico.{k}": v for k, v in metadata.items()}}
    sink = io.BytesIO()
    pq.write_table(
        table.replace_schema_metadata(kept), sink, compression="zstd", write_page_checksum=True
    )
    return sink.getvalue()


def read_commit(storage: Storage, stream: str, seq: int) -> Commit:
    """Read one commit back.

    Raises:
        CorruptError: if the file is not a log file of a known version.
        FileNotFoundError: if there is no such commit.
    """
    path = commit_path(stream, seq)
    entries, metadata = _decode(storage.read(path), path)
    return Commit(seq, metadata.get(b"pico.txn", b"").decode(errors="replace"), tuple(entries))


def read_file(storage: Storage, path: str) -> list[Entry]:
    """Return the entries of one log file, be it a commit or a level file.

    Raises:
        CorruptError: if the file is damaged.
        SchemaError: if it is not a log file of a known version.
        FileNotFoundError: if there is no such file.
    """
    return _decode(storage.read(path), path)[0]


class LogReader:
    """Reads all streams of a lake, keeping what it has read: log files never change."""

    def __init__(self, storage: Storage) -> None:
        """Start with nothing read."""
        self._storage = storage
        self._read: dict[str, tuple[Entry, ...]] = {}

    def entries(self) -> list[Entry]:
        """Return every entry of every stream, in commit order within a stream."""
        return self._entries(ROOT)

    def stream(self, name: str) -> list[Entry]:
        """Return the entries of one stream, in commit order."""
        return self._entries(f"{ROOT}/{name}")

    def load(self, paths: Iterable[str]) -> None:
        """Read the given log files that are not in memory yet, several at once."""
        missing = [path for path in paths if path not in self._read]
        with ThreadPoolExecutor(_READERS) as pool:
            try:
                for path, data in zip(missing, pool.map(self._storage.read, missing), strict=True):
                    self._read[path] = tuple(_decode(data, path)[0])
            except FileNotFoundError as error:
                raise CorruptError(f"a file of the log is missing: {one_line(error)}") from None

    def _entries(self, folder: str) -> list[Entry]:
        before: list[str] = []
        while True:
            streams = by_stream(file.path for file in self._storage.list(folder))
            gaps = [commit_path(s, gap) for s, p in streams.items() if (gap := first_gap(p)) >= 0]
            if gaps and gaps == before:
                raise CorruptError(f"{gaps[0]} is missing although later commits stand")
            if not gaps:
                break
            # A listing that overlaps commits may hold a later one without an earlier one; the
            # next listing holds both.
            before = gaps
        wanted = [path for paths in streams.values() for path in cover(paths)]
        self.load(wanted)
        return [entry for path in wanted for entry in self._read[path]]


def by_stream(paths: Iterable[str]) -> dict[str, list[str]]:
    """Group listed log files by stream; what else lies in the folder is left out."""
    streams: dict[str, list[str]] = {}
    for path in paths:
        if _FILE.fullmatch(path):
            streams.setdefault(path.split("/")[1], []).append(path)
    return streams


def listed(storage: Storage, stream: str) -> list[str]:
    """Return the paths of a stream's log files."""
    return by_stream(file.path for file in storage.list(f"{ROOT}/{stream}")).get(stream, [])


def cover(paths: Iterable[str]) -> list[str]:
    """Choose the fewest files of one stream that hold every commit once, in order.

    >>> cover(["_log/s/000000000000.parquet", "_log/s/000000000001.parquet"])[-1]
    '_log/s/000000000001.parquet'
    """
    spans = []
    for path in paths:
        last = int(path.rpartition("/")[2].removesuffix(".parquet"))
        folder = path.split("/")[-2]
        level = int(folder.removeprefix("level=")) if folder.startswith("level=") else 0
        spans.append((last - FANOUT**level + 1, -last, path))
    chosen, following = [], 0
    for first, minus_last, path in sorted(spans):
        if first == following:
            chosen.append(path)
            following = -minus_last + 1
    return chosen


def last_seq(paths: Iterable[str]) -> int:
    """Return the number of the last commit among a stream's listed files; -1 without any."""
    return max(
        (int(path.rpartition("/")[2].removesuffix(".parquet")) for path in paths), default=-1
    )


def first_gap(paths: Sequence[str]) -> int:
    """Return the first commit that a stream's files lack before its last; -1 if none.

    >>> first_gap(["_log/s/000000000000.parquet", "_log/s/000000000002.parquet"])
    1
    """
    covered = last_seq(cover(paths))
    return covered + 1 if covered < last_seq(paths) else -1


def consolidate(storage: Storage, stream: str, seq: int) -> None:
    """After commit `seq`, write the level files that it completes."""
    level, width = 1, FANOUT
    while (seq + 1) % width == 0:
        first = seq - width + 1
        paths = listed(storage, stream)
        if first_gap(paths) >= 0:
            return
        inside = [path for path in cover(paths) if first <= last_seq([path]) <= seq]
        entries = [e for path in inside for e in _decode(storage.read(path), path)[0]]
        target = f"{ROOT}/{stream}/level={level}/{seq:012d}.parquet"
        storage.put_new(target, encode(entries, {"stream": stream, "first": str(first)}))
        level, width = level + 1, width * FANOUT


def _decode(data: bytes, path: str) -> tuple[list[Entry], Mapping[bytes, bytes]]:
    try:
        table = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True).read()
        version = schema.log().accepts(table.schema, path)
        rows: list[dict[str, Any]] = schema.log().upgrade(table, version).to_pylist()
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, SchemaError):
            raise
        raise CorruptError(f"log file {path} cannot be read: {one_line(error)}") from None
    for row in rows:
        check_path(row["path"])
        if row["action"] not in ("add", "remove", "withdraw"):
            raise CorruptError(f"log file {path} has the unknown action {row['action']!r}")
    return [Entry(**row) for row in rows], table.schema.metadata or {}
