"""Notes in the log: asking again reads the log alone, and no note outlives what it is about."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pico.compute import covers, materialize
from pico.lake import table
from pico.lake.codec import Tensor
from pico.lake.commit import Stream
from pico.lake.groups import GroupReader
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from pico.lake.table import TensorRow, write_tensors
from pico.upkeep import compact
from tests.lake.counting import CountingStorage
from tests.sql import small_lake as lake

ASKED = "gini,per"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The data files that are opened."""
    paths: list[str] = []
    real = Storage.open

    def counting(self: Storage, path: str, size: int | None = None) -> Any:
        paths.append(path)
        return real(self, path, size)

    monkeypatch.setattr(Storage, "open", counting)
    return paths


def write(storage: Storage, run: str, step: int, seed: int = 7) -> None:
    array = np.random.default_rng(seed).standard_normal((3, 3), dtype=np.float32)
    with Stream(storage, f"train.{run}") as stream:
        transaction = stream.begin()
        rows = [TensorRow({"name": "w"}, Tensor.of(array))]
        write_tensors(transaction, "weights", {"run": run, "step": step}, rows)
        transaction.commit()


def withdraw(storage: Storage, table: str, **which: Any) -> None:
    with Stream(storage, "train.first") as stream:
        transaction = stream.begin()
        transaction.take_away(Snapshot.take(storage).files(table, **which), withdraw=True)
        transaction.commit()


def test_asking_again_opens_no_data_file(
    new_lake: Callable[..., Storage], opened: list[str]
) -> None:
    storage = new_lake("lake", "first", "second")
    first = materialize.compute(storage, metrics=ASKED)
    pairs = materialize.compute(storage, metrics="cka", reference_step="last")
    opened.clear()
    again = materialize.compute(storage, metrics=ASKED)
    assert (again.computed, again.reused, again.skipped) == (0, 0, first.skipped)
    assert again.present == first.computed + first.reused
    assert materialize.compute(storage, metrics="per").present == 2 * 9
    once_more = materialize.compute(storage, metrics="cka", reference_step="last")
    assert (once_more.present, once_more.skipped) == (pairs.computed, pairs.skipped)
    assert materialize.compute(storage, metrics=ASKED, dry_run=True) == again
    assert opened == []
    assert materialize.compute(storage, metrics=ASKED, table="gradients").present == 0
    assert opened


def test_asking_again_reads_the_log_alone(new_lake: Callable[..., Storage]) -> None:
    storage = CountingStorage(str(new_lake().folder))
    materialize.compute(storage, metrics=ASKED)
    n_commits = len(storage.paths("_log"))
    storage.reset()
    materialize.compute(storage, metrics=ASKED)
    assert storage.counts["read"] <= n_commits
    assert not set(storage.counts) & {"open", "put", "put_new", "create", "delete"}


def test_notes_of_several_calls_add_up(new_lake: Callable[..., Storage], opened: list[str]) -> None:
    storage = new_lake()
    materialize.compute(storage, metrics="gini")
    materialize.compute(storage, metrics="per")
    opened.clear()
    assert materialize.compute(storage, metrics=ASKED).present == 12 + 9
    assert opened == []
    assert materialize.compute(storage, metrics="gini,hoyer").computed == 10


def test_a_new_step_is_found(new_lake: Callable[..., Storage]) -> None:
    storage = new_lake()
    materialize.compute(storage, metrics=ASKED)
    write(storage, "first", 9)
    assert materialize.compute(storage, metrics=ASKED).computed == 2
    assert materialize.compute(storage, metrics=ASKED).present == 12 + 9 + 2


def test_a_step_that_was_replaced_is_found(new_lake: Callable[..., Storage]) -> None:
    storage = new_lake()
    materialize.compute(storage, metrics=ASKED)
    withdraw(storage, "weights", steps=[5])
    write(storage, "first", 5)
    assert materialize.compute(storage, metrics=ASKED).computed == 2


@pytest.mark.parametrize("is_last", [True, False])
def test_kept_values_that_were_taken_away_are_computed_anew(
    new_lake: Callable[..., Storage], monkeypatch: pytest.MonkeyPatch, is_last: bool
) -> None:
    """Whether the file with the note went, or one of those before it."""
    storage = new_lake()
    monkeypatch.setattr(materialize, "BATCH_ROWS", 4)
    done = materialize.compute(storage, metrics=ASKED)
    files = Snapshot.take(storage).files("metrics")
    assert len(files) > 2 and sum(covers._read(entry) is not None for entry in files) == 1
    gone = next(e for e in files if (covers._read(e) is not None) == is_last)
    with Stream(storage, "derive.first.upkeep") as stream:
        transaction = stream.begin()
        transaction.take_away([gone], withdraw=False)
        transaction.commit()
    again = materialize.compute(storage, metrics=ASKED)
    assert again.computed + again.reused == gone.rows
    assert again.present == done.computed + done.reused - gone.rows


def test_a_reference_that_trained_on_is_found(new_lake: Callable[..., Storage]) -> None:
    storage = new_lake("lake", "first", "second")

    def ask() -> int:
        return materialize.compute(
            storage, "second", "cka", reference_run="first", reference_step=5
        ).computed

    assert (ask(), ask()) == (9, 0)
    withdraw(storage, "weights", runs=["first"], steps=[5])
    name = lake.WEIGHTS[0][0]
    with Stream(storage, "train.first") as stream:
        transaction = stream.begin()
        row = TensorRow({"name": name}, Tensor.of(np.eye(6, 4, dtype=np.float32)))
        write_tensors(transaction, "weights", {"run": "first", "step": 5}, [row])
        transaction.commit()
    assert (ask(), ask()) == (3, 0)
    rows = Snapshot.take(storage).read("metrics").to_pylist()
    # The values of the tensors that stood there before are gone.
    assert {row["name"] for row in rows} == {name} and len(rows) == 3


def test_a_compacted_lake_is_looked_at(new_lake: Callable[..., Storage]) -> None:
    storage = new_lake()
    materialize.compute(storage, metrics="gini")
    materialize.compute(storage, metrics="per")
    compact.compact(storage, tables=["metrics"])
    assert len(Snapshot.take(storage).files("metrics")) == 1
    done = materialize.compute(storage, metrics=ASKED)
    assert (done.computed, done.reused, done.present) == (0, 0, 12 + 9)


@pytest.mark.parametrize(
    "damage",
    [
        lambda noted: "{",
        lambda noted: json.dumps({"covers": 1}),
        lambda noted: json.dumps({"covers": {**noted, "metrics": [["gini", None, 1, 0]]}}),
        lambda noted: json.dumps({"covers": {**noted, "state": "other"}}),
        lambda noted: json.dumps({"covers": {"state": noted["state"]}}),
    ],
)
def test_a_damaged_note_is_no_note(
    new_lake: Callable[..., Storage],
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[dict[str, Any]], str],
) -> None:
    storage = new_lake()
    real = covers.note
    monkeypatch.setattr(covers, "note", lambda *a: damage(json.loads(real(*a))["covers"]))
    materialize.compute(storage, metrics=ASKED)
    done = materialize.compute(storage, metrics=ASKED)
    assert (done.computed, done.reused, done.present) == (0, 0, 12 + 9)


def test_planning_reads_no_value(
    new_lake: Callable[..., Storage], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither is a row group read, nor is a value column among those that a plan asks for."""
    storage = new_lake("lake", "first", "second")

    def refuse(*_: Any) -> None:
        raise AssertionError("a value was read")

    monkeypatch.setattr(GroupReader, "_group", refuse)
    asked: list[list[str] | None] = []

    read = table.OpenFile.read

    def noting(self: Any, columns: Any = None) -> Any:
        if self.entry.table == "weights":
            asked.append(columns)
        return read(self, columns)

    monkeypatch.setattr(table.OpenFile, "read", noting)
    done = materialize.compute(storage, metrics=ASKED, dry_run=True)
    assert len(done.lacks) == 2 and len(asked) == 2 * len(lake.STEPS)
    for columns in asked:
        assert columns is not None and not {"value", "raw"} & set(columns)
