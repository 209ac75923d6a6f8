"""What lies under a lake's URL, sorted by what it is.

`verify` and `gc` ask. The order of the looks is the point of this file: files first, then leases,
then (by the caller) the log. A file that a writer has published and not yet committed was listed
while its writer held the lease; so when the lease is seen free and the log, read after that, does
not name the file, no commit will ever name it, unless the writer merely sleeps; whoever deletes
fences the stream first.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property

from pico import schema
from pico.errors import CorruptError
from pico.lake import lease, log
from pico.lake.commit import file_tag
from pico.lake.storage import Storage, StoredFile

LEASES = ".leases"
STAGING = ".staging"
_OWN = re.compile(r"([0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\.parquet")
_LEASE = re.compile(rf"{re.escape(LEASES)}/([^/]+)/(\d{{8}})\.json")
_STAGED = re.compile(rf"{re.escape(STAGING)}/([^/]+)/([0-9a-f]{{32}})/[^/]+\.inprogress")
_PUT = re.compile(
    rf"{re.escape(STAGING)}/(?:put/[0-9a-f]{{32}}\.(?:inprogress|now)|probe/[0-9a-f]{{32}})"
)
_LOCK = f"{STAGING}/put/lock"
_CARDS = {"README.md", ".gitattributes"}


@dataclass(frozen=True)
class Inventory:
    """The files of a lake at one moment, and which streams were held just after."""

    files: dict[str, StoredFile]
    holders: dict[str, lease.Holder | None]
    """Stream → who holds or last held it; None where its newest lease file is damaged."""

    @cached_property
    def streams(self) -> frozenset[str]:
        """Every stream that left a trace: a log, a lease, or staged files."""
        logs = log.by_stream(self.files)
        staged = {match[1] for path in self.files if (match := _STAGED.fullmatch(path))}
        return frozenset({*logs, *self.holders, *staged})

    @cached_property
    def _tags(self) -> dict[str, list[str]]:
        tags: dict[str, list[str]] = {}
        for stream in sorted(self.streams):
            tags.setdefault(file_tag(stream), []).append(stream)
        return tags

    def is_held(self, stream: str) -> bool:
        """Say whether a live writer may hold a stream; one whose lease is unreadable counts."""
        if stream not in self.holders:
            return False
        holder = self.holders[stream]
        return holder is None or not holder.is_free()

    def writers_of(self, path: str) -> list[str]:
        """Return the streams that can have written a data file; none: it is no file of ours."""
        folder, _, name = path.rpartition("/")
        match = _OWN.fullmatch(name)
        spec = schema.tables().get(path.split("/")[0])
        if match is None or spec is None:
            return []
        keys = [part.partition("=")[0] for part in folder.split("/")[1:]]
        return self._tags.get(match[1], []) if keys == list(spec.partition) else []

    def unnamed(self, named: Collection[str]) -> list[StoredFile]:
        """Return data files of known streams that `named`, all paths of the log, does not hold."""
        return [f for f in self.files.values() if f.path not in named and self.writers_of(f.path)]

    def staged(self) -> list[tuple[StoredFile, str | None]]:
        """Return unfinished files, each with its stream; None where it belongs to a single put."""
        found: list[tuple[StoredFile, str | None]] = []
        for file in self.files.values():
            match = _STAGED.fullmatch(file.path)
            if match is not None:
                found.append((file, match[1]))
            elif _PUT.fullmatch(file.path):
                found.append((file, None))
        return found

    def old_leases(self) -> list[StoredFile]:
        """Return the lease files of epochs that are over: a newer one stands beside them."""
        newest: dict[str, int] = {}
        for path in self.files:
            if match := _LEASE.fullmatch(path):
                newest[match[1]] = max(newest.get(match[1], -1), int(match[2]))
        return [
            file
            for file in self.files.values()
            if (match := _LEASE.fullmatch(file.path)) and int(match[2]) < newest[match[1]]
        ]

    def foreign(self, named: Collection[str]) -> list[StoredFile]:
        """Return files that no part of this package writes."""
        ours = {file.path for file in self.unnamed(named)} | {f.path for f, _ in self.staged()}
        logs = {path for paths in log.by_stream(self.files).values() for path in paths}
        return [
            file
            for file in self.files.values()
            if file.path not in named
            and file.path not in ours
            and file.path not in logs
            and file.path not in _CARDS
            and file.path != _LOCK
            and not _LEASE.fullmatch(file.path)
        ]


def take(storage: Storage) -> Inventory:
    """List a lake's files, then look who holds its streams."""
    files = {file.path: file for file in storage.list("")}
    leased = {match[1] for path in files if (match := _LEASE.fullmatch(path))}
    return Inventory(files, {stream: _holder(storage, stream) for stream in sorted(leased)})


def symlinks(storage: Storage) -> list[str]:
    """Return the symbolic links inside a lake on a local disk; a lake has none."""
    if storage.folder is None:
        return []
    found = []
    for root, folders, names in os.walk(storage.folder):
        found += [os.path.join(root, name) for name in (*folders, *names)]
    links = filter(os.path.islink, found)
    return sorted(os.path.relpath(link, storage.folder).replace(os.sep, "/") for link in links)


def owner(stream: str) -> str:
    """Return the run or data set that a stream belongs to.

    >>> owner("derive.my.run.metrics")
    'my.run'
    """
    kind, _, rest = stream.partition(".")
    return rest.rpartition(".")[0] if kind == "derive" else rest


def total(files: Iterable[StoredFile]) -> int:
    """Return the bytes of files."""
    return sum(file.size for file in files)


def _holder(storage: Storage, stream: str) -> lease.Holder | None:
    try:
        return lease.holder(storage, stream)
    except CorruptError:
        return None
