from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pico import schema
from pico.errors import NotALakeError, RunNameError, SchemaError
from pico.lake import log, table
from pico.lake.commit import Stream
from pico.lake.log import Entry
from pico.lake.snapshot import Snapshot, partition
from pico.lake.storage import Storage
from tests.lake.counting import CountingStorage
from tests.lake.steps import add_step, commit_step, steps


@pytest.fixture
def two_runs(storage):
    for run in ("r", "rr"):
        with Stream(storage, f"train.{run}") as stream:
            transaction = stream.begin()
            for step in (0, 3, 40):
                add_step(transaction, step, run)
            transaction.commit()
    return storage


def test_no_lake_no_snapshot(storage):
    with pytest.raises(
        NotALakeError, match=r"no lake at .*; make one with pico train or pico demo"
    ):
        Snapshot.take(storage)
    assert Snapshot.take_or_empty(storage).all_files() == []
    assert Snapshot.take_or_empty(storage).runs() == []


def test_files_are_narrowed_by_run_and_step(two_runs):
    snapshot = Snapshot.take(two_runs)
    assert snapshot.runs() == ["r", "rr"]
    assert len(snapshot.all_files()) == 12
    assert len(snapshot.files("weights")) == 6
    (file,) = snapshot.files("weights", runs=["r"], steps=[3])
    assert partition(file.path) == {"run": "r", "step": "3"}
    assert len(snapshot.files("scalars", runs=["r"], steps=[0, 40])) == 2
    assert snapshot.files("weights", steps=[1]) == []
    assert snapshot.files("weights", runs=[]) == []
    assert snapshot.files("gradients") == []


def test_tables_without_runs_or_steps_are_not_narrowed(storage):
    with Stream(storage, "data.d") as stream:
        transaction = stream.begin()
        _, sink = transaction.create("sequences/dataset=d")
        sink.write(b"x")
        sink.finish()
        path = next(iter(transaction._sinks))
        transaction.add(Entry("add", "sequences", path, 0, 1, "", 1, None, None, ""))
        transaction.commit()
    snapshot = Snapshot.take(storage)
    assert len(snapshot.files("sequences", runs=["r"], steps=[5])) == 1
    assert snapshot.runs() == []


def test_rows_are_narrowed_by_step_within_a_file(storage):
    rows = {"run_id": ["r"] * 4, "global_step": [0, 1, 2, 3], "name": ["loss"] * 4}

    with Stream(storage, "train.r") as stream:
        transaction = stream.begin()
        batch = schema.table("scalars").batch({**rows, "value": [0.0, 1.0, 2.0, 3.0]})
        table.write_rows(transaction, "scalars", {"run": "r"}, batch)
        transaction.commit()
    snapshot = Snapshot.take(storage)
    assert snapshot.read("scalars", ["value"], steps=[1, 3])["value"].to_pylist() == [1.0, 3.0]
    assert snapshot.read("scalars", steps=[7]).num_rows == 0
    assert snapshot.read("scalars", ["value"]).column_names == ["value"]


def test_a_table_without_rows_has_its_columns(two_runs):
    rows = Snapshot.take(two_runs).read("metrics")
    assert rows.num_rows == 0
    assert rows.schema.equals(schema.table("metrics").arrow)


def test_an_unknown_table_is_named(two_runs):
    with pytest.raises(SchemaError, match=r"no table 'weight'. Did you mean 'weights'\?"):
        Snapshot.take(two_runs).files("weight")


def test_an_unknown_run_is_named(two_runs):
    snapshot = Snapshot.take(two_runs)
    assert snapshot.check_run("rr") == "rr"
    with pytest.raises(RunNameError, match=r"no run 'rrr' in .*Did you mean 'rr'\? Runs: r, rr"):
        snapshot.check_run("rrr")


def test_tensors_of_one_step(two_runs):
    snapshot = Snapshot.take(two_runs)
    (row,) = snapshot.tensors("weights", "rr", 40)
    assert row.keys["run_id"] == "rr"
    assert np.array_equal(row.tensor.to_numpy(), np.full(3, 40, np.float32))
    assert list(snapshot.tensors("weights", "rr", 41)) == []


def old_files(entries, table, runs, steps):
    """What `Snapshot.files` returns, in plain Python."""
    gone = {entry.path for entry in entries if entry.action != "add"}
    for entry in entries:
        if entry.action != "add" or entry.path in gone or entry.table != table:
            continue
        if runs is not None and partition(entry.path).get("run") not in (*runs, None):
            continue
        span = entry.min_step, entry.max_step
        if steps is None or None in span or any(span[0] <= step <= span[1] for step in steps):
            yield entry


RUNS = ["r", "rr", "r.2", "run"]
FOLDERS = ["weights/run={run}/step={step}", "weights_dense/run={run}", "weights/dataset=d"]


@st.composite
def random_entries(draw, action):
    run, step = draw(st.sampled_from(RUNS)), draw(st.integers(0, 9))
    folder = draw(st.sampled_from(FOLDERS)).format(run=run, step=step)
    low = draw(st.none() | st.integers(0, 9))
    high = draw(st.none() | st.integers(low or 0, 12))
    path = f"{folder}/{draw(st.integers(0, 30))}.parquet"
    table = draw(st.sampled_from(["weights", "scalars"]))
    return Entry(action, table, path, 1, 1, "", 1, low, high, "t", None)


some_steps = st.none() | st.lists(st.integers(-2, 14), max_size=4) | st.just(range(20))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from(["add", "add", "add", "remove"]).flatmap(random_entries), max_size=25),
    st.none() | st.lists(st.sampled_from([*RUNS, "rrr", "r*"]), max_size=3),
    some_steps,
)
def test_files_are_narrowed_as_a_plain_loop_does(entries, runs, steps):
    snapshot = Snapshot(Storage("memory://unused"), entries)
    for table_name in ("weights", "scalars", "gradients"):
        expected = list(old_files(entries, table_name, runs, steps))
        assert snapshot.files(table_name, runs, steps) == expected
    everything = [e for e in entries if e in [*old_files(entries, e.table, None, None)]]
    assert snapshot.all_files() == everything
    added = [entry for entry in entries if entry.action == "add"]
    assert snapshot.taken_away() == [entry for entry in added if entry not in everything]
    runs_there = {partition(entry.path).get("run") for entry in everything}
    assert snapshot.runs() == sorted(run for run in runs_there if run)


def test_a_file_of_an_unknown_version_is_refused_when_its_table_is_asked_for(two_runs):
    entries = log.LogReader(two_runs).entries()
    newer = [replace(e, schema_version=9) if e.table == "weights" else e for e in entries]
    snapshot = Snapshot(two_runs, newer)
    assert len(snapshot.files("scalars")) == 6
    first = next(entry.path for entry in newer if entry.table == "weights")
    with pytest.raises(SchemaError, match=rf"{first} has schema version 9 of table weights"):
        snapshot.files("weights", runs=["rr"])


def test_a_folder_without_commits_is_no_lake(local):
    local.put(".leases/train.r/00000001.json", b"{}")
    with pytest.raises(NotALakeError):
        Snapshot.take(local)


def test_a_snapshot_lists_the_log_once(two_runs):
    counting = CountingStorage(two_runs.url)
    Snapshot.take(counting).files("weights")
    assert counting.counts == {"paths": 1, "read": 2}


def test_a_reader_used_again_reads_only_what_is_new(storage, monkeypatch):
    reader = log.LogReader(storage)
    read, n_reads = storage.read, []
    monkeypatch.setattr(storage, "read", lambda path: n_reads.append(path) or read(path))
    with Stream(storage, "train.r") as stream:
        for step in range(3):
            commit_step(stream, step)
            n_reads.clear()
            snapshot = Snapshot.take(storage, reader)
            assert [path for path in n_reads if path.startswith("_log")] == [
                log.commit_path("train.r", step)
            ]
            assert len(snapshot.files("scalars")) == step + 1
    assert steps(storage) == ([0, 1, 2], [0, 1, 2])
