"""The files of one snapshot as a read-only file system, for DuckDB, Polars and pyarrow.

`storage` makes them. What a reader asks about a file is answered from the log, without a request;
bytes come in blocks that all opens of a file share, so that a footer that DuckDB reads when it
makes a view is not fetched again by the query. A block that several threads want is fetched once.
"""

from __future__ import annotations

import datetime
import io
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import fsspec

Fetch = Callable[[str, int, int], bytes]
"""Given a path, the first byte and the byte after the last, those bytes."""
BLOCK_BYTES = 1 << 20
CACHE_BYTES = 64 << 20
_Key = tuple[str, int]


class BlockCache:
    """Blocks of files that never change, the latest used ones; safe between threads."""

    def __init__(self, fetch: Fetch, n_bytes: int = CACHE_BYTES) -> None:
        """Begin without blocks.

        Args:
            fetch: gets bytes from the store.
            n_bytes: how much is kept.
        """
        self._fetch, self._n_kept = fetch, max(1, n_bytes // BLOCK_BYTES)
        self._blocks: OrderedDict[_Key, Future[bytes]] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, path: str, first: int, stop: int, size: int) -> bytes:
        """Return bytes `first` to `stop` of a file of `size` bytes; neighbours in one request."""
        if first >= stop:
            return b""
        numbers = range(first // BLOCK_BYTES, (stop - 1) // BLOCK_BYTES + 1)
        if len(numbers) > self._n_kept // 2:
            return self._fetch(path, first, stop)  # keeping it would push everything else out
        blocks, mine = self._claim(path, numbers)
        for run in _runs(mine):
            self._fill(path, run, blocks, size)
        data = b"".join(blocks[number].result() for number in numbers)
        begin = numbers[0] * BLOCK_BYTES
        return data[first - begin : stop - begin]

    def _claim(self, path: str, numbers: range) -> tuple[dict[int, Future[bytes]], list[int]]:
        """Return the blocks, and which of them this thread has to fetch for all."""
        blocks: dict[int, Future[bytes]] = {}
        mine = []
        with self._lock:
            for number in numbers:
                key = path, number
                if key not in self._blocks:
                    self._blocks[key] = Future()
                    mine.append(number)
                self._blocks.move_to_end(key)
                blocks[number] = self._blocks[key]
            while len(self._blocks) > self._n_kept:
                self._blocks.popitem(last=False)  # who waits for it holds it
        return blocks, mine

    def _fill(self, path: str, run: range, blocks: dict[int, Future[bytes]], size: int) -> None:
        begin, end = run[0] * BLOCK_BYTES, min(size, (run[-1] + 1) * BLOCK_BYTES)
        try:
            data = self._fetch(path, begin, end)
            if len(data) != end - begin:
                raise OSError(
                    f"{path} is cut short: the store sent {len(data)} of {end - begin} bytes; see "
                    "pico verify"
                )
        except BaseException as error:
            with self._lock:
                for number in run:
                    self._blocks.pop((path, number), None)
            for number in run:
                blocks[number].set_exception(error)
            return
        for number in run:
            at = number * BLOCK_BYTES - begin
            blocks[number].set_result(data[at : at + BLOCK_BYTES])


def _runs(numbers: list[int]) -> list[range]:
    """Return ascending numbers as ranges without gaps.

    >>> _runs([1, 2, 5])
    [range(1, 3), range(5, 6)]
    """
    found: list[range] = []
    for number in numbers:
        if found and found[-1].stop == number:
            found[-1] = range(found[-1].start, number + 1)
        else:
            found.append(range(number, number + 1))
    return found


class BlockFile(io.RawIOBase):
    """A file open for reading through a block cache."""

    def __init__(self, cache: BlockCache, path: str, size: int) -> None:
        """Open without asking the store for anything."""
        super().__init__()
        self._cache, self._path, self.size, self._at = cache, path, size, 0

    def readable(self) -> bool:
        """Say yes."""
        return True

    def seekable(self) -> bool:
        """Say yes."""
        return True

    def tell(self) -> int:
        """Return the position in bytes."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move, and return the new position in bytes."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        if start + offset < 0:
            raise ValueError(f"cannot seek to {start + offset}")
        self._at = start + offset
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """Return up to `size` bytes, all of the rest by default."""
        stop = self.size if size is None or size < 0 else min(self.size, self._at + size)
        data = self._cache.read(self._path, self._at, stop, self.size)
        self._at += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer, and return how many bytes went into it."""
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        """Return the rest."""
        return self.read()


class SnapshotFileSystem(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """Exactly the files of one snapshot, listed from the log."""

    protocol = "picosnap"
    cachable = False
    root_marker = ""

    def __init__(self, fetch: Fetch, files: Mapping[str, int]) -> None:
        """Hold `files`: path relative to the lake → size in bytes."""
        super().__init__(use_listings_cache=False)
        self._files, self._cache = dict(files), BlockCache(fetch)

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Return name and size."""
        name = self._name(path)
        if name not in self._files:
            raise FileNotFoundError(name)
        return {"name": name, "size": self._files[name], "type": "file"}

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """Return the file of that name."""
        found = [self.info(path)]
        return found if detail else [item["name"] for item in found]

    def glob(self, path: str, **_: Any) -> list[str]:
        """Return the file of that name, if there is one: nothing is a pattern."""
        name = self._name(path)
        return [name] if name in self._files else []

    def exists(self, path: str, **_: Any) -> bool:
        """Say whether the snapshot has the file."""
        return self._name(path) in self._files

    def modified(self, path: str) -> datetime.datetime:
        """Return one moment for all: data files never change, and caches ask."""
        self.info(path)
        return datetime.datetime.fromtimestamp(0, datetime.UTC)

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_: Any
    ) -> bytes:
        """Return bytes of a file."""
        file = self.info(path)
        first, stop, _step = slice(start, end).indices(int(file["size"]))
        return self._cache.read(str(file["name"]), first, stop, int(file["size"]))

    def _name(self, path: str) -> str:
        return str(self._strip_protocol(path)).lstrip("/")

    def _open(self, path: str, mode: str = "rb", **_: Any) -> BlockFile:
        file = self.info(path)
        if mode != "rb":
            raise PermissionError(f"{file['name']} belongs to a snapshot, which is read-only")
        return BlockFile(self._cache, str(file["name"]), int(file["size"]))
