"""Bytes in and out of a lake's URL: the only file that touches fsspec.

`Storage` is what the rest of the lake knows of a store: read, list, delete, put-if-absent, and
files that appear only once they are whole. On a local disk the steps are those of `lake.local`;
every other store gets the bytes of a finished file in a single PUT, so that an exception can never
publish a truncated one. `snapshot_filesystem` lets DuckDB read exactly the files of a snapshot
without asking the store about each of them.
"""

from __future__ import annotations

import builtins
import datetime
import re
import shutil
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractBufferedFile

from pico.errors import LakeError, MissingExtraError, StorageError, one_line
from pico.lake import links, local
from pico.lake.listing import StoredFile, listed
from pico.lake.sink import LocalSink, ObjectSink, Sink

__all__ = ["Storage", "StoredFile", "filesystem_of"]

_MEMORY_LOCK = threading.Lock()
_EXTRAS = {"s3": ("s3fs", "s3"), "s3a": ("s3fs", "s3"), "hf": ("huggingface_hub", "hf")}


class Storage:
    """One lake's place on a local disk, in memory, or on an object store."""

    def __init__(self, url: str, storage_options: Mapping[str, Any] | None = None) -> None:
        """Connect to `url`; nothing is read or written yet.

        Raises:
            LakeError: for a URL that carries credentials or has no known protocol.
            MissingExtraError: when the protocol's package is not installed.
        """
        protocol = url.partition("://")[0] if "://" in url else "file"
        if "://" in url and re.match(r"[^/]*@", url.partition("://")[2]):
            raise LakeError("a lake's URL must not carry credentials; pass storage_options or env")
        try:
            filesystem, root = fsspec.core.url_to_fs(
                url, use_listings_cache=False, **dict(storage_options or {})
            )
        except ImportError as error:
            if protocol in _EXTRAS:
                raise MissingExtraError(*_EXTRAS[protocol]) from None
            raise LakeError(f"cannot open {url!r}: {one_line(error)}") from None
        except (ValueError, OSError, TypeError) as error:
            raise LakeError(f"cannot open {url!r}: {one_line(error)}") from None
        self.url = url.rstrip("/")
        self._fs = filesystem
        self._root = str(root).rstrip("/")
        self._protocol = protocol
        self._checked_exclusive = False
        self.folder = Path(root) if isinstance(filesystem, LocalFileSystem) else None
        """The lake's folder on a local disk, else None."""

    def __repr__(self) -> str:
        """Show the URL; options, which may hold secrets, never."""
        return f"Storage({self.url!r})"

    def read(self, path: str) -> bytes:
        """Return a file's bytes.

        Raises:
            FileNotFoundError: if there is no such file.
            CorruptError: if it is reached by a symbolic link.
            StorageError: if the store refuses.
        """
        self.refuse_links([path])
        try:
            return bytes(self._fs.cat_file(self._full(path)))
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StorageError(f"cannot read {path} of {self.url}: {one_line(error)}") from None

    def open(self, path: str) -> pa.NativeFile:
        """Open a file for random reads by pyarrow; raises as `read` does."""
        self.refuse_links([path])
        try:
            if self.folder is not None:
                return pa.memory_map(str(self.folder / path))
            return pa.PythonFile(self._fs.open(self._full(path), "rb"), mode="r")
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StorageError(f"cannot read {path} of {self.url}: {one_line(error)}") from None

    def refuse_links(self, paths: Iterable[str]) -> None:
        """Raise `CorruptError` for a path with a symbolic link in it (object stores have none)."""
        if self.folder is not None:
            links.refuse(self.folder, paths)

    def list(self, prefix: str) -> list[StoredFile]:
        """Return all files below a folder of the lake, sorted by path; absent: none.

        Raises:
            StorageError: if the store refuses; a listing that lacks files would be taken for a
                lake without them, and what it lacks for debris.
        """
        try:
            if self.folder is not None:
                return sorted(
                    (StoredFile(*found) for found in local.files_below(self.folder, prefix)),
                    key=lambda file: file.path,
                )
            found = self._fs.find(self._full(prefix), detail=True)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StorageError(f"cannot list {prefix} of {self.url}: {one_line(error)}") from None
        strip = len(self._root) + 1
        files = (listed(str(path)[strip:], info) for path, info in found.items())
        return sorted(files, key=lambda file: file.path)

    def paths(self, prefix: str) -> builtins.list[str]:
        """Return the paths that `list` would return, without asking about each file.

        Raises:
            StorageError: as `list` does.
        """
        if self.folder is None:
            return [file.path for file in self.list(prefix)]
        try:
            return sorted(local.names_below(self.folder, prefix))
        except OSError as error:
            raise StorageError(f"cannot list {prefix} of {self.url}: {one_line(error)}") from None

    def is_empty(self) -> bool:
        """Say whether nothing at all lies under the URL."""
        try:
            return not self._fs.ls(self._root or "/", detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return not self._fs.exists(self._root or "/")
        except OSError as error:
            raise StorageError(f"cannot list {self.url}: {one_line(error)}") from None

    def create(self, path: str, staging: str) -> Sink:
        """Begin a data file that will appear at `path` when it is finished and published.

        Args:
            path: final path, relative to the lake; never overwritten, so give it a unique name.
            staging: folder for the unfinished file, on stores that have folders.
        """
        if self.folder is not None:
            return LocalSink(self.folder / path, self.folder / staging)
        return ObjectSink(path, self.put)

    def put(self, path: str, data: bytes) -> None:
        """Write a whole file over what was there, atomically."""
        try:
            if self.folder is not None:
                local.replace(self.folder / path, data, self.folder / ".staging" / "put")
            else:
                self._fs.pipe_file(self._full(path), data)
        except OSError as error:
            raise StorageError(f"cannot write {path} of {self.url}: {one_line(error)}") from None

    def put_new(self, path: str, data: bytes) -> bool:
        """Write a whole file unless one is there; exclusive among all writers.

        Returns:
            False when the file existed; then it is unchanged.
        """
        try:
            if self.folder is not None:
                return local.put_new(self.folder / path, data, self.folder / ".staging" / "put")
            if isinstance(self._fs, MemoryFileSystem):
                with _MEMORY_LOCK:
                    if self._fs.exists(self._full(path)):
                        return False
                    self._fs.pipe_file(self._full(path), data)
                    return True
            self._require_exclusive_put()
            return self._conditional_put(path, data)
        except StorageError:
            raise
        except OSError as error:
            raise StorageError(f"cannot write {path} of {self.url}: {one_line(error)}") from None

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files; those that are gone already are no error."""
        for path in paths:
            try:
                self._fs.rm_file(self._full(path))
            except FileNotFoundError:
                continue
            except OSError as error:
                raise StorageError(
                    f"cannot delete {path} of {self.url}: {one_line(error)}"
                ) from None

    def delete_staging(self, staging: str) -> None:
        """Delete a staging folder with what is in it (object stores have none)."""
        if self.folder is not None:
            shutil.rmtree(self.folder / staging, ignore_errors=True)

    def snapshot_filesystem(self, files: Mapping[str, int]) -> tuple[Any, str]:
        """Return a read-only fsspec file system that holds exactly `files`, and its protocol.

        Args:
            files: path relative to the lake → size in bytes, as the log says.
        """
        return _SnapshotFileSystem(self._fs, self._root, files), _SnapshotFileSystem.protocol

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def _conditional_put(self, path: str, data: bytes) -> bool:
        try:
            self._fs.pipe_file(self._full(path), data, mode="create")
        except OSError as error:
            if isinstance(error, FileExistsError) or _is_precondition(error):
                return False
            raise
        return True

    def _require_exclusive_put(self) -> None:
        """Try once whether the store honours put-if-absent; refuse to share it if not."""
        if self._checked_exclusive:
            return
        probe = f".staging/probe/{uuid.uuid4().hex}"
        first, second = self._conditional_put(probe, b"1"), self._conditional_put(probe, b"2")
        self.delete([probe])
        if not first or second:
            raise StorageError(
                f"{self.url} does not honour put-if-absent (If-None-Match), so commits would not "
                "be safe; write to a local lake and copy it there"
            )
        self._checked_exclusive = True


def filesystem_of(
    read: Callable[[str, int, int], bytes], files: Mapping[str, int]
) -> tuple[Any, str]:
    """Return a file system as `Storage.snapshot_filesystem` does, of bytes that `read` gives.

    Args:
        read: given a path, the first byte and the byte after the last, those bytes.
        files: path relative to the lake → size in bytes.
    """
    store = _ServedFileSystem(read, files)
    return _SnapshotFileSystem(store, "", files), _SnapshotFileSystem.protocol


def _is_precondition(error: OSError) -> bool:
    """Whether a store said HTTP 412 ("there is such an object"): Ceph does so inside EINVAL."""
    answer = getattr(error.__cause__, "response", None)
    if not isinstance(answer, Mapping):
        return False
    code = answer.get("Error", {}).get("Code")
    status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return code in ("PreconditionFailed", "412") or status == 412


class _SnapshotFileSystem(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """The files of one snapshot, listed from the log; reads go to the store in blocks."""

    protocol = "picosnap"
    cachable = False
    root_marker = ""

    def __init__(self, store: Any, root: str, files: Mapping[str, int]) -> None:
        super().__init__(use_listings_cache=False)
        self._store, self._store_root, self._files = store, root, dict(files)

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        name = self._strip_protocol(path).lstrip("/")
        if name not in self._files:
            raise FileNotFoundError(name)
        return {"name": name, "size": self._files[name], "type": "file"}

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        found = [self.info(path)]
        return found if detail else [item["name"] for item in found]

    def glob(self, path: str, **_: Any) -> list[str]:
        name = self._strip_protocol(path).lstrip("/")
        return [name] if name in self._files else []

    def exists(self, path: str, **_: Any) -> bool:
        return self._strip_protocol(path).lstrip("/") in self._files

    def modified(self, path: str) -> datetime.datetime:
        """Return one moment for all: data files never change, and caches ask."""
        self.info(path)
        return datetime.datetime.fromtimestamp(0, datetime.UTC)

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        name = str(self.info(path)["name"])
        if mode != "rb":
            raise PermissionError(f"{name} belongs to a snapshot, which is read-only")
        return self._store.open(
            f"{self._store_root}/{name}", "rb", block_size=1 << 20, cache_type="readahead"
        )


class _ServedFileSystem(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """Files whose bytes a function gives: the store below a snapshot served to a process."""

    protocol = "picoserved"
    cachable = False
    root_marker = ""

    def __init__(self, read: Callable[[str, int, int], bytes], files: Mapping[str, int]) -> None:
        super().__init__(use_listings_cache=False)
        self._read, self._files = read, dict(files)

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        name = path.lstrip("/")
        if name not in self._files:
            raise FileNotFoundError(name)
        return {"name": name, "size": self._files[name], "type": "file"}

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_: Any
    ) -> bytes:
        file = self.info(path)
        size = int(file["size"])
        first, stop, _step = slice(start, end).indices(size)
        return self._read(str(file["name"]), first, max(first, stop))

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        return _ServedFile(self, path.lstrip("/"), mode, **options)


class _ServedFile(AbstractBufferedFile):  # type: ignore[misc]
    def _fetch_range(self, start: int, end: int) -> bytes:
        return bytes(self.fs.cat_file(self.path, start, end))
