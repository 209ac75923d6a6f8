"""A removed run is gone as a whole, its name is free, and nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pico import schema
from pico.errors import LeaseError, RunNameError
from pico.lake.commit import Stream
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from pico.lake.table import write_rows
from pico.upkeep.compact import compact
from pico.upkeep.gc import gc
from pico.upkeep.remove import remove
from pico.upkeep.verify import verify
from tests.upkeep import lakes


def of_run(storage: Storage, run: str) -> list[str]:
    return [e.path for e in Snapshot.take(storage).all_files() if f"/run={run}/" in e.path]


def two_runs(storage: Storage) -> None:
    for run in ("r", "other"):
        lakes.weights(storage, {0: {"w": [1.0, 2.0]}, 1: {"w": [3.0, 4.0]}}, {0: 0.1}, run)
    metrics(storage, "r")


def metrics(storage: Storage, run: str) -> None:
    with Stream(storage, f"derive.{run}.scores") as stream:
        transaction = stream.begin()
        columns: dict[str, Any] = {
            "run_id": [run],
            "global_step": [1],
            "dataset": ["d"],
            "sequence_id": [0],
            "score": ["loss"],
            "value": [1.0],
        }
        rows = schema.table("sequence_scores").batch(columns)
        write_rows(transaction, "sequence_scores", {"run": run}, rows)
        transaction.commit()


def test_takes_all_files_of_one_run_and_none_of_another(storage: Storage) -> None:
    two_runs(storage)
    mine, other = of_run(storage, "r"), of_run(storage, "other")
    told = remove(storage, "r")
    assert told.files == len(mine) == 4
    assert of_run(storage, "r") == []
    assert of_run(storage, "other") == other
    assert Snapshot.take(storage).runs() == ["other"]


def test_a_dry_run_changes_nothing(storage: Storage) -> None:
    two_runs(storage)
    before = {file.path for file in storage.list("")}
    told = remove(storage, "r", dry_run=True)
    assert told.files == 4
    assert "would remove" in str(told)
    assert {file.path for file in storage.list("")} == before


def test_name_is_free_and_nothing_of_the_old_run_shows(storage: Storage) -> None:
    two_runs(storage)
    remove(storage, "r")
    lakes.weights(storage, {5: {"w": [9.0, 9.0]}}, None, "r")
    assert len(of_run(storage, "r")) == 1
    assert Snapshot.take(storage).files("weights", ["r"])[0].min_step == 5


def test_unknown_run_is_answered_with_the_nearest_name(storage: Storage) -> None:
    two_runs(storage)
    with pytest.raises(RunNameError, match="Did you mean 'other'"):
        remove(storage, "othr")


@pytest.mark.parametrize("stream", ["train.r", "derive.r.scores"])
def test_a_live_writer_of_the_run_forbids_it(storage: Storage, stream: str) -> None:
    two_runs(storage)
    before = of_run(storage, "r")
    with Stream(storage, stream), pytest.raises(LeaseError, match=r"is held by process"):
        remove(storage, "r")
    assert of_run(storage, "r") == before
    remove(storage, "r")  # no lease was left behind


def test_gc_deletes_the_files_once_they_are_old(local: Storage) -> None:
    two_runs(local)
    compact(local, run="r")
    mine = of_run(local, "r")
    remove(local, "r")
    gc(local)
    assert [path for path in mine if local.folder and (local.folder / path).exists()] == mine
    lakes.age(local, 2 * 86_400)
    gc(local)
    assert not [path for path in mine if local.folder and (local.folder / path).exists()]
    assert verify(local).is_sound


def test_names_children_and_data_that_nobody_uses(lake: Storage) -> None:
    with Stream(lake, "train.child") as stream:
        transaction = stream.begin()
        row = Snapshot.take(lake).read("runs").to_pylist()[0]
        row |= {"run_id": "child", "run_uuid": "u", "parent_run": "tiny", "dataset": None}
        rows = schema.table("runs").batch({name: [value] for name, value in row.items()})
        write_rows(transaction, "runs", {"run": "child"}, rows)
        transaction.commit()
    dataset = Snapshot.take(lake).read("datasets")["dataset_id"].to_pylist()
    told = remove(lake, "tiny")
    assert told.children == ("child",)
    assert told.unused_datasets == tuple(sorted(dataset))
    assert sorted(Snapshot.take(lake).read("datasets")["dataset_id"].to_pylist()) == sorted(dataset)
    assert "branched from 'tiny'" in str(told)
    assert verify(lake).is_sound


def test_a_damaged_run_can_be_removed(lake: Storage) -> None:
    storage = lake
    for entry in Snapshot.take(storage).files("runs"):
        storage.put(entry.path, b"damaged")
    assert remove(storage, "tiny").files
    assert Snapshot.take(storage).runs() == []


class Stopped(BaseException):
    pass


def test_stopped_at_any_write_it_is_done_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = set()
    for stop_at in range(100):
        storage = Storage(str(tmp_path / f"lake{stop_at}"))
        two_runs(storage)
        before = of_run(storage, "r")
        left = stop_at

        def counted(name: str) -> Any:
            original = getattr(Storage, name)

            def call(self: Storage, *args: Any) -> Any:
                nonlocal left
                left -= 1
                if left < 0:
                    raise Stopped
                return original(self, *args)

            return call

        with monkeypatch.context() as patch:
            for name in ("put", "put_new", "delete", "delete_staging"):
                patch.setattr(Storage, name, counted(name))
            try:
                remove(storage, "r")
                is_stopped = False
            except Stopped:
                is_stopped = True
        now = of_run(storage, "r")
        assert now in (before, [])
        outcomes.add((is_stopped, bool(now)))
        if not is_stopped:
            break
    assert outcomes == {(True, True), (True, False), (False, False)}
