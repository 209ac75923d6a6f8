"""The recorder in any torch loop: what it takes, when, and that it leaves no trace."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import pico
from pico.errors import ConfigError, LeaseError, RecordError, RunNameError, StorageError
from pico.lake.storage import Storage
from pico.record import probes
from pico.record import recorder as recorders
from pico.record.recorder import Recorder
from tests.record import loops
from tests.train import tiny

torch.set_num_threads(1)
EVERYTHING: dict[str, Any] = {
    "checkpoints": True,
    "weights": True,
    "gradients": True,
    "optimizer": True,
    "activations": [{"schedule": True, "sites": ["0.out", "3.in"], "positions": "all"}],
    "tensor_stats": True,
}


def numbers(lake: Path, table: str, run: str = "plain") -> list[int]:
    """The steps of a table, one for each of its rows or tensors."""
    return sorted(row["global_step"] for row in tiny.rows(lake, table, run))


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


def test_recording_changes_nothing(tmp_path: Path) -> None:
    """With dropout: neither weights, nor the state of any generator, nor the mode of a module."""
    model, twin = loops.mlp(dropout=0.5), loops.mlp(dropout=0.5)
    model[2].eval()  # a module of its own mode
    twin[2].train()
    model[2].train()
    probe = probes.make("mine", np.zeros((2, 4), dtype=np.int64), "zeros")

    class Floats(nn.Module):
        """The probe's whole numbers as the MLP's input."""

        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x.float())

    record = {
        **EVERYTHING,
        "activations": [
            {"probe": "mine", "schedule": True, "sites": ["inner.0.out"], "positions": "all"},
            {"schedule": True, "sites": ["inner.3.out"], "positions": "all"},
        ],
    }
    wrapped, plain = Floats(model), Floats(twin)
    wrapped.inner[1].eval()
    torch.manual_seed(5)
    optimizer = loops.sgd(plain)
    losses = [loops.step(plain, optimizer, number) for number in range(4)]
    after = torch.get_rng_state()
    torch.manual_seed(5)
    optimizer = loops.sgd(wrapped)
    with Recorder(tmp_path / "lake", "plain", wrapped, optimizer, record, probes=[probe]) as rec:
        recorded = []
        for number in range(4):
            recorded.append(loops.step(wrapped, optimizer, number))
            rec.step()
            assert [m.training for m in wrapped.modules()] == [True, True, True, False, True, True]
    assert recorded == losses
    assert torch.equal(torch.get_rng_state(), after)
    for name, value in loops.state(plain).items():
        assert value.tobytes() == loops.state(wrapped)[name].tobytes()


def test_passes_without_gradient_are_not_the_batch(tmp_path: Path) -> None:
    """A held-out evaluation between two updates leaves nothing in the batch's activations."""
    model = loops.mlp()
    optimizer = loops.sgd(model)
    record = {"activations": {"schedule": True, "sites": ["0.out"], "positions": "all"}}
    with Recorder(tmp_path / "lake", "plain", model, optimizer, record) as recorder:
        for number in range(2):
            with torch.no_grad():
                model(torch.ones(50, 4))
            loops.step(model, optimizer, number)
            recorder.batch([10 * number + i for i in range(5)], "mine")
            recorder.step()
    rows = tiny.snapshot(tmp_path / "lake").read("activations").to_pylist()
    assert [row["shape"] for row in rows] == [[5, 6], [5, 6]]
    assert [row["sequence_ids"] for row in rows] == [[0, 1, 2, 3, 4], [10, 11, 12, 13, 14]]


def test_accumulated_passes_are_stacked_in_order(tmp_path: Path) -> None:
    model = loops.mlp()
    optimizer = loops.sgd(model)
    record = {"activations": {"schedule": True, "sites": ["3.out"], "positions": "all"}}
    inputs, targets = loops.batch(0)
    with Recorder(tmp_path / "lake", "plain", model, optimizer, record) as recorder:
        with torch.no_grad():
            whole = model(inputs).numpy()
        for micro, part in enumerate((slice(0, 2), slice(2, 4), slice(4, 5))):
            nn.functional.cross_entropy(model(inputs[part]), targets[part]).backward()
            recorder.batch([7, 8, 9, 10, 11][part], "mine", [0.5] * len(inputs[part]), micro)
        optimizer.step()
        recorder.step()
    stored = tiny.tensors(tmp_path / "lake", "activations", "plain", 0)[("3", "3.out")]
    np.testing.assert_allclose(stored, whole, rtol=1e-5, atol=1e-6)
    rows = tiny.rows(tmp_path / "lake", "batches")
    found = [(r["micro_step"], r["position"], r["sequence_id"]) for r in rows]
    assert found == [(0, 0, 7), (0, 1, 8), (1, 0, 9), (1, 1, 10), (2, 0, 11)]


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
        with pytest.raises(LeaseError, match="train 'plain' is held by process"):
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


# tied, frozen, buffers -----------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.norm = nn.BatchNorm1d(4)
        self.frozen = nn.Linear(4, 4)
        self.unembed = nn.Linear(4, 7, bias=False)
        self.unembed.weight = self.embed.weight
        self.frozen.requires_grad_(False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.unembed(self.frozen(self.norm(self.embed(ids))))
        return hidden


def train_tied(lake: Path, record: dict[str, Any], n_steps: int = 4) -> list[dict[str, Any]]:
    torch.manual_seed(1)
    model = Tied()
    optimizer = loops.sgd(model)
    states = [loops.state(model)]
    with Recorder(lake, "tied", model, optimizer, record, max_steps=n_steps) as recorder:
        for number in range(n_steps):
            ids = torch.randint(0, 7, (6,), generator=torch.Generator().manual_seed(number))
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(ids), ids).backward()
            optimizer.step()
            recorder.step()
            states.append(loops.state(model))
    return states


def test_tied_once_frozen_once_buffers_always(tmp_path: Path) -> None:
    states = train_tied(tmp_path / "lake", {"weights": True})
    for step, state in enumerate(states):
        stored = tiny.tensors(tmp_path / "lake", "weights", "tied", step)
        expected = {k for k in state if k != "unembed.weight"}
        if step > 0:
            expected -= {"frozen.weight", "frozen.bias"}
        assert stored.keys() == expected
        assert all(tiny.equal_bits(stored[k], np.asarray(state[k])) for k in expected)
    rows = {row["name"]: row for row in tiny.rows(tmp_path / "lake", "parameters")}
    assert rows["unembed.weight"]["alias_of"] == "embed.weight"
    assert [name for name, row in rows.items() if not row["trainable"]] == [
        "frozen.bias",
        "frozen.weight",
    ]
    assert_loads(tmp_path / "lake", states)


def assert_loads(lake: Path, states: list[dict[str, Any]], steps: list[int] | None = None) -> None:
    for step in range(len(states)) if steps is None else steps:
        model = pico.load_model(str(lake), "tied", step, model=Tied())
        assert model.unembed.weight is model.embed.weight
        loaded = loops.state(model)
        assert loaded.keys() == states[step].keys()
        assert all(tiny.equal_bits(loaded[k], v) for k, v in states[step].items()), step
        assert not model.training


def test_frozen_always(tmp_path: Path) -> None:
    states = train_tied(tmp_path / "lake", {"weights": True, "frozen": "always"})
    for step in range(len(states)):
        assert "frozen.bias" in tiny.tensors(tmp_path / "lake", "weights", "tied", step)
    assert_loads(tmp_path / "lake", states)


@pytest.mark.parametrize(
    "record",
    [
        {"weights": {"every": 1, "names": ["embed.*"]}, "checkpoints": [2]},
        {"tensor_stats": {"weights": True}, "checkpoints": [2]},
    ],
    ids=["narrow weights first", "statistics first"],
)
def test_frozen_tensors_wait_for_the_first_capture_that_holds_them(
    tmp_path: Path, record: dict[str, Any]
) -> None:
    states = train_tied(tmp_path / "lake", record)
    assert "frozen.bias" in tiny.tensors(tmp_path / "lake", "weights", "tied", 2)
    assert "frozen.bias" not in tiny.tensors(tmp_path / "lake", "weights", "tied", 4)
    assert_loads(tmp_path / "lake", states, [2, 4])


def test_a_thawed_tensor_is_recorded_again(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = Tied()
    states = [loops.state(model)]
    with Recorder(tmp_path / "lake", "tied", model, None, {"weights": True}) as recorder:
        for number in range(3):
            model.frozen.requires_grad_(number >= 1)
            with torch.no_grad():
                model.frozen.weight += float(number >= 1)
            recorder.step()
            states.append(loops.state(model))
    assert_loads(tmp_path / "lake", states)


# a foreign model -----------------------------------------------------------------------------


def test_a_tiny_llama_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    ids = torch.randint(0, 50, (3, 8), generator=torch.Generator().manual_seed(0))
    probe = probes.make("mine", ids.numpy(), "mine")
    record = {
        **EVERYTHING,
        "activations": [
            {"probe": "mine", "schedule": True, "sites": list(tiny.SITES), "positions": "all"},
            {"schedule": True, "sites": ["resid.post"], "positions": "last"},
        ],
    }
    hidden = []
    with Recorder(tmp_path / "lake", "llama", model, optimizer, record, probes=[probe]) as recorder:
        for _ in range(2):
            with torch.no_grad():
                hidden.append(model(ids, output_hidden_states=True).hidden_states)
            model(input_ids=ids, labels=ids).loss.backward()
            gradients = {n: p.grad.numpy().copy() for n, p in model.named_parameters()}
            optimizer.step()
            optimizer.zero_grad()
            recorder.batch([4, 5, 6], "mine")
            recorder.step()
    for step in range(2):
        at = tiny.tensors(tmp_path / "lake", "activations", "llama", step, probe="mine")
        assert {site for _, site in at} == set(tiny.SITES)
        # hidden_states[l] is the input of layer l; the last is after the final norm
        for layer in (0, 1):
            expected = hidden[step][layer].reshape(24, 16).numpy()
            np.testing.assert_allclose(at[(f"model.layers.{layer}", "resid.pre")], expected, 1e-5)
        batch = tiny.tensors(tmp_path / "lake", "activations", "llama", step, probe=None)
        last = hidden[step][1][:, -1].numpy()
        np.testing.assert_allclose(batch[("model.layers.0", "resid.post")], last, 1e-4, 1e-6)
    stored = tiny.tensors(tmp_path / "lake", "gradients", "llama", 1)
    assert all(tiny.equal_bits(stored[name], value) for name, value in gradients.items())
    row = next(r for r in tiny.rows(tmp_path / "lake", "parameters") if r["component"] == "k")
    assert (row["n_heads"], row["n_kv_heads"], row["d_head"]) == (4, 2, 4)
    loaded = pico.load_model(
        str(tmp_path / "lake"), "llama", 2, model=transformers.LlamaForCausalLM(config)
    )
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, model.eval()(ids).logits)
