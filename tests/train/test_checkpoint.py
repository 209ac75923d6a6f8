"""A run that was killed, interrupted or extended goes on as if nothing had happened."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from pico.api import Lake
from pico.errors import ConfigError, DataError, LeaseError, RecordError
from tests.train import tiny

torch.set_num_threads(1)
N = 14
RECORD = {
    "checkpoints": {"every": 5},
    "weights": {"every": 2},
    "gradients": {"every": 3, "stages": ["raw", "clipped"]},
    "optimizer": {"every": 4},
    "activations": [
        {"probe": "text", "schedule": {"every": 4}, "sites": ["resid.post"], "positions": "all"},
        {"probe": "repeat", "schedule": "pythia", "sites": ["z"]},
        {"schedule": {"every": 3}, "sites": ["mlp.out"], "positions": "last"},
    ],
    "tensor_stats": {"weights": True, "gradients": True},
    "pairs": True,
    "commit_every": 3,
}


def mapping(folder: Path, **changes: Any) -> dict[str, Any]:
    source = folder / "text.txt"
    if not source.exists():
        tiny.write_text(source)
    return tiny.config(source, **{"max_steps": N, "record": RECORD, **changes})


def train(lake: Path, config: dict[str, Any], run: str = "tiny", **options: Any) -> Any:
    return Lake(str(lake)).train(config, run, **options)


def kill_at(commit: int, *arguments: str) -> None:
    """Run `pico …` until it kills itself at its n-th commit of a training stream."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.train.killed", str(commit), *arguments],
        cwd=tiny.ROOT,
        env=tiny.environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


VARIANTS: dict[str, dict[str, Any]] = {
    "dropout and micro-batches": {"model": {"dropout": 0.2}, "batch": {"micro_size": 4}},
    "bf16-mixed": {"model": {"dropout": 0.1}, "precision": "bf16-mixed"},
}


@pytest.mark.parametrize(
    ("variant", "kills"),
    [("dropout and micro-batches", (1, 11)), ("bf16-mixed", (9,))],
)
def test_a_killed_run_resumes_bit_for_bit(
    tmp_path: Path, variant: str, kills: tuple[int, ...]
) -> None:
    config = mapping(tmp_path, **VARIANTS[variant])
    train(tmp_path / "straight", config)
    file = tiny.write_config(tmp_path / "config.yaml", config)
    lake = tmp_path / "killed"
    for number, commit in enumerate(kills):
        kill_at(commit, "train", str(file), "--lake", str(lake), "--run", "tiny")
        if number == 0 and commit == 1:
            assert "tiny" not in tiny.snapshot(lake).runs()  # killed before its first commit
    (done,) = Lake.open(str(lake)).runs()
    assert 0 < done["last_step"] < N
    orphans = files(lake) - named(lake)
    assert orphans  # the killed commit's files stand there, and nobody counts them
    outcome = train(lake, config)
    assert outcome.resumed_from == 5
    assert outcome.steps == N
    tiny.assert_same_run(tmp_path / "straight", lake, "tiny")
    assert not orphans & files(lake)


def files(lake: Path) -> set[str]:
    return {str(path.relative_to(lake)) for path in lake.glob("[a-z]*/**/*.parquet")}


def named(lake: Path) -> set[str]:
    return {entry.path for entry in tiny.snapshot(lake).all_files()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("finished")
    config = mapping(folder, max_steps=6)
    train(folder / "lake", config)
    return folder / "lake", config


def test_nothing_is_left_of_a_finished_run(finished: tuple[Path, dict[str, Any]]) -> None:
    lake, config = finished
    before = files(lake), len(list(lake.glob("_log/*/*")))
    outcome = train(lake, config)
    assert (outcome.steps, outcome.resumed_from, outcome.interrupted) == (6, 6, False)
    assert (files(lake), len(list(lake.glob("_log/*/*")))) == before


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"seeds": {"data": 6}}, ["seeds.data was 5, is 6"]),
        (
            {"optimizer": {"lr": 0.1}, "model": {"d_model": 48}},
            ["model.d_model was 24, is 48", "optimizer.lr was 0.01, is 0.1"],
        ),
        ({"batch": {"size": 4}}, ["batch.size was 8, is 4"]),
        ({"precision": "bf16-mixed"}, ["precision was '32-true', is 'bf16-mixed'"]),
    ],
)
def test_another_config_is_refused(
    finished: tuple[Path, dict[str, Any]], changes: dict[str, Any], named: list[str]
) -> None:
    lake, _ = finished
    other = mapping(lake.parent, max_steps=9, **changes)
    with pytest.raises(ConfigError) as caught:
        train(lake, other)
    message = str(caught.value)
    assert message.startswith("run 'tiny' cannot be resumed with another config: ")
    assert all(part in message for part in named)
    assert "max_steps" not in message
    assert "\n" not in message


def test_another_text_is_refused(tmp_path: Path) -> None:
    config = mapping(tmp_path, max_steps=2)
    train(tmp_path / "lake", config)
    tiny.write_text(tmp_path / "text.txt", seed=1)
    with pytest.raises(DataError, match=r"data set 'text', but data\.source now gives 'text-"):
        train(tmp_path / "lake", {**config, "max_steps": 4})
    tiny.write_text(tmp_path / "text.txt")
    assert train(tmp_path / "lake", {**config, "max_steps": 4}).resumed_from == 2


def test_a_run_can_be_made_longer_with_other_micro_batches(tmp_path: Path) -> None:
    steady = {"optimizer": {"schedule": "constant"}, "record": {"checkpoints": True}}
    short, long = mapping(tmp_path, max_steps=3, **steady), mapping(tmp_path, max_steps=6, **steady)
    lake = tmp_path / "lake"
    train(lake, long, "straight")
    train(lake, short, "longer")
    long["batch"]["micro_size"] = 8  # the same as by default, written out
    assert train(lake, long, "longer").resumed_from == 3
    for table in ("weights", "optimizer"):
        assert tiny.content(lake, table, "straight") == tiny.content(lake, table, "longer")
    losses = {
        run: [(r["global_step"], r["value"]) for r in tiny.rows(lake, "scalars", run)
              if r["name"] == "loss"]
        for run in ("straight", "longer")
    }  # fmt: skip
    assert losses["straight"] == losses["longer"]


def test_a_lost_last_evaluation_is_made_up_for(tmp_path: Path) -> None:
    """Killed after the last checkpoint's commit, before the one that holds its held-out loss."""
    config = mapping(tmp_path, max_steps=3, record={"checkpoints": {"every": 3}})
    train(tmp_path / "straight", config)
    file = tiny.write_config(tmp_path / "config.yaml", config)
    lake = tmp_path / "killed"
    kill_at(3, "train", str(file), "--lake", str(lake), "--run", "tiny")
    assert train(lake, config).resumed_from == 3
    tiny.assert_same_run(tmp_path / "straight", lake, "tiny")


def test_a_run_without_checkpoints_cannot_be_resumed(tmp_path: Path) -> None:
    config = mapping(tmp_path, max_steps=2, record={"checkpoints": "never", "weights": True})
    train(tmp_path / "lake", config)
    with pytest.raises(RecordError, match=r"no checkpoint to resume from; record\.checkpoints"):
        train(tmp_path / "lake", config)


def test_an_interrupted_run_and_a_second_trainer(tmp_path: Path) -> None:
    """While a process trains, nobody else can; Ctrl-C ends its step and keeps its state."""
    steady = {"schedule": "constant"}
    record = {"checkpoints": {"every": 1000}, "tensor_stats": {"weights": True}, "commit_every": 2}
    config = mapping(
        tmp_path, max_steps=5000, optimizer=steady, record=record, model={"dropout": 0.1}
    )
    lake, file = tmp_path / "lake", tiny.write_config(tmp_path / "config.yaml", config)
    child = tiny.start("train", str(file), "--lake", str(lake), "--run", "tiny")
    try:
        tiny.wait_for(lambda: len(list(lake.glob("_log/train.tiny/*.parquet"))) > 3, child)
        with pytest.raises(LeaseError) as caught:
            train(lake, config)
        assert f"training of run 'tiny' is held by process {child.pid} on " in str(caught.value)
        assert "\n" not in str(caught.value)
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=60)
    finally:
        child.kill()
    assert child.returncode == 130, err
    assert "stopped at step" in err
    assert "Traceback" not in err
    last = tiny.rows(lake, "checkpoints", "tiny")[-1]
    assert not last["planned"]
    assert last["complete"]
    stopped_at = last["global_step"]
    assert 0 < stopped_at < 5000
    losses = [r for r in tiny.rows(lake, "scalars", "tiny") if r["name"] == "loss"]
    assert max(r["global_step"] for r in losses) == stopped_at - 1

    config["max_steps"] = stopped_at + 3
    assert train(lake, config).resumed_from == stopped_at
    train(lake, config, "straight")
    last_state = {key: tiny.content(lake, "weights", key) for key in ("tiny", "straight")}
    for name in (n for step, n, *_ in last_state["straight"] if step == 0):
        key = (stopped_at + 3, name, 0)
        assert last_state["tiny"][key] == last_state["straight"][key]
    for table in ("scalars", "batches", "tensor_stats"):
        first, second = (
            [
                {k: v for k, v in row.items() if k not in ("run_id", "content_hash")}
                for row in tiny.rows(lake, table, run)
                if row.get("table_name", "weights") == "weights"
            ]
            for run in ("tiny", "straight")
        )
        assert repr(first) == repr(second), table
