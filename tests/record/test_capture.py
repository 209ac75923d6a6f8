"""What is taken from a model: tied, frozen, foreign; and that taking it changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import pico
from pico.record import probes
from pico.record.recorder import Recorder
from tests.record import loops
from tests.record.loops import EVERYTHING
from tests.train import tiny

torch.set_num_threads(1)


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


def test_a_checkpoint_outside_the_schedule_is_whole(tmp_path: Path) -> None:
    """Although the schedule has taken some of its tensors at that very step."""
    model = loops.mlp()
    optimizer = loops.sgd(model)
    narrow = {"every": 1, "names": ["0.*"]}
    record = {"weights": narrow, "optimizer": narrow}
    with Recorder(tmp_path / "lake", "plain", model, optimizer, record) as recorder:
        for number in range(2):
            loops.step(model, optimizer, number)
            recorder.step()
        recorder.checkpoint()
        recorder.checkpoint()
    names = set(loops.state(model))
    assert tiny.tensors(tmp_path / "lake", "weights", "plain", 2).keys() == names
    stored = tiny.tensors(tmp_path / "lake", "optimizer", "plain", 2)
    assert stored.keys() == {(name, "momentum_buffer") for name in names}
    assert tiny.tensors(tmp_path / "lake", "weights", "plain", 1).keys() == {"0.weight", "0.bias"}
    (checkpoint,) = tiny.rows(tmp_path / "lake", "checkpoints")
    assert (checkpoint["global_step"], checkpoint["planned"]) == (2, False)
    assert len(tiny.rows(tmp_path / "lake", "tensor_stats")) == 2 + (2 + 2) + (4 + 4)


def test_close_takes_the_activations_of_the_last_state(tmp_path: Path) -> None:
    """`close` alone knows which step is the last where the length is not known before."""

    class Floats(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = loops.mlp()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden: torch.Tensor = self.inner(x.float())
            return hidden

    model = Floats()
    optimizer = loops.sgd(model)
    probe = probes.make("mine", np.ones((2, 4), dtype=np.int64), "ones")
    record = {"activations": {"probe": "mine", "every": 10, "sites": ["inner.0.out"]}}
    with Recorder(tmp_path / "lake", "plain", model, optimizer, record, probes=[probe]) as recorder:
        for number in range(2):
            loops.step(model, optimizer, number)
            recorder.step()
    assert loops.numbers(tmp_path / "lake", "activations") == [0, 2]
    (stored,) = tiny.tensors(tmp_path / "lake", "activations", "plain", 2).values()
    np.testing.assert_array_equal(stored, model.inner[0](torch.ones(2, 4)).detach().numpy())
