"""`record.metrics`: the numbers that `pico metrics compute` would find, without the tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

import pico
from pico import metrics as tensor_metrics
from pico.api import Lake
from pico.compute import stale
from pico.errors import ConfigError, MetricError, RecordError
from pico.lake.log import LogReader
from pico.metrics import registry
from pico.record import measure, probes
from pico.record.recorder import Recorder
from tests.record import loops
from tests.train import tiny

torch.set_num_threads(1)

NAMES = ["gini", "per", "frobenius_norm", "condition_number"]
OF_VECTORS = {"gini", "frobenius_norm"}
NAMED = ("table_name", "global_step", "name", "site", "state", "stage", "probe", "metric")


def rows(lake: Path, run: str = "plain", **keys: Any) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return the rows of `metrics` by what tells them apart, and see that none is there twice."""
    found = [row for row in tiny.rows(lake, "metrics", run)]
    by_key = {tuple(row[name] for name in NAMED): row for row in found}
    assert len(by_key) == len(found)
    return {k: row for k, row in by_key.items() if all(row[n] == v for n, v in keys.items())}


def steps(lake: Path, **keys: Any) -> list[int]:
    return sorted({row["global_step"] for row in rows(lake, **keys).values()})


def gini(values: NDArray[Any]) -> float:
    """Twice the area between the Lorenz curve and the diagonal, by the sum over all pairs."""
    x = np.abs(values.astype(np.float64)).reshape(-1)
    return float(np.abs(x[:, None] - x[None, :]).sum() / (2 * x.size**2 * x.mean()))


def train_everything(
    lake: Path, dtype: torch.dtype, with_metrics: bool, n_steps: int = 4, stored: Any = True
) -> None:
    """Train an MLP of some type; gradients of both stages, a probe, and the optimizer."""
    model = loops.mlp().to(dtype)
    model.register_buffer("count", torch.tensor(7))
    optimizer = loops.sgd(model)
    every = {"every": 2}
    record: dict[str, Any] = {
        "weights": stored and every,
        "gradients": {"schedule": stored and every, "stages": ["raw", "clipped"]},
        "optimizer": stored and every,
        "activations": [
            {"schedule": stored and every, "sites": ["0.out"], "positions": "all"},
            {"probe": "mine", "schedule": stored and every, "sites": ["3.out"]},
        ],
    }
    if with_metrics:
        tables = ["weights", "gradients", "optimizer", "activations"]
        record["metrics"] = [
            {"names": NAMES[:2], **every, "tables": tables, "stages": ["raw", "clipped"]},
            {"names": NAMES[1:], **every, "tables": tables, "stages": ["raw", "clipped"]},
        ]
    probe = probes.make("mine", np.arange(8).reshape(2, 4), "zeros")
    double = ToType(model, dtype)
    with Recorder(lake, "plain", double, optimizer, record, probes=[probe]) as recorder:
        for number in range(n_steps):
            inputs, targets = loops.batch(number)
            optimizer.zero_grad()
            nn.functional.cross_entropy(double(inputs), targets).backward()
            recorder.before_optimizer_step()
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad *= 0.5
            recorder.after_clipping()
            optimizer.step()
            recorder.step()


class ToType(nn.Module):
    """Whatever comes in, as the type of the MLP inside; its modules keep their names."""

    def __init__(self, inner: nn.Sequential, dtype: torch.dtype) -> None:
        super().__init__()
        for name, module in inner.named_children():
            self.add_module(name, module)
        self.register_buffer("count", torch.tensor(7))
        self.order, self.dtype = list(inner.children()), dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for module in self.order:
            x = module(x.to(self.dtype))
        return x


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_the_numbers_are_those_of_the_stored_tensors(tmp_path: Path, dtype: torch.dtype) -> None:
    """Same keys, hash, version and bits as computed later; which then finds nothing to do."""
    train_everything(tmp_path / "in training", dtype, with_metrics=True)
    train_everything(tmp_path / "later", dtype, with_metrics=False)
    later, now = (Lake(str(tmp_path / name)) for name in ("later", "in training"))
    for table in ("weights", "gradients", "optimizer", "activations"):
        done = later.compute_metrics(NAMES, table=table)
        assert done.computed > 0
        again = now.compute_metrics(NAMES, table=table)
        assert (again.computed, again.reused) == (0, 0)
        assert (again.present, again.skipped) == (
            done.computed + done.reused + done.present,
            done.skipped,
        )
    expected, found = rows(tmp_path / "later"), rows(tmp_path / "in training")
    assert repr(found) == repr(expected)  # NaN is NaN
    for row in found.values():
        assert row["metric_version"] == registry.get(row["metric"]).version
    # of the bias vectors and of the buffer only what is defined for any shape
    assert {k[-1] for k in found if k[2] in ("0.bias", "count")} == OF_VECTORS
    assert {k[-1] for k in found if k[2] == "0.weight"} == set(NAMES)


def test_without_storing_a_tensor(tmp_path: Path) -> None:
    """The same rows; no tensor in the lake; and numbers told by an independent formula."""
    train_everything(tmp_path / "kept", torch.float32, with_metrics=True)
    train_everything(tmp_path / "lake", torch.float32, with_metrics=True, stored=False)
    found = rows(tmp_path / "lake")
    assert repr(found) == repr(rows(tmp_path / "kept"))
    for table in ("weights", "gradients", "optimizer", "activations", "tensor_stats"):
        assert tiny.snapshot(tmp_path / "lake").read(table).num_rows == 0
    checked = 0
    for key, row in found.items():
        if key[0] == "weights" and key[2] == "0.weight":
            value = tiny.tensors(tmp_path / "kept", "weights", "plain", key[1])["0.weight"]
            singular = np.linalg.svd(value.astype(np.float64), compute_uv=False)
            expected = {
                "gini": gini(value),
                "frobenius_norm": float(np.linalg.norm(value.astype(np.float64))),
                "condition_number": float(singular[0] / singular[-1]),
            }
            if key[-1] in expected:
                assert row["value"] == pytest.approx(expected[key[-1]], rel=1e-9)
                checked += 1
    assert checked == 3 * 3
    # activations of the batch have no step 4: that batch never came
    assert steps(tmp_path / "lake", table_name="weights") == [0, 2, 4]
    assert steps(tmp_path / "lake", table_name="activations", probe="mine") == [0, 2, 4]
    assert steps(tmp_path / "lake", table_name="activations", probe=None) == [0, 2]
    assert steps(tmp_path / "lake", table_name="gradients", stage="clipped") == [0, 2]


def test_the_short_form(tmp_path: Path) -> None:
    """`metrics: [gini]` measures weights and raw gradients every 100 steps and at the end."""
    loops.train(tmp_path / "lake", 203, {"metrics": ["gini"]}, max_steps=203)
    assert steps(tmp_path / "lake", table_name="weights") == [0, 100, 200, 203]
    assert steps(tmp_path / "lake", table_name="gradients") == [0, 100, 200, 202]
    assert {(r["table_name"], r["stage"]) for r in rows(tmp_path / "lake").values()} == {
        ("weights", None),
        ("gradients", "raw"),
    }


def test_tensors_are_chosen_by_name(tmp_path: Path) -> None:
    metrics = [
        {"names": "gini", "every": 1, "tensors": "*.bias", "tables": ["weights"]},
        {"names": "max_abs", "schedule": [1], "tensors": ["3.*"], "tables": ["gradients"]},
    ]
    loops.train(tmp_path / "lake", 2, {"metrics": metrics})
    assert {(*k[:3], k[-1]) for k in rows(tmp_path / "lake")} == {
        *(("weights", step, name, "gini") for step in range(3) for name in ("0.bias", "3.bias")),
        *(("gradients", 1, name, "max_abs") for name in ("3.weight", "3.bias")),
    }


@pytest.mark.parametrize("how", ["close", "checkpoint"])
def test_nothing_is_measured_twice_at_a_step(tmp_path: Path, how: str) -> None:
    model = loops.mlp()
    optimizer = loops.sgd(model)
    record = {"metrics": {"names": ["gini"], "every": 1}, "weights": {"every": 2}}
    recorder = Recorder(tmp_path / "lake", "plain", model, optimizer, record)
    for number in range(3):
        loops.step(model, optimizer, number)
        recorder.step()
        if how == "checkpoint":
            recorder.checkpoint()
    recorder.close()
    seen = Counter(key[:3] for key in rows(tmp_path / "lake"))
    assert seen == {
        **{("weights", s, name): 1 for s in range(4) for name in loops.state(model)},
        **{("gradients", s, name): 1 for s in range(3) for name in loops.state(model)},
    }


def test_a_dropped_step_leaves_no_number(tmp_path: Path) -> None:
    """Neither metrics nor statistics of gradients whose step never ended."""
    model = loops.mlp()
    optimizer = loops.sgd(model)
    record = {"metrics": {"names": ["gini"], "every": 1}, "tensor_stats": {"gradients": True}}
    with (
        pytest.raises(KeyboardInterrupt),
        Recorder(tmp_path / "lake", "plain", model, optimizer, record) as recorder,
    ):
        loops.step(model, optimizer, 0)
        recorder.step()
        loops.step(model, optimizer, 1)
        raise KeyboardInterrupt
    assert steps(tmp_path / "lake", table_name="gradients") == [0]
    assert steps(tmp_path / "lake", table_name="weights") == [0, 1]
    stats = tiny.rows(tmp_path / "lake", "tensor_stats")
    assert {row["global_step"] for row in stats} == {0}


def counted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Note the metrics of every call that computes."""
    calls: list[tuple[str, ...]] = []
    compute = tensor_metrics.compute

    def note(array: Any, names: Any) -> dict[str, float]:
        calls.append(tuple(names))
        return compute(array, names)

    monkeypatch.setattr(measure.tensor_metrics, "compute", note)
    return calls


def test_what_does_not_change_is_computed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = counted(monkeypatch)
    model = loops.mlp()
    model[0].requires_grad_(False)
    metrics = [
        {"names": ["gini"], "every": 1, "tables": ["weights"], "tensors": ["0.*"]},
        {"names": ["per"], "every": 2, "tables": ["weights"], "tensors": ["0.*"]},
    ]
    loops.train(tmp_path / "lake", 4, {"metrics": metrics}, model, max_steps=4)
    found = rows(tmp_path / "lake")
    assert steps(tmp_path / "lake", metric="gini", name="0.weight") == [0, 1, 2, 3, 4]
    assert steps(tmp_path / "lake", metric="per", name="0.weight") == [0, 2, 4]
    assert len({row["tensor_hash"] for row in found.values()}) == 2
    assert sorted(calls) == [("gini",), ("gini", "per")]


def test_a_tensor_elsewhere_is_measured_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a tensor on a GPU: the live tensor itself is measured, by the training thread."""
    train_everything(tmp_path / "host", torch.bfloat16, with_metrics=True)
    kinds: set[type] = set()
    compute = tensor_metrics.compute

    def note(array: Any, names: Any) -> dict[str, float]:
        kinds.add(type(array))
        return compute(array, names)

    monkeypatch.setattr(measure.tensor_metrics, "compute", note)
    monkeypatch.setattr(measure, "_lies_on_host", lambda tensor: False)
    train_everything(tmp_path / "elsewhere", torch.bfloat16, with_metrics=True)
    assert torch.Tensor in kinds or nn.Parameter in kinds
    assert repr(rows(tmp_path / "elsewhere")) == repr(rows(tmp_path / "host"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu(tmp_path: Path) -> None:
    record = {"metrics": {"names": NAMES, "every": 1}, "weights": True}
    loops.train(tmp_path / "lake", 0, record, loops.mlp().to("cuda"))
    found = rows(tmp_path / "lake", table_name="weights")
    stored = tiny.tensors(tmp_path / "lake", "weights", "plain", 0)
    for key, row in found.items():
        (expected,) = tensor_metrics.compute(stored[key[2]], [key[-1]]).values()
        assert row["value"] == pytest.approx(expected, rel=1e-9)
    again = Lake(str(tmp_path / "lake")).compute_metrics(NAMES)
    assert (again.computed, again.reused) == (0, 0)


RESUMED = {
    "checkpoints": {"every": 4},
    "weights": {"every": 2, "names": ["0.weight"]},
    "metrics": {"names": ["gini", "per"], "every": 1},
    "commit_every": 3,
}


def go_on(lake: Path, step: int, until: int) -> None:
    """Resume the plain run from a checkpoint, and train on as if nothing had happened."""
    model = loops.mlp()
    pico.load_model(str(lake), "plain", step, model)
    optimizer = loops.sgd(model)
    for row in tiny.snapshot(lake).tensors("optimizer", "plain", step):
        parameter = dict(model.named_parameters())[row.keys["name"]]
        value = torch.from_numpy(row.tensor.to_numpy().copy())
        optimizer.state[parameter][row.keys["state"]] = value
    with Recorder(lake, "plain", model, optimizer, RESUMED, resume_from=step) as recorder:
        for number in range(step, until):
            loops.step(model, optimizer, number)
            recorder.step()


@pytest.mark.parametrize("reached", [4, 5, 7, 8, 9])
@pytest.mark.parametrize("step", [0, 4])
def test_a_resumed_run_shows_each_step_once(tmp_path: Path, step: int, reached: int) -> None:
    """Wherever it stopped, whichever checkpoint it goes on from: the rows of a straight run."""
    loops.train(tmp_path / "straight", 10, RESUMED)
    loops.train(tmp_path / "lake", reached, RESUMED)
    go_on(tmp_path / "lake", step, 10)
    assert rows(tmp_path / "lake") == rows(tmp_path / "straight")
    assert steps(tmp_path / "lake", table_name="weights") == list(range(11))
    assert steps(tmp_path / "lake", table_name="gradients") == list(range(10))
    assert Lake(str(tmp_path / "lake")).verify().is_sound


def test_numbers_of_tensors_that_are_not_stored_are_not_stale(tmp_path: Path) -> None:
    """Going back takes tensors of later steps away; their steps' new numbers stand all the same."""
    loops.train(tmp_path / "lake", 8, RESUMED)
    lake = Lake(str(tmp_path / "lake"))
    lake.compute_metrics("max_abs")
    go_on(tmp_path / "lake", 4, 10)
    before = rows(tmp_path / "lake")
    done = lake.compute_metrics(["gini", "per", "max_abs"])
    assert stale.heal(lake.storage, LogReader(lake.storage), "weights", "plain") == 0
    after = rows(tmp_path / "lake")
    assert {k: row for k, row in after.items() if k[-1] != "max_abs"} == {
        k: row for k, row in before.items() if k[-1] != "max_abs"
    }
    assert done.computed + done.reused > 0
    assert {k[-1] for k in after.keys() - before.keys()} == {"max_abs"}


@pytest.mark.parametrize("mend", ["compact", "copy"])
def test_upkeep_keeps_them_in_their_place(tmp_path: Path, mend: str) -> None:
    loops.train(tmp_path / "lake", 8, RESUMED)
    lake, place = Lake(str(tmp_path / "lake")), tmp_path / "lake"
    if mend == "compact":
        lake.compact()
    else:
        place = tmp_path / "copied"
        lake.copy(str(place))
    assert rows(place) == rows(tmp_path / "lake")
    go_on(place, 4, 10)
    loops.train(tmp_path / "straight", 10, RESUMED)
    assert rows(place) == rows(tmp_path / "straight")


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"metrics": {"names": ["gini"], "tensors": ["o_proj"]}}, "record.metrics.tensors: no te"),
        (
            {
                "metrics": {"names": ["gini"], "tensors": ["0.*"], "tables": ["activations"]},
                "activations": {"sites": ["3.out"]},
            },
            "record.metrics.tensors: no tensor of the model fits ['0.*']; its names are like '3'",
        ),
        ({"metrics": {"names": ["gini"], "tables": ["optimizer"]}}, "record.metrics of optimizer"),
    ],
)
def test_metrics_of_nothing_are_refused(
    tmp_path: Path, record: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        Recorder(tmp_path / "lake", "plain", loops.mlp(), None, record)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(("stages", "call"), [("raw", "before_optimizer_step"), ("clipped", "aft")])
def test_gradients_that_nobody_took_stop_the_step(tmp_path: Path, stages: str, call: str) -> None:
    record = {"metrics": {"names": ["gini"], "tables": ["gradients"], "stages": stages}}
    recorder = Recorder(tmp_path / "lake", "plain", loops.mlp(), None, record)
    with pytest.raises(RecordError, match=rf"were not taken; call recorder\.{call}"):
        recorder.step()
    recorder.abort()


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    def fail(array: Any, names: Any) -> dict[str, float]:
        raise ZeroDivisionError("float division\nby zero")

    monkeypatch.setattr(measure.tensor_metrics, "compute", fail)
    return fail


def test_a_metric_that_fails_stops_training_with_its_cause(
    tmp_path: Path, failing: Callable[..., Any]
) -> None:
    with pytest.raises(MetricError) as caught:
        loops.train(tmp_path / "lake", 3, {"metrics": ["gini"]})
    assert str(caught.value) == (
        "a metric of gini fails for '0.weight' of weights: float division by zero; "
        "leave it out of record.metrics"
    )


def test_the_time_is_told(tmp_path: Path) -> None:
    model = loops.mlp()
    with Recorder(tmp_path / "a", "plain", model, loops.sgd(model), {"metrics": NAMES}) as recorder:
        recorder.flush()
        assert recorder.metrics_seconds > 0
    with Recorder(tmp_path / "b", "plain", model, loops.sgd(model)) as recorder:
        recorder.flush()
        assert recorder.metrics_seconds == 0
