"""Whether anything lies in a lake that should not: debris, files taken away, foreign files, links.

`verify` calls it with an inventory and with what the log, read after it, names.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TypeVar

from pico import schema
from pico.lake.snapshot import partition
from pico.lake.storage import StoredFile
from pico.upkeep import inventory
from pico.upkeep.inventory import Inventory
from pico.upkeep.report import Finding

_PUT_SECONDS = 600
"""A single put takes seconds; what one left behind and is older than this belongs to nobody."""

Item = TypeVar("Item")
Key = TypeVar("Key")


def strays(
    found: Inventory,
    named: Collection[str],
    live: Collection[str],
    lost: Collection[str] = (),
    links: Collection[str] = (),
) -> Iterator[Finding]:
    """Yield what does not belong.

    Args:
        found: what lies there.
        named: every path that the log names.
        live: those that count.
        lost: streams whose log is damaged, so that it is not known what they have committed.
        links: symbolic links.
    """
    for path in links:
        yield Finding(
            "file.symlink", f"{path} is a symbolic link", path, partition(path).get("run")
        )
    yield from _leases(found)
    yield from _debris(found, named, lost)
    waiting = [file for path, file in found.files.items() if path in named and path not in live]
    for run, files in by(waiting, lambda file: partition(file.path).get("run")).items():
        whose = f"of run {run!r} " if run else ""
        message = f"{amount(files)} {whose}taken away and not collected yet (pico gc)"
        yield Finding("file.removed", message, files[0].path, run)
    for file in found.foreign(named):
        if file.path not in links:
            yield _foreign(file)


def _debris(found: Inventory, named: Collection[str], lost: Collection[str]) -> Iterator[Finding]:
    """Yield what dead writers left, a finding per stream."""
    unnamed = by(found.unnamed(named), lambda file: tuple(found.writers_of(file.path)))
    for streams, files in unnamed.items():
        if not any(found.is_held(stream) or stream in lost for stream in streams):
            message = f"{amount(files)} of {' or '.join(streams)} that no commit names (pico gc)"
            run = inventory.owner(streams[0])
            yield Finding("file.uncommitted", message, files[0].path, run)
    staged = by(found.staged(), lambda item: item[1])
    for stream, items in staged.items():
        files = [file for file, _ in items]
        if stream is None:
            files = [file for file in files if time.time() - file.modified > _PUT_SECONDS]
        if files and not (stream and found.is_held(stream)):
            message = f"{amount(files)} left unfinished by {stream or 'a put'} (pico gc)"
            whose = None if stream is None else inventory.owner(stream)
            yield Finding("file.staged", message, files[0].path, whose)


def _leases(found: Inventory) -> Iterator[Finding]:
    for stream, holder in found.holders.items():
        run, path = inventory.owner(stream), f"{inventory.LEASES}/{stream}"
        if holder is None:
            message = f"the newest lease in {path} cannot be read; delete it to go on"
            yield Finding("lease.damaged", message, path, run)
        elif not holder.released and holder.is_free():
            message = f"{stream} was not let go by {holder.describe()}; the next writer clears up"
            yield Finding("lease.stale", message, path, run)


def _foreign(file: StoredFile) -> Finding:
    if file.path.split("/")[0] in schema.tables():
        message = f"{file.path} lies in a table's folder and is no file of the lake; globs read it"
        return Finding("file.intruder", message, file.path, partition(file.path).get("run"))
    return Finding("file.foreign", f"{file.path} is no file of the lake", file.path)


def amount(files: Collection[StoredFile]) -> str:
    """Return number and size of files in words."""
    number = f"{len(files):,} file{'s' if len(files) != 1 else ''}"
    return f"{number} ({size(inventory.total(files))})"


def size(n_bytes: float) -> str:
    """Return a number of bytes in words.

    >>> size(3_400_000)
    '3.4 MB'
    """
    for unit in ("bytes", "kB", "MB", "GB"):
        if n_bytes < 1000 or unit == "GB":
            break
        n_bytes /= 1000
    return f"{n_bytes:,.0f} {unit}" if unit == "bytes" else f"{n_bytes:,.1f} {unit}"


def by(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Group items by a key, both in the order in which they come."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
