"""Going back to a checkpoint: which rows of which tables stand, whoever wrote them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from pico import schema
from pico.errors import RecordError
from pico.lake.commit import Stream
from pico.lake.snapshot import Snapshot, partition
from pico.lake.storage import Storage
from pico.lake.table import write_rows
from pico.record import withdraw
from pico.record.recorder import Recorder
from pico.upkeep import compact
from tests.record import loops

torch.set_num_threads(1)
S = 4
STEPS = range(8)
RECORD = {"checkpoints": {"every": 2}, "weights": True, "gradients": True}

_METRIC = {"name": "w", "metric": "gini", "value": 0.5, "metric_version": 1, "tensor_hash": "h"}
_SCORE = {"probe": "text", "sequence_id": 0, "position": 0, "token_id": 1, "target_id": 2}
_SCORE |= {"loss": 1.0, "entropy": 1.0, "rank": 1, "top1_id": 3}
_TASK = {"task": "t", "metric": "acc", "value": 0.5, "engine": "own"}
_STATS = {"numel": 1, "frobenius_norm": 1.0, "mean": 0.0, "std": 0.0, "max_abs": 1.0}
_STATS |= {"name": "w", "nonfinite": 0}
_SPECTRUM = {"name": "w", "singular_values": [1.0], "metric_version": 1, "tensor_hash": "h"}
_SEQUENCE = {"dataset": "text", "sequence_id": 3, "score": "loss", "value": 1.0}
KINDS: dict[str, tuple[str, dict[str, Any], int]] = {
    "metrics of weights": ("metrics", {**_METRIC, "table_name": "weights"}, S),
    "metrics of optimizer state": ("metrics", {**_METRIC, "table_name": "optimizer"}, S),
    "metrics of gradients": ("metrics", {**_METRIC, "table_name": "gradients"}, S - 1),
    "metrics of a probe": (
        "metrics", {**_METRIC, "table_name": "activations", "probe": "text"}, S,
    ),
    "metrics of training activations": ("metrics", {**_METRIC, "table_name": "activations"}, S - 1),
    "spectra of weights": ("spectra", {**_SPECTRUM, "table_name": "weights"}, S),
    "spectra of gradients": ("spectra", {**_SPECTRUM, "table_name": "gradients"}, S - 1),
    "statistics of weights": ("tensor_stats", {**_STATS, "table_name": "weights"}, S),
    "statistics of gradients": ("tensor_stats", {**_STATS, "table_name": "gradients"}, S - 1),
    "evaluations": ("evaluations", _TASK, S),
    "token scores": ("token_scores", _SCORE, S),
    "sequence scores": ("sequence_scores", _SEQUENCE, S),
}  # fmt: skip


def derive(
    lake: Path, writer: str, table: str, row: dict[str, Any], steps: Any, run: str = "plain"
) -> None:
    """Commit a row per step as a derive writer does, all in one file."""
    steps = list(steps)
    columns = {key: [value] * len(steps) for key, value in row.items()}
    rows = schema.table(table).batch(
        {"run_id": [run] * len(steps), "global_step": steps, **columns}
    )
    with Stream(Storage(str(lake)), f"derive.{run}.{writer}") as stream:
        transaction = stream.begin()
        write_rows(transaction, table, {"run": run}, rows)
        transaction.commit()


def steps_of(lake: Path, table: str, run: str = "plain", **wanted: Any) -> list[int]:
    rows = Snapshot.take(Storage(str(lake))).read(table, runs=[run]).to_pylist()
    kept = [r for r in rows if all(r[key] == value for key, value in wanted.items())]
    return sorted(row["global_step"] for row in kept)


def go_back(lake: Path, step: int, run: str = "plain") -> int:
    with Stream(Storage(str(lake)), f"train.{run}") as stream:
        return withdraw.after(stream, run, step)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    loops.train(tmp_path / "lake", 7, RECORD)
    return tmp_path / "lake"


def test_rows_of_every_kind(lake: Path) -> None:
    for number, (table, row, _) in enumerate(KINDS.values()):
        derive(lake, f"w{number}", table, row, STEPS)
    assert go_back(lake, S) == 3
    for kind, (table, row, last) in KINDS.items():
        told = {key: row[key] for key in ("table_name", "name") if key in row}
        if row.get("table_name") == "activations":
            told["probe"] = row.get("probe")
        assert steps_of(lake, table, **told) == list(range(last + 1)), kind


def test_a_file_that_loses_nothing_stays_and_one_that_loses_all_goes(lake: Path) -> None:
    row = {**_METRIC, "table_name": "weights"}
    derive(lake, "a", "metrics", row, range(S + 1))
    derive(lake, "b", "metrics", {**row, "metric": "hoyer"}, range(S + 1, 8))
    derive(lake, "c", "metrics", {**row, "metric": "l2"}, range(2, 7))
    before = Snapshot.take(Storage(str(lake))).files("metrics")
    go_back(lake, S)
    after = Snapshot.take(Storage(str(lake))).files("metrics")
    assert len({e.path for e in before} & {e.path for e in after}) == 1
    assert len(after) == 2
    assert steps_of(lake, "metrics") == [0, 1, 2, 2, 3, 3, 4, 4]
    (rewritten,) = [e for e in after if e.path not in {b.path for b in before}]
    assert rewritten.stands_for is not None
    assert rewritten.stands_for[0] == "derive.plain.c"


def test_what_was_kept_once_is_kept_when_the_run_goes_back_further(lake: Path) -> None:
    derive(lake, "scores", "evaluations", _TASK, STEPS)
    go_back(lake, 6)
    assert steps_of(lake, "evaluations") == list(range(7))
    go_back(lake, 2)
    assert steps_of(lake, "evaluations") == [0, 1, 2]


def test_a_comparison_goes_with_what_it_was_compared_with(lake: Path) -> None:
    row = {**_METRIC, "table_name": "weights", "metric": "cka"}
    for ref_run, ref_step in ((None, 7), ("plain", 7), ("plain", 2), ("other", 7)):
        derive(lake, f"r{ref_run}{ref_step}", "metrics",
               {**row, "ref_run": ref_run, "ref_step": ref_step}, [1])  # fmt: skip
    go_back(lake, S)
    rows = Snapshot.take(Storage(str(lake))).read("metrics").to_pylist()
    assert {(r["ref_run"], r["ref_step"]) for r in rows} == {("plain", 2), ("other", 7)}


def test_other_runs_stand(lake: Path) -> None:
    loops.train(lake, 7, RECORD, run="plain.b")
    row = {**_METRIC, "table_name": "weights"}
    derive(lake, "m", "metrics", row, STEPS, run="plain.b")
    go_back(lake, S)
    assert steps_of(lake, "metrics", "plain.b") == list(STEPS)
    assert max(steps_of(lake, "weights", "plain.b")) == 7


def test_own_files_go_by_their_place_in_the_log_also_when_merged(lake: Path) -> None:
    compact.compact(Storage(str(lake)))
    merged = Snapshot.take(Storage(str(lake))).files("scalars")
    assert any(entry.stands_for for entry in merged)
    go_back(lake, S)
    assert steps_of(lake, "scalars", name="loss") == list(range(S))
    assert set(steps_of(lake, "weights")) == set(range(S + 1))
    assert set(steps_of(lake, "gradients")) == set(range(S))


def test_a_writer_at_work_at_the_same_time(lake: Path) -> None:
    row = {**_METRIC, "table_name": "weights"}
    with Stream(Storage(str(lake)), "derive.plain.x") as stream:
        transaction = stream.begin()
        columns = {key: [value] for key, value in row.items()}
        rows = schema.table("metrics").batch({"run_id": ["plain"], "global_step": [3], **columns})
        write_rows(transaction, "metrics", {"run": "plain"}, rows)
        go_back(lake, S)
        transaction.commit()
    assert steps_of(lake, "metrics") == [3]


def test_a_compaction_between_looking_and_withdrawing(
    lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        row = {**_METRIC, "table_name": "weights", "metric": f"m{number}"}
        derive(lake, "m", "metrics", row, STEPS)
    plan = withdraw._Files.of

    def then_compact(storage: Storage, run: str) -> Any:
        found = plan(storage, run)
        worker = threading.Thread(target=compact.compact, args=(storage,))
        worker.start()
        worker.join()
        return found

    monkeypatch.setattr(withdraw._Files, "of", then_compact)
    go_back(lake, S)
    assert steps_of(lake, "metrics") == sorted([*range(S + 1)] * 3)
    assert steps_of(lake, "scalars", name="loss") == list(range(S))


def test_going_back_to_where_the_run_stands(lake: Path) -> None:
    before = [e.path for e in Snapshot.take(Storage(str(lake))).all_files()]
    step = max(steps_of(lake, "checkpoints"))
    assert withdraw.n_steps_after(Storage(str(lake)), "plain", step) == go_back(lake, step) == 0
    after = [e.path for e in Snapshot.take(Storage(str(lake))).all_files()]
    assert before == after


def test_no_checkpoint_lists_those_that_there_are(lake: Path) -> None:
    with pytest.raises(RecordError, match=r"no checkpoint at step 3; there are .* at 0, 2, 4, 6"):
        go_back(lake, 3)


def test_a_failed_withdrawal_changes_nothing(lake: Path) -> None:
    derive(lake, "m", "metrics", {**_METRIC, "table_name": "weights"}, STEPS)
    (entry,) = Snapshot.take(Storage(str(lake))).files("metrics")
    (lake / entry.path).write_bytes(b"PAR1 is what it is not")
    before = {e.path for e in Snapshot.take(Storage(str(lake))).all_files()}
    with pytest.raises(Exception, match="cannot be read"):
        go_back(lake, S)
    assert {e.path for e in Snapshot.take(Storage(str(lake))).all_files()} == before
    assert not [p for p in lake.rglob("*.inprogress")]


def test_the_recorder_tells_how_many_steps_it_took_back(lake: Path) -> None:
    model = loops.mlp()
    recorder = Recorder(lake, "plain", model, loops.sgd(model), RECORD, resume_from=2)
    recorder.close()
    assert recorder.n_withdrawn == 5
    assert all(partition(e.path)["run"] == "plain"
               for e in Snapshot.take(Storage(str(lake))).files("weights"))  # fmt: skip
