"""A step of a run as a live model again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import pico
from pico import models
from pico.errors import ConfigError, CorruptError, RecordError, RunNameError
from pico.evaluate import load
from tests.record import loops
from tests.train import tiny

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny.two_runs(tmp_path_factory.mktemp("load"))


def test_a_loaded_model_is_the_trained_one(lake: str) -> None:
    """Its held-out loss is the recorded one, and its probe activations are the recorded ones."""
    rows = tiny.rows(lake, "scalars", "first")
    losses = {r["global_step"]: r["value"] for r in rows if r["name"] == "heldout_loss"}
    held_out = pico.Lake.open(lake).sql(
        "SELECT tokens FROM sequences WHERE dataset = 'text.heldout' ORDER BY sequence_id LIMIT 8"
    )
    tokens = torch.tensor([list(row) for (row,) in held_out.fetchall()])
    for step in (0, 4, 6):
        model = pico.load_model(lake, "first", step)
        assert not model.training
        with torch.no_grad():
            loss, _ = models.language_model_loss(model, tokens[:, :-1], tokens[:, 1:])
        assert loss.item() == pytest.approx(losses[step], rel=1e-6)
        stored = tiny.tensors(lake, "weights", "first", step)
        state = {name: value.numpy() for name, value in model.state_dict().items()}
        assert all(tiny.equal_bits(state[name], value) for name, value in stored.items())
        assert state.keys() == stored.keys()


def test_the_last_step_is_the_default(lake: str) -> None:
    ids = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        last, default = (pico.load_model(lake, "second", step)(ids) for step in (6, None))
        other = pico.load_model(lake, "second", 5)(ids)
    assert torch.equal(last, default)
    assert not torch.equal(last, other)


def test_loading_draws_no_random_numbers(lake: str) -> None:
    before = torch.get_rng_state()
    pico.load_model(lake, "first")
    assert torch.equal(torch.get_rng_state(), before)


def test_unknown_runs_and_steps(lake: str) -> None:
    with pytest.raises(RunNameError, match=r"no run 'frist' in .*Did you mean 'first'") as caught:
        pico.load_model(lake, "frist")
    assert "\n" not in str(caught.value)
    with pytest.raises(RecordError, match=r"no weights at step 99; the nearest .* 2, 3, 4, 5, 6$"):
        pico.load_model(lake, "first", 99)
    with pytest.raises(RecordError, match="no weights at step -1"):
        pico.load_model(lake, "first", -1)


def test_weights_that_do_not_fit(lake: str) -> None:
    with pytest.raises(
        RecordError, match="the weights of run 'first' do not fit the model"
    ) as error:
        pico.load_model(lake, "first", model=nn.Linear(2, 2))
    assert "\n" not in str(error.value)


def test_a_run_without_config_or_weights(tmp_path: Path) -> None:
    loops.train(tmp_path / "lake", 1, {"weights": True}, run="plain")
    loops.train(tmp_path / "lake", 1, {}, run="bare")
    with pytest.raises(
        ConfigError, match="stores no config to build a model from; in Python, pass model="
    ):
        pico.load_model(str(tmp_path / "lake"), "plain")
    with pytest.raises(RecordError, match="run 'bare' has no stored weights"):
        pico.load_model(str(tmp_path / "lake"), "bare")
    with pytest.raises(RecordError, match="no weights at step 0; the nearest steps are none"):
        pico.load_model(str(tmp_path / "lake"), "bare", 0)
    model = pico.load_model(str(tmp_path / "lake"), "plain", model=loops.mlp(seed=9))
    stored = tiny.tensors(tmp_path / "lake", "weights", "plain", 1)
    assert all((loops.state(model)[name] == value).all() for name, value in stored.items())


def test_every_tensor_keeps_its_own_type(tmp_path: Path) -> None:
    """Half the model in bfloat16, whole numbers among the buffers."""

    def mixed() -> nn.Module:
        torch.manual_seed(0)
        model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Linear(4, 2))
        model[1].to(torch.bfloat16)
        return model

    model = mixed()
    model[0].num_batches_tracked += 7
    with pico.Recorder(tmp_path / "lake", "mixed", model, record={"weights": True}):
        pass
    loaded = pico.load_model(str(tmp_path / "lake"), "mixed", model=mixed().float())
    for name, value in model.state_dict().items():
        found = loaded.state_dict()[name]
        assert found.dtype == value.dtype
        assert torch.equal(found, value)


def test_a_damaged_tensor_is_not_loaded(tmp_path: Path) -> None:
    loops.train(tmp_path / "lake", 1, {"weights": True})
    (path,) = (tmp_path / "lake").glob("weights/run=plain/step=1/*.parquet")
    data = bytearray(path.read_bytes())
    data[40:400] = bytes(byte ^ 0xFF for byte in data[40:400])
    path.write_bytes(data)
    with pytest.raises(CorruptError, match=path.name):
        pico.load_model(str(tmp_path / "lake"), "plain", 1, model=loops.mlp())


def test_the_row_of_a_run(lake: str) -> None:
    row = load.run_row(tiny.snapshot(lake), "first")
    assert row["config"]["seeds"] == {"init": 3, "data": 5, "dropout": 7}
    assert load.weight_steps(tiny.snapshot(lake), "first") == list(range(7))
