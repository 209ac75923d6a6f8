"""The recorder in any torch loop: what it takes, when, and that it leaves no trace."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pico
from pico.errors import ConfigError, RecordError, StorageError
from pico.lake.storage import Storage
from pico.record import recorder as recorders
from pico.record.recorder import Recorder
from tests.record import loops
from tests.record.loops import EVERYTHING, numbers
from tests.train import tiny

torch.set_num_threads(1)


def test_three_lines_in_a_plain_loop(tmp_path: Path) -> None:
    model, twin = loops.mlp(), loops.mlp()
    optimizer, other = loops.sgd(model), loops.sgd(twin)
    recorder = pico.Recorder(tmp_path / "lake", "plain", model, optimizer, EVERYTHING)
    expected = []
    for number in range(3):
        before = loops.state(twin)
        loss = loops.step(twin, other, number)
        gradients = {name: p.grad.numpy().copy() for name, p in twin.named_parameters()}
        inputs = loops.batch(number)[0]
        first = inputs @ torch.from_numpy(before["0.weight"]).T + torch.from_numpy(before["0.bias"])
        expected.append((before, gradients, loss, first.numpy()))
        recorder.step(loss=loops.step(model, optimizer, number))
    recorder.close()
    for number, (weights, gradients, loss, first) in enumerate(expected):
        stored = tiny.tensors(tmp_path / "lake", "weights", "plain", number)
        assert {k: v.tobytes() for k, v in stored.items()} == {
            k: v.tobytes() for k, v in weights.items()
        }
        stored = tiny.tensors(tmp_path / "lake", "gradients", "plain", number)
        assert {k: v.tobytes() for k, v in stored.items()} == {
            k: v.tobytes() for k, v in gradients.items()
        }
        activations = tiny.tensors(tmp_path / "lake", "activations", "plain", number)
        np.testing.assert_allclose(activations[("0", "0.out")], first, rtol=1e-6)
        assert (activations[("3", "3.in")] == np.maximum(activations[("0", "0.out")], 0)).all()
        (row,) = [r for r in tiny.rows(tmp_path / "lake", "scalars") if r["global_step"] == number]
        assert (row["name"], row["value"]) == ("loss", loss)
    # without max_steps, `close` records the last state, and there is no batch after it
    last = tiny.tensors(tmp_path / "lake", "weights", "plain", 3)
    assert {k: v.tobytes() for k, v in last.items()} == {
        k: v.tobytes() for k, v in loops.state(model).items()
    }
    assert max(numbers(tmp_path / "lake", "gradients")) == 2


def test_momentum_and_param_groups(tmp_path: Path) -> None:
    model = loops.mlp()
    optimizer = loops.sgd(model)
    with Recorder(tmp_path / "lake", "plain", model, optimizer, EVERYTHING) as recorder:
        for number in range(3):
            optimizer.param_groups[0]["lr"] = 0.1 / (number + 1)
            loops.step(model, optimizer, number)
            recorder.step()
    stored = tiny.tensors(tmp_path / "lake", "optimizer", "plain", 3)
    named = dict(model.named_parameters())
    assert stored.keys() == {(name, "momentum_buffer") for name in named}
    for (name, _), value in stored.items():
        buffer = optimizer.state[named[name]]["momentum_buffer"].numpy()
        assert tiny.equal_bits(value, buffer)
    groups = tiny.rows(tmp_path / "lake", "param_groups")
    assert [(g["global_step"], g["lr"]) for g in groups] == [(0, 0.1), (1, 0.05), (2, 0.1 / 3)]


@pytest.mark.parametrize(
    ("record", "weights", "gradients"),
    [
        ({"weights": {"every": 4}, "gradients": {"every": 4}}, [0, 4, 6], [0, 4, 5]),
        ({"weights": [2], "gradients": [2], "pairs": True}, [2, 3, 6], [2, 5]),
        ({"weights": [0, 4], "pairs": True}, [0, 1, 4, 5, 6], []),
        ({"weights": "pythia", "gradients": "pythia"}, [0, 1, 2, 4, 6], [0, 1, 2, 4, 5]),
        ({"checkpoints": [3], "gradients": "last"}, [3, 6], [5]),
        ({}, [], []),
    ],
)
@pytest.mark.parametrize("is_known", [True, False], ids=["length known", "length unknown"])
def test_steps(
    tmp_path: Path, record: dict[str, Any], weights: list[int], gradients: list[int], is_known: bool
) -> None:
    options = {"max_steps": 6} if is_known else {}
    loops.train(tmp_path / "lake", 6, record, **options)
    assert sorted(set(numbers(tmp_path / "lake", "weights"))) == weights
    found = sorted(set(numbers(tmp_path / "lake", "gradients")))
    if is_known:
        assert found == gradients
    else:  # which batch is the last is known only when it is over
        assert found == [step for step in gradients if step != 5]
    assert numbers(tmp_path / "lake", "scalars") == list(range(6))


def test_pairs_give_the_update(tmp_path: Path) -> None:
    loops.train(tmp_path / "lake", 6, {"weights": [2], "gradients": [2], "pairs": True})
    before, after = (tiny.tensors(tmp_path / "lake", "weights", "plain", s) for s in (2, 3))
    twin = loops.mlp()
    optimizer = loops.sgd(twin)
    for number in range(3):
        states = loops.state(twin)
        loops.step(twin, optimizer, number)
    for name, value in loops.state(twin).items():
        assert (after[name] - before[name] == value - states[name]).all()


def test_names_narrow_what_is_stored_and_not_the_statistics(tmp_path: Path) -> None:
    """Statistics are there for everything asked, once, whether the tensor is stored or not."""
    record = {
        "weights": {"every": 2, "names": ["0.*"]},
        "gradients": {"every": 2, "names": ["*.bias"]},
        "tensor_stats": {
            "weights": {"every": 1, "names": ["*.weight"]},
            "gradients": {"every": 1},
        },
    }
    loops.train(tmp_path / "lake", 4, record, max_steps=4)
    stats = tiny.rows(tmp_path / "lake", "tensor_stats")
    found = {
        (r["table_name"], r["global_step"], r["name"]): r["content_hash"] is not None for r in stats
    }
    assert len(found) == len(stats)
    for step in range(5):
        assert found.get(("weights", step, "0.bias")) == (True if step % 2 == 0 else None)
        assert found[("weights", step, "0.weight")] == (step % 2 == 0)
        assert found[("weights", step, "3.weight")] is False
    for step in range(4):
        is_stored = step in (0, 2, 3)
        assert found[("gradients", step, "0.bias")] == is_stored
        assert found[("gradients", step, "3.weight")] is False


@pytest.mark.parametrize("how", ["checkpoint", "close"])
def test_no_statistic_is_told_twice(tmp_path: Path, how: str) -> None:
    model = loops.mlp()
    optimizer = loops.sgd(model)
    record = {"tensor_stats": {"weights": True, "optimizer": True}, "commit_every": 1}
    recorder = Recorder(tmp_path / "lake", "plain", model, optimizer, record)
    for number in range(2):
        loops.step(model, optimizer, number)
        recorder.step()
    recorder.flush()
    if how == "checkpoint":
        recorder.checkpoint()
        recorder.checkpoint()
    recorder.close()
    stats = tiny.rows(tmp_path / "lake", "tensor_stats")
    keys = [(r["table_name"], r["global_step"], r["name"], r["state"]) for r in stats]
    assert len(set(keys)) == len(keys)
    assert {(s, n) for t, s, n, _ in keys if t == "weights"} == {
        (step, name) for step in range(3) for name in loops.state(model)
    }
    checkpoints = tiny.rows(tmp_path / "lake", "checkpoints")
    assert [(c["global_step"], c["planned"]) for c in checkpoints] == (
        [(2, False)] if how == "checkpoint" else []
    )


def test_hooks_are_gone_after_close_abort_and_exception(tmp_path: Path) -> None:
    record = {**EVERYTHING}
    for number, end in enumerate(("close", "abort", "exception", "writer")):
        model = loops.mlp()
        optimizer = loops.sgd(model)
        recorder = Recorder(tmp_path / "lake", f"r{number}", model, optimizer, record)
        assert loops.hooks(model) > 0
        loops.step(model, optimizer, 0)
        recorder.step()
        loops.step(model, optimizer, 1)
        if end == "exception":
            with pytest.raises(ZeroDivisionError), recorder:
                _ = 1 / 0
        else:
            getattr(recorder, "close" if end == "writer" else end)()
        assert loops.hooks(model) == 0
        assert len(optimizer._optimizer_step_pre_hooks) == 0
        with pytest.raises(RecordError, match=f"the recorder of run 'r{number}' is closed"):
            recorder.step()
        recorder.close()  # again: nothing
        recorder.abort()
    assert not [t for t in threading.enumerate() if t.name.startswith("pico-")]


def test_an_exception_keeps_committed_steps_and_drops_the_one_under_way(tmp_path: Path) -> None:
    model = loops.mlp()
    optimizer = loops.sgd(model)
    with (
        pytest.raises(ZeroDivisionError),
        Recorder(tmp_path / "lake", "plain", model, optimizer, EVERYTHING) as recorder,
    ):
        for number in range(3):
            loops.step(model, optimizer, number)
            if number == 2:
                _ = 1 / 0
            recorder.step(loss=1.0)
            recorder.flush()
    assert sorted(set(numbers(tmp_path / "lake", "weights"))) == [0, 1, 2]
    assert sorted(set(numbers(tmp_path / "lake", "gradients"))) == [0, 1]
    # the lease is free: the run can go on
    Recorder(tmp_path / "lake", "plain", model, optimizer, EVERYTHING, resume_from=2).abort()


def test_the_writers_error_stops_training_with_its_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = loops.mlp()
    optimizer = loops.sgd(model)
    write = recorders.write_tensors

    def broken(transaction: Any, table: str, partition: dict[str, Any], tensors: Any) -> None:
        if partition["step"] >= 2:
            raise OSError(28, "No space left on device")
        write(transaction, table, partition, tensors)

    monkeypatch.setattr(recorders, "write_tensors", broken)
    with (
        pytest.raises(RecordError, match=r"writing to the lake failed: .*No space left") as caught,
        Recorder(tmp_path / "lake", "plain", model, optimizer, EVERYTHING) as recorder,
    ):
        for number in range(1000):
            loops.step(model, optimizer, number)
            recorder.step()
    assert isinstance(caught.value.__cause__, OSError)
    assert number < 999
    assert loops.hooks(model) == 0
    assert sorted(set(numbers(tmp_path / "lake", "weights"))) == [0, 1]


def test_the_writers_error_is_told_by_close_at_the_latest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise StorageError("the store is away")

    model = loops.mlp()
    recorder = Recorder(tmp_path / "lake", "plain", model, None, {"weights": "last"})
    monkeypatch.setattr(recorders, "write_tensors", refuse)
    with pytest.raises(StorageError, match="the store is away"):
        recorder.close()
    assert loops.hooks(model) == 0


def test_a_full_queue_waits_and_drops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = recorders.write_tensors
    gate = threading.Event()

    def slow(*arguments: Any) -> None:
        gate.wait(0.02)
        write(*arguments)

    monkeypatch.setattr(recorders, "write_tensors", slow)
    loops.train(tmp_path / "lake", 8, EVERYTHING, queue_bytes=1)
    assert sorted(set(numbers(tmp_path / "lake", "weights"))) == list(range(9))
    assert sorted(set(numbers(tmp_path / "lake", "gradients"))) == list(range(8))
    assert len(numbers(tmp_path / "lake", "weights")) == 9 * 4


def test_what_the_caller_got_wrong(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    model = loops.mlp()
    sites = {"activations": {"schedule": True, "sites": ["0.out"]}}
    for error, message, options in (
        (RecordError, "a lake is a URL or a pico.Lake, not int", {"lake": 3}),
        (ConfigError, "unknown config key 'record.x'", {"record": {"x": 1}}),
        (
            RecordError,
            "this model has no site '0.ou'. Did you mean '0.out'",
            {"record": {"activations": {"sites": ["0.ou"]}}},
        ),
        (
            ConfigError,
            r"record\.activations: no probe 'text'; there are: none",
            {"record": {"activations": {"sites": ["0.out"], "probe": "text"}}},
        ),
        (
            ConfigError,
            r"record\.activations asks twice for site '0\.out' of the training batch",
            {"record": {"activations": [sites["activations"], sites["activations"]]}},
        ),
        (
            RecordError,
            "site '0.out' has no layer",
            {"record": {"activations": {"sites": ["0.out"], "layers": [5]}}},
        ),
    ):
        arguments = {"lake": lake, "run": "a", "model": model, **options}
        with pytest.raises(error, match=message) as caught:
            Recorder(**arguments)
        assert "\n" not in str(caught.value)
    assert not lake.exists()
    assert loops.hooks(model) == 0
    with Recorder(lake, "a", model) as recorder, pytest.raises(RecordError, match="2 losses"):
        recorder.batch([1, 2, 3], "mine", losses=[0.1, 0.2])


def test_a_lake_may_be_given_as_an_object(tmp_path: Path) -> None:
    for lake in (pico.Lake(str(tmp_path / "a")), Storage(str(tmp_path / "b"))):
        Recorder(lake, "plain", loops.mlp(), record={"weights": True}).close()
    assert pico.Lake.open(str(tmp_path / "a")).snapshot().runs() == ["plain"]
