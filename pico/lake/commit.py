"""Streams and transactions: how files become part of the lake, all of one step together.

A writer opens a `Stream` (`train.<run>`, `derive.<run>.<writer>` or `data.<dataset>`), which takes
the stream's lease and clears what a crashed predecessor left. Each `Transaction` collects finished
data files; `commit` moves them into their tables and then publishes one log file by put-if-absent.
Whatever stops the writer before that leaves the lake as it was.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import replace
from types import TracebackType

import xxhash

from pico import schema
from pico.errors import LeaseError, NotALakeError
from pico.lake import lease, log
from pico.lake.log import Entry
from pico.lake.names import path_key
from pico.lake.storage import Sink, Storage


class Stream:
    """A writer's place in the log; use it as a context manager."""

    def __init__(self, storage: Storage, name: str) -> None:
        """Open stream `name` for writing, creating the lake if there is none.

        Raises:
            LeaseError: when a live writer holds the stream.
            NotALakeError: when the URL holds something else than a lake.
        """
        if not storage.list(log.ROOT) and _holds_something_else(storage):
            raise NotALakeError(
                f"{storage.url} is not empty and holds no lake; choose another folder"
            )
        self.name = name
        self.storage = storage
        self.lease = lease.acquire(storage, name)
        try:
            self._seq = log.last_seq(file.path for file in storage.list(f"{log.ROOT}/{name}"))
            if not self.lease.clean:
                self._publish([], uuid.uuid4().hex)  # fences a predecessor that still lives
                self._clear_debris()
        except BaseException:
            self.lease.release()
            raise

    def __enter__(self) -> Stream:
        """Return the stream itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """Release the lease; what was not committed is gone."""
        self.close()

    def close(self) -> None:
        """Release the lease and drop unfinished files."""
        self.storage.delete_staging(f".staging/{self.name}")
        self.lease.release()

    def begin(self) -> Transaction:
        """Start collecting files for one commit."""
        return Transaction(self)

    def _publish(self, entries: list[Entry], txn: str) -> int:
        """Write the next log file; an unknown outcome is resolved by reading it back."""
        self.lease.check()
        seq = self._seq + 1
        metadata = {"txn": txn, "stream": self.name, "epoch": str(self.lease.epoch)}
        if (
            not self.storage.put_new(log.commit_path(self.name, seq), log.encode(entries, metadata))
            and log.read_commit(self.storage, self.name, seq).txn != txn
        ):
            self.lease.check()
            raise LeaseError(f"another writer committed to {self.name}; this writer stops")
        self._seq = seq
        log.consolidate(self.storage, self.name, seq)
        return seq

    def _clear_debris(self) -> None:
        """Delete staged files and data files of this stream that no commit names."""
        self.storage.delete_staging(f".staging/{self.name}")
        known = {entry.path for entry in log.LogReader(self.storage).entries()}
        tag = _tag(self.name)
        owner = self.name.split(".", 1)[1]
        if self.name.startswith("derive."):
            owner = owner.rpartition(".")[0]
        orphans = []
        for table in schema.tables().values():
            key = table.partition[0]
            whole = key != "run"  # a data set brings its held-out part and its tokenizer
            folder = table.name if whole else f"{table.name}/{path_key(key, owner)}"
            for file in self.storage.list(folder):
                if file.path.rpartition("/")[2].startswith(tag) and file.path not in known:
                    orphans.append(file.path)
        self.storage.delete(orphans)


class Transaction:
    """Files that will become visible together."""

    def __init__(self, stream: Stream) -> None:
        """Begin with no files; `Stream.begin` calls this."""
        self.stream = stream
        self.id = uuid.uuid4().hex
        self._sinks: list[Sink] = []
        self._entries: list[Entry] = []

    @property
    def is_empty(self) -> bool:
        """Whether a commit would publish nothing."""
        return not self._entries

    def create(self, folder: str) -> tuple[str, Sink]:
        """Begin a data file with a unique name in a folder of the lake; returns path and sink."""
        name = _tag(self.stream.name) + str(uuid.uuid4())[8:]
        path = f"{folder}/{name}.parquet"
        sink = self.stream.storage.create(path, f".staging/{self.stream.name}/{self.id}")
        self._sinks.append(sink)
        return path, sink

    def add(self, entry: Entry) -> None:
        """Note a finished file; its entry carries this transaction's id."""
        self._entries.append(replace(entry, action="add", txn=self.id))

    def take_away(self, entries: Iterable[Entry], withdraw: bool) -> None:
        """Note live files that the commit withdraws (rows that no longer count) or removes."""
        action = "withdraw" if withdraw else "remove"
        self._entries += [replace(e, action=action, txn=self.id) for e in entries]  # type: ignore[arg-type]

    def commit(self) -> int | None:
        """Publish all files at once; returns the commit's number, None if there was nothing.

        Raises:
            LeaseError: if the stream was taken over; then nothing of it becomes visible.
            StorageError: if the store refuses; then likewise.
        """
        if self.is_empty:
            return None
        for sink in self._sinks:
            sink.publish()
        seq = self.stream._publish(self._entries, self.id)
        self._sinks, self._entries = [], []
        self.stream.storage.delete_staging(f".staging/{self.stream.name}/{self.id}")
        return seq

    def rollback(self) -> None:
        """Drop everything collected so far."""
        for sink in self._sinks:
            sink.discard()
        self._sinks, self._entries = [], []


def _tag(stream: str) -> str:
    """First eight digits of every data file of a stream: tells whose an orphan is."""
    return xxhash.xxh32_hexdigest(stream.encode())


def _holds_something_else(storage: Storage) -> bool:
    """Whether files lie under the URL that are not the beginnings of a lake."""
    if storage.is_empty():
        return False
    if storage.folder is not None:
        if not storage.folder.is_dir():
            return True
        return any(
            not item.name.startswith((".leases", ".staging")) for item in storage.folder.iterdir()
        )
    return any(not file.path.startswith((".leases/", ".staging/")) for file in storage.list(""))
