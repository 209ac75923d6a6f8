"""A copied run has the rows, tensors and checkpoints of the source, whatever stopped it."""

from __future__ import annotations

import random
import shutil
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pico import schema
from pico.errors import (
    ConfigError,
    CorruptError,
    DataError,
    LeaseError,
    NotALakeError,
    RunNameError,
    StorageError,
)
from pico.lake.commit import Stream
from pico.lake.local import files_below
from pico.lake.log import LogReader
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from pico.lake.table import write_rows
from pico.upkeep import copyplan
from pico.upkeep.compact import compact
from pico.upkeep.copy import copy
from pico.upkeep.merge import fingerprint
from pico.upkeep.remove import remove
from pico.upkeep.verify import verify
from tests.upkeep import lakes

NAMING = {"run_id", "ref_run", "run_uuid", "extra"}


@pytest.fixture(params=["local", "memory"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    if request.param == "local":
        return Storage(str(tmp_path / "target"))
    found: Storage = request.getfixturevalue("memory")
    return found


@pytest.fixture
def local_target(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path / "target"))


def contents(storage: Storage, run: str | None = None, named: bool = True) -> dict[str, str]:
    """Return a hash of the rows of every table, by the bits of their values."""
    snapshot = Snapshot.take(storage)
    found = {}
    for name, spec in schema.tables().items():
        runs = [run] if run and spec.partition[0] == "run" else None
        rows = snapshot.read(name, runs=runs)
        if rows.num_rows:
            keys = spec.primary_key
            if not named:
                rows = rows.drop_columns([c for c in rows.column_names if c in NAMING])
                keys = tuple(key for key in keys if key not in NAMING)
            found[name] = fingerprint(rows, keys or rows.column_names[:1])
    return found


def assert_equal(source: Storage, target: Storage) -> None:
    assert contents(target) == contents(source)
    report = verify(target, deep=True)
    assert report.is_sound, str(report)


class Stopped(BaseException):
    pass


def stopping(monkeypatch: pytest.MonkeyPatch, url: str, left: list[int], error: Any) -> None:
    """Let the writes of one lake fail after some, files that are published included."""
    from pico.lake.sink import LocalSink, ObjectSink

    def counted(owner: type, name: str) -> Any:
        original = getattr(owner, name)

        def call(self: Any, *args: Any) -> Any:
            if not isinstance(self, Storage) or self.url == url:
                left[0] -= 1
                if left[0] < 0:
                    raise error
            return original(self, *args)

        return call

    for owner, names in (
        (Storage, ("put_new", "create")),
        (LocalSink, ("write", "finish", "publish")),
        (ObjectSink, ("publish",)),
    ):
        for name in names:
            monkeypatch.setattr(owner, name, counted(owner, name))


def test_copy_has_equal_rows_tensors_and_checkpoints(lake: Storage, target: Storage) -> None:
    seen: list[tuple[int, int]] = []
    told = copy(lake, target, progress=lambda done, total: seen.append((done, total)))
    assert_equal(lake, target)
    assert told.runs == ("tiny",)
    assert told.files == len(Snapshot.take(lake).all_files())
    assert seen == sorted(seen) and seen[-1] == (told.bytes, told.bytes)
    assert {e.hash for e in Snapshot.take(target).all_files()} == {
        e.hash for e in Snapshot.take(lake).all_files()
    }


def test_second_copy_writes_nothing(lake: Storage, target: Storage) -> None:
    copy(lake, target)
    before = [file.path for file in target.list("")]
    told = copy(lake, target)
    assert told.files == 0 and "nothing to copy" in str(told)
    assert [file.path for file in target.list("")] == before


def test_dry_run_writes_nothing(lake: Storage, target: Storage) -> None:
    told = copy(lake, target, dry_run=True)
    assert told.files == len(Snapshot.take(lake).all_files()) and told.datasets
    assert target.list("") == []


def checkpoint_tail(storage: Storage, run: str, step: int) -> set[tuple[str, int | None]]:
    """Return which tables and steps stand after a checkpoint in the log."""
    own = LogReader(storage).stream(f"train.{run}")
    live = {entry.path for entry in Snapshot.take(storage).all_files()}
    at = [e.txn for e in own if e.table == "checkpoints" and e.max_step == step and e.path in live]
    last = max(index for index, entry in enumerate(own) if entry.txn == at[-1])
    later = [e for e in own[last + 1 :] if e.action == "add" and e.path in live]
    return {(entry.table, entry.max_step) for entry in later}


def test_commits_are_cut_at_checkpoints(lake: Storage, target: Storage) -> None:
    copy(lake, target)
    for step in (0, 3, 6):
        assert checkpoint_tail(target, "tiny", step) == checkpoint_tail(lake, "tiny", step)


def _resume(storage: Storage, step: int) -> None:
    from pico.record import runs

    stream, *_ = runs.open_stream(storage, "tiny", step)
    stream.close()


def test_resuming_the_copy_withdraws_what_it_would_in_the_source(
    lake: Storage, local_target: Storage
) -> None:
    copy(lake, local_target)
    _resume(lake, 3)
    _resume(local_target, 3)
    assert contents(local_target) == contents(lake)


def test_a_source_that_was_resumed_withdraws_in_the_target(lake: Storage, target: Storage) -> None:
    copy(lake, target)
    before = len(Snapshot.take(target).all_files())
    _resume(lake, 3)
    told = copy(lake, target)
    assert told.withdrawn - told.files == before - len(Snapshot.take(lake).all_files()) > 0
    assert_equal_rows(lake, target)


def assert_equal_rows(source: Storage, target: Storage) -> None:
    assert contents(target) == contents(source)
    kinds = {f.kind for f in verify(target, deep=True).errors}
    assert kinds <= {"history.missing"}  # the source lacks what its plan says, so does the copy


def test_a_source_that_goes_on_is_brought_up_to_date(local: Storage, target: Storage) -> None:
    lakes.weights(local, {0: {"w": [1.0]}, 1: {"w": [2.0]}}, {0: 0.1})
    copy(local, target)
    lakes.weights(local, {2: {"w": [3.0]}}, {1: 0.1})
    assert copy(local, target).files == 2
    assert contents(target) == contents(local)


def test_compacting_the_source_after_a_copy_copies_nothing(lake: Storage, target: Storage) -> None:
    copy(lake, target)
    assert compact(lake).merges
    assert copy(lake, target).files == 0
    assert contents(target) == contents(lake)


def test_a_compacted_source_is_copied_in_its_place(lake: Storage, local_target: Storage) -> None:
    tails = {step: checkpoint_tail(lake, "tiny", step) for step in (0, 3, 6)}
    compact(lake)
    copy(lake, local_target)
    assert_equal(lake, local_target)
    for step, tail in tails.items():
        found = checkpoint_tail(local_target, "tiny", step)
        assert {name for name, _ in found} == {name for name, _ in tail}
    _resume(local_target, 3)
    steps = Snapshot.take(local_target).read("scalars")["global_step"].to_pylist()
    assert max(steps) == 2


def test_compacted_together_with_what_is_new(local: Storage, target: Storage) -> None:
    lakes.weights(local, {0: {"w": [1.0]}}, {0: 0.1})
    lakes.weights(local, {1: {"w": [2.0]}}, {1: 0.1})
    copy(local, target)
    lakes.weights(local, {2: {"w": [3.0]}}, {2: 0.1})
    assert compact(local).merges
    copy(local, target)
    assert contents(target) == contents(local)
    assert copy(local, target).files == 0


def test_what_was_taken_away_is_not_copied(lake: Storage, target: Storage) -> None:
    _resume(lake, 3)
    remove(lake, "tiny", dry_run=True)
    gone = {entry.hash for entry in Snapshot.take(lake).taken_away()}
    copy(lake, target)
    kept = {entry.hash for entry in Snapshot.take(lake).all_files()}
    assert not (gone - kept) & {e.hash for e in LogReader(target).entries()}


def test_a_removed_copy_can_be_copied_again(lake: Storage, target: Storage) -> None:
    copy(lake, target)
    remove(target, "tiny")
    assert copy(lake, target).files
    assert_equal(lake, target)


def test_under_another_name_it_is_another_run(lake: Storage, target: Storage) -> None:
    told = copy(lake, target, runs=["tiny"], as_name="twin")
    assert told.runs == ("twin",)
    assert contents(target, "twin", named=False) == contents(lake, "tiny", named=False)
    assert verify(target, deep=True).is_sound
    snapshot = Snapshot.take(target)
    ours, theirs = (Snapshot.take(s).read("runs").to_pylist()[0] for s in (target, lake))
    assert ours["run_id"] == "twin" and ours["run_uuid"] != theirs["run_uuid"]
    assert theirs["run_uuid"] in ours["extra"] and ours["parent_run"] == theirs["parent_run"]
    for name, spec in schema.tables().items():
        if spec.partition[0] == "run" and snapshot.files(name):
            assert set(snapshot.read(name, ["run_id"])["run_id"].to_pylist()) == {"twin"}
    assert copy(lake, target, runs=["tiny"], as_name="twin").files == 0


def test_under_another_name_in_the_same_lake(lake: Storage) -> None:
    before = contents(lake, "tiny")
    n_data = len(Snapshot.take(lake).files("sequences"))
    copy(lake, lake, runs=["tiny"], as_name="twin")
    assert contents(lake, "tiny") == before
    assert len(Snapshot.take(lake).files("sequences")) == n_data
    assert contents(lake, "twin", named=False) == contents(lake, "tiny", named=False)
    assert verify(lake, deep=True).is_sound
    assert checkpoint_tail(lake, "twin", 3) == checkpoint_tail(lake, "tiny", 3)


def run_row(storage: Storage, run: str, run_uuid: str) -> None:
    with Stream(storage, f"train.{run}") as stream:
        transaction = stream.begin()
        row = {"run_id": [run], "run_uuid": [run_uuid], "created_at": [pa.scalar(0).as_py()]}
        write_rows(transaction, "runs", {"run": run}, schema.table("runs").batch(row))
        transaction.commit()


def test_merging_refuses_equal_names_of_different_runs(local: Storage, target: Storage) -> None:
    for name in ("first", "Second", "third"):
        run_row(local, name, f"a-{name}")
    run_row(target, "first", "b-first")
    run_row(target, "second", "b-second")
    before = [file.path for file in target.list("")]
    with pytest.raises(
        RunNameError, match=r"'Second' differs from 'second'.*'first' is another run"
    ):
        copy(local, target)
    assert [file.path for file in target.list("")] == before
    copy(local, target, runs=["third"])
    copy(local, target, runs=["first"], as_name="first-2")
    assert Snapshot.take(target).runs() == ["first", "first-2", "second", "third"]


def data_set(storage: Storage, name: str, fingerprint: str) -> None:
    with Stream(storage, f"data.{name}") as stream:
        transaction = stream.begin()
        row = {
            "dataset_id": [name],
            "n_sequences": [1],
            "seq_len": [1],
            "fingerprint": [fingerprint],
        }
        write_rows(transaction, "datasets", {"dataset": name}, schema.table("datasets").batch(row))
        transaction.commit()


@pytest.mark.parametrize("theirs", ["same", "other"])
def test_data_sets_of_one_name(local: Storage, target: Storage, theirs: str) -> None:
    run_row(local, "r", str(uuid.uuid4()))
    with Stream(local, "train.r") as stream:
        transaction = stream.begin()
        row = {"run_id": ["r"], "global_step": [0], "rank": [0], "micro_step": [0], "position": [0]}
        row |= {"dataset": ["d"], "sequence_id": [0]}
        write_rows(transaction, "batches", {"run": "r"}, schema.table("batches").batch(row))
        transaction.commit()
    data_set(local, "d", "same")
    data_set(target, "d", theirs)
    if theirs == "same":
        copy(local, target)
        assert len(Snapshot.take(target).files("datasets")) == 1
    else:
        with pytest.raises(DataError, match="data set 'd' has another fingerprint"):
            copy(local, target)
        assert Snapshot.take(target).runs() == []


def test_a_run_that_went_on_in_the_target_is_not_overwritten(
    local: Storage, target: Storage
) -> None:
    run_row(local, "r", "u")
    copy(local, target)
    lakes.weights(target, {0: {"w": [5.0]}})
    with pytest.raises(RunNameError, match="was changed in"):
        copy(local, target)
    copy(target, local)  # the way back: what went on elsewhere comes home
    assert contents(local) == contents(target)


def test_a_second_copier_gets_the_lease_error(local: Storage, target: Storage) -> None:
    run_row(local, "r", "u")
    with Stream(target, "train.r"), pytest.raises(LeaseError, match="is held by process"):
        copy(local, target)


def test_refusals(local: Storage, target: Storage) -> None:
    with pytest.raises(NotALakeError):
        copy(local, target)
    run_row(local, "first", "u")
    run_row(local, "second", "v")
    with pytest.raises(ConfigError, match="one run can be copied as 'x'"):
        copy(local, target, as_name="x")
    with pytest.raises(RunNameError, match="Did you mean 'first'"):
        copy(local, target, runs=["frst"])
    with pytest.raises(RunNameError, match="cannot name a run"):
        copy(local, target, runs=["first"], as_name="nan")


@pytest.mark.parametrize("as_name", [None, "twin"])
def test_a_damaged_file_is_not_copied(lake: Storage, target: Storage, as_name: str | None) -> None:
    lakes.flip(lake, lakes.live(lake, "weights")[0].path, 100)
    with pytest.raises(CorruptError, match="is damaged"):
        copy(lake, target, as_name=as_name)
    assert verify(target).is_sound or Snapshot.take(target).runs() == []


@pytest.mark.slow
@pytest.mark.parametrize("as_name", [None, "twin"])
def test_stopped_at_random_writes_and_called_again(
    lake: Storage, target: Storage, as_name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    random_steps = random.Random(7)
    monkeypatch.setattr(copyplan, "GROUP_COMMITS", 1)
    most = 200 if target.folder is not None else 80  # operations: no staging in memory
    n_stopped = 0
    while True:
        left = [random_steps.randrange(30, most + 60 * n_stopped)]  # in the end it gets through
        with monkeypatch.context() as patch:
            stopping(patch, target.url, left, Stopped())
            try:
                copy(lake, target, as_name=as_name)
                break
            except Stopped:
                n_stopped += 1
        if target.paths("_log"):
            kinds = {finding.kind for finding in verify(target).errors}
            assert kinds <= {"history.missing"}, str(verify(target))
            assert_prefix(lake, target, as_name or "tiny")
    assert n_stopped
    assert contents(target, as_name or "tiny", named=False) == contents(lake, "tiny", named=False)
    assert verify(target, deep=True).is_sound


def assert_prefix(source: Storage, target: Storage, name: str) -> None:
    """Whatever commit of the source shows, shows as a whole, and no later one without it."""
    there = [entry.rows for entry in _train(target, name)]
    assert there == [entry.rows for entry in _train(source, "tiny")][: len(there)]


def _train(storage: Storage, run: str) -> list[Any]:
    live = {entry.path for entry in Snapshot.take(storage).all_files()}
    stream = [e for e in LogReader(storage).stream(f"train.{run}") if e.path in live]
    order = {txn: index for index, txn in enumerate(dict.fromkeys(e.txn for e in stream))}
    return sorted(stream, key=lambda e: (order[e.txn], e.table, e.min_step or 0, e.rows))


def test_a_full_disk_is_told_and_the_copy_goes_on(
    lake: Storage, local_target: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        full = StorageError("cannot write x: No space left on device")
        stopping(patch, local_target.url, [150], full)
        with pytest.raises(StorageError, match="No space left"):
            copy(lake, local_target)
    copy(lake, local_target)
    assert_equal(lake, local_target)


def test_a_source_that_may_not_be_written(lake: Storage, target: Storage) -> None:
    assert lake.folder is not None
    before = sorted(name for name, *_ in files_below(lake.folder, ""))
    copy(lake, target)
    assert sorted(name for name, *_ in files_below(lake.folder, "")) == before
    shutil.rmtree(lake.folder)
