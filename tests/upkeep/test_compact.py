"""Merging keeps every row, spans no checkpoint, and can meet writers, readers and resumes."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pico import schema
from pico.errors import CorruptError, LeaseError, NotALakeError, RunNameError, SchemaError
from pico.lake import log, table
from pico.lake.commit import Stream
from pico.lake.log import LogReader
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from pico.sql import session
from pico.upkeep import compact as module
from pico.upkeep import merge
from pico.upkeep.compact import compact
from pico.upkeep.gc import gc
from tests.lake.steps import live_files
from tests.train import tiny
from tests.upkeep import lakes
from tests.upkeep.lakes import kinds, live, take_away

SCALARS = schema.table("scalars")


def commit(
    stream: Stream, step: int, checkpoint: bool = False, rows: int = 1, run: str = "r"
) -> None:
    """Commit a step as the recorder does: a checkpoint's rows are of the steps before it."""
    transaction = stream.begin()
    table.write_rows(transaction, "scalars", {"run": run}, scalars(step, rows, run))
    stats = {
        "run_id": [run],
        "global_step": [step],
        "table_name": ["weights"],
        "name": ["w"],
        "numel": [1],
        "frobenius_norm": [float("nan")],
        "nonfinite": [0],
    }
    batch = schema.table("tensor_stats").batch(stats)
    table.write_rows(transaction, "tensor_stats", {"run": run}, batch)
    if checkpoint:
        columns = {
            "run_id": [run],
            "global_step": [step + 1],
            "planned": [True],
            "complete": [False],
        }
        batch = schema.table("checkpoints").batch(columns)
        table.write_rows(transaction, "checkpoints", {"run": run}, batch)
    transaction.commit()


def scalars(step: int, rows: int = 1, run: str = "r") -> pa.Table:
    return SCALARS.batch(
        {
            "run_id": [run] * rows,
            "global_step": [step] * rows,
            "name": [f"n{index}" for index in range(rows)],
            "value": [step + index / 1000 if index % 3 else float("nan") for index in range(rows)],
        }
    )


def write(storage: Storage, n_steps: int = 12, every: int = 4, run: str = "r") -> Storage:
    """Write a run that commits at each step and has a checkpoint every few."""
    with Stream(storage, f"train.{run}") as stream:
        for step in range(n_steps):
            commit(stream, step, checkpoint=step % every == every - 1, run=run)
    return storage


def answers(storage: Storage) -> list[object]:
    """Ask about every row table in SQL."""
    connection = session.connect(Snapshot.take(storage))
    found = []
    for name in ("scalars", "tensor_stats", "checkpoints", "metrics", "batches"):
        found.append(repr(connection.sql(f"SELECT * FROM {name} ORDER BY ALL").fetchall()))
    connection.close()
    return found


def test_small_files_become_one_between_checkpoints(storage):
    write(storage, 14, every=4)
    before = answers(storage)
    done = compact(storage)
    assert answers(storage) == before
    files = live(storage, "scalars")
    spans = sorted((entry.min_step, entry.max_step, entry.rows) for entry in files)
    assert spans == [(0, 3, 4), (4, 7, 4), (8, 11, 4), (12, 13, 2)]
    assert len(live(storage, "checkpoints")) == 3
    assert {row["table"]: row["files"] for row in done.rows()} == {
        "scalars": 14,
        "tensor_stats": 14,
    }
    assert str(done) == "merged 28 files into 8"
    assert set(kinds(storage)) == {"file.removed"}


def test_a_second_time_nothing_is_left_to_do(storage):
    write(storage)
    compact(storage)
    before = live_files(storage)
    assert str(compact(storage)) == "nothing to merge"
    assert live_files(storage) == before


def test_a_dry_run_changes_nothing(storage):
    write(storage, 20)
    before = [file.path for file in storage.list("")]
    planned = compact(storage, dry_run=True)
    assert [file.path for file in storage.list("")] == before
    done = compact(storage)
    assert planned.rows() == done.rows()
    assert str(planned).startswith("would merge 40 files into 10")


def test_one_run_and_some_tables(storage):
    write(storage, run="r")
    write(storage, run="s")
    compact(storage, run="r", tables=["scalars"])
    counts = {
        (run, name): len(live(storage, name, runs=[run]))
        for run in "rs"
        for name in ("scalars", "tensor_stats")
    }
    assert counts == {
        ("r", "scalars"): 3,
        ("r", "tensor_stats"): 12,
        ("s", "scalars"): 12,
        ("s", "tensor_stats"): 12,
    }


def test_what_cannot_be_asked_for(storage):
    with pytest.raises(NotALakeError):
        compact(storage)
    write(storage, 1)
    with pytest.raises(RunNameError):
        compact(storage, run="x")
    with pytest.raises(SchemaError, match="weights"):
        compact(storage, tables=["weights"])
    with pytest.raises(SchemaError, match="Did you mean 'scalars'"):
        compact(storage, tables=["scalar"])


def test_merged_files_are_sorted_and_well_cut(local):
    with Stream(local, "train.r") as stream:
        for step in (1, 0):
            commit(stream, step, rows=50_000)
    compact(local, tables=["scalars"])
    (entry,) = live(local, "scalars")
    file = pq.ParquetFile(local.folder / entry.path)
    groups = [file.metadata.row_group(index).num_rows for index in range(file.num_row_groups)]
    assert groups == [65_536, 34_464]
    rows = file.read()
    steps, names = rows["global_step"].to_pylist(), rows["name"].to_pylist()
    assert list(zip(steps, names, strict=True)) == sorted(zip(steps, names, strict=True))


def test_files_are_merged_up_to_the_target(local, monkeypatch):
    write(local, 40, every=100)
    monkeypatch.setattr(module, "TARGET_ROWS", 8)
    before = answers(local)
    compact(local)
    assert sorted(entry.rows for entry in live(local, "scalars")) == [8] * 5
    assert answers(local) == before
    assert compact(local).merges == []


def test_small_merged_files_are_merged_again_at_once(local, monkeypatch):
    """What comes out can be much smaller than what went in; the end is reached in one call."""
    write(local, 40, every=100)
    size = max(entry.bytes for entry in live(local, "scalars"))
    monkeypatch.setattr(module, "TARGET_BYTES", 8 * size)
    before = answers(local)
    compact(local)
    assert len(live(local, "scalars")) == 1
    assert answers(local) == before
    assert compact(local).merges == []


def test_a_replacement_says_what_it_stands_for(local):
    write(local, 8, every=4)
    history = LogReader(local).history("train.r")
    compact(local, tables=["scalars"])
    files = sorted(live(local, "scalars"), key=lambda entry: entry.min_step or 0)
    assert [entry.stands_for for entry in files] == [
        ("train.r", history[3][0]),
        ("train.r", history[7][0]),
    ]


def test_merging_what_was_merged_carries_the_origin_on(local):
    with Stream(local, "train.r") as stream:
        for step in range(3):
            commit(stream, step)
    compact(local)
    with Stream(local, "train.r") as stream:
        for step in range(3, 6):
            commit(stream, step, checkpoint=step == 5)
    compact(local)
    (entry,) = live(local, "scalars")
    assert entry.stands_for == ("train.r", LogReader(local).history("train.r")[-1][0])
    assert entry.rows == 6
    assert compact(local).merges == []


def test_files_of_different_writers_stay_apart(local):
    with Stream(local, "train.r") as stream:
        commit(stream, 0)
        commit(stream, 1)
    for writer in ("one", "two"):
        with Stream(local, f"derive.r.{writer}") as stream:
            for step in (10, 11):
                transaction = stream.begin()
                rows = scalars(step + (writer == "two") * 10)
                table.write_rows(transaction, "scalars", {"run": "r"}, rows)
                transaction.commit()
    compact(local)
    origins = sorted(entry.stands_for[0] for entry in live(local, "scalars"))
    assert origins == ["derive.r.one", "derive.r.two", "train.r"]


def test_missing_level_files_are_written(storage):
    with Stream(storage, "train.r") as stream:
        for step in range(40):
            commit(stream, step)
    levels = [path for path in storage.paths(log.ROOT) if "level=" in path]
    content = {path: log.read_file(storage, path) for path in levels}
    assert len(levels) == 2
    storage.delete(levels)
    assert kinds(storage) == ["log.level-missing"] * 2
    assert sorted(compact(storage, tables=[], dry_run=True).levels) == levels
    done = compact(storage, tables=[])
    assert sorted(done.levels) == levels
    assert {path: log.read_file(storage, path) for path in levels} == content
    assert kinds(storage) == []


def test_level_files_of_higher_levels_are_written(memory):
    for seq in range(520):
        entries = [] if seq % 7 else [_entry(seq)]
        memory.put(log.commit_path("train.r", seq), log.encode(entries, {"txn": str(seq)}))
    compact(memory, tables=[])
    names = [path for path in memory.paths(log.ROOT) if "level=2" in path]
    assert len(names) == 2
    assert log.read_file(memory, names[1]) == [_entry(s) for s in range(256, 512) if s % 7 == 0]
    reader = LogReader(memory)
    assert reader.entries() == [_entry(seq) for seq in range(520) if seq % 7 == 0]


def _entry(seq: int) -> log.Entry:
    path = f"scalars/run=r/{seq:08d}.parquet"
    return log.Entry("add", "scalars", path, 1, 1, "0", 1, seq, seq, str(seq))


def test_a_damaged_file_is_left_alone_and_told(local):
    write(local, 8, every=4)
    entry = live(local, "scalars")[0]
    lakes.flip(local, entry.path, entry.bytes // 2)
    done = compact(local, tables=["scalars"])
    assert len(live(local, "scalars")) == 5
    assert entry.path in str(done) and "left 1 group alone" in str(done)


def test_rows_that_came_out_different_are_not_committed(local, monkeypatch):
    write(local, 8, every=4)
    before = live_files(local)
    real = merge.PartitionFiles.write

    def faulty(self, rows):
        column = "value" if "value" in rows.column_names else "frobenius_norm"
        real(self, lakes.set_column(rows, column, [1.5] * len(rows)))

    monkeypatch.setattr(merge.PartitionFiles, "write", faulty)
    with pytest.raises(CorruptError, match="would have changed"):
        compact(local)
    monkeypatch.setattr(merge.PartitionFiles, "write", real)
    assert live_files(local) == before
    assert kinds(local) == []


def test_the_fingerprint_sees_bits_and_not_order():
    rows = scalars(3, rows=7)
    same = rows.take(pa.array([4, 2, 0, 1, 6, 5, 3]))
    assert merge.fingerprint(rows, SCALARS.primary_key) == merge.fingerprint(
        pa.concat_tables([same.slice(0, 2), same.slice(2)]), SCALARS.primary_key
    )
    values = rows["value"].to_numpy().copy()
    values.view(np.uint64)[0] ^= 1  # the payload of a NaN
    changed = rows.set_column(3, rows.schema.field("value"), pa.array(values, from_pandas=False))
    other = rows.slice(1)
    nulled = rows.set_column(4, rows.schema.field("extra"), pa.array([""] * 7))
    prints = [merge.fingerprint(r, SCALARS.primary_key) for r in (rows, changed, other, nulled)]
    assert len(set(prints)) == 4


@pytest.mark.parametrize("name", sorted(schema.tables()))
def test_the_fingerprint_knows_every_type(name):
    empty = schema.table(name).arrow.empty_table()
    assert merge.fingerprint(empty, schema.table(name).primary_key)


def test_readers_of_an_older_snapshot_go_on(local):
    write(local)
    snapshot = Snapshot.take(local)
    compact(local)
    gc(local)
    assert snapshot.read("scalars").num_rows == 12
    gc(local, older_than=-1)
    assert len(list(local.paths("scalars"))) == 3
    assert kinds(local) == []


def test_two_at_once_are_refused(local):
    write(local)
    with Stream(local, "derive.r.upkeep"):
        with pytest.raises(LeaseError, match="upkeep of run 'r' is held"):
            compact(local, run="r")
        assert "upkeep of run 'r'" in compact(local).skipped[0]
    assert len(live(local, "scalars")) == 12


def test_a_run_that_trains_meanwhile(local):
    stop = threading.Event()
    failures: list[BaseException] = []

    def train() -> None:
        try:
            with Stream(local, "train.r") as stream:
                for step in range(1, 80):
                    commit(stream, step, checkpoint=step % 10 == 9)
        except BaseException as error:
            failures.append(error)
        stop.set()

    with Stream(local, "train.r") as stream:
        commit(stream, 0)
    thread = threading.Thread(target=train)
    thread.start()
    n_merged = 0
    while not stop.is_set():
        n_merged += compact(local).n_before
        steps = Snapshot.take(local).read("scalars")["global_step"].to_pylist()
        assert sorted(steps) == list(range(len(steps)))
    thread.join()
    assert failures == []
    compact(local)
    assert n_merged > 0
    assert len(live(local, "scalars")) == 8
    assert set(kinds(local)) == {"file.removed"}


@pytest.mark.parametrize("order", ["withdrawn first", "merged first"])
def test_a_resume_that_races_a_merge_loses_and_revives_nothing(local, monkeypatch, order):
    """Both look at the same moment; whoever commits second knows nothing of the first."""
    write(local, 8, every=4)
    with Stream(local, "train.r") as stream:
        for step in range(8, 11):
            commit(stream, step)
    later = [e for name in ("scalars", "tensor_stats") for e in live(local, name, steps=[8, 9, 10])]

    def resume() -> None:
        take_away(local, later, "train.r", withdraw=True)

    if order == "merged first":
        compact(local)
        resume()
    else:
        real = module._commit

        def late(transaction, pending, done, report):
            if pending:
                resume()
            return real(transaction, pending, done, report)

        monkeypatch.setattr(module, "_commit", late)
        monkeypatch.setattr(module, "_COMMIT_FILES", 1000)
        compact_once(local)
    steps = Snapshot.take(local).read("scalars")["global_step"].to_pylist()
    assert sorted(steps) == list(range(8))
    with Stream(local, "train.r") as stream:
        commit(stream, 8)
    monkeypatch.undo()
    compact(local)
    for name in ("scalars", "tensor_stats"):
        assert sorted(Snapshot.take(local).read(name)["global_step"].to_pylist()) == list(range(9))
    gc(local, older_than=-1)
    assert kinds(local) == []


def compact_once(storage: Storage) -> None:
    """Merge until the first commit, so that a race is met once."""
    real = module.plan
    calls = iter([real, real])

    def once(*arguments):
        return next(calls, lambda *_: iter(()))(*arguments)

    module.plan, kept = once, module.plan
    try:
        compact(storage)
    finally:
        module.plan = kept


def test_a_kill_at_each_commit_leaves_a_valid_lake(local, monkeypatch):
    write(local, 24, every=4)
    before = answers(local)
    monkeypatch.setattr(module, "_COMMIT_FILES", 2)
    put_new = Storage.put_new
    survived = 0
    while True:
        copied = lakes.copy(local.folder, local.folder.parent / f"copy-{survived}")
        count = 0

        def killed(self, path, data, limit=survived):
            nonlocal count
            if path.startswith("_log/") and count == limit:
                raise KeyboardInterrupt
            count += path.startswith("_log/")
            return put_new(self, path, data)

        monkeypatch.setattr(Storage, "put_new", killed)
        try:
            compact(copied)
        except KeyboardInterrupt:
            monkeypatch.setattr(Storage, "put_new", put_new)
            assert answers(copied) == before
            assert all(not kind.startswith("history") for kind in kinds(copied))
            compact(copied)
            assert answers(copied) == before
            assert len(live(copied, "scalars")) == 6
            survived += 1
            continue
        break
    assert survived == 6


@pytest.mark.parametrize("step", [pytest.param(0, marks=pytest.mark.slow), 3])
def test_a_resumed_run_is_the_same_with_and_without_a_merge(trained, tmp_path, step):
    """From each checkpoint: withdrawn rows, derived ones included, and what is trained anew."""
    from pico.api import Lake

    plain, merged = (Lake(lakes.copy(trained, tmp_path / name).url) for name in ("a", "b"))
    files = Snapshot.take(merged.storage).all_files()
    done = merged.compact()
    assert {"scalars", "batches", "tensor_stats", "metrics"} <= {m.table for m in done.merges}
    assert len(Snapshot.take(merged.storage).all_files()) < len(files)
    assert_same(plain, merged)
    for lake in (plain, merged):
        lake.train(lakes.config(trained), "tiny", resume=step)
    assert_same(plain, merged)
    merged.compact()
    merged.gc(0.0)
    assert_same(plain, merged)
    assert set(kinds(plain.storage)) == {"file.removed"}
    assert set(kinds(merged.storage, deep=True)) <= {"file.removed"}


def assert_same(one: Any, other: Any) -> None:
    tiny.assert_same_run(one.storage.url, other.storage.url, "tiny")
    rows = [tiny.rows(lake.storage.url, "metrics", "tiny") for lake in (one, other)]
    assert rows[0] and rows[0] == rows[1]
