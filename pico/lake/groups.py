"""Tensors by row group: where the rows of a file lie, and reading those of one group at a time.

Planners call `keys`, which reads footers and key columns and never a value; workers call a
`GroupReader`, which reads the values of a row group once and gives out its tensors, each compared
with the hash that the plan has of it. A `StoredTensor` is small and travels between processes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pico.errors import CorruptError
from pico.lake import codec
from pico.lake.log import Entry
from pico.lake.storage import Storage
from pico.lake.table import OpenFile, guarded, open_file

_HEAVY = ["value", "raw"]
_LARGE = 16 << 20
"""After a row group of this size its file is closed: what is mapped of it counts as memory."""


@dataclass(frozen=True)
class Piece:
    """Where one row lies: its file, its row group, its place in that."""

    entry: Entry
    group: int
    row: int


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a tensor table, to be read by somebody else."""

    name: str
    pieces: tuple[Piece, ...]
    """Its rows in order; nearly always one."""
    dtype: str
    shape: tuple[int, ...]
    content_hash: str


@dataclass(frozen=True)
class FileKeys:
    """The key columns of a file, and how its rows lie in row groups."""

    rows: pa.Table
    n_rows: npt.NDArray[np.int64]
    """Rows of each group."""
    n_bytes: npt.NDArray[np.int64]
    """Stored bytes of each group's values."""


def keys(storage: Storage, entry: Entry, columns: Sequence[str]) -> FileKeys:
    """Read key columns of a tensor file; its values are not touched.

    Raises:
        CorruptError: if the file is missing or damaged.
        SchemaError: if it is not what its table says.
    """
    file = open_file(storage, entry)
    metadata = file.parquet.metadata
    heavy = [
        place
        for place in range(metadata.num_columns)
        if metadata.schema.column(place).path.split(".")[0] in _HEAVY
    ]
    groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    n_bytes = [sum(g.column(place).total_compressed_size for place in heavy) for g in groups]
    return FileKeys(
        file.read(columns),
        np.array([group.num_rows for group in groups], np.int64),
        np.array(n_bytes, np.int64),
    )


class GroupReader:
    """Reads tensors, and keeps the row groups read last; for one thread."""

    def __init__(self, storage: Storage, keep_bytes: int = 0) -> None:
        """Start with nothing read.

        Args:
            storage: where the files lie.
            keep_bytes: decoded row groups are kept up to this size; the last one always.
        """
        self._storage, self._keep_bytes = storage, keep_bytes
        self._groups: OrderedDict[tuple[str, int], pa.Table] = OrderedDict()
        self._file: OpenFile | None = None

    def tensor(self, stored: StoredTensor, verify: bool = True) -> codec.Tensor:
        """Read a tensor.

        Raises:
            CorruptError: if a file is damaged, or holds another tensor than the plan says.
        """
        pieces = [self._piece(piece) for piece in stored.pieces]
        tensor = codec.decode(
            stored.dtype, stored.shape, [value for value, _ in pieces], [raw for _, raw in pieces]
        )
        if verify and tensor.content_hash != stored.content_hash:
            raise CorruptError(
                f"tensor {stored.name!r} in {stored.pieces[0].entry.path} is damaged: "
                "its content hash differs"
            )
        return tensor

    def close(self) -> None:
        """Let go of the open file, and of the row groups beyond what is to be kept."""
        self._let_go()
        self._shrink(at_least=0)

    def _let_go(self) -> None:
        if self._file is not None:
            self._file.parquet.close(force=True)
            self._file = None

    def _piece(self, piece: Piece) -> tuple[npt.NDArray[np.float32] | None, bytes | None]:
        group = self._group(piece.entry, piece.group)
        if piece.row >= group.num_rows:
            raise CorruptError(f"{piece.entry.path} has no row {piece.row} in group {piece.group}")
        scalar = group["value"][piece.row]
        value = guarded(piece.entry, lambda: scalar.values.to_numpy() if scalar.is_valid else None)
        return value, group["raw"][piece.row].as_py()

    def _group(self, entry: Entry, number: int) -> pa.Table:
        place = entry.path, number
        if place not in self._groups:
            # What it will push out goes first, so that both are never in memory at once.
            self._shrink(at_least=0)
            self._groups[place] = self._opened(entry).read_row_group(number, _HEAVY)
            self._shrink(at_least=1)
            if self._groups[place].nbytes >= _LARGE:
                self._let_go()
        self._groups.move_to_end(place)
        return self._groups[place]

    def _opened(self, entry: Entry) -> OpenFile:
        if self._file is None or self._file.entry.path != entry.path:
            self.close()
            self._file = open_file(self._storage, entry)
        return self._file

    def _shrink(self, at_least: int) -> None:
        while len(self._groups) > at_least and self._size() > self._keep_bytes:
            self._groups.popitem(last=False)

    def _size(self) -> int:
        return sum(int(group.nbytes) for group in self._groups.values())


def distinct_groups(tensors: Sequence[StoredTensor]) -> set[tuple[str, int]]:
    """Return the row groups that hold these tensors, as path and number."""
    return {(piece.entry.path, piece.group) for stored in tensors for piece in stored.pieces}
