"""Streams and transactions: how files become part of the lake, all of one step together.

A writer opens a `Stream` (`train.<run>`, `derive.<run>.<writer>` or `data.<dataset>`), which takes
the stream's lease and clears what a crashed predecessor left. Each `Transaction` collects finished
data files; `commit` moves them into their tables and then publishes one log file by put-if-absent.
Whatever stops the writer before that leaves the lake as it was.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable
from dataclasses import replace
from types import TracebackType

import xxhash

from pico import schema
from pico.errors import LakeError, LeaseError, NotALakeError, RunNameError, StorageError
from pico.lake import lease, log
from pico.lake.log import Entry
from pico.lake.names import path_key
from pico.lake.sink import Sink
from pico.lake.storage import Storage


class Stream:
    """A writer's place in the log; use it as a context manager."""

    def __init__(self, storage: Storage, name: str) -> None:
        """Open stream `name` for writing, creating the lake if there is none.

        Raises:
            LeaseError: when a live writer holds the stream.
            NotALakeError: when the URL holds something else than a lake.
            RunNameError: for a name that no stream can have.
        """
        self._kind, self._owner = _parse(name)
        if not storage.paths(log.ROOT) and _holds_something_else(storage):
            raise NotALakeError(
                f"{storage.url} is not empty and holds no lake; choose another folder"
            )
        self.name = name
        self.storage = storage
        self._is_closed = False
        self._is_tidy = True
        self._open: list[Transaction] = []
        self.lease = lease.acquire(storage, name)
        try:
            self._seq = log.last_seq(log.listed(storage, name))
            self.lease.check_log(self._seq)
            if not self.lease.clean:
                self._publish([], uuid.uuid4().hex)  # fences a predecessor that still lives
                self._clear_debris()
        except BaseException:
            self.lease.release(tidy=self.lease.clean)
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
        """Drop what was not committed and release the lease; a second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            for transaction in list(self._open):
                transaction.rollback()
        except BaseException:
            self._is_tidy = False
            raise
        finally:
            self.lease.release(self._is_tidy)

    def begin(self) -> Transaction:
        """Start collecting files for one commit."""
        self._check_open()
        transaction = Transaction(self)
        self._open.append(transaction)
        return transaction

    def _check_open(self) -> None:
        if self._is_closed:
            raise LeaseError(f"{self.name} was closed; open the stream again to write to it")

    def _publish(self, entries: list[Entry], txn: str) -> int:
        """Write the next log file; an unknown outcome is resolved by reading it back."""
        self.lease.check()
        seq = self._seq + 1
        epoch = str(self.lease.epoch)
        metadata = {"txn": txn, "stream": self.name, "last": str(seq), "epoch": epoch}
        try:
            is_mine = self.storage.put_new(
                log.commit_path(self.name, seq), log.encode(entries, metadata)
            )
        except StorageError:
            # A disk that fails after the link has the file, but may yet lose it.
            if self.storage.folder is not None or self._txn_at(seq) != txn:
                raise
            is_mine = True  # only the answer was lost
        if not is_mine and self._txn_at(seq) != txn:
            self.lease.check()
            raise LeaseError(f"another writer committed to {self.name}; this writer stops")
        self._seq = self.lease.last_seq = seq
        with contextlib.suppress(LakeError, FileNotFoundError):  # published already; a mere copy
            log.consolidate(self.storage, self.name, seq)
        return seq

    def _txn_at(self, seq: int) -> str | None:
        try:
            return log.read_commit(self.storage, self.name, seq).txn
        except (LakeError, FileNotFoundError):
            return None

    def _clear_debris(self) -> None:
        """Delete staged files, data files and uploads of this stream that no commit names."""
        self.storage.delete_staging(f".staging/{self.name}")
        known = set(log.LogReader(self.storage).rows()["path"].to_pylist())
        tag = file_tag(self.name)
        orphans = []
        for table in schema.tables().values():
            key = table.partition[0]
            if key != "run":  # a corpus writes its vocabulary and its held-out part as well
                folder = table.name
            elif self._kind != "data":
                folder = f"{table.name}/{path_key(key, self._owner)}"
            else:
                continue
            for file in self.storage.list(folder):
                if file.path.rpartition("/")[2].startswith(tag) and file.path not in known:
                    orphans.append(file.path)
        self.storage.delete(orphans)
        with contextlib.suppress(StorageError):  # a right of its own, and no reader sees uploads
            self.storage.abort_uploads(
                upload
                for upload in self.storage.unfinished_uploads()
                if upload.path.rpartition("/")[2].startswith(tag)
            )


class Transaction:
    """Files that will become visible together."""

    def __init__(self, stream: Stream) -> None:
        """Begin with no files; `Stream.begin` calls this."""
        self.stream = stream
        self.id = uuid.uuid4().hex
        self._sinks: dict[str, Sink] = {}
        self._published: list[str] = []
        self._is_unknown = False
        self._entries: list[Entry] = []

    @property
    def is_empty(self) -> bool:
        """Whether a commit would publish nothing."""
        return not self._entries

    def create(self, folder: str) -> tuple[str, Sink]:
        """Begin a data file with a unique name in a folder of the lake; returns path and sink."""
        self.stream._check_open()
        if self not in self.stream._open:
            self.stream._open.append(self)
        name = file_tag(self.stream.name) + str(uuid.uuid4())[8:]
        path = f"{folder}/{name}.parquet"
        self._sinks[path] = self.stream.storage.create(path, self._staging)
        return path, self._sinks[path]

    def add(self, entry: Entry) -> None:
        """Note a finished file; its entry carries this transaction's id."""
        self._entries.append(replace(entry, action="add", txn=self.id))

    def drop(self, path: str) -> None:
        """Discard a file that `create` began."""
        self._sinks.pop(path).discard()

    def take_away(self, entries: Iterable[Entry], withdraw: bool) -> None:
        """Note live files that the commit withdraws (rows that no longer count) or removes."""
        action = "withdraw" if withdraw else "remove"
        self._entries += [replace(e, action=action, txn=self.id) for e in entries]  # type: ignore[arg-type]

    def commit(self) -> int | None:
        """Publish all files at once; returns the commit's number, None if there was nothing.

        After an error the transaction can be committed again or rolled back.

        Raises:
            LeaseError: if the stream was closed or taken over; then nothing becomes visible.
            StorageError: if the store refuses; then likewise.
        """
        self.stream._check_open()
        seq = None
        if not self.is_empty:
            self.stream.lease.check()
            while self._sinks:
                path, sink = next(iter(self._sinks.items()))
                self._published.append(path)
                try:
                    sink.publish()
                except StorageError:
                    self.stream.lease.check()  # who takes a stream over clears its staging
                    raise
                del self._sinks[path]
            self._is_unknown = True
            try:
                seq = self.stream._publish(self._entries, self.id)
            except LeaseError:
                self._is_unknown = False
                raise
        self._published, self._entries, self._is_unknown = [], [], False
        self.rollback()
        return seq

    def rollback(self) -> None:
        """Drop everything collected since the last commit."""
        for sink in self._sinks.values():
            sink.discard()
        if self._is_unknown:  # the log may yet name them; the next holder will know
            self.stream._is_tidy = False
        else:
            self.stream.storage.delete(self._published)
        self._sinks, self._published, self._entries, self._is_unknown = {}, [], [], False
        self.stream.storage.delete_staging(self._staging)
        if self in self.stream._open:
            self.stream._open.remove(self)

    @property
    def _staging(self) -> str:
        return f".staging/{self.stream.name}/{self.id}"


def file_tag(stream: str) -> str:
    """Return the first eight digits of every data file of a stream: tell whose an orphan is."""
    return xxhash.xxh32_hexdigest(stream.encode())


def _parse(stream: str) -> tuple[str, str]:
    """Return a stream's kind and the run or data set that it belongs to."""
    kind, _, owner = stream.partition(".")
    if kind == "derive":
        owner, _, writer = owner.rpartition(".")
        path_key(kind, writer)
    if kind not in ("train", "derive", "data"):
        raise RunNameError(
            f"no stream is named {stream!r}: train.RUN, derive.RUN.WRITER and data.DATASET are"
        )
    path_key(kind, owner)
    path_key(kind, stream)
    return kind, owner


def _holds_something_else(storage: Storage) -> bool:
    """Whether files lie under the URL that are not the beginnings of a lake.

    Leases mark a lake that a first writer is making, or was making when it was killed.
    """
    if storage.is_empty() or storage.list(".leases"):
        return False
    if storage.folder is not None:
        if not storage.folder.is_dir():
            return True
        return any(
            not item.name.startswith((".leases", ".staging")) for item in storage.folder.iterdir()
        )
    return any(not file.path.startswith((".leases/", ".staging/")) for file in storage.list(""))
