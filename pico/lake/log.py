"""The commit log: immutable Parquet files, one per commit, in one folder per writer.

    _log/<stream>/<seq>.parquet                    a commit: one row per file it adds or takes away
    _log/<stream>/level=<n>/<last seq>.parquet     16^n consecutive commits in one file

The level files are copies made to open a long log with a handful of reads (each commit is copied
once per level, and only every 16th starts a copy); without them the commits themselves say the
same. `commit` writes entries, `snapshot` reads them; `entries` knows how they are encoded.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, groupby, islice

import pyarrow as pa

from pico.errors import CorruptError, one_line
from pico.lake import entries
from pico.lake.entries import Entry, encode
from pico.lake.storage import Storage

__all__ = [
    "FANOUT",
    "ROOT",
    "Commit",
    "Entry",
    "LogReader",
    "by_stream",
    "commit_path",
    "consolidate",
    "cover",
    "encode",
    "first_gap",
    "last_seq",
    "listed",
    "read_commit",
    "read_file",
]

ROOT = "_log"
FANOUT = 16
_READERS = 8
_MANY = 64
_BATCH = 1024
_FILE = re.compile(rf"{ROOT}/[^/]+/(?:level=[1-9]/)?[0-9]{{12}}\.parquet")
_NUMBER = slice(-len("000000000000.parquet"), -len(".parquet"))


@dataclass(frozen=True)
class Commit:
    """One commit as read back: its place, its transaction and its entries."""

    seq: int
    txn: str
    entries: tuple[Entry, ...]


def commit_path(stream: str, seq: int) -> str:
    """Return the path of a commit's file."""
    return f"{ROOT}/{stream}/{seq:012d}.parquet"


def read_commit(storage: Storage, stream: str, seq: int) -> Commit:
    """Read one commit back.

    Raises:
        CorruptError: if the file is not a log file of a known version.
        FileNotFoundError: if there is no such commit.
    """
    path = commit_path(stream, seq)
    rows, metadata = _decoded(storage, path)
    txn = metadata.get(b"pico.txn", b"").decode(errors="replace")
    return Commit(seq, txn, tuple(entries.from_rows(rows)))


def read_file(storage: Storage, path: str) -> list[Entry]:
    """Return the entries of one log file, be it a commit or a level file.

    Raises:
        CorruptError: if the file is damaged.
        SchemaError: if it is not a log file of a known version.
        FileNotFoundError: if there is no such file.
    """
    return entries.from_rows(_rows(storage, path))


class LogReader:
    """Reads all streams of a lake, keeping what it has read: log files never change."""

    def __init__(self, storage: Storage) -> None:
        """Start with nothing read."""
        self._storage = storage
        self._read: dict[str, pa.Table] = {}

    def entries(self) -> list[Entry]:
        """Return every entry of every stream, in commit order within a stream."""
        return entries.from_rows(self.rows())

    def stream(self, name: str) -> list[Entry]:
        """Return the entries of one stream, in commit order."""
        return entries.from_rows(self.rows(name))

    def streams(self) -> list[str]:
        """Return the names of the streams that have commits, sorted."""
        return sorted(by_stream(self._storage.paths(ROOT)))

    def history(self, stream: str) -> list[tuple[str, list[Entry]]]:
        """Return a stream's commits in order: transaction and entries.

        Commits without entries (those by which a writer fences its predecessor) are left out.
        """
        grouped = groupby(self.stream(stream), key=lambda entry: entry.txn)
        return [(txn, list(group)) for txn, group in grouped]

    def rows(self, stream: str | None = None) -> pa.Table:
        """Return the entries of one stream, or of all, as a table of the log's schema."""
        wanted = self._wanted(ROOT if stream is None else f"{ROOT}/{stream}")
        self.load(wanted)
        if not wanted:
            return entries.to_rows([])
        tables = [self._read[path] for path in wanted]
        if len(tables) <= _MANY:
            return pa.concat_tables(tables)
        rows, packed = _pack(tables)
        self._read.update(zip(wanted, packed, strict=True))
        return rows

    def load(self, paths: Iterable[str]) -> None:
        """Read the given log files that are not in memory yet, several at once."""
        missing = [path for path in paths if path not in self._read]
        try:
            for first in range(0, len(missing), _BATCH):
                batch = missing[first : first + _BATCH]
                tables = _read_all(self._storage, batch)
                if len(tables) > _MANY:
                    _, tables = _pack(tables)
                self._read.update(zip(batch, tables, strict=True))
        except FileNotFoundError as error:
            raise CorruptError(f"a file of the log is missing: {one_line(error)}") from None

    def _wanted(self, folder: str) -> list[str]:
        """Return the fewest files that hold every commit of the streams in a folder of the log."""
        before: list[str] = []
        while True:
            covers = {
                stream: _cover(stream, set(files), _last_seq(stream, files) + 1)
                for stream, files in _folders(self._storage.paths(folder))
            }
            gaps = [commit_path(stream, gap) for stream, (_, gap) in covers.items() if gap >= 0]
            if not gaps:
                return [path for chosen, _ in covers.values() for path in chosen]
            if gaps == before:
                raise CorruptError(f"{gaps[0]} is missing although later commits stand")
            # A listing that overlaps commits may hold a later one without an earlier one; the
            # next listing holds both.
            before = gaps


def by_stream(paths: Iterable[str]) -> dict[str, list[str]]:
    """Group listed log files by stream; what else lies in the folder is left out."""
    named = {stream: list(filter(_FILE.fullmatch, files)) for stream, files in _folders(paths)}
    return {stream: files for stream, files in named.items() if files}


def _folders(paths: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the streams' names, sorted, each with its sorted files, among which may be others."""
    ordered = sorted(paths)
    ordered = ordered[bisect_left(ordered, f"{ROOT}/") : bisect_left(ordered, f"{ROOT}0")]
    first = 0
    while first < len(ordered):
        _, _, rest = ordered[first].partition("/")
        stream, slash, _ = rest.partition("/")
        # A long log has so many names that looking at each takes longer than reading it.
        end = bisect_left(ordered, f"{ROOT}/{stream}0", first) if slash else first + 1
        if slash:
            yield stream, ordered[first:end]
        first = end


def _last_seq(stream: str, files: Sequence[str]) -> int:
    """Return what `last_seq` does for sorted files, among which may be others."""
    n_commits = bisect_left(files, f"{ROOT}/{stream}/level=")
    numbered = filter(_FILE.fullmatch, reversed(files[:n_commits]))
    copies = filter(_FILE.fullmatch, files[n_commits:])
    return last_seq([*islice(numbered, 1), *copies])


def listed(storage: Storage, stream: str) -> list[str]:
    """Return the paths of a stream's log files."""
    return by_stream(storage.paths(f"{ROOT}/{stream}")).get(stream, [])


def cover(paths: Iterable[str]) -> list[str]:
    """Choose the fewest files of one stream that hold every commit once, in order.

    >>> cover(["_log/s/000000000000.parquet", "_log/s/000000000001.parquet"])[-1]
    '_log/s/000000000001.parquet'
    """
    present = set(paths)
    stream = next(iter(present), "//").split("/")[1]
    return _cover(stream, present, last_seq(present) + 1)[0]


def last_seq(paths: Iterable[str]) -> int:
    """Return the number of the last commit among a stream's listed files; -1 without any."""
    return int(max((path[_NUMBER] for path in paths), default=-1))


def first_gap(paths: Iterable[str]) -> int:
    """Return the first commit that a stream's files lack before its last; -1 if none.

    >>> first_gap(["_log/s/000000000000.parquet", "_log/s/000000000002.parquet"])
    1
    """
    present = set(paths)
    stream = next(iter(present), "//").split("/")[1]
    return _cover(stream, present, last_seq(present) + 1)[1]


def _cover(stream: str, present: Container[str], n_commits: int) -> tuple[list[str], int]:
    """Return the fewest files that hold all commits, and the first commit that none holds or -1."""
    levels = [level for level in range(10) if FANOUT**level <= n_commits]
    chosen, following = [], 0
    while following < n_commits:
        # Level files begin at multiples of their width, so the widest that fits is the best.
        for level in reversed(levels):
            path = _level_path(stream, level, following + FANOUT**level - 1)
            if path in present:
                chosen.append(path)
                following += FANOUT**level
                break
        else:
            return chosen, following
    return chosen, -1


def consolidate(storage: Storage, stream: str, seq: int) -> None:
    """After commit `seq`, write the level files that it completes; without its parts, none."""
    level, width = 1, FANOUT
    while (seq + 1) % width == 0:
        try:
            rows = _copied(storage, stream, level, seq)
        except FileNotFoundError:
            return
        metadata = {"stream": stream, "first": str(seq - width + 1), "last": str(seq)}
        storage.put_new(_level_path(stream, level, seq), encode(rows, metadata))
        level, width = level + 1, width * FANOUT


def _copied(storage: Storage, stream: str, level: int, last: int) -> pa.Table:
    """Return the rows of a level file as the files of the level below have them.

    Where one of those was never written, what it would have copied is read instead.

    Raises:
        FileNotFoundError: if a commit is missing.
    """
    width = FANOUT ** (level - 1)
    lasts = [last - width * n for n in reversed(range(FANOUT))]
    paths = [_level_path(stream, level - 1, number) for number in lasts]
    try:
        return pa.concat_tables(_read_all(storage, paths))
    except FileNotFoundError:
        if level == 1:
            raise
    return pa.concat_tables([_part(storage, stream, level - 1, number) for number in lasts])


def _part(storage: Storage, stream: str, level: int, last: int) -> pa.Table:
    try:
        return _rows(storage, _level_path(stream, level, last))
    except FileNotFoundError:
        return _copied(storage, stream, level, last)


def _read_all(storage: Storage, paths: Sequence[str]) -> list[pa.Table]:
    """Return the rows of log files, read and decoded several at once."""
    if len(paths) < 2:
        return [_rows(storage, path) for path in paths]
    with ThreadPoolExecutor(min(_READERS, len(paths))) as pool:
        return list(pool.map(partial(_rows, storage), paths))


def _pack(tables: Sequence[pa.Table]) -> tuple[pa.Table, list[pa.Table]]:
    """Return small tables as one, and each as a slice of it, which takes far less memory."""
    rows = pa.concat_tables(tables).combine_chunks()
    firsts = accumulate((table.num_rows for table in tables), initial=0)
    return rows, [rows.slice(first, t.num_rows) for first, t in zip(firsts, tables, strict=False)]


def _rows(storage: Storage, path: str) -> pa.Table:
    try:
        return _decoded(storage, path)[0]
    except CorruptError as error:
        if "/level=" not in path:
            raise
        raise CorruptError(f"{error}; it only copies commits, delete it to go on") from None


def _decoded(storage: Storage, path: str) -> tuple[pa.Table, Mapping[bytes, bytes]]:
    """Return rows and metadata of a log file that stands where it was written.

    Raises:
        CorruptError: for a damaged file, and for one that was moved or exchanged for another.
    """
    rows, metadata = entries.decode(storage.read(path), path)
    told = {key: metadata.get(f"pico.{key}".encode(), b"").decode() for key in ("stream", "last")}
    place = {"stream": path.split("/")[1], "last": str(last_seq([path]))}
    for key, found in told.items():
        if found and found != place[key]:  # files of earlier versions do not tell their number
            raise CorruptError(
                f"log file {path} was written as that of stream {told['stream']!r}, commit "
                f"{told['last'] or 'unknown'}; it was moved or exchanged, put it back"
            )
    return rows, metadata


def _level_path(stream: str, level: int, last: int) -> str:
    return (
        f"{ROOT}/{stream}/level={level}/{last:012d}.parquet" if level else commit_path(stream, last)
    )
