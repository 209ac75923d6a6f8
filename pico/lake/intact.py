"""Whether data files hold the bytes that the log says: their size and their hash.

DuckDB and Polars compare no checksums, so whoever does not trust the disk asks here first:
`sql.session` when told to verify, and `upkeep` always. Files are read in portions, several at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import xxhash

from pico.errors import CorruptError
from pico.lake.log import Entry
from pico.lake.storage import Storage
from pico.lake.table import guarded

_PORTION = 1 << 22
_READERS = 4


def digest(
    storage: Storage, path: str, each: Callable[[bytes], object] = lambda portion: None
) -> tuple[int, str]:
    """Return size in bytes and xxh3-128 of a file; `each` gets every portion on the way."""
    found, size = xxhash.xxh3_128(), 0
    with storage.open(path) as file:
        while portion := file.read(_PORTION):
            found.update(portion)
            size += len(portion)
            each(portion)
    return size, found.hexdigest()


def check(storage: Storage, entries: Iterable[Entry]) -> None:
    """Read the files of log entries and compare them with what the log says.

    Raises:
        CorruptError: naming a file that is missing or holds other bytes.
    """
    with ThreadPoolExecutor(_READERS) as pool:
        for _ in pool.map(lambda entry: _check(storage, entry), entries):
            pass


def _check(storage: Storage, entry: Entry) -> None:
    size, found = guarded(entry, lambda: digest(storage, entry.path))
    if (size, found) != (entry.bytes, entry.hash):
        raise CorruptError(
            f"{entry.path} is damaged: its bytes are not those that the log names; see pico verify"
        )
