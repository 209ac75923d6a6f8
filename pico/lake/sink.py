"""Data files that are being written: bytes go in, and the file appears once it is whole.

`storage` makes them, `table` writes Parquet into them, and `commit` publishes or discards them.
Each hashes what it is given, so that the log can name the file's hash without reading it again.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import xxhash

from pico.errors import StorageError, one_line
from pico.lake import local


class Sink(Protocol):
    """A data file being written; `publish` makes it appear under its final name."""

    @property
    def size(self) -> int:
        """Bytes written so far."""

    def write(self, data: Any) -> int:
        """Append bytes."""

    def hexdigest(self) -> str:
        """xxh3-128 of the bytes written, in hexadecimal."""

    def finish(self) -> None:
        """Say that the file is whole; after this it can be published."""

    def publish(self) -> None:
        """Make the file appear under its final name."""

    def discard(self) -> None:
        """Drop the file; one that was published stays."""


class LocalSink(io.RawIOBase):
    """A data file in the staging folder of a local lake; hashed as it is written."""

    def __init__(self, final: Path, staging: Path) -> None:
        """Open `<staging>/<name>.inprogress`, which `publish` moves to `final`."""
        self._final = final
        self._staged = staging / f"{final.name}.inprogress"
        self._hash = xxhash.xxh3_128()
        self._size = 0
        try:
            local.make_folder(staging)
            self._file: BinaryIO = self._staged.open("xb")
        except OSError as error:
            raise self._refusal(error) from None

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._size

    def writable(self) -> bool:
        """Tell pyarrow that this file takes bytes."""
        return True

    def write(self, data: Any) -> int:
        """Append bytes."""
        view = memoryview(data).cast("B")
        try:
            self._file.write(view)
        except OSError as error:
            raise self._refusal(error) from None
        self._hash.update(view)
        self._size += len(view)
        return len(view)

    def tell(self) -> int:
        """Return the position, which is the end."""
        return self._size

    def hexdigest(self) -> str:
        """xxh3-128 of the bytes written, in hexadecimal."""
        return self._hash.hexdigest()

    def finish(self) -> None:
        """Make the bytes durable and close the file."""
        try:
            local.finish(self._file)
        except OSError as error:
            raise self._refusal(error) from None

    def publish(self) -> None:
        """Move the file into place."""
        try:
            local.move(self._staged, self._final)
        except OSError as error:
            raise self._refusal(error) from None

    def discard(self) -> None:
        """Close and delete the staging file."""
        try:
            self._file.close()
        except OSError:
            pass  # what it could not flush is not wanted any more
        finally:
            self._staged.unlink(missing_ok=True)

    def _refusal(self, error: OSError) -> StorageError:
        return StorageError(f"cannot write {self._final.name}: {one_line(error)}")


class ObjectSink(io.BytesIO):
    """A data file built in memory and sent in one PUT."""

    def __init__(self, path: str, put: Callable[[str, bytes], None]) -> None:
        """Begin with no bytes; `publish` calls `put(path, bytes)`."""
        super().__init__()
        self._path, self._put = path, put

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self.getbuffer().nbytes

    def hexdigest(self) -> str:
        """xxh3-128 of the bytes written, in hexadecimal."""
        return xxhash.xxh3_128_hexdigest(self.getbuffer())

    def finish(self) -> None:
        """Do nothing: the bytes are in memory."""

    def publish(self) -> None:
        """Send the bytes."""
        self._put(self._path, self.getvalue())

    def discard(self) -> None:
        """Free the bytes."""
        self.close()
