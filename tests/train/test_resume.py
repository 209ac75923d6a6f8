"""Going on from any checkpoint, whatever the arithmetic: the same ids, and the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pico.api import Lake
from pico.cli import run_command
from pico.errors import ConfigError, RecordError, RunNameError
from tests.train import tiny

torch.set_num_threads(1)
N = 8
RECORD = {"checkpoints": {"every": 2}, "weights": {"every": 1}, "gradients": {"every": 3}}


def config(folder: Path, **changes: Any) -> dict[str, Any]:
    source = folder / "text.txt"
    if not source.exists():
        tiny.write_text(source)
    return tiny.config(source, **{"max_steps": N, "record": RECORD, **changes})


def train(lake: Path, mapping: dict[str, Any], **options: Any) -> Any:
    return Lake(str(lake)).train(mapping, "r", **options)


def ids(lake: Path) -> dict[int, list[int]]:
    """Return the sequence ids of each step, in the order in which they were seen."""
    seen: dict[int, list[tuple[int, int, int]]] = {}
    for row in tiny.rows(lake, "batches", "r"):
        place = (row["micro_step"], row["position"], row["sequence_id"])
        seen.setdefault(row["global_step"], []).append(place)
    return {step: [i for _, _, i in sorted(rows)] for step, rows in seen.items()}


def weights(lake: Path) -> dict[Any, str]:
    return tiny.content(lake, "weights", "r")


def test_every_checkpoint_of_a_run(tmp_path: Path) -> None:
    mapping = config(tmp_path, model={"dropout": 0.2}, batch={"micro_size": 4})
    train(tmp_path / "straight", mapping)
    train(tmp_path / "again", mapping)
    Lake(str(tmp_path / "again")).compute_metrics("gini")
    for step in (6, 4, 2, 0):
        outcome = train(tmp_path / "again", mapping, resume=step)
        assert (outcome.resumed_from, outcome.steps, outcome.withdrawn) == (step, N, N - step)
        tiny.assert_same_run(tmp_path / "straight", tmp_path / "again", "r")
        kept = {row["global_step"] for row in tiny.rows(tmp_path / "again", "metrics", "r")}
        assert kept == set(range(step + 1))


def test_numbers_of_tensors_that_are_not_stored(tmp_path: Path) -> None:
    """`record.metrics` of a run that went back twice: each step once, as of a straight run."""
    record = {
        "checkpoints": {"every": 2},
        "activations": [{"probe": "text", "schedule": "never", "sites": ["resid.post"]}],
        "metrics": [
            {"names": ["gini", "per"], "every": 1, "tensors": ["*.o_proj.*"]},
            {"names": "gini", "every": 3, "tables": ["activations", "optimizer"]},
        ],
    }
    mapping = config(tmp_path, record=record)
    train(tmp_path / "straight", mapping)
    train(tmp_path / "again", mapping)
    expected = tiny.rows(tmp_path / "straight", "metrics", "r")
    for step in (6, 2):
        train(tmp_path / "again", mapping, resume=step)
        assert tiny.rows(tmp_path / "again", "metrics", "r") == expected
        tiny.assert_same_run(tmp_path / "straight", tmp_path / "again", "r")
    told = {(row["table_name"], row["global_step"]) for row in expected}
    assert told == {
        *(("weights", step) for step in range(N + 1)),
        *(("gradients", step) for step in range(N)),
        *((table, step) for table in ("activations", "optimizer") for step in (0, 3, 6, N)),
    } - {("optimizer", 0)}  # AdamW has no state yet
    assert tiny.snapshot(tmp_path / "again").read("activations").num_rows == 0


def variants() -> list[Any]:
    found = []
    for dropout in (0.0, 0.2):
        for precision in ("32-true", "bf16-mixed"):
            for micro in (8, 2):
                for workers in (0, 2):
                    # Workers cost seconds each to start: one case of them runs every time.
                    marks = [pytest.mark.slow] if (micro == 8) != (dropout == 0.0) else []
                    marks = marks if workers == 0 else [pytest.mark.slow]
                    name = f"{dropout}-{precision}-{micro}-{workers}"
                    found.append(
                        pytest.param(dropout, precision, micro, workers, marks=marks, id=name)
                    )
    return found


@pytest.mark.parametrize(("dropout", "precision", "micro", "workers"), variants())
def test_the_matrix(
    tmp_path: Path, dropout: float, precision: str, micro: int, workers: int
) -> None:
    changes = {"model": {"dropout": dropout}, "precision": precision}
    mapping = config(tmp_path, batch={"micro_size": micro}, **changes)
    train(tmp_path / "straight", mapping)
    lake = tmp_path / "resumed"
    train(lake, {**mapping, "data": {**mapping["data"], "workers": 2 - workers}})
    with_workers = {**mapping, "data": {**mapping["data"], "workers": workers}}
    assert train(lake, with_workers, resume=4).withdrawn == 4
    tiny.assert_same_run(tmp_path / "straight", lake, "r")


def test_another_micro_batch_sees_the_same_sequences(tmp_path: Path) -> None:
    mapping = config(tmp_path)
    train(tmp_path / "straight", mapping)
    other = {**mapping, "batch": {**mapping["batch"], "micro_size": 2}}
    train(tmp_path / "resumed", mapping)
    train(tmp_path / "resumed", other, resume=4)
    assert ids(tmp_path / "straight") == ids(tmp_path / "resumed")
    straight, resumed = weights(tmp_path / "straight"), weights(tmp_path / "resumed")
    assert straight.keys() == resumed.keys()
    assert {k: v for k, v in straight.items() if k[0] <= 4}.items() <= resumed.items()
    exact = tiny.tensors(tmp_path / "straight", "weights", "r", N)
    for name, value in tiny.tensors(tmp_path / "resumed", "weights", "r", N).items():
        assert abs(value - exact[name]).max() < 1e-4, name


def test_the_end_can_be_moved_back(tmp_path: Path) -> None:
    train(tmp_path / "lake", config(tmp_path))
    shorter = config(tmp_path, max_steps=4)
    with pytest.raises(ConfigError, match="cannot go on from step 6 to max_steps 4"):
        train(tmp_path / "lake", shorter, resume=6)
    assert max(ids(tmp_path / "lake")) == N - 1
    outcome = train(tmp_path / "lake", shorter, resume=4)
    assert (outcome.steps, outcome.withdrawn) == (4, 4)
    assert max(ids(tmp_path / "lake")) == 3
    told = [r for r in tiny.rows(tmp_path / "lake", "scalars", "r") if r["name"] == "heldout_loss"]
    assert [row["global_step"] for row in told] == [0, 2, 4]


def test_what_cannot_be_resumed(tmp_path: Path) -> None:
    mapping = config(tmp_path)
    train(tmp_path / "lake", mapping)
    with pytest.raises(RecordError, match=r"no checkpoint at step 3; .* at 0, 2, 4, 6, 8"):
        train(tmp_path / "lake", mapping, resume=3)
    with pytest.raises(RunNameError, match="no run 'other'"):
        Lake(str(tmp_path / "lake")).train(mapping, "other", resume=2)
    assert max(ids(tmp_path / "lake")) == N - 1


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tiny.write_config(tmp_path / "config.yaml", config(tmp_path))
    command = ["train", str(file), "--lake", str(tmp_path / "lake"), "--run", "r"]
    assert run_command(command) == 0
    for resume, code, said in (
        ("6", 0, "(resumed from 6; 2 steps after it withdrawn)"),
        ("8", 0, "already stands at step 8; nothing to do"),
        ("7", 2, "no checkpoint at step 7"),
        ("-1", 2, "--resume takes auto, never or the step of a checkpoint, not '-1'"),
        ("latest", 2, "--resume takes auto, never or the step of a checkpoint, not 'latest'"),
    ):
        capsys.readouterr()
        assert run_command([*command, f"--resume={resume}"]) == code, resume
        told = capsys.readouterr()
        assert said in " ".join(told.err.split()), resume
        assert not told.out
