"""The snapshot's file system: few requests, each block once, and nothing but the snapshot."""

import io
import threading
from collections import Counter

import numpy as np
import polars as pl
import pytest

from pico.lake import codec, snapfs
from pico.lake.commit import Stream
from pico.lake.snapfs import BLOCK_BYTES, BlockCache, BlockFile, SnapshotFileSystem
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from pico.lake.table import TensorRow, write_tensors
from pico.sql import frames, session

DATA = np.random.default_rng(0).bytes(5 * BLOCK_BYTES + 17)


class Store:
    """Bytes of one file, and the ranges that were asked for."""

    def __init__(self, data: bytes = DATA) -> None:
        self.data, self.asked = data, []

    def __call__(self, path: str, first: int, stop: int) -> bytes:
        self.asked.append((first, stop))
        return self.data[first:stop]


def test_reads_are_those_of_a_file():
    store = Store()
    mine, theirs = BlockFile(BlockCache(store), "x", len(DATA)), io.BytesIO(DATA)
    rng = np.random.default_rng(1)
    for _ in range(300):
        whence = int(rng.integers(3))
        offset = int(rng.integers(len(DATA))) * (-1 if whence == io.SEEK_END else 1)
        offset = min(offset, 1000) if whence == io.SEEK_CUR else offset
        n_bytes = int(rng.integers(3 * BLOCK_BYTES))
        assert mine.seek(offset, whence) == theirs.seek(offset, whence)
        assert mine.read(n_bytes) == theirs.read(n_bytes)
        assert mine.tell() == theirs.tell()
    assert mine.seek(0) == 0 and mine.read() == DATA and mine.read() == b"" and mine.read(5) == b""
    with pytest.raises(ValueError, match="cannot seek to -1"):
        mine.seek(-1)


def test_each_block_is_fetched_once_for_all_opens_and_neighbours_together():
    store = Store()
    filesystem = SnapshotFileSystem(store, {"x": len(DATA)})
    assert filesystem.open("x").read(10) == DATA[:10]
    assert filesystem.open("x").read(3 * BLOCK_BYTES) == DATA[: 3 * BLOCK_BYTES]
    assert filesystem.cat_file("x") == DATA
    assert store.asked == [
        (0, BLOCK_BYTES),
        (BLOCK_BYTES, 3 * BLOCK_BYTES),
        (3 * BLOCK_BYTES, len(DATA)),
    ]


def test_threads_that_want_one_block_fetch_it_once():
    started, go = threading.Event(), threading.Event()
    calls = []

    def slowly(path, first, stop):
        calls.append(first)
        started.set()
        assert go.wait(30)
        return DATA[first:stop]

    cache, found = BlockCache(slowly), []
    threads = [
        threading.Thread(target=lambda: found.append(cache.read("x", 3, 9, len(DATA))))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    assert started.wait(30)
    go.set()
    for thread in threads:
        thread.join()
    assert found == [DATA[3:9]] * 6 and calls == [0]


def test_what_was_not_fetched_is_fetched_again():
    store = Store()
    broken = [OSError("no answer")]

    def fetch(path, first, stop):
        if broken:
            raise broken.pop()
        return store(path, first, stop)

    cache = BlockCache(fetch)
    with pytest.raises(OSError, match="no answer"):
        cache.read("x", 0, 5, len(DATA))
    assert cache.read("x", 0, 5, len(DATA)) == DATA[:5]


def test_a_short_answer_is_an_error():
    cache = BlockCache(lambda path, first, stop: DATA[first : stop - 1])
    with pytest.raises(OSError, match=f"sent {BLOCK_BYTES - 1} of {BLOCK_BYTES} bytes"):
        cache.read("x", 0, 5, len(DATA))


def test_the_cache_is_bounded_and_keeps_what_was_used_last():
    store = Store()
    cache = BlockCache(store, 2 * BLOCK_BYTES)
    for number in (0, 1, 0, 2, 0, 1):
        cache.read("x", number * BLOCK_BYTES, number * BLOCK_BYTES + 1, len(DATA))
    assert [first // BLOCK_BYTES for first, _ in store.asked] == [0, 1, 2, 1]
    cache.read("x", 0, 3 * BLOCK_BYTES, len(DATA))  # larger than is kept: past the cache
    assert store.asked[-1] == (0, 3 * BLOCK_BYTES)


def test_runs():
    assert snapfs._runs([0, 1, 4, 6, 7]) == [range(2), range(4, 5), range(6, 8)]
    assert snapfs._runs([]) == []


# the number of requests -------------------------------------------------------------------------

N_STEPS, N_LAYERS = 150, 12
KINDS = ("q", "k", "v", "o", "gate", "up", "down", "norm.attn", "norm.mlp")


class Counted(Storage):
    """Counts the calls of the store's file system: each of them is at least one request."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.calls: Counter[str] = Counter()
        store = self._fs

        class Counting:
            def __getattr__(_, name):
                method = getattr(store, name)
                if not callable(method):
                    return method

                def call(*args, **options):
                    self.calls[name] += 1
                    return method(*args, **options)

                return call

        self._fs = Counting()


@pytest.fixture
def history(memory):
    """150 checkpoints; that of step 149 has files of the real layout, several MB of 108 tensors."""
    rng = np.random.default_rng(0)
    with Stream(memory, "train.r") as stream:
        for step in range(N_STEPS):
            width = 128 if step == N_STEPS - 1 else 2
            transaction = stream.begin()
            rows = [
                TensorRow(
                    {"name": f"layers.{layer}.{kind}", "layer": layer, "component": kind},
                    codec.Tensor.of(rng.standard_normal((width, width)).astype(np.float32)),
                )
                for layer in range(N_LAYERS if width > 2 else 1)
                for kind in KINDS
            ]
            write_tensors(transaction, "weights", {"run": "r", "step": step}, rows)
            transaction.commit()
    files = Snapshot.take(memory).files("weights", steps=[N_STEPS - 1])
    assert sum(entry.bytes for entry in files) > 5 << 20
    return memory


@pytest.fixture
def counted(history, monkeypatch):
    counted = Counted(history.url)
    monkeypatch.setattr("pico.lake.storage.MemoryFileSystem", ())
    return counted


def test_one_layer_of_one_step_by_sql_makes_few_requests(counted):
    snapshot = Snapshot.take(counted)
    counted.calls.clear()
    with session.connect(snapshot) as con:
        rows = con.execute(
            "SELECT name, list_sum(value) FROM weights WHERE step = ? AND layer = 3",
            [N_STEPS - 1],
        ).fetchall()
        assert len(rows) == len(KINDS)
        assert set(counted.calls) == {"cat_file"}, counted.calls
        assert counted.calls["cat_file"] <= 12
        before = counted.calls.total()
        con.execute("SELECT sum(value[1]) FROM weights WHERE step = 149 AND layer = 3").fetchall()
        assert counted.calls.total() == before  # all of it is in the cache


def test_one_layer_of_one_step_by_polars_makes_few_requests(counted):
    snapshot = Snapshot.take(counted)
    counted.calls.clear()
    frame = frames.scan(snapshot, "weights")
    assert not counted.calls, "a scan is lazy"
    one = frame.filter((pl.col("step") == N_STEPS - 1) & (pl.col("layer") == 3))
    found = one.select("name", pl.col("value").list.sum()).collect()
    assert found.height == len(KINDS)
    assert set(counted.calls) == {"cat_file"}, counted.calls
    assert counted.calls["cat_file"] <= 12
