"""What a recorder refuses to lose in silence: complete steps, and what was asked for."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import pico
from pico import Recorder
from pico.errors import ConfigError, RecordError


def parts():
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def one_step(model, optimizer):
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def steps_of(lake: Path, name: str = "loss") -> list[int]:
    rows = pico.Lake.open(str(lake)).scan("scalars").collect()
    return sorted(rows.filter(rows["name"] == name)["step"].to_list())


def test_an_exception_keeps_every_complete_step(tmp_path):
    model, optimizer = parts()
    record = {"gradients": {"every": 100}}
    with pytest.raises(ZeroDivisionError), Recorder(tmp_path, "r", model, optimizer, record) as r:
        for step in range(5):
            one_step(model, optimizer)
            if step == 3:
                raise ZeroDivisionError
            r.step(loss=1.0)
    assert steps_of(tmp_path) == [0, 1, 2]


def test_a_forgotten_close_keeps_every_complete_step(tmp_path):
    code = """
import sys, torch, pico
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
recorder = pico.Recorder(sys.argv[1], "r", model, optimizer, {"weights": {"every": 2}})
for _ in range(3):
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    recorder.step(loss=1.0)
"""
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0
    assert "the recorder of run 'r' was not closed" in done.stderr
    assert steps_of(tmp_path) == [0, 1, 2]


@pytest.mark.parametrize(
    ("stages", "call"),
    [(["raw", "clipped"], "after_clipping"), (["clipped"], "after_clipping")],
)
def test_gradients_that_nobody_took_stop_the_step(tmp_path, stages, call):
    model, optimizer = parts()
    record = {"gradients": {"every": 1, "stages": stages}}
    with Recorder(tmp_path, "r", model, optimizer, record) as recorder:
        one_step(model, optimizer)
        with pytest.raises(RecordError, match=call):
            recorder.step()
        recorder.abort()


def test_gradients_without_an_optimizer_need_the_call(tmp_path):
    model, optimizer = parts()
    with Recorder(tmp_path, "r", model, record={"gradients": True}) as recorder:
        one_step(model, optimizer)
        with pytest.raises(RecordError, match="before_optimizer_step"):
            recorder.step()
        recorder.abort()


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"weights": {"every": 1, "names": ["nope*"]}}, "no tensor of the model fits"),
        ({"optimizer": True}, "record.optimizer needs the optimizer"),
    ],
)
def test_plans_that_could_record_nothing_are_refused(tmp_path, record, message):
    with pytest.raises(ConfigError, match=message):
        Recorder(tmp_path, "r", parts()[0], record=record)


def test_unknown_info_a_doubled_micro_step_and_odd_scalars_are_refused(tmp_path):
    model, optimizer = parts()
    with pytest.raises(RecordError, match=r"no column 'datset'\. Did you mean 'dataset'"):
        Recorder(tmp_path / "a", "r", model, optimizer, info={"datset": "x"})
    with Recorder(tmp_path / "b", "r", model, optimizer) as recorder:
        recorder.batch([1, 2])
        with pytest.raises(RecordError, match="micro_step 0 already"):
            recorder.batch([3])
        with pytest.raises(RecordError, match="numbers from 0, not -1"):
            recorder.batch([-1], micro_step=1)
        for value in ("abc", None, torch.ones(2)):
            with pytest.raises(RecordError, match="scalar 'loss' must be one number"):
                recorder.log(loss=value)
        recorder.step(loss=torch.ones(1, requires_grad=True))
    assert steps_of(tmp_path / "b") == [0]
