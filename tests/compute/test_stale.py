"""Metrics of a run that goes back while they are computed: one value per step of one tensor."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from pico import schema
from pico.compute import materialize, stale
from pico.lake.commit import Stream, Transaction
from pico.lake.log import LogReader
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from pico.lake.table import write_rows
from pico.record.recorder import Recorder
from pico.sql import library, session
from pico.upkeep import compact
from tests.record import loops

torch.set_num_threads(1)
FINDS = ("tensor_jumps",)
"""Queries that answer with what is unusual: other weights have more or less of it."""
RECORD = {"checkpoints": {"every": 2}, "weights": True, "gradients": True}


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    loops.train(tmp_path / "lake", 6, RECORD)
    return tmp_path / "lake"


def go_back(lake: Path, step: int, until: int = 6) -> None:
    """Go on from a checkpoint with other weights, so that every later tensor is another one."""
    torch.manual_seed(step)
    model = loops.mlp()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.7)
    optimizer = loops.sgd(model)
    with Recorder(lake, "plain", model, optimizer, RECORD, resume_from=step) as recorder:
        for number in range(step, until):
            loops.step(model, optimizer, number)
            recorder.step(loss=1.0)


def kept(lake: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = Snapshot.take(Storage(str(lake))).read("metrics").to_pylist()
    return rows


def assert_each_value_once_and_live(lake: Path, table: str = "weights") -> None:
    snapshot = Snapshot.take(Storage(str(lake)))
    live = {
        (row["global_step"], row["name"], row["content_hash"])
        for row in snapshot.read(table, ["global_step", "name", "content_hash"]).to_pylist()
    }
    rows = [row for row in kept(lake) if row["table_name"] == table]
    seen = Counter((r["global_step"], r["name"], r["metric"]) for r in rows)
    assert set(seen.values()) == {1}
    assert {(r["global_step"], r["name"], r["tensor_hash"]) for r in rows} <= live


@pytest.mark.parametrize("table", ["weights", "gradients"])
def test_a_run_that_goes_back_before_the_metrics_are_committed(
    lake: Path, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    commit, went = Transaction.commit, []

    def after_going_back(self: Transaction) -> int | None:
        if self.stream.name == "derive.plain.metrics" and not went:
            went.append(True)
            go_back(lake, 2)
        return commit(self)

    monkeypatch.setattr(Transaction, "commit", after_going_back)
    materialize.compute(Storage(str(lake)), metrics=["gini"], table=table)
    assert went
    assert_each_value_once_and_live(lake, table)
    steps = {row["global_step"] for row in kept(lake)}
    assert steps == ({0, 1, 2} if table == "weights" else {0, 1})
    materialize.compute(Storage(str(lake)), metrics=["gini"], table=table)
    assert_each_value_once_and_live(lake, table)
    assert max(row["global_step"] for row in kept(lake)) == (6 if table == "weights" else 5)


def test_what_a_killed_writer_left_is_healed_next_time(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Storage(str(lake))
    materialize.compute(storage, metrics=["gini"])
    with monkeypatch.context() as patch:  # as if the resume had not seen the metrics
        patch.setattr("pico.record.withdraw._withdraw_rows", lambda *_: None)
        go_back(lake, 2)
    assert len(kept(lake)) == 7 * 4
    with pytest.raises(AssertionError):
        assert_each_value_once_and_live(lake)
    done = materialize.compute(storage, metrics=["gini"])
    assert_each_value_once_and_live(lake)
    assert len(kept(lake)) == 7 * 4
    assert done.computed + done.reused == 4 * 4
    assert stale.heal(storage, LogReader(storage), "weights", "plain") == 0


def test_a_second_withdrawal_while_stale_rows_are_taken_away(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Storage(str(lake))
    materialize.compute(storage, metrics=["gini"])
    with monkeypatch.context() as patch:
        patch.setattr("pico.record.withdraw._withdraw_rows", lambda *_: None)
        go_back(lake, 4)
    commit, went = Transaction.commit, []

    def after_going_back(self: Transaction) -> int | None:
        if self.stream.name == "derive.plain.upkeep" and not went:
            went.append(True)
            go_back(lake, 2)
        return commit(self)

    monkeypatch.setattr(Transaction, "commit", after_going_back)
    stale.heal(storage, LogReader(storage), "weights", "plain")
    assert went
    assert_each_value_once_and_live(lake)
    assert {row["global_step"] for row in kept(lake)} == {0, 1, 2}


def test_values_of_tensors_that_the_lake_never_held_stay(lake: Path) -> None:
    storage = Storage(str(lake))
    materialize.compute(storage, metrics=["gini"])
    n = len(kept(lake))
    files = Snapshot.take(storage).files("weights")
    with Stream(storage, "train.plain") as stream:
        transaction = stream.begin()
        transaction.take_away([e for e in files if e.min_step == 6], withdraw=False)
        transaction.commit()
    assert stale.heal(storage, LogReader(storage), "gradients", "plain") == 0
    assert len(kept(lake)) == n


def test_compacted_metrics_are_healed_too(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage(str(lake))
    for name in ("gini", "hoyer"):
        materialize.compute(storage, metrics=[name])
    with monkeypatch.context() as patch:
        patch.setattr("pico.record.withdraw._withdraw_rows", lambda *_: None)
        go_back(lake, 2)
    compact.compact(storage)
    materialize.compute(storage, metrics=["gini", "hoyer"])
    assert_each_value_once_and_live(lake)
    assert len(kept(lake)) == 2 * 7 * 4


def test_every_shipped_query_shows_each_step_once(lake: Path) -> None:
    storage = Storage(str(lake))
    chosen = ["effective_rank", "gini", "hoyer"]
    before = _answers(storage, chosen)
    go_back(lake, 2)
    after = _answers(storage, chosen)
    assert before.keys() == after.keys()
    for name, (columns, rows) in after.items():
        assert len(rows) == len(set(map(repr, rows))), f"{name}: a row twice"
        if name not in FINDS:
            assert len(rows) == len(before[name][1]), name
        if "step" in columns:
            keys = [i for i, c in enumerate(columns) if c in _KEYS]
            seen = Counter(tuple(row[i] for i in keys) for row in rows)
            assert set(seen.values()) <= {1}, f"{name}: a step twice"


_KEYS = ("run", "step", "name", "layer", "component", "metric", "site", "position", "sequence_id")


def _answers(storage: Storage, chosen: list[str]) -> dict[str, tuple[list[str], list[Any]]]:
    """Return columns and rows of every shipped query that needs no second run."""
    materialize.compute(storage, metrics=chosen)
    found = {}
    for query in library.list_queries():
        given = {"run": "plain", "step": "1"}
        needed = {p.name for p in query.parameters if p.required}
        if any(p.name == "other" for p in query.parameters) or needed - given.keys():
            continue
        texts = {p.name: given[p.name] for p in query.parameters if p.name in given}
        relation = library.run(session.connect(Snapshot.take(storage)), query, texts)
        found[query.name] = (relation.columns, relation.fetchall())
    return found


def test_pairs_of_a_reference_that_went_back_are_healed(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tensor and what it was compared with: either may be one that nobody sees any more."""
    storage = Storage(str(lake))
    materialize.compute(storage, metrics=["relative_change"], reference_step=5)
    n_rows = len(kept(lake))
    with monkeypatch.context() as patch:  # as if the resume had not seen the metrics
        patch.setattr("pico.record.withdraw._withdraw_rows", lambda *_: None)
        go_back(lake, 4)
    done = materialize.compute(storage, metrics=["relative_change"], reference_step=5)
    rows = kept(lake)
    assert len(rows) == n_rows == done.computed + done.reused  # all refer to the step that changed
    hashes = {
        (row["global_step"], row["name"]): row["content_hash"]
        for row in Snapshot.take(storage)
        .read("weights", ["global_step", "name", "content_hash"])
        .to_pylist()
    }
    for row in rows:
        place, reference = (row["global_step"], row["name"]), (5, row["name"])
        assert row["tensor_hash"] == f"{hashes[place]}:{hashes[reference]}"


def test_rows_of_heads_stay(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their hash is of several tensors: whether it is stale cannot be told from it."""
    storage = Storage(str(lake))
    head = {
        "run_id": ["plain"],
        "global_step": [6],
        "table_name": ["weights"],
        "name": ["layers.0.attention.ov_circuit"],
        "head": [0],
        "metric": ["per"],
        "value": [0.5],
        "tensor_hash": ["of-several"],
        "metric_version": [1],
    }
    with Stream(storage, "derive.plain.circuits") as stream:
        transaction = stream.begin()
        write_rows(transaction, "metrics", {"run": "plain"}, schema.table("metrics").batch(head))
        transaction.commit()
    with monkeypatch.context() as patch:
        patch.setattr("pico.record.withdraw._withdraw_rows", lambda *_: None)
        go_back(lake, 4)
    materialize.compute(storage, metrics=["gini"])
    assert [row["head"] for row in kept(lake) if row["metric"] == "per"] == [0]
