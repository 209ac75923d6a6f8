"""Checkpoints made of others: bit for bit torch's, and runs like any other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import pico
from pico.errors import RecordError, RunNameError
from pico.evaluate import load
from tests.evaluate.test_probe import train
from tests.train import tiny

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> pico.Lake:
    folder = tmp_path_factory.mktemp("derive")
    train(folder, "wide", model={"d_model": 36})
    return train(folder, "first")


def state(lake: pico.Lake, run: str, step: int) -> dict[str, torch.Tensor]:
    return lake.load_model(run, step).state_dict()


def equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return tiny.equal_bits(a.numpy(), b.numpy())


@pytest.mark.parametrize("steps", [[4, 6], [6, 2, 4]])
def test_an_average_is_torchs_bit_for_bit(lake: pico.Lake, steps: list[int]) -> None:
    name = f"mean-{len(steps)}"
    assert lake.average("first", steps, as_run=name) == steps[-1]
    states = [state(lake, "first", step) for step in steps]
    made = state(lake, name, steps[-1])
    assert made.keys() == states[0].keys()
    for key, value in made.items():
        assert equal(value, torch.stack([each[key] for each in states]).mean(0))
    done = lake.probe(name, "repeat", "token_scores,attention")
    assert done.steps == [steps[-1]]
    [row] = [row for row in lake.runs() if row["run"] == name]
    assert (row["n_params"], row["family"]) == (lake.runs()[0]["n_params"], "pico-decoder")
    parent = lake.sql(f"SELECT parent_run, parent_step, extra FROM runs WHERE run = '{name}'")
    [(run, step, extra)] = parent.fetchall()
    assert (run, step) == ("first", steps[-1]) and '"average_of"' in extra
    assert lake.verify(deep=True).is_sound


def test_points_between_two(lake: pico.Lake) -> None:
    a, b = state(lake, "first", 2), state(lake, "first", 6)
    for number, t in enumerate((0.0, 0.25, 1.0, 1.5)):
        assert lake.interpolate(("first", 2), ("first", 6), t, f"t{number}") == 6
        made = state(lake, f"t{number}", 6)
        for key, value in made.items():
            assert equal(value, a[key] * (1 - t) + b[key] * t)
    assert all(equal(state(lake, "t0", 6)[key], a[key]) for key in a)
    assert all(equal(state(lake, "t2", 6)[key], b[key]) for key in b)


def test_what_cannot_be_mixed_is_refused(lake: pico.Lake) -> None:
    before = len(lake.runs())
    for steps in ([4], [4, 4], []):
        with pytest.raises(RecordError, match="an average needs two steps or more"):
            lake.average("first", steps, "x")
    with pytest.raises(RecordError, match="no weights at step 9"):
        lake.average("first", [4, 9], "x")
    with pytest.raises(RunNameError, match="'first' is in"):
        lake.average("first", [4, 6], "first")
    with pytest.raises(RunNameError):
        lake.average("first", [4, 6], "null")
    with pytest.raises(RunNameError, match="no run 'nosuch'"):
        lake.interpolate(("nosuch", 2), ("first", 6), 0.5, "x")
    with pytest.raises(
        RecordError, match=r"is torch.float32 of shape \(\d+, \d+\) at \('first', 6\)"
    ):
        lake.interpolate(("first", 6), ("wide", 6), 0.5, "x")
    assert len(lake.runs()) == before


def test_a_model_for_hugging_face(lake: pico.Lake) -> None:
    ids = torch.arange(8)[None]
    with torch.no_grad():
        ours = lake.load_model("first", 6)(ids)
        theirs = pico.load_model(lake, "first", 6, as_="hf")(ids).logits
    torch.testing.assert_close(theirs, ours, rtol=1e-5, atol=1e-5)
    with pytest.raises(RecordError, match="as 'pico' or as 'hf', not 'tf'"):
        lake.load_model("first", as_="tf")  # type: ignore[arg-type]


def test_frozen_tensors_and_whole_numbers(tmp_path: Path) -> None:
    from tests.record import loops

    model = loops.mlp()
    model.register_buffer("count", torch.tensor([3]))
    loops.train(tmp_path / "lake", 2, {"weights": True}, model=model)
    lake = pico.Lake.open(str(tmp_path / "lake"))
    lake.average("plain", [0, 2], "mean")
    rows = lake.sql("SELECT name, dtype FROM weights WHERE run = 'mean'").fetchall()
    assert ("count", "int64") in rows and len(rows) == 5


@pytest.mark.parametrize("t", [float("nan"), float("inf")])
def test_a_point_that_is_nowhere_is_refused(lake: pico.Lake, t: float) -> None:
    with pytest.raises(RecordError, match="t must be a finite number"):
        lake.interpolate(("first", 2), ("first", 6), t, "nowhere")
    assert "nowhere" not in lake.snapshot().runs()


def test_bfloat16_stays_what_it_is(lake: pico.Lake) -> None:
    """The mean is taken in the dtype of the weights, as torch takes it."""
    model = lake.load_model("first", 4).to(torch.bfloat16)
    recorder = pico.Recorder(lake, run="half", model=model, record={"weights": {"every": 1}})
    with recorder:
        for _ in range(2):
            for parameter in model.parameters():
                parameter.data *= 1.01
            recorder.step()
    assert lake.average("half", [0, 1, 2], as_run="half-mean") == 2
    states = [state_of_half(lake, "half", step) for step in (0, 1, 2)]
    made = state_of_half(lake, "half-mean", 2)
    for key, value in made.items():
        assert value.dtype == torch.bfloat16
        assert torch.equal(value, torch.stack([each[key] for each in states]).mean(0))


def state_of_half(lake: pico.Lake, run: str, step: int) -> dict[str, torch.Tensor]:
    return load.state_dict(lake.snapshot(), run, step)
