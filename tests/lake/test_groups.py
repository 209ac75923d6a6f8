"""Row groups: where tensors lie, and that each is read once, whole, and as it was written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pico.errors import CorruptError
from pico.lake import groups, table
from pico.lake.codec import Tensor
from pico.lake.commit import Stream
from pico.lake.groups import GroupReader, Piece, StoredTensor
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from pico.lake.table import TensorRow, write_tensors

SIZES = {"a": (300, 300), "b": (10, 10), "c": (7,), "d": (200, 200), "e": (3, 3)}


@pytest.fixture
def lake(tmp_path: Path) -> tuple[Storage, dict[str, Tensor]]:
    storage = Storage(str(tmp_path / "lake"))
    rng = np.random.default_rng(0)
    tensors = {
        name: Tensor.of(rng.standard_normal(shape, dtype=np.float32))
        for name, shape in SIZES.items()
    }
    tensors["f"] = Tensor.of(rng.standard_normal((4, 4)))  # float64: its bytes lie in `raw`
    with Stream(storage, "train.r") as stream:
        transaction = stream.begin()
        rows = [TensorRow({"name": name}, tensor) for name, tensor in tensors.items()]
        write_tensors(transaction, "weights", {"run": "r", "step": 0}, rows)
        transaction.commit()
    return storage, tensors


def stored(storage: Storage) -> list[StoredTensor]:
    (entry,) = Snapshot.take(storage).files("weights")
    found = groups.keys(storage, entry, ["name", "dtype", "shape", "content_hash"])
    place = [(group, row) for group, n in enumerate(found.n_rows) for row in range(n)]
    return [
        StoredTensor(
            row["name"],
            (Piece(entry, *at),),
            row["dtype"],
            tuple(row["shape"]),
            row["content_hash"],
        )
        for row, at in zip(found.rows.to_pylist(), place, strict=True)
    ]


def test_keys_tell_where_rows_lie(lake: tuple[Storage, dict[str, Tensor]]) -> None:
    storage, tensors = lake
    (entry,) = Snapshot.take(storage).files("weights")
    found = groups.keys(storage, entry, ["name"])
    assert found.rows.column_names == ["name"]
    assert found.n_rows.tolist() == [1, 3, 2] or sum(found.n_rows) == len(tensors)
    assert len(found.n_rows) == len(found.n_bytes) > 1
    sizes = {name: tensor.data.nbytes for name, tensor in tensors.items()}
    at = np.repeat(np.arange(len(found.n_rows)), found.n_rows)
    for group, n_bytes in enumerate(found.n_bytes):
        names = [n for n, g in zip(found.rows["name"].to_pylist(), at, strict=True) if g == group]
        assert 0.5 * sum(sizes[n] for n in names) < n_bytes < 2 * sum(sizes[n] for n in names) + 500
    assert sum(found.n_bytes) < entry.bytes


def test_tensors_come_back(lake: tuple[Storage, dict[str, Tensor]]) -> None:
    storage, tensors = lake
    reader = GroupReader(storage)
    for one in stored(storage):
        tensor = reader.tensor(one)
        assert tensor.content_hash == tensors[one.name].content_hash == one.content_hash
        assert np.array_equal(tensor.to_numpy(), tensors[one.name].to_numpy())
    reader.close()


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The row groups that are read."""
    seen: list[int] = []
    real = table.OpenFile.read_row_group

    def counting(self: Any, group: int, columns: Any = None) -> Any:
        seen.append(group)
        return real(self, group, columns)

    monkeypatch.setattr(table.OpenFile, "read_row_group", counting)
    return seen


def test_a_group_in_turn_is_read_once(
    lake: tuple[Storage, dict[str, Tensor]], read: list[int]
) -> None:
    storage, _ = lake
    reader = GroupReader(storage)
    there = stored(storage)
    for one in there:
        reader.tensor(one)
    assert read == sorted(set(read)) and len(read) == len(
        {p for t in there for p in t.pieces[:1]}
    ) - (len(there) - len(read))


def test_what_fits_is_kept_and_the_last_always(
    lake: tuple[Storage, dict[str, Tensor]], read: list[int]
) -> None:
    storage, _ = lake
    there = stored(storage)
    kept = GroupReader(storage, keep_bytes=1 << 30)
    for one in (*there, *there):
        kept.tensor(one)
    n_groups = len(set(read))
    assert len(read) == n_groups
    kept.close()
    kept.tensor(there[0])
    assert len(read) == n_groups  # closing lets go of the file, not of what is to be kept
    read.clear()
    forgetful = GroupReader(storage)
    forgetful.tensor(there[0])
    forgetful.tensor(there[0])
    forgetful.tensor(there[-1])
    forgetful.tensor(there[0])
    assert len(read) == 3


def test_a_tensor_in_parts(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path / "lake"))
    tensor = Tensor.of(np.arange(24, dtype=np.float32).reshape(6, 4))
    with Stream(storage, "train.r") as stream:
        transaction = stream.begin()
        rows = [TensorRow({"name": "w"}, tensor)]
        write_tensors(transaction, "weights", {"run": "r", "step": 0}, rows, part_limit=8)
        transaction.commit()
    (entry,) = Snapshot.take(storage).files("weights")
    n_rows = groups.keys(storage, entry, ["name"]).n_rows
    pieces = tuple(Piece(entry, g, row) for g, n in enumerate(n_rows) for row in range(n))
    assert len(pieces) == 3
    whole = StoredTensor("w", pieces, "float32", (6, 4), tensor.content_hash)
    assert GroupReader(storage).tensor(whole).content_hash == tensor.content_hash


def test_what_is_not_as_planned_is_told(lake: tuple[Storage, dict[str, Tensor]]) -> None:
    storage, _ = lake
    one = stored(storage)[0]
    piece = one.pieces[0]
    for pieces, message in (
        ((Piece(piece.entry, 0, 99),), "has no row 99 in group 0"),
        ((Piece(piece.entry, 99, 0),), "cannot be read|99"),
        (stored(storage)[1].pieces, "cannot fill a tensor of shape|its content hash differs"),
    ):
        wrong = StoredTensor(one.name, pieces, one.dtype, one.shape, one.content_hash)
        with pytest.raises(CorruptError, match=message):
            GroupReader(storage).tensor(wrong)
    wrong = StoredTensor(one.name, one.pieces, one.dtype, one.shape, "0" * 32)
    with pytest.raises(CorruptError, match=f"tensor '{one.name}' in .* is damaged"):
        GroupReader(storage).tensor(wrong)
    assert GroupReader(storage).tensor(wrong, verify=False).shape == one.shape
