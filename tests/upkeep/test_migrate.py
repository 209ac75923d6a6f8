"""Rewriting files of older versions changes nothing but the version, whatever happens meanwhile."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq
import pytest
import xxhash

from pico import schema
from pico.errors import NotALakeError, RunNameError, StorageError
from pico.lake import log
from pico.lake.commit import Stream
from pico.lake.log import Entry
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from pico.upkeep import migrate as module
from pico.upkeep.migrate import Migration, migrate
from tests.fixtures import made_up

ROOT = Path(__file__).resolve().parents[2]
OLD = ROOT / "tests" / "fixtures" / "lake-v1"
N_SCALARS, N_WEIGHTS = 3, 3


@pytest.fixture(autouse=True)
def version_2(tmp_path: Path) -> Iterator[None]:
    """Let pico know the made-up version 2 of `scalars` and `weights`."""
    with made_up.schemas(tmp_path, 2):
        yield


@pytest.fixture(params=["local", "memory"])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """A lake of version 1."""
    if request.param == "local":
        return copied(tmp_path)
    storage = Storage(f"memory://{tmp_path.name}-{os.getpid()}")
    for path in OLD.rglob("*.parquet"):
        storage.put(path.relative_to(OLD).as_posix(), path.read_bytes())
    return storage


@pytest.fixture
def local(tmp_path: Path) -> Storage:
    return copied(tmp_path)


def copied(folder: Path, name: str = "lake") -> Storage:
    shutil.copytree(OLD, folder / name)
    return Storage(str(folder / name))


def content(storage: Storage) -> dict[str, list[str]]:
    """Return all live rows of every table, as text because NaN differs from itself."""
    snapshot = Snapshot.take(storage)
    return {name: sorted(map(repr, snapshot.read(name).to_pylist())) for name in schema.tables()}


def versions(storage: Storage, table: str) -> list[int]:
    return [entry.schema_version for entry in Snapshot.take(storage).files(table)]


def log_files(storage: Storage) -> list[str]:
    return [file.path for file in storage.list("_log")]


def test_every_row_stays_and_every_file_is_new(old: Storage) -> None:
    before, others = content(old), [e for e in live(old) if e.table not in ("scalars", "weights")]
    done = migrate(old)
    assert done.files == {"scalars": N_SCALARS, "weights": N_WEIGHTS}
    assert content(old) == before
    assert set(versions(old, "scalars")) == set(versions(old, "weights")) == {2}
    assert [e for e in live(old) if e.table not in ("scalars", "weights")] == others
    for entry in Snapshot.take(old).files("weights"):
        stored = pq.ParquetFile(old.open(entry.path)).schema_arrow
        assert stored.equals(schema.table("weights").arrow)
    assert len(list(Snapshot.take(old).tensors("weights", "hand", 0))) == 7  # hashes compared


def live(storage: Storage) -> list[Entry]:
    return Snapshot.take(storage).all_files()


def test_plain_readers_see_one_table_once_the_old_files_are_gone(local: Storage) -> None:
    made_up.write_version_2(local)
    migrate(local)
    gone = Snapshot.take(local).taken_away()
    local.delete(entry.path for entry in gone)
    assert local.folder is not None
    files = sorted((local.folder / "scalars").glob("*/*.parquet"))
    rows = pl.scan_parquet(files, hive_partitioning=False).collect()
    assert rows.columns == schema.table("scalars").column_names
    assert rows.height == Snapshot.take(local).read("scalars").num_rows


def test_a_second_call_finds_nothing(old: Storage) -> None:
    migrate(old)
    before = log_files(old)
    assert migrate(old) == Migration({}, 0, 0)
    assert log_files(old) == before


def test_a_dry_run_writes_nothing_and_tells_the_same(old: Storage) -> None:
    before = [file.path for file in old.list("")]
    told = migrate(old, dry_run=True)
    assert [file.path for file in old.list("")] == before
    assert replace(told, dry_run=False) == migrate(old)


def test_a_run_alone(old: Storage) -> None:
    done = migrate(old, run="hand")
    assert done.files == {"weights": 1}
    assert sorted(versions(old, "weights")) == [1, 1, 2]
    with pytest.raises(RunNameError, match=r"no run 'hant'.*Did you mean 'hand'"):
        migrate(old, run="hant")


def test_a_place_without_a_lake(tmp_path: Path) -> None:
    with pytest.raises(NotALakeError):
        migrate(Storage(str(tmp_path / "nothing")))


def test_new_files_stand_for_the_commits_of_the_old(old: Storage) -> None:
    origins = {e.path: (stream, e.txn) for stream, e in added(old)}
    placed = {(e.table, e.path.split("/")[1:-1][-1], e.rows, e.min_step): e for e in live(old)}
    migrate(old)
    removed = {e.path for e in log.LogReader(old).entries() if e.action == "remove"}
    assert len(removed) == N_SCALARS + N_WEIGHTS
    replaced = [e for e in live(old) if e.schema_version == 2]
    assert len(replaced) == len(removed)
    for entry in replaced:
        key = (entry.table, entry.path.split("/")[1:-1][-1], entry.rows, entry.min_step)
        assert entry.stands_for == origins[placed[key].path]
        assert placed[key].path in removed
        assert (entry.min_step, entry.max_step) == (placed[key].min_step, placed[key].max_step)


def added(storage: Storage) -> Iterator[tuple[str, Entry]]:
    reader = log.LogReader(storage)
    for stream in reader.streams():
        for entry in reader.stream(stream):
            if entry.action == "add":
                yield stream, entry


def test_a_replacement_of_a_replacement_stands_for_the_first(old: Storage, tmp_path: Path) -> None:
    migrate(old)
    second = {e.rows: e.stands_for for e in live(old) if e.table == "scalars"}
    with made_up.schemas(tmp_path, 3):
        assert migrate(old).files == {"scalars": N_SCALARS, "weights": N_WEIGHTS}
        third = [e for e in live(old) if e.table == "scalars"]
        assert {e.schema_version for e in third} == {3}
        assert {e.rows: e.stands_for for e in third} == second
        assert all(stands and stands[0] == "train.tiny" for stands in second.values())


def test_runs_are_committed_beside_their_trainer_and_data_by_their_data_set(
    local: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `vocab` and `datasets` grown as well: what a corpus wrote belongs to its stream."""
    grow(tmp_path / "schemas-2", "vocab", "datasets", "probes")
    with made_up.schemas(tmp_path, 2):
        before = {stream: len(list(paths)) for stream, paths in streams(local).items()}
        done = migrate(local)
        assert done.files == {
            "scalars": N_SCALARS, "weights": N_WEIGHTS, "vocab": 1, "datasets": 2, "probes": 1,
        }  # fmt: skip
        grown = {s for s, paths in streams(local).items() if len(paths) > before.get(s, 0)}
        assert grown == {
            "derive.hand.upkeep", "derive.tiny.upkeep", "data.text", "data.text.heldout",
        }  # fmt: skip
        assert migrate(local) == Migration({}, 0, 0)
        assert Snapshot.take(local).read("vocab", ["grown"]).column(0).null_count == 0


def grow(folder: Path, *tables: str, nullable: bool = False) -> None:
    """Add a column to tables, in schema files that were made; 1 in older rows, or NULL."""
    for name in tables:
        path = folder / f"{name}.json"
        spec = json.loads(path.read_text(encoding="utf-8"))
        spec["columns"].append(made_up.column("grown", "int32", nullable))
        added = {"grown": None if nullable else 1}
        spec |= {"version": 2, "history": [{"version": 2, "why": "So.", "added": added}]}
        path.write_text(json.dumps(spec), encoding="utf-8")


def streams(storage: Storage) -> dict[str, list[str]]:
    return log.by_stream(log_files(storage))


@pytest.mark.slow
def test_a_run_is_resumed_from_files_of_the_older_version_and_from_migrated_ones(
    tmp_path: Path,
) -> None:
    """Every table of a run has grown a column; the batches and weights are what they were."""
    from pico.api import Lake
    from tests.train import tiny

    config = tiny.config(tiny.write_text(tmp_path / "text.txt"), optimizer={"schedule": "constant"})
    half = {**config, "max_steps": 3}
    (tmp_path / "grown").mkdir()
    with made_up.schemas(tmp_path / "grown", 1):
        Lake(str(tmp_path / "whole")).train(config, "tiny")
        Lake(str(tmp_path / "older")).train(half, "tiny")
    shutil.copytree(tmp_path / "older", tmp_path / "migrated")
    names = [name for name, spec in schema.tables().items() if "run" in spec.partition]
    with made_up.schemas(tmp_path / "grown", 1):
        grow(tmp_path / "grown" / "schemas-1", *names, nullable=True)
    with made_up.schemas(tmp_path / "grown", 1):
        migrate(Storage(str(tmp_path / "migrated")))
        for lake in ("older", "migrated"):
            Lake(str(tmp_path / lake)).train(config, "tiny")
            tiny.assert_same_run(tmp_path / "whole", tmp_path / lake, "tiny", planned=False)
        found = versions(Storage(str(tmp_path / "older")), "scalars")
        assert {1, 2} == set(found)
        assert {2} == set(versions(Storage(str(tmp_path / "migrated")), "scalars"))


def test_few_files_are_replaced_at_a_time(old: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PORTION_FILES", 2)
    seen: list[tuple[int, int]] = []
    migrate(old, progress=lambda done, total: seen.append((done, total)))
    assert len(streams(old)["derive.tiny.upkeep"]) == 3
    assert seen[-1] == (6, 6)
    assert sorted(seen) == seen


def test_sizes_bound_a_commit(old: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PORTION_BYTES", 1)
    migrate(old)
    assert len(streams(old)["derive.tiny.upkeep"]) == 5


def test_what_is_withdrawn_meanwhile_does_not_come_back(
    old: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resume withdraws a file after it was rewritten and before that is committed."""
    path = next(e.path for e in Snapshot.take(old).files("scalars"))
    real = module._rewrite

    def rewrite(storage: Storage, transaction: Any, item: Any) -> None:
        real(storage, transaction, item)
        if item.entry.path == path:
            withdraw(storage, path)

    monkeypatch.setattr(module, "_rewrite", rewrite)
    before = content(old)
    migrate(old)
    monkeypatch.undo()
    after = content(old)
    assert after["weights"] == before["weights"]
    assert set(after["scalars"]) < set(before["scalars"])
    assert 1 in versions(old, "scalars")  # the commit was void as a whole
    migrate(old)
    assert content(old) == after
    assert set(versions(old, "scalars")) == {2}


def withdraw(storage: Storage, path: str) -> None:
    with Stream(storage, "train.tiny") as stream:
        transaction = stream.begin()
        gone = [e for e in Snapshot.take(storage).all_files() if e.path == path]
        transaction.take_away(gone, withdraw=True)
        transaction.commit()


def test_what_was_withdrawn_before_a_portion_is_left_out(
    old: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = next(e.path for e in Snapshot.take(old).files("scalars"))
    real = module._older

    def older(*arguments: Any) -> Any:
        found = real(*arguments)
        withdraw(old, path)
        return found

    monkeypatch.setattr(module, "_older", older)
    done = migrate(old)
    assert done.files == {"scalars": N_SCALARS - 1, "weights": N_WEIGHTS}
    assert set(versions(old, "scalars")) == {2}


def test_a_stream_that_a_writer_holds_is_skipped_by_name(old: Storage) -> None:
    with Stream(old, "derive.tiny.upkeep"):
        done = migrate(old)
    assert done.files == {"weights": 1}
    assert len(done.skipped) == 1
    assert "upkeep of run 'tiny'" in done.skipped[0] and "is held by process" in done.skipped[0]
    assert migrate(old).files == {"scalars": N_SCALARS, "weights": N_WEIGHTS - 1}


def test_migration_runs_while_the_run_is_trained_and_read(old: Storage) -> None:
    before = content(old)
    stop = threading.Event()
    differing: list[Any] = []

    def read() -> None:
        while not stop.is_set():
            found = content(old)
            if found != before:
                differing.append(found)

    reader = threading.Thread(target=read)
    with Stream(old, "train.tiny"):
        reader.start()
        try:
            assert not migrate(old).skipped
        finally:
            stop.set()
            reader.join()
    assert not differing


SPOILS: dict[str, Callable[[bytes], bytes]] = {
    "a bit": lambda data: data[:200] + bytes([data[200] ^ 1]) + data[201:],
    "its end": lambda data: data[:-20],
    "everything": lambda data: b"",
}


@pytest.mark.parametrize("spoil", SPOILS)
def test_a_damaged_file_is_left_as_it_is(old: Storage, spoil: str) -> None:
    entry = next(e for e in Snapshot.take(old).files("weights") if "/run=tiny/" in e.path)
    old.put(entry.path, SPOILS[spoil](old.read(entry.path)))
    done = migrate(old)
    assert done.files == {"scalars": N_SCALARS, "weights": N_WEIGHTS - 1}
    (reason,) = done.skipped
    assert entry.path in reason and "\n" not in reason
    assert entry in live(old)


def test_a_file_that_was_exchanged_is_left_as_it_is(old: Storage, tmp_path: Path) -> None:
    """A sound Parquet file with as many rows, but not the one that was committed."""
    entry = Snapshot.take(old).files("scalars")[0]
    rows = pq.ParquetFile(old.open(entry.path)).read()
    pq.write_table(rows, tmp_path / "other.parquet", compression="none")
    old.put(entry.path, (tmp_path / "other.parquet").read_bytes())
    assert Snapshot.take(old).read("scalars").num_rows
    (reason,) = migrate(old).skipped
    assert f"{entry.path} is damaged: its bytes have not the hash that the log says" in reason


def test_a_missing_file_is_skipped(old: Storage) -> None:
    entry = Snapshot.take(old).files("scalars")[0]
    old.delete([entry.path])
    (reason,) = migrate(old).skipped
    assert reason == f"{entry.path} is missing although the log names it"


def test_a_wrong_tensor_is_not_made_right(old: Storage, tmp_path: Path) -> None:
    """Its file has the hash that the log says, but not the tensor's content hash."""
    entry = next(e for e in Snapshot.take(old).files("weights") if "/run=hand/" in e.path)
    rows = pq.ParquetFile(old.open(entry.path)).read()
    place = rows.column_names.index("content_hash")
    hashes = rows["content_hash"].to_pylist()
    wrong = rows.set_column(place, rows.schema.field(place), [["0" * 32, *hashes[1:]]])
    pq.write_table(wrong, tmp_path / "wrong.parquet")
    data = (tmp_path / "wrong.parquet").read_bytes()
    old.put(entry.path, data)
    commit = log.commit_path("train.hand", 0)
    changes = {"hash": xxhash.xxh3_128_hexdigest(data), "bytes": len(data)}
    told = [
        replace(e, **changes) if e.path == entry.path else e for e in log.read_file(old, commit)
    ]
    old.put(commit, log.encode(told, {"stream": "train.hand", "txn": entry.txn}))
    (reason,) = migrate(old).skipped
    assert "is damaged: its content hash differs" in reason and rows["name"][0].as_py() in reason
    assert 1 in versions(old, "weights")


def test_a_store_that_refuses_stops_it_and_the_next_call_goes_on(
    old: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = content(old)
    monkeypatch.setattr(module, "PORTION_FILES", 1)
    real, calls = Storage.put_new, []

    def refuse(self: Storage, path: str, data: bytes) -> bool:
        if path.startswith("_log/derive.tiny"):
            calls.append(path)
            if len(calls) == 3:
                raise StorageError("the store is full")
        return real(self, path, data)

    monkeypatch.setattr(Storage, "put_new", refuse)
    with pytest.raises(StorageError, match="full"):
        migrate(old)
    monkeypatch.undo()
    assert content(old) == before
    done_before = versions(old, "scalars") + versions(old, "weights")
    assert 0 < done_before.count(2) < len(done_before)
    assert sum(migrate(old).files.values()) == done_before.count(1)
    assert content(old) == before
    assert set(versions(old, "scalars")) == {2}


KILLED = """
import itertools, os, signal, sys
from pathlib import Path
from pico.lake import local
from pico.lake.storage import Storage
from pico.upkeep import migrate
from tests.fixtures import made_up
lake, schemas, at = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
migrate.PORTION_FILES = 2
number = itertools.count()
def counted(real):
    def call(*arguments, **options):
        if next(number) == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **options)
    return call
for name in ("fsync", "replace", "link", "mkdir"):
    setattr(os, name, counted(getattr(os, name)))
with made_up.schemas(schemas, 2):
    migrate.migrate(Storage(lake))
print("done", next(number))
"""


@pytest.mark.slow
def test_killed_at_any_file_operation_it_loses_nothing(tmp_path: Path) -> None:
    wanted = content(copied(tmp_path, "whole"))
    killed = 0
    for at in range(0, 1000, 5):
        storage = copied(tmp_path, f"lake-{at}")
        command = [sys.executable, "-c", KILLED, storage.url, str(tmp_path), str(at)]
        env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        run = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
        assert content(storage) == wanted, at
        if run.returncode == 0:
            break
        assert run.returncode == -signal.SIGKILL, run.stderr
        killed += 1
        migrate(storage)
        assert content(storage) == wanted, at
        assert set(versions(storage, "scalars") + versions(storage, "weights")) == {2}, at
        shutil.rmtree(storage.url)
    assert killed > 5


def test_it_says_what_it_did() -> None:
    done = Migration({"weights": 1200, "scalars": 1}, 1, 5_000_000)
    assert str(done) == (
        "migrated 1,201 files (1 of scalars, 1,200 of weights): 1 row, 5,000,000 bytes"
    )
    assert str(replace(done, dry_run=True)).startswith("would migrate 1,201 files")
    assert str(Migration({}, 0, 0)) == (
        "nothing to migrate: every file has the current version of its table"
    )
    assert str(Migration({}, 0, 0, ("a is held",))) == "migrated nothing\nskipped: a is held"
