"""Bytes in and out of a lake's URL, through fsspec, which only this file and `snapfs` touch.

`Storage` is what the rest of the lake knows of a store: read, list, delete, put-if-absent, and
files that appear only once they are whole. On a local disk the steps are those of `lake.local`;
every other store gets the bytes of a finished file in a single PUT, so that an exception can never
publish a truncated one. Whatever a store raises becomes a `StorageError` of one line that shows no
credentials.
"""

from __future__ import annotations

import builtins
import contextlib
import random
import re
import shutil
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from pico.errors import LakeError, MissingExtraError, PicoError, StorageError, one_line
from pico.lake import links, local, objects
from pico.lake.listing import StoredFile, listed
from pico.lake.objects import Upload
from pico.lake.sink import LocalSink, ObjectSink, Sink
from pico.lake.snapfs import BlockCache, BlockFile, Fetch, SnapshotFileSystem

__all__ = ["Storage", "StoredFile", "Upload", "filesystem_of"]

_MEMORY_LOCK = threading.Lock()
_EXTRAS = {"s3": ("s3fs", "s3"), "s3a": ("s3fs", "s3"), "hf": ("huggingface_hub", "hf")}
_CONFLICTS = 8
"""How often a conditional PUT is repeated when another one on the same key is at work."""


class Storage:
    """One lake's place on a local disk, in memory, or on an object store."""

    def __init__(self, url: str, storage_options: Mapping[str, Any] | None = None) -> None:
        """Connect to `url`; nothing is read or written yet.

        Raises:
            LakeError: for a URL that carries credentials or has no known protocol.
            MissingExtraError: when the protocol's package is not installed.
        """
        if not url:
            raise LakeError(
                "a lake's URL is empty; name a folder or a URL such as s3://bucket/lake"
            )
        protocol = url.partition("://")[0] if "://" in url else "file"
        if "://" in url and re.match(r"[^/]*@", url.partition("://")[2]):
            raise LakeError("a lake's URL must not carry credentials; pass storage_options or env")
        options = dict(storage_options or {})
        self._hide = objects.hider(options)
        self._options = options
        try:
            filesystem, root = fsspec.core.url_to_fs(
                url, use_listings_cache=False, **objects.connection(protocol, options)
            )
        except ImportError as error:
            if protocol in _EXTRAS:
                raise MissingExtraError(*_EXTRAS[protocol]) from None
            raise LakeError(f"cannot open {url!r}: {one_line(error)}") from None
        except (ValueError, OSError, TypeError) as error:
            raise LakeError(f"cannot open {url!r}: {self._hide(one_line(error))}") from None
        self.url = url.rstrip("/")
        self._fs = objects.patient(filesystem)
        self._root = str(root).rstrip("/")
        self._checked_exclusive = False
        self.folder = Path(root) if isinstance(filesystem, LocalFileSystem) else None
        """The lake's folder on a local disk, else None."""

    def __repr__(self) -> str:
        """Show the URL; options, which may hold secrets, never."""
        return f"Storage({self.url!r})"

    def __reduce__(self) -> tuple[type[Storage], tuple[str, dict[str, Any]]]:
        """Travel to another process as the URL and the options, secrets included.

        Raises:
            LakeError: for a lake in memory, which no other process sees.
        """
        if isinstance(self._fs, MemoryFileSystem):
            raise LakeError(f"{self.url} is in the memory of this process; no other can read it")
        url = self.url if self.folder is None else str(self.folder.absolute())
        return Storage, (url, self._options)

    def read(self, path: str) -> bytes:
        """Return a file's bytes.

        Raises:
            FileNotFoundError: if there is no such file.
            CorruptError: if it is reached by a symbolic link.
            StorageError: if the store refuses.
        """
        self.refuse_links([path])
        with self._doing(f"read {path} of"):
            return bytes(self._fs.cat_file(self._full(path), **objects.reading(self._fs)))

    def open(self, path: str, size: int | None = None) -> pa.NativeFile:
        """Open a file for random reads by pyarrow; raises as `read` does.

        Args:
            path: relative to the lake.
            size: in bytes, if the log tells it; without it a store is asked.
        """
        self.refuse_links([path])
        with self._doing(f"read {path} of"):
            if self.folder is not None:
                return pa.memory_map(str(self.folder / path))
            if size is None:
                size = int(self._fs.info(self._full(path))["size"])
            return pa.PythonFile(BlockFile(BlockCache(self._fetch), path, size), mode="r")

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
        with self._doing(f"list {prefix} of"):
            if self.folder is not None:
                found = local.files_below(self.folder, prefix)
                return sorted((StoredFile(*file) for file in found), key=lambda file: file.path)
            try:
                listing = self._fs.find(self._full(prefix), detail=True)
            except FileNotFoundError:
                return []
        strip = len(self._root) + 1
        files = (listed(str(path)[strip:], info) for path, info in listing.items())
        return sorted(files, key=lambda file: file.path)

    def paths(self, prefix: str) -> builtins.list[str]:
        """Return the paths that `list` would return, without asking about each file.

        Raises:
            StorageError: as `list` does.
        """
        if self.folder is None:
            return [file.path for file in self.list(prefix)]
        with self._doing(f"list {prefix} of"):
            return sorted(local.names_below(self.folder, prefix))

    def is_empty(self) -> bool:
        """Say whether nothing at all lies under the URL."""
        with self._doing("list"):
            try:
                return not self._fs.ls(self._root or "/", detail=False)
            except (FileNotFoundError, NotADirectoryError):
                return not self._fs.exists(self._root or "/")

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
        with self._doing(f"write {path} of", is_write=True):
            if self.folder is not None:
                local.replace(self.folder / path, data, self.folder / ".staging" / "put")
            else:
                self._fs.pipe_file(self._full(path), data)

    def put_new(self, path: str, data: bytes) -> bool:
        """Write a whole file unless one is there; exclusive among all writers.

        On an object store a PUT whose answer is lost is repeated, and then finds its own file: who
        must know whether a file is his own puts something into it that tells.

        Returns:
            False when the file existed; then it is unchanged.
        """
        with self._doing(f"write {path} of", is_write=True):
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

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files; those that are gone already are no error."""
        for path in paths:
            with self._doing(f"delete {path} of"), contextlib.suppress(FileNotFoundError):
                self._fs.rm_file(self._full(path))

    def delete_staging(self, staging: str) -> None:
        """Delete a staging folder with what is in it (object stores have none)."""
        if self.folder is not None:
            shutil.rmtree(self.folder / staging, ignore_errors=True)

    def unfinished_uploads(self, prefix: str = "") -> builtins.list[Upload]:
        """Return multipart uploads below a folder that were neither finished nor aborted.

        They take space and show in no listing; only S3 has them. A writer that lives may be at
        work on one.

        Raises:
            StorageError: if the store refuses.
        """
        with self._doing(f"list unfinished uploads to {prefix or 'files'} of"):
            found = objects.uploads(self._fs, self._root, prefix)
            return sorted(found, key=lambda upload: upload.path)

    def abort_uploads(self, uploads: Iterable[Upload]) -> None:
        """Abort unfinished uploads; those that are gone already are no error."""
        for upload in uploads:
            with self._doing(f"abort the upload of {upload.path} to"):
                objects.abort(self._fs, self._root, upload)

    def snapshot_filesystem(self, files: Mapping[str, int]) -> tuple[Any, str]:
        """Return a read-only fsspec file system that holds exactly `files`, and its protocol.

        Args:
            files: path relative to the lake → size in bytes, as the log says.
        """
        return filesystem_of(self._fetch, files)

    def _full(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def _fetch(self, path: str, first: int, stop: int) -> bytes:
        with self._doing(f"read {path} of"):
            return bytes(self._fs.cat_file(self._full(path), start=first, end=stop))

    @contextlib.contextmanager
    def _doing(self, what: str, is_write: bool = False) -> Iterator[None]:
        """Word what a store raises; that a file is absent is an answer, except to a write."""
        try:
            yield
        except PicoError:
            raise
        except Exception as error:
            is_ours = isinstance(error, OSError) or self.folder is None
            if not is_ours or (isinstance(error, FileNotFoundError) and not is_write):
                raise
            reason = self._hide(objects.reason(error))
            raise StorageError(f"cannot {what} {self.url}: {reason}") from None

    def _conditional_put(self, path: str, data: bytes) -> bool:
        for attempt in range(_CONFLICTS):
            try:
                self._fs.pipe_file(self._full(path), data, mode="create")
                return True
            except Exception as error:
                if objects.is_present(error):
                    return False
                if not objects.is_conflict(error) or attempt == _CONFLICTS - 1:
                    raise
            time.sleep(random.uniform(0, 0.05 * 2**attempt))
        raise AssertionError("the last attempt returns or raises")

    def _require_exclusive_put(self) -> None:
        """Try once whether the store honours put-if-absent; refuse to share it if not."""
        if self._checked_exclusive:
            return
        probe = f".staging/probe/{uuid.uuid4().hex}"
        self.put(probe, b"1")
        try:
            is_exclusive = not self._conditional_put(probe, b"2")
        except Exception as error:
            if not objects.is_unknown_condition(error):
                raise
            is_exclusive = False
        finally:
            self.delete([probe])
        if not is_exclusive:
            raise StorageError(
                f"{self.url} does not honour put-if-absent (If-None-Match), so commits would not "
                "be safe; write to a local lake and copy it there"
            )
        self._checked_exclusive = True


def filesystem_of(fetch: Fetch, files: Mapping[str, int]) -> tuple[Any, str]:
    """Return a file system as `Storage.snapshot_filesystem` does, of bytes that `fetch` gives.

    Args:
        fetch: given a path, the first byte and the byte after the last, those bytes.
        files: path relative to the lake → size in bytes.
    """
    return SnapshotFileSystem(fetch, files), SnapshotFileSystem.protocol
