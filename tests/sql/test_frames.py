"""`lake.scan` reads what it is asked for: counted in files, row groups and bytes."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest

from pico.api import Lake
from pico.errors import RunNameError, SchemaError
from pico.lake import snapfs
from pico.lake.codec import Tensor
from pico.lake.commit import Stream
from pico.lake.log import Entry
from pico.lake.snapfs import BLOCK_BYTES
from pico.lake.snapshot import Snapshot, partition
from pico.lake.storage import Storage
from pico.lake.table import TensorRow, write_tensors

RUNS, STEPS, LAYERS, KINDS = ("a", "b"), (0, 3, 9), range(6), ("k", "o", "q")
SIDE = 512
ASKED: list[tuple[dict[str, Any], int]] = [
    ({}, 2 * 3 * 19),
    ({"run": "a"}, 3 * 19),
    ({"run": ["b"], "steps": 3}, 19),
    ({"run": "a", "steps": [0, 9]}, 2 * 19),
    ({"run": "a", "steps": 3, "layers": 2}, 3),
    ({"run": "a", "steps": 3, "components": "o"}, 6),
    ({"run": "a", "steps": 3, "layers": 4, "components": "q"}, 1),
    ({"run": "a", "steps": 3, "layers": [1, None], "components": ["o", "embed"]}, 2),
    ({"steps": 9, "layers": None, "components": ["embed"]}, 2),
    ({"layers": [None]}, 2 * 3),
    ({"run": "a", "steps": 3, "layers": [0, 5], "components": ["k", "o"]}, 4),
    ({"run": "a", "layers": 77}, 0),
]


def write(storage: Storage) -> Storage:
    """Two runs of three checkpoints: 19 matrices of 1 MiB each, each in a row group of its own."""
    rng = np.random.default_rng(0)
    named = [(f"layers.{n}.{kind}", n, kind) for n in LAYERS for kind in KINDS]
    matrix = rng.standard_normal((SIDE, SIDE), dtype=np.float32)
    for run in RUNS:
        with Stream(storage, f"train.{run}") as stream:
            for step in STEPS:
                transaction = stream.begin()
                rows = [
                    TensorRow(
                        {"name": name, "layer": layer, "component": kind}, Tensor.of(matrix * n)
                    )
                    for n, (name, layer, kind) in enumerate([*named, ("embed", None, "embed")])
                ]
                write_tensors(transaction, "weights", {"run": run, "step": step}, rows)
                transaction.commit()
    return storage


_numbers = itertools.count()


@pytest.fixture(scope="module")
def remote() -> Storage:
    return write(Storage(f"memory://frames-{next(_numbers)}"))


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Storage:
    return write(Storage(str(tmp_path_factory.mktemp("frames") / "lake")))


def matches(entry: Entry, layer: int | None, kind: str, asked: dict[str, Any]) -> bool:
    """Say whether a row of a file is asked for, by plain comparison."""
    keys = partition(entry.path)
    for key, value in (
        ("run", keys["run"]),
        ("steps", int(keys["step"])),
        ("layers", layer),
        ("components", kind),
    ):
        wanted = asked.get(key)
        if wanted is not None and value not in (wanted if isinstance(wanted, list) else [wanted]):
            return False
    return True


def wanted_groups(storage: Storage, asked: dict[str, Any]) -> dict[str, list[tuple[int, int]]]:
    """Return by file the byte ranges of the row groups with a row that is asked for."""
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for entry in Snapshot.take(storage).files("weights"):
        file = pq.ParquetFile(storage.open(entry.path))
        assert file.num_row_groups == 19
        for group in range(file.num_row_groups):
            rows = file.read_row_group(group, ["layer", "component"]).to_pylist()
            if any(matches(entry, row["layer"], row["component"], asked) for row in rows):
                columns = [
                    file.metadata.row_group(group).column(n)
                    for n in range(file.metadata.num_columns)
                ]
                starts = [c.dictionary_page_offset or c.data_page_offset for c in columns]
                stops = [s + c.total_compressed_size for s, c in zip(starts, columns, strict=True)]
                found[entry.path].append((min(starts), max(stops)))
    return found


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, int, int]]]:
    """The ranges of files that the store is asked for."""
    asked: list[tuple[str, int, int]] = []
    fetch = Storage._fetch

    def note(self: Storage, path: str, first: int, stop: int) -> bytes:
        asked.append((path, first, stop))
        return fetch(self, path, first, stop)

    monkeypatch.setattr(Storage, "_fetch", note)
    yield asked


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, int, int]]]:
    """The ranges of files that Arrow reads, before they are rounded to blocks."""
    asked: list[tuple[str, int, int]] = []
    read = snapfs.BlockCache.read

    def note(self: snapfs.BlockCache, path: str, first: int, stop: int, size: int) -> bytes:
        asked.append((path, first, stop))
        return read(self, path, first, stop, size)

    monkeypatch.setattr(snapfs.BlockCache, "read", note)
    yield asked


@pytest.mark.parametrize(("asked", "n_rows"), ASKED, ids=[str(a) for a, _ in ASKED])
def test_a_remote_scan_reads_the_row_groups_asked_for(
    remote: Storage,
    ranges: list[tuple[str, int, int]],
    reads: list[tuple[str, int, int]],
    asked: dict[str, Any],
    n_rows: int,
) -> None:
    groups = wanted_groups(remote, asked)
    sizes = {entry.path: entry.bytes for entry in Snapshot.take(remote).files("weights")}
    frame = Lake(remote.url).scan("weights", **asked)
    ranges.clear()
    reads.clear()
    assert frame.collect().height == n_rows == sum(map(len, groups.values()))
    # No file but those that hold a row is opened, where path and log can tell.
    by_log = [
        path
        for path in sizes
        if partition(path)["run"] in asked.get("run", RUNS)
        and ("steps" not in asked or int(partition(path)["step"]) in np.atleast_1d(asked["steps"]))
    ]
    assert {path for path, _, _ in ranges} == set(by_log)
    # Of an opened file only its footer and the row groups asked for are read …
    for path, first, stop in reads:
        footer = sizes[path] - BLOCK_BYTES // 8
        within = any(begin <= first and stop <= end for begin, end in _joined(groups[path]))
        assert first >= footer or within, (path, first, stop, groups[path])
    # … which costs the store those bytes, rounded to blocks.
    n_bytes = sum(stop - first for _, first, stop in ranges)
    needed = sum(end - begin for of_file in groups.values() for begin, end in of_file)
    n_groups = sum(map(len, groups.values()))
    assert needed <= n_bytes <= needed + (2 * n_groups + 2 * len(by_log)) * BLOCK_BYTES
    if len(by_log) == 1 and n_groups <= 3:
        assert n_bytes < sum(sizes[path] for path in by_log) / 2


def _joined(groups: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges with neighbours joined: Arrow reads them as one."""
    found: list[tuple[int, int]] = []
    for begin, end in sorted(groups):
        if found and found[-1][1] == begin:
            found[-1] = (found[-1][0], end)
        else:
            found.append((begin, end))
    return found


@pytest.mark.parametrize(("asked", "n_rows"), ASKED, ids=[str(a) for a, _ in ASKED])
def test_a_local_scan_reads_the_row_groups_asked_for(
    local: Storage, tmp_path: Path, asked: dict[str, Any], n_rows: int
) -> None:
    """Everything else is rubbish on the disk, and nobody notices."""
    lake = Lake(local.url)
    groups = wanted_groups(local, asked)
    assert local.folder is not None
    intact: dict[Path, bytes] = {}
    try:
        for entry in Snapshot.take(local).files("weights"):
            path = local.folder / entry.path
            data = intact[path] = path.read_bytes()
            length = int.from_bytes(data[-8:-4], "little") + 8
            spoilt = bytearray(len(data) - length) + data[-length:]
            for begin, end in groups.get(entry.path, []):
                spoilt[begin:end] = data[begin:end]
            path.chmod(0o644)
            path.write_bytes(bytes(spoilt))
        found = lake.scan("weights", **asked).collect()
        assert found.height == n_rows
        assert found["value"].list.len().to_list() == [SIDE * SIDE] * n_rows
        if n_rows < 2 * 3 * 19:
            with pytest.raises(pl.exceptions.PolarsError):
                lake.scan("weights").collect()
    finally:
        for path, data in intact.items():
            path.write_bytes(data)


@pytest.mark.parametrize("asked", [asked for asked, _ in ASKED], ids=str)
def test_the_rows_are_those_of_a_filter(local: Storage, asked: dict[str, Any]) -> None:
    lake = Lake(local.url)
    columns = ["run", "step", "name", "layer", "component"]
    found = lake.scan("weights", **asked).select(columns).collect()
    every = lake.scan("weights").select(columns).collect().rows()
    by_path = {(partition(e.path)["run"], int(partition(e.path)["step"])): e for e in _files(local)}
    expected = [row for row in every if matches(by_path[row[0], row[1]], row[3], row[4], asked)]
    assert sorted(found.rows(), key=repr) == sorted(expected, key=repr)


def _files(storage: Storage) -> list[Entry]:
    return Snapshot.take(storage).files("weights")


def test_what_cannot_be_asked(local: Storage) -> None:
    lake = Lake(local.url)
    with pytest.raises(SchemaError, match=r"table 'scalars' has no column 'layer'; leave layers"):
        lake.scan("scalars", layers=3)
    with pytest.raises(SchemaError, match=r"'runs' has no column 'component'; leave components"):
        lake.scan("runs", components=["o"])
    with pytest.raises(RunNameError, match="no run 'c'"):
        lake.scan("weights", run="c")
    assert lake.scan("tensor_stats", layers=3).collect().is_empty()
