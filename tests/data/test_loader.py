"""Batches from the lake: any order, any cache, the rows that the table holds."""

from __future__ import annotations

import uuid
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pico import schema
from pico.data import order
from pico.data.loader import Loader, SequenceReader
from pico.errors import CorruptError, DataError, SchemaError
from pico.lake.commit import Stream
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from pico.lake.table import write_rows

N, WIDTH = 5000, 9
TOKENS = np.random.default_rng(0).integers(0, 60_000, (N, WIDTH)).astype(np.int32)


def write(storage: Storage, ids: np.ndarray, dataset: str = "text") -> None:
    """Commit some rows of `TOKENS` as sequences, as one file."""
    with Stream(storage, f"data.{dataset}") as stream:
        transaction = stream.begin()
        rows = {
            "dataset_id": [dataset] * len(ids),
            "sequence_id": ids.tolist(),
            "tokens": TOKENS[ids].tolist(),
        }
        table = schema.table("sequences").batch(rows)
        write_rows(transaction, "sequences", {"dataset": dataset}, table)
        transaction.commit()


@pytest.fixture(scope="module", params=["local", "memory"])
def snapshot(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    """A data set of three files, committed out of order."""
    folder = str(tmp_path_factory.mktemp("loader") / "lake")
    storage = Storage(folder if request.param == "local" else f"memory://{uuid.uuid4().hex}")
    for part in (np.arange(2000, 4500), np.arange(2000), np.arange(4500, N)):
        write(storage, part)
    return Snapshot.take(storage)


def test_rows_in_the_order_asked_for(snapshot: Snapshot) -> None:
    reader = SequenceReader(snapshot, "text")
    assert reader.n_sequences == N
    ids = [4999, 0, 1999, 2000, 2000, 4500, 4499]
    rows = reader.rows(ids)
    assert rows.dtype == np.int64
    assert (rows == TOKENS[ids]).all()


def test_a_tiny_cache_gives_the_same(snapshot: Snapshot) -> None:
    tiny, large = (SequenceReader(snapshot, "text", size) for size in (1, 1 << 30))
    ids = np.random.default_rng(1).integers(0, N, 300).tolist()
    assert (tiny.rows(ids) == TOKENS[ids]).all()
    assert (large.rows(ids) == TOKENS[ids]).all()
    assert len(tiny._cache) == 1
    assert sum(rows.nbytes for rows in large._cache.values()) == large._cached_bytes


def test_a_cache_stays_within_its_bytes(snapshot: Snapshot) -> None:
    groups = SequenceReader(snapshot, "text")._bounds
    assert len(groups) > 3
    limit = int(np.diff(groups).max()) * WIDTH * 4 * 2
    reader = SequenceReader(snapshot, "text", limit)
    for first in range(0, N, 50):
        reader.rows([first])
        assert reader._cached_bytes <= limit


@pytest.mark.parametrize(("ids", "bad"), [([3, N], N), ([-1], -1), ([-3, N], -3)])
def test_an_id_that_is_not_there(snapshot: Snapshot, ids: list[int], bad: int) -> None:
    with pytest.raises(DataError, match=f"has sequences 0 to {N - 1}, not {bad}$"):
        SequenceReader(snapshot, "text").rows(ids)


def test_no_rows_asked_for(snapshot: Snapshot) -> None:
    assert SequenceReader(snapshot, "text").rows([]).shape == (0, WIDTH)


def test_no_such_data_set(snapshot: Snapshot) -> None:
    with pytest.raises(DataError, match="no data set 'txt'"):
        SequenceReader(snapshot, "txt")


@given(st.integers(0, 10_000), st.integers(1, 40), st.integers(0, 2**64 - 1))
def test_a_batch_is_what_the_order_says(step: int, batch_size: int, seed: int) -> None:
    reader = _shared_reader()
    ids, rows = Loader(reader, order.SHUFFLED, seed, batch_size).batch(step)
    assert list(ids) == list(order.sequence_ids(order.SHUFFLED, seed, step, batch_size, N))
    assert (rows == TOKENS[list(ids)]).all()


def _shared_reader() -> SequenceReader:
    storage = Storage(f"memory://{uuid.uuid4().hex}")
    if not storage.list("_log"):
        write(storage, np.arange(N))
    return SequenceReader(Snapshot.take(storage), "text")


def test_gaps_are_found(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path / "lake"))
    write(storage, np.arange(10))
    write(storage, np.arange(12, 20))
    with pytest.raises(CorruptError, match="data set 'text' lacks sequence 10"):
        SequenceReader(Snapshot.take(storage), "text")


def test_a_gap_inside_a_file_is_found(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path / "lake"))
    write(storage, np.array([0, 1, 3, 4]))
    write(storage, np.arange(4, 8), "text")
    with pytest.raises(CorruptError):
        SequenceReader(Snapshot.take(storage), "text")


@pytest.mark.parametrize("how", ["cut", "garbage", "missing"])
def test_a_damaged_file_is_an_error_that_names_it(tmp_path: Path, how: str) -> None:
    storage = Storage(str(tmp_path / "lake"))
    write(storage, np.arange(100))
    (path,) = (tmp_path / "lake" / "sequences").rglob("*.parquet")
    data = path.read_bytes()
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(data[: len(data) // 2] if how == "cut" else b"x" * len(data))
    with pytest.raises(CorruptError, match=path.name):
        SequenceReader(Snapshot.take(storage), "text").rows([0])


def test_damaged_pages_are_an_error(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path / "lake"))
    write(storage, np.arange(100))
    (path,) = (tmp_path / "lake" / "sequences").rglob("*.parquet")
    data = bytearray(path.read_bytes())
    middle = data.find(b"PAR1") + 4
    data[middle : middle + 2000] = bytes(255 - byte for byte in data[middle : middle + 2000])
    path.write_bytes(data)
    with pytest.raises(CorruptError, match=path.name):
        SequenceReader(Snapshot.take(storage), "text").rows(list(range(100)))


def test_no_flipped_bit_changes_a_batch_in_silence(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path / "lake"))
    write(storage, np.arange(100))
    (path,) = (tmp_path / "lake" / "sequences").rglob("*.parquet")
    whole = path.read_bytes()
    ids = list(range(100))
    right = SequenceReader(Snapshot.take(storage), "text").rows(ids)
    noticed = 0
    for place in range(4, len(whole) - 8, max(len(whole) // 60, 1)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            found = SequenceReader(Snapshot.take(storage), "text").rows(ids)
        except (CorruptError, SchemaError):
            noticed += 1
        else:  # a byte of another column, or one that says nothing
            assert np.array_equal(found, right)
    assert noticed > 10
