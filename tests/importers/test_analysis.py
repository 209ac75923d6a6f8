"""`pico analyze` gives pico-analyze's numbers and the right ones, each computed here again.

What pico-analyze gives is computed with torch from the files that pico-train wrote, in the way that
tool takes: V·O products, `torch.svd`, sums over a sorted tensor, activations as they were stored.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import pico
from pico import Lake
from pico.config import ModelConfig
from pico.errors import ConfigError, RunNameError
from pico.lake.log import LogReader
from pico.models import build
from pico.record import probes
from tests.importers.pico_run import Writer

SUFFIXES = {"output_layer": "attention.o_proj", "value_layer": "attention.v_proj"}
SINGLE = ("per", "condition_number", "gini", "hoyer", "frobenius", "nuclear", "inf")


def part(of: str, name: str = "ov_circuit", layers: tuple[int, ...] = (0, 1)) -> dict[str, Any]:
    suffixes = SUFFIXES if name == "ov_circuit" else "swiglu.w_2"
    return {
        "component_name": name,
        "data_type": of,
        "layer_suffixes": suffixes,
        "layers": list(layers),
    }


def metric(name: str, parts: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    if name in ("frobenius", "nuclear", "inf"):
        more |= {"norm_type": name}
        name = "norm"
    return {"metric_name": name, "data_split": "val", "components": parts, **more}


def tiny_ov(target: int, layers: tuple[int, ...] = (0, 1)) -> dict[str, Any]:
    """A config in the style of pico-analyze's `pico-decoder-tiny-ov`."""
    parts = [part("weights", layers=layers), part("gradients", layers=layers)]
    parts.append(part("weights", "simple", layers))
    compared = [part("activations", layers=layers), part("activations", "simple", layers)]
    return {
        "analysis_name": "tiny-ov",
        "metrics": [
            metric("cka", compared, target_checkpoint=target),
            *(metric(name, parts) for name in SINGLE),
        ],
        "steps": {"start": 0, "end": target, "step": 2},
        "monitoring": {"output_dir": "there", "save_to_wandb": True, "wandb": {"entity": "pico"}},
    }


def theirs(x: torch.Tensor) -> dict[str, float]:
    """Return the metrics of one tensor as pico-analyze computes them."""
    singular = torch.svd(x).S
    p = singular / singular.sum()
    flat = torch.sort(torch.abs(x.flatten()))[0]
    n = len(flat)
    index = torch.arange(1, n + 1, dtype=x.dtype)
    l1, l2 = torch.norm(x, p=1).item(), torch.norm(x, p=2).item()
    return {
        "per_pico": torch.exp(-torch.sum(p * torch.log(p))).item() / len(p),
        "condition_number_pico": (singular.max() / singular.min()).item(),
        "gini_pico": (((2 * index - n - 1) * flat).sum() / (n * flat.sum())).item(),
        "hoyer_pico": (math.sqrt(n) - l1 / l2) / (math.sqrt(n) - 1),
        "frobenius_norm_pico": torch.norm(x, p="fro").item(),
        "nuclear_norm": torch.norm(x, p="nuc").item(),
        "max_abs": torch.norm(x, p=float("inf")).item(),
    }


def ours(x: np.ndarray[Any, Any], rank: int | None = None) -> dict[str, float]:
    """Return the same in float64 by their definitions; of a product `rank` values count."""
    x = x.astype(np.float64)
    singular = np.linalg.svd(x, compute_uv=False)[:rank]
    p = singular / singular.sum()
    flat = np.sort(np.abs(x.ravel()))
    n = flat.size
    root = math.sqrt(n)
    return {
        "per": math.exp(-np.sum(p * np.log(p))) / len(p),
        "condition_number": singular[0] / singular[-1],
        "gini": float((2 * np.arange(1, n + 1) - n - 1) @ flat / (n * flat.sum())),
        "hoyer": (root - flat.sum() / np.linalg.norm(flat)) / (root - 1),
        "frobenius_norm": float(np.linalg.norm(x)),
        "nuclear_norm": float(singular.sum()),
        "max_abs": float(flat[-1]),
    }


def linear_cka(x: torch.Tensor, y: torch.Tensor) -> float:
    a, b = (z.double().numpy() - z.double().numpy().mean(axis=0) for z in (x, y))
    across = np.linalg.norm(b.T @ a) ** 2
    return float(across / (np.linalg.norm(a.T @ a) * np.linalg.norm(b.T @ b)))


def kept(lake: Lake, run: str, **wanted: Any) -> dict[str, float]:
    """Return metric → value of the rows that match."""
    rows = lake.snapshot().read("metrics", runs=[run]).to_pylist()
    return {
        row["metric"]: row["value"]
        for row in rows
        if all(row[key] == value for key, value in wanted.items())
    }


class Files:
    """The captures of pico-train, as its files hold them."""

    def __init__(self, path: Path, heads: tuple[int, int]) -> None:
        self.path, (self.n_heads, self.n_kv) = path, heads

    def load(self, step: int, kind: str) -> dict[str, torch.Tensor]:
        folder = self.path / "checkpoints" / f"step_{step}" / "learning_dynamics"
        found = torch.load(folder / f"val_{kind}.pt", weights_only=True)
        return {name.removeprefix("_forward_module."): tensor for name, tensor in found.items()}

    def ov(self, step: int, layer: int, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
        found = self.load(step, kind)
        name = f"layers.{layer}.attention"
        return found[f"{name}.v_proj"], found[f"{name}.o_proj"]

    def halves(self, v: torch.Tensor, o: torch.Tensor, h: int) -> tuple[torch.Tensor, torch.Tensor]:
        d_head = o.shape[1] // self.n_heads
        g = h // (self.n_heads // self.n_kv)
        return v[g * d_head : (g + 1) * d_head], o[:, h * d_head : (h + 1) * d_head]


def check_circuits(lake: Lake, run: str, files: Files, step: int, layer: int, head: int) -> None:
    v, o = files.halves(*files.ov(step, layer, "weights"), head)
    name = f"layers.{layer}.attention"
    at = {"global_step": step, "head": head}
    numbers = kept(lake, run, name=f"{name}.vo_product", table_name="weights", **at)
    expected = theirs(v @ o)
    noise = 2.0**-22 * expected.pop("condition_number_pico")  # of a product in float32
    condition = numbers.pop("condition_number_pico")
    assert condition == pytest.approx(theirs(v @ o)["condition_number_pico"], rel=1e-5 + noise)
    assert numbers == pytest.approx(expected, rel=1e-4)
    numbers = kept(lake, run, name=f"{name}.ov_circuit", table_name="weights", **at)
    assert numbers == pytest.approx(ours((o.double() @ v.double()).numpy(), len(v)), rel=1e-6)
    dv, do = files.halves(*files.ov(step, layer, "gradients"), head)
    change = do @ v + o @ dv
    expected = theirs(change)
    numbers = kept(lake, run, name=f"{name}.ov_gradient_pico", table_name="gradients", **at)
    for noisy in ("condition_number_pico", "per_pico"):  # of low rank: rounding decides
        expected.pop(noisy)
    right = ours((do.double() @ v.double() + o.double() @ dv.double()).numpy(), 2 * len(v))
    expected |= right
    assert {key: numbers[key] for key in expected} == pytest.approx(expected, rel=1e-4)


def test_real_output_of_pico_train(shared: Path, tmp_path: Path) -> None:
    path = shared / "data" / "pico_train_run"
    lake, files = Lake(str(tmp_path / "lake")), Files(path, (12, 4))
    lake.import_pico_train(path, devices=1)
    config = tmp_path / "tiny-ov.yaml"
    config.write_text(yaml.safe_dump(tiny_ov(6)))
    done = lake.analyze(config, "smoke")
    assert not any(isinstance(value, str) for value in done.new.values())
    for step, layer, head in [(0, 0, 0), (2, 1, 5), (6, 0, 11)]:
        check_circuits(lake, "smoke", files, step, layer, head)
        w = files.load(step, "weights")[f"layers.{layer}.swiglu.w_2"]
        numbers = kept(lake, "smoke", name=f"layers.{layer}.swiglu.w_2.weight", global_step=step)
        expected = {**theirs(w), **ours(w.numpy())}
        assert numbers == pytest.approx(expected, rel=1e-4)
    check_similarity(lake, "smoke", files, 2, 6, sub_batch=8)


def check_similarity(
    lake: Lake, run: str, files: Files, step: int, target: int, sub_batch: int | None
) -> None:
    """Compare CKA of heads and of a module with what the files give, as stored and in order."""

    def in_order(x: torch.Tensor) -> torch.Tensor:
        pieces = x.split(sub_batch or len(x))
        return x if sub_batch is None else torch.cat([a.reshape(x.shape[1], -1).T for a in pieces])

    for layer, head in ((0, 3), (1, 0)):
        name = f"layers.{layer}.attention"
        sides = []
        for at in (step, target):
            value = files.load(at, "activations")[f"{name}.v_proj"]
            _, o = files.halves(*files.ov(at, layer, "weights"), head)
            g = head // (files.n_heads // files.n_kv)
            columns = slice(g * o.shape[1], (g + 1) * o.shape[1])
            sides.append((value[:, columns] @ o.T, in_order(value)[:, columns] @ o.T))
        at = {"global_step": step, "head": head, "ref_step": target, "ref_run": run}
        right = kept(lake, run, name=f"{name}.ov_circuit", table_name="activations", **at)
        assert right["cka"] == pytest.approx(linear_cka(sides[0][1], sides[1][1]), rel=1e-6)
        if sub_batch is not None:
            stored = kept(lake, run, name=f"{name}.ov_circuit.scrambled", **at)
            assert stored["cka"] == pytest.approx(linear_cka(sides[0][0], sides[1][0]), rel=1e-4)
        sides = [
            files.load(at, "activations")[f"layers.{layer}.swiglu.w_2"] for at in (step, target)
        ]
        both = {name: kept(lake, run, name=name, global_step=step, ref_step=target) for name in (
            f"layers.{layer}.swiglu", f"layers.{layer}.swiglu.scrambled")}  # fmt: skip
        right, stored = both.values()
        expected = linear_cka(*(in_order(side) for side in sides))
        assert right["cka"] == pytest.approx(expected, rel=1e-6)
        if sub_batch is not None:
            assert stored["cka"] == pytest.approx(linear_cka(*sides), rel=1e-4)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Writer, Lake]:
    run = Writer(tmp_path_factory.mktemp("runs") / "small").run(4)
    lake = Lake(str(tmp_path_factory.mktemp("lakes") / "lake"))
    lake.import_pico_train(run.path, devices=1)
    lake.analyze(tiny_ov(4), "small")
    return run, lake


def test_a_run_made_here(made: tuple[Writer, Lake]) -> None:
    run, lake = made
    files = Files(run.path, (4, 2))
    for step, layer, head in [(0, 1, 3), (2, 0, 0), (4, 1, 1)]:
        check_circuits(lake, "small", files, step, layer, head)
    check_similarity(lake, "small", files, 0, 4, sub_batch=3)


def test_a_second_call_computes_nothing(made: tuple[Writer, Lake]) -> None:
    _, lake = made
    before = LogReader(lake.storage).rows().num_rows
    again = lake.analyze(tiny_ov(4), "small")
    assert not again.new and {row["computed"] for row in again.rows()} == {0}
    assert LogReader(lake.storage).rows().num_rows == before
    assert lake.verify(deep=True).is_sound


def test_what_metrics_compute_kept_is_known(made: tuple[Writer, Lake], tmp_path: Path) -> None:
    run, _ = made
    lake = Lake(str(tmp_path / "lake"))
    lake.import_pico_train(run.path, devices=1)
    lake.compute_metrics(["gini"], "small")
    config = {"metrics": [metric("gini", [part("weights", "simple")])], "steps": [0, 2]}
    done = lake.analyze(config, "small", numbers="ours")
    assert not done.new and done.rows()[0]["there"] == 4
    new = lake.analyze(config, "small", numbers="pico")
    assert len(new.new) == 4 and {key[7] for key in new.new} == {"gini_pico"}


def test_a_dry_run_and_a_choice_of_numbers(made: tuple[Writer, Lake]) -> None:
    _, lake = made
    config = tiny_ov(4)
    config["metrics"] = [metric("per", [part("weights"), part("gradients")], data_split="train")]
    done = lake.analyze(config, "small", dry_run=True)
    (weights, gradients) = done.rows()
    assert (weights["there"], weights["to compute"]) == (48, 0)  # both numbers of 4 heads
    assert (gradients["to compute"], gradients["absent"]) == (32, 2)  # no training batch at 4
    assert str(done).startswith("run 'small': 32 values to compute, 48 there already")
    rows = lake.snapshot().read("metrics", ["stage", "probe"], ["small"]).to_pylist()
    assert all(row["probe"] is not None for row in rows if row["stage"] is not None)


def test_metrics_of_one_name_are_all_computed(made: tuple[Writer, Lake]) -> None:
    """pico-analyze keeps the last of several entries of one name."""
    _, lake = made
    numbers = kept(lake, "small", name="layers.0.swiglu.w_2.weight", global_step=0)
    assert {"frobenius_norm", "nuclear_norm", "max_abs"} <= numbers.keys()


def test_a_range_ends_at_its_end() -> None:
    """pico-analyze goes on to the next multiple of `step`."""
    from pico.importers import analysis_config

    config = {"metrics": [metric("gini", [part("weights")])]}
    load = analysis_config.load
    assert load({**config, "steps": {"start": 0, "end": 100, "step": 30}}).steps == (0, 30, 60, 90)
    assert load({**config, "steps": {"start": 0, "end": 100, "step": 50}}).steps == (0, 50, 100)
    assert load({**config, "steps": [4, 0, 4]}).steps == (0, 4)


def test_activations_of_different_batches_are_not_compared(made: tuple[Writer, Lake]) -> None:
    _, lake = made
    config = {
        "metrics": [metric("cka", [part("activations")], target_checkpoint=0, data_split="train")],
        "steps": [2],
    }
    done = lake.analyze(config, "small")
    assert "different inputs cannot be compared" in str(done)
    assert done.rows()[0]["undefined"] == 16 and done.rows()[0]["computed"] == 0


def test_a_lake_written_by_the_recorder(tmp_path: Path) -> None:
    """Its probe `text` is what a config calls val; there are enough samples for PWCCA."""
    lake = Lake(str(tmp_path / "lake"))
    sizes = ModelConfig(d_model=8, n_layers=1, n_heads=2, n_kv_heads=1, d_hidden=16, context=8)
    net = build(sizes, 20, seed=1)
    tokens = np.random.default_rng(0).integers(0, 20, (24, 8))
    probe = probes.make("text", tokens, "some-text")
    record = {
        "weights": "always",
        "gradients": "always",
        "activations": [
            {"probe": "text", "schedule": "always", "sites": ["v", "mlp.out"], "positions": "last"}
        ],
    }
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    with pico.Recorder(
        lake, "own", net, optimizer, record, probes=[probe], max_steps=2
    ) as recorder:
        for _ in range(2):
            optimizer.zero_grad()
            logits = net(torch.from_numpy(tokens[:, :-1]))
            torch.nn.functional.cross_entropy(
                logits.transpose(1, 2), torch.from_numpy(tokens[:, 1:])
            ).backward()
            optimizer.step()
            recorder.step()
    circuits = [part("weights", layers=(0,)), part("gradients", layers=(0,))]
    activations = [part("activations", layers=(0,)), part("activations", "simple", (0,))]
    config = {
        "metrics": [
            metric("pwcca", activations, target_checkpoint=2),
            metric("cka", activations, target_checkpoint=2),
            metric("per", circuits, data_split="train"),
        ],
        "steps": [0, 1, 2],
    }
    done = lake.analyze(config, "own")
    assert "absent" in str(done)  # gradients of step 2: no batch caused any
    x, y = (
        next(
            row.tensor.to_numpy()
            for row in lake.snapshot().tensors("activations", "own", step)
            if row.keys["site"] == "mlp.out"
        )
        for step in (0, 2)
    )
    numbers = kept(lake, "own", name="layers.0.swiglu", global_step=0)
    assert numbers == pytest.approx(
        {
            "pwcca": pico.metrics.pwcca(x, y),
            "pwcca_pico": pico.metrics.pwcca_pico(x, y),
            "cka": linear_cka(torch.tensor(x), torch.tensor(y)),
        },
        rel=1e-6,
    )
    rows = {
        row.keys["component"]: row.tensor.to_numpy()
        for row in lake.snapshot().tensors("weights", "own", 1)
    }
    circuit = rows["o"][:, 4:].astype(float) @ rows["v"].astype(float)  # head 1 of 2, one kv head
    numbers = kept(lake, "own", name="layers.0.attention.ov_circuit", global_step=1, head=1)
    assert numbers["per"] == pytest.approx(ours(circuit, 4)["per"], rel=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metric": []}, r"unknown config key 'metric'. Did you mean 'metrics'\?"),
        ({"metrics": None}, "metrics must be a list of at least one"),
        ({"metrics": [3]}, r"metrics\[0\] must be a mapping"),
        ({"steps": {"begin": 0, "end": 4}}, "unknown config key 'steps.begin'"),
        ({"steps": {"start": 4, "end": 0, "step": 1}}, "steps needs 0 ≤ start ≤ end"),
        ({"steps": {"end": 10**12}}, "stands for more than"),
        ({"steps": [1.5]}, "steps must be numbers from 0"),
        ({"steps": []}, "steps must be a list of at least one"),
        ({"monitoring": {"output": "x"}}, "unknown config key 'monitoring.output'"),
        ({"metrics": [metric("ginni", [part("weights")])]}, "no metric 'ginni'. Did you mean"),
        ({"metrics": [metric("norm", [part("weights")])]}, "norm_type must be one of frobenius"),
        (
            {"metrics": [metric("gini", [part("weights")], norm_type="inf")]},
            "norm_type must be one of",
        ),
        ({"metrics": [metric("cka", [part("activations")])]}, "and needs a target_checkpoint"),
        (
            {"metrics": [metric("gini", [part("weights")], target_checkpoint=3)]},
            "compares nothing, so target_checkpoint",
        ),
        ({"metrics": [metric("gini", [])]}, "components must be a list of at least one"),
        ({"metrics": [metric("gini", [{"component_name": "simple"}])]}, "needs data_type"),
        (
            {"metrics": [metric("gini", [{**part("weights"), "data_type": "states"}])]},
            "data_type must be one of weights, gradients, activations",
        ),
        (
            {"metrics": [metric("gini", [{**part("weights"), "component_name": "qk"}])]},
            "component_name must be one of simple, ov_circuit",
        ),
        (
            {"metrics": [metric("gini", [{**part("weights"), "layer_suffixes": "o"}])]},
            "layer_suffixes must be a mapping of output_layer and value_layer",
        ),
        (
            {"metrics": [metric("gini", [{**part("weights"), "layers": 3}])]},
            "layers must be a list of layers from 0, not 3",
        ),
        ({"metrics": [metric("gini", [part("weights", layers=(0, 7))])]}, "has layers 0 to 1, and"),
        (
            {"metrics": [metric("gini", [{**part("weights", "simple"), "layer_suffixes": "mlp"}])]},
            "has no module 'mlp' in layer 0; it has attention.k_proj",
        ),
        (
            {"metrics": [metric("cka", [part("activations")], target_checkpoint=7)]},
            "at target_checkpoint 7 for data_split val; steps with activations: 0, 2, 4",
        ),
        (
            {"metrics": [metric("gini", [part("gradients")], data_split="tset")]},
            "has no probe 'tset' for data_split; it has train, val",
        ),
        ({"steps": [1, 3]}, "nothing of what the config asks for, at no step from 1 to 3"),
    ],
)
def test_a_config_that_is_wrong_is_an_error_of_one_line(
    made: tuple[Writer, Lake], change: dict[str, Any], message: str
) -> None:
    _, lake = made
    good = {"metrics": [metric("gini", [part("weights")])], "steps": [0]}
    with pytest.raises(ConfigError, match=message) as caught:
        lake.analyze({**good, **change}, "small")
    assert "\n" not in str(caught.value)


def test_files_that_are_no_configs_and_runs_that_are_not_there(
    made: tuple[Writer, Lake], tmp_path: Path
) -> None:
    _, lake = made
    with pytest.raises(ConfigError, match="cannot read"):
        lake.analyze(tmp_path / "absent.yaml", "small")
    (tmp_path / "bad.yaml").write_text("metrics: [")
    with pytest.raises(ConfigError, match="is not valid YAML"):
        lake.analyze(tmp_path / "bad.yaml", "small")
    (tmp_path / "good.yaml").write_text(json.dumps(tiny_ov(4)))
    with pytest.raises(RunNameError, match="no run 'smol'"):
        lake.analyze(tmp_path / "good.yaml", "smol")
