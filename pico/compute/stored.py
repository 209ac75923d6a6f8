"""What a run has stored in a tensor table: keys, hashes and places, never a value.

`missing` and `pairs` plan with it. A run's keys are one Arrow table, so that planning a run of tens
of thousands of tensors takes column operations; objects are made only for what has to be computed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pico import schema
from pico.errors import CorruptError
from pico.lake import groups
from pico.lake.groups import Piece, StoredTensor
from pico.lake.log import Entry
from pico.lake.snapshot import Snapshot, partition

QUALIFIERS = ("site", "state", "stage", "probe")
"""Columns that tell apart tensors of one name; NULL where a table does not have them."""
IDENTITY = ("global_step", "name", *QUALIFIERS)
"""What tells a stored tensor from the others of its run and table."""
DETAILS = ("layer", "component", "param")
"""Columns that describe a tensor and are copied to its metrics."""
_CONTENT = ("part", "n_parts", "dtype", "shape", "content_hash", "input_hash")
_PLACE = ("file", "group", "row", "n_bytes")


@dataclass(frozen=True)
class Tensors:
    """Stored tensors of one run and table, one row each."""

    rows: pa.Table
    """`IDENTITY`, `DETAILS`, `dtype`, `shape`, `content_hash`, `input_hash`, and where the first
    part lies: `file` (into `files`), `group`, `row`; `n_bytes` is what the group's values take."""
    files: list[Entry]
    split: dict[int, tuple[Piece, ...]]
    """All parts of the tensors that have several, by the place of their first one's row."""

    def __len__(self) -> int:
        """Return the number of tensors."""
        return int(self.rows.num_rows)

    def take(self, places: npt.NDArray[np.int64]) -> Tensors:
        """Return some of the tensors, in this order."""
        split = {}
        if self.split:
            new = {int(old): at for at, old in enumerate(places)}
            split = {new[at]: pieces for at, pieces in self.split.items() if at in new}
        return Tensors(self.rows.take(pa.array(places)), self.files, split)

    def tensors(self, places: Collection[int]) -> list[StoredTensor]:
        """Return what a worker needs to read some of them."""
        wanted = ["name", "dtype", "shape", "content_hash", "file", "group", "row"]
        rows = self.rows.select(wanted).take(pa.array(list(places), pa.int64())).to_pylist()
        return [self._tensor(at, row) for at, row in zip(places, rows, strict=True)]

    def _tensor(self, at: int, row: dict[str, Any]) -> StoredTensor:
        pieces = self.split.get(int(at))
        if pieces is None:
            pieces = (Piece(self.files[row["file"]], row["group"], row["row"]),)
        shape = tuple(row["shape"])
        return StoredTensor(row["name"], pieces, row["dtype"], shape, row["content_hash"])


def stored(
    snapshot: Snapshot, run: str, table: str, steps: Collection[int] | None = None
) -> Tensors:
    """Return the tensors that a run has in a table, at all steps or at some.

    Raises:
        CorruptError: for a damaged file, or a tensor that lacks a part.
    """
    files = snapshot.files(table, [run], steps)
    spec = schema.table(table)
    wanted = [name for name in (*IDENTITY[1:], *DETAILS, *_CONTENT) if name in spec.column_names]
    tables = [_of_file(snapshot, entry, at, wanted) for at, entry in enumerate(files)]
    rows = pa.concat_tables(tables) if tables else _none()
    if steps is not None:
        rows = rows.filter(pc.is_in(rows["global_step"], value_set=pa.array(steps, pa.int64())))
    return _with_parts(rows, files)


def _of_file(snapshot: Snapshot, entry: Entry, at: int, columns: list[str]) -> pa.Table:
    """Return the keys of a file with the places of its rows; absent columns become NULL."""
    step = partition(entry.path).get("step")
    found = groups.keys(
        snapshot.storage, entry, columns if step is not None else ["global_step", *columns]
    )
    group = np.repeat(np.arange(len(found.n_rows)), found.n_rows)
    first = np.cumsum(found.n_rows) - found.n_rows
    n_rows = found.rows.num_rows
    made = {
        "file": np.full(n_rows, at),
        "group": group,
        "row": np.arange(n_rows) - first[group],
        "n_bytes": found.n_bytes[group],
    }
    if step is not None:
        made["global_step"] = np.full(n_rows, int(step))
    columns_of = {name: found.rows[name] for name in found.rows.column_names}
    columns_of |= {name: pa.array(values, pa.int64()) for name, values in made.items()}
    arrays = [
        columns_of[field.name].cast(field.type)
        if field.name in columns_of
        else pa.nulls(n_rows, field.type)
        for field in _SCHEMA
    ]
    return pa.Table.from_arrays(arrays, schema=_SCHEMA)


_SCHEMA = pa.schema(
    [
        *((name, pa.int64() if name == "global_step" else pa.string()) for name in IDENTITY),
        *((name, pa.int32() if name == "layer" else pa.string()) for name in DETAILS),
        ("part", pa.int32()),
        ("n_parts", pa.int32()),
        ("dtype", pa.string()),
        ("shape", pa.list_(pa.int32())),
        ("content_hash", pa.string()),
        ("input_hash", pa.string()),
        *((name, pa.int64()) for name in _PLACE),
    ]
)


def _none() -> pa.Table:
    return _SCHEMA.empty_table()


def _with_parts(rows: pa.Table, files: list[Entry]) -> Tensors:
    """Bring the parts of split tensors together."""
    is_split = pc.greater(rows["n_parts"], 1)
    if not pc.any(is_split, min_count=0).as_py():
        return Tensors(rows, files, {})
    parts: dict[tuple[Any, ...], dict[int, Piece]] = {}
    for row in rows.filter(is_split).to_pylist():
        piece = Piece(files[row["file"]], row["group"], row["row"])
        parts.setdefault(_identity(row), {})[row["part"]] = piece
    firsts = rows.filter(pc.equal(rows["part"], 0))
    split = {}
    for at, row in enumerate(firsts.to_pylist()):
        if row["n_parts"] > 1:
            split[at] = _complete(row, parts.pop(_identity(row)))
    for row in rows.filter(is_split).to_pylist():
        if _identity(row) in parts:
            _complete(row, parts[_identity(row)])
    return Tensors(firsts, files, split)


def _identity(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in (*IDENTITY, "content_hash"))


def _complete(row: dict[str, Any], parts: dict[int, Piece]) -> tuple[Piece, ...]:
    """Return the parts in order, if they are all there."""
    if sorted(parts) != list(range(row["n_parts"])):
        raise CorruptError(
            f"tensor {row['name']!r} lacks some of its {row['n_parts']} parts; see pico verify"
        )
    return tuple(parts[part] for part in sorted(parts))


def joined(columns: Iterable[pa.ChunkedArray | pa.Array | pa.Scalar]) -> pa.ChunkedArray | pa.Array:
    """Return one text per row that differs wherever a column does, NULL from everything else."""
    texts = [column.cast(pa.string()) for column in columns]
    # No name holds either character: writers refuse control characters in keys.
    return pc.binary_join_element_wise(
        *texts, "\x1f", null_handling="replace", null_replacement="\x00"
    )
