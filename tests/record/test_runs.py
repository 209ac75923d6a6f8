"""A run's name, its lease, and going on from a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pico.errors import LeaseError, RecordError, RunNameError
from pico.record.recorder import Recorder
from tests.record import loops
from tests.record.loops import numbers

torch.set_num_threads(1)


def test_a_taken_name_is_refused(tmp_path: Path) -> None:
    loops.train(tmp_path / "lake", 1, {"weights": True}, run="Plain")
    before = list((tmp_path / "lake").rglob("*.parquet"))
    for name, message in (
        ("Plain", "run 'Plain' is in .* already; resume it"),
        ("pLAIN", "run 'pLAIN' differs from run 'Plain' in case only"),
        ("../x", "'../x' cannot name a run"),
        ("true", "'true' cannot name a run"),
    ):
        with pytest.raises(RunNameError, match=message) as caught:
            Recorder(tmp_path / "lake", name, loops.mlp())
        assert "\n" not in str(caught.value)
    assert list((tmp_path / "lake").rglob("*.parquet")) == before


def test_two_recorders_of_one_run(tmp_path: Path) -> None:
    model = loops.mlp()
    with Recorder(tmp_path / "lake", "plain", model, loops.sgd(model)):
        with pytest.raises((LeaseError, RunNameError)):
            Recorder(tmp_path / "lake", "plain", loops.mlp())
        with pytest.raises(LeaseError, match="training of run 'plain' is held by process"):
            Recorder(tmp_path / "lake", "plain", loops.mlp(), resume_from=0)


def test_resuming_where_there_is_no_checkpoint(tmp_path: Path) -> None:
    loops.train(tmp_path / "lake", 3, {"checkpoints": [2]}, max_steps=3)
    with pytest.raises(RecordError, match="run 'plain' has no checkpoint at step 1"):
        Recorder(tmp_path / "lake", "plain", loops.mlp(), resume_from=1)
    with pytest.raises(RecordError, match="run 'new' has no checkpoint at step 2"):
        Recorder(tmp_path / "lake", "new", loops.mlp(), resume_from=2)


def test_resuming_withdraws_what_came_after(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    record = {"checkpoints": {"every": 2}, "weights": True, "gradients": True}
    model = loops.train(lake, 5, record)
    live = numbers(lake, "scalars")
    assert live == [0, 1, 2, 3, 4]
    optimizer = loops.sgd(model)
    with Recorder(lake, "plain", model, optimizer, record, resume_from=2) as recorder:
        assert numbers(lake, "scalars") == [0, 1]
        assert sorted(set(numbers(lake, "weights"))) == [0, 1, 2]
        loops.step(model, optimizer, 2)
        recorder.step(loss=1.0)
    assert numbers(lake, "scalars") == [0, 1, 2]
    assert numbers(lake, "weights") == sorted([0, 1, 2, 3] * 4)


def test_resuming_and_closing_records_nothing_again(tmp_path: Path) -> None:
    record = {"checkpoints": {"every": 2}, "weights": True, "tensor_stats": True}
    model = loops.train(tmp_path / "lake", 2, record)
    Recorder(tmp_path / "lake", "plain", model, loops.sgd(model), record, resume_from=2).close()
    assert numbers(tmp_path / "lake", "weights") == sorted([0, 1, 2] * 4)
    assert numbers(tmp_path / "lake", "checkpoints") == [0, 2]
