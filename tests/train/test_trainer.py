"""What the lake holds of a run is what plain torch computes, bit for bit."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pico import config as configs
from pico import models
from pico.api import Lake
from pico.data import order
from pico.errors import ConfigError, RunNameError
from pico.train import trainer as trainers
from pico.train.trainer import Trainer
from tests.train import tiny
from tests.train.plain_loop import PlainLoop, at, site_hooks

torch.set_num_threads(1)
N = 5
LISTED = [0, 3, 15]


@dataclass
class Trained:
    folder: Path
    mapping: dict[str, Any]
    states: list[dict[str, Any]]
    loop: PlainLoop

    @property
    def lake(self) -> Lake:
        return Lake.open(str(self.folder))

    def scalars(self, name: str) -> dict[int, float]:
        rows = tiny.rows(self.folder, "scalars", "tiny")
        return {row["global_step"]: row["value"] for row in rows if row["name"] == name}


def record(probe: Any, batch: Any) -> dict[str, Any]:
    sites = list(tiny.SITES)
    return {
        "checkpoints": {"every": 2},
        "weights": True,
        "gradients": {"schedule": True, "stages": ["raw", "clipped"]},
        "optimizer": True,
        "activations": [
            {"probe": "text", "schedule": True, "sites": sites, "positions": probe},
            {"schedule": True, "sites": sites, "positions": batch},
        ],
        "probes": {"text": {"n_sequences": 3}},
        "tensor_stats": {"weights": True, "gradients": True},
    }


@pytest.fixture(
    scope="module",
    params=[(None, "all", "last"), (2, LISTED, "all"), (4, "last", LISTED)],
    ids=["whole", "four micro-steps", "two micro-steps"],
)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A run, and the same training in plain torch; the positions recorded differ."""
    folder = tmp_path_factory.mktemp("trained")
    micro, probe, batch = request.param
    mapping = tiny.config(
        tiny.write_text(folder / "text.txt"),
        max_steps=N,
        batch={"micro_size": micro},
        optimizer={"max_grad_norm": 0.3, "min_lr_ratio": 0.1},
        record=record(probe, batch),
    )
    Lake(str(folder / "lake")).train(mapping, "tiny")
    loop = PlainLoop(mapping, Lake.open(str(folder / "lake")), "tiny")
    return Trained(folder / "lake", mapping, list(loop.states()), loop)


def assert_equal(recorded: dict[Any, Any], computed: dict[Any, Any]) -> None:
    assert recorded.keys() == computed.keys()
    assert computed
    different = [k for k, v in computed.items() if not tiny.equal_bits(recorded[k], v)]
    assert not different


def test_weights_are_the_state_dict_at_every_step(trained: Trained) -> None:
    for state in trained.states:
        recorded = tiny.tensors(trained.folder, "weights", "tiny", state["step"])
        assert_equal(recorded, state["weights"])


def test_step_0_is_the_initialisation_and_every_step_differs(trained: Trained) -> None:
    vocab = trained.loop.model.config.vocab_size
    fresh = models.build(trained.loop.config.model, vocab, seed=3).state_dict()
    recorded = tiny.tensors(trained.folder, "weights", "tiny", 0)
    assert_equal(recorded, {name: value.numpy() for name, value in fresh.items()})
    hashes = tiny.content(trained.folder, "weights", "tiny")
    assert len(set(hashes.values())) == len(hashes) - 4  # norms are all ones at first, 5 of them


@pytest.mark.parametrize("stage", ["raw", "clipped"])
def test_gradients_are_those_of_plain_torch(trained: Trained, stage: str) -> None:
    for state in trained.states[:-1]:
        recorded = tiny.tensors(trained.folder, "gradients", "tiny", state["step"], stage=stage)
        assert_equal(recorded, state[stage])


def test_clipping_happened_and_raw_is_before_it(trained: Trained) -> None:
    for state in trained.states[:-1]:
        norms = {}
        for stage in ("raw", "clipped"):
            tensors = tiny.tensors(
                trained.folder, "gradients", "tiny", state["step"], stage=stage
            ).values()
            norms[stage] = math.sqrt(sum(float((t.astype(np.float64) ** 2).sum()) for t in tensors))
        assert norms["raw"] > 0.3
        assert norms["clipped"] == pytest.approx(0.3, rel=1e-4)
        assert trained.scalars("grad_norm")[state["step"]] == pytest.approx(norms["raw"], rel=1e-5)


def test_gradients_agree_with_float64(trained: Trained) -> None:
    model = trained.loop.model
    twin = models.build(model.config, seed=0).double()
    for step in (0, N - 1):
        weights = tiny.tensors(trained.folder, "weights", "tiny", step)
        twin.load_state_dict({k: torch.tensor(v).double() for k, v in weights.items()})
        twin.zero_grad()
        tokens = torch.from_numpy(trained.lake.batch("tiny", step))
        logits = twin(tokens[:, :-1])
        F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        recorded = tiny.tensors(trained.folder, "gradients", "tiny", step, stage="raw")
        for name, parameter in twin.named_parameters():
            exact = parameter.grad.numpy()
            error = np.linalg.norm(recorded[name] - exact) / np.linalg.norm(exact)
            assert error < 1e-5, (step, name)


def test_optimizer_state(trained: Trained) -> None:
    assert trained.states[0]["optimizer"] == {}
    assert tiny.tensors(trained.folder, "optimizer", "tiny", 0) == {}
    for state in trained.states[1:]:
        recorded = tiny.tensors(trained.folder, "optimizer", "tiny", state["step"])
        assert_equal(recorded, state["optimizer"])


def test_activations_of_the_training_batch(trained: Trained) -> None:
    spec = trained.mapping["record"]["activations"][1]["positions"]
    positions = {"last": [15], "all": list(range(16))}.get(str(spec), LISTED)
    for state in trained.states[:-1]:
        found = {}
        rows = trained.lake.snapshot().tensors(
            "activations", "tiny", state["step"], lambda keys: keys["probe"] is None
        )
        ids = trained.loop.lake.sql(
            f"SELECT sequence_id FROM batches WHERE step = {state['step']} "
            "ORDER BY micro_step, position"
        ).fetchall()
        for row in rows:
            found[(row.keys["site"], row.keys["layer"])] = row.tensor.to_numpy()
            assert list(row.keys["sequence_ids"]) == [i for (i,) in ids]
            assert list(row.keys["positions"]) == positions
            assert row.keys["dataset"] == "text"
            assert row.keys["name"].startswith(f"layers.{row.keys['layer']}")
        computed = {key: at(value, positions) for key, value in state["activations"].items()}
        assert len(computed) == 2 * len(tiny.SITES)
        assert_equal(found, computed)


def test_activations_of_a_probe_are_an_independent_forward_pass(trained: Trained) -> None:
    spec = trained.mapping["record"]["activations"][0]["positions"]
    positions = {"last": [15], "all": list(range(16))}.get(str(spec), LISTED)
    snapshot = trained.lake.snapshot()
    probe = snapshot.read("probes").sort_by("sequence_id").to_pylist()
    tokens = torch.tensor([row["tokens"] for row in probe])
    held_out = trained.lake.sql(
        "SELECT tokens[:16] FROM sequences WHERE dataset = 'text.heldout' AND sequence_id < 3 "
        "ORDER BY sequence_id"
    ).fetchall()
    assert tokens.tolist() == [list(row) for (row,) in held_out]
    model = models.build(trained.loop.model.config, seed=0).eval()
    for state in trained.states:
        model.load_state_dict({k: torch.from_numpy(v) for k, v in state["weights"].items()})
        with torch.no_grad(), site_hooks(model) as seen:
            model(tokens)
        found = {}
        for row in snapshot.tensors(
            "activations", "tiny", state["step"], lambda keys: keys["probe"] == "text"
        ):
            found[(row.keys["site"], row.keys["layer"])] = row.tensor.to_numpy()
            assert row.keys["input_hash"] == probe[0]["input_hash"]
            assert list(row.keys["sequence_ids"]) == [0, 1, 2]
            assert row.keys["dataset"] == "text.heldout"
        assert_equal(found, {key: at(parts[0], positions) for key, parts in seen.items()})


def test_input_hashes_name_the_input(trained: Trained) -> None:
    """Gradients and activations of one batch share a hash; no two batches do."""
    rows = trained.lake.sql(
        """
        SELECT step, count(DISTINCT input_hash), min(input_hash) FROM (
            SELECT step, input_hash FROM gradients
            UNION ALL SELECT step, input_hash FROM activations WHERE probe IS NULL
        ) GROUP BY step
        """
    ).fetchall()
    assert [n for _, n, _ in rows] == [1] * N
    assert len({name for _, _, name in rows}) == N


def test_batches_are_the_order_and_their_losses(trained: Trained) -> None:
    n = trained.lake.sql("SELECT n_sequences FROM datasets WHERE dataset = 'text'").fetchall()[0][0]
    micro = trained.loop.config.batch.micro
    rows = tiny.rows(trained.folder, "batches", "tiny")
    for state in trained.states[:-1]:
        step = state["step"]
        mine = [row for row in rows if row["global_step"] == step]
        ids = order.sequence_ids("feistel-v1", 5, step, 8, n)
        assert [row["sequence_id"] for row in mine] == list(ids)
        assert [row["micro_step"] for row in mine] == [i // micro for i in range(8)]
        assert [row["position"] for row in mine] == [i % micro for i in range(8)]
        assert {row["dataset"] for row in mine} == {"text"}
        losses = [row["loss"] for row in mine]
        assert losses == pytest.approx(state["sequence_losses"], rel=1e-5)
        assert np.mean(losses) == pytest.approx(state["loss"], rel=1e-5)
    assert len(rows) == 8 * N


def test_scalars_belong_to_the_batch_of_their_step(trained: Trained) -> None:
    for name in ("loss", "grad_norm", "lr"):
        assert trained.scalars(name) == {s["step"]: s[name] for s in trained.states[:-1]}
    assert trained.scalars("tokens") == dict.fromkeys(range(N), 8 * 16)


def test_the_heldout_loss_is_that_of_the_state_at_its_step(trained: Trained) -> None:
    tokens = trained.lake.sql(
        "SELECT tokens FROM sequences WHERE dataset = 'text.heldout' AND sequence_id < 8"
    ).fetchall()
    rows = torch.tensor([list(row) for (row,) in tokens])
    model = models.build(trained.loop.model.config, seed=0).eval()
    losses = trained.scalars("heldout_loss")
    assert list(losses) == [0, 2, 4, 5]
    for step, loss in losses.items():
        weights = trained.states[step]["weights"]
        model.load_state_dict({k: torch.from_numpy(v) for k, v in weights.items()})
        with torch.no_grad():
            logits = model(rows[:, :-1])
        mean = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).item()
        assert loss == pytest.approx(mean, rel=1e-5)


def test_param_groups_hold_the_rate_of_each_update(trained: Trained) -> None:
    rows = tiny.rows(trained.folder, "param_groups", "tiny")
    found = [(r["global_step"], r["group"], r["lr"], r["weight_decay"]) for r in rows]
    expected = [(s, g, trained.loop.rate(s), (0.1, 0.0)[g]) for s in range(N) for g in (0, 1)]
    assert found == expected
    groups = {
        row["name"]: row["param_group"] for row in tiny.rows(trained.folder, "parameters", "tiny")
    }
    assert groups["layers.0.attention_norm.weight"] == groups["output_norm.weight"] == 1
    assert groups["layers.1.attention.o_proj.weight"] == groups["embedding_proj.weight"] == 0


def test_statistics_are_numpys(trained: Trained) -> None:
    rows = tiny.rows(trained.folder, "tensor_stats", "tiny")
    for table, stage in (("weights", None), ("gradients", "raw"), ("gradients", "clipped")):
        key = "weights" if stage is None else stage
        for state in trained.states:
            mine = {
                row["name"]: row
                for row in rows
                if (row["table_name"], row["stage"], row["global_step"])
                == (table, stage, state["step"])
            }
            assert mine.keys() == state.get(key, {}).keys()
            for name, row in mine.items():
                exact = state[key][name].astype(np.float64)
                assert row["numel"] == exact.size
                assert row["nonfinite"] == 0
                assert row["frobenius_norm"] == pytest.approx(np.linalg.norm(exact), rel=1e-12)
                assert row["mean"] == pytest.approx(exact.mean(), rel=1e-9, abs=1e-15)
                assert row["std"] == pytest.approx(exact.std(), rel=1e-6, abs=1e-9)
                assert row["max_abs"] == np.abs(exact).max()
                assert row["content_hash"] is not None


def test_the_run_describes_itself(trained: Trained) -> None:
    (row,) = tiny.rows(trained.folder, "runs", "tiny")
    assert (row["seed_init"], row["seed_data"], row["seed_dropout"]) == (3, 5, 7)
    assert (row["dataset"], row["seq_len"], row["batch_size"]) == ("text", 16, 8)
    assert row["tokens_per_step"] == 128
    assert row["n_params"] == sum(p.numel() for p in trained.loop.model.parameters())
    checkpoints = tiny.rows(trained.folder, "checkpoints", "tiny")
    assert [(c["global_step"], c["tokens"]) for c in checkpoints] == [
        (step, 128 * step) for step in (0, 2, 4, 5)
    ]
    assert all(c["planned"] and c["complete"] for c in checkpoints)


def test_the_outcome_says_how_it_ended(trained: Trained) -> None:
    again = trained.lake.train(trained.mapping, "tiny")
    assert (again.steps, again.resumed_from, again.interrupted) == (N, N, False)


@pytest.mark.parametrize("name", ["../x", "true", "a b", ""])
def test_a_malformed_name_is_refused_before_any_work(tmp_path: Path, name: str) -> None:
    mapping = tiny.config(tiny.write_text(tmp_path / "text.txt"))
    with pytest.raises(RunNameError, match="cannot name a run"):
        Lake(str(tmp_path / "lake")).train(mapping, name)
    assert not (tmp_path / "lake").exists()


def test_a_taken_name_is_refused_before_any_work(trained: Trained) -> None:
    seen: list[Any] = []

    def on_data(*progress: Any) -> None:
        seen.append(progress)

    with pytest.raises(RunNameError, match="already; resume it"):
        trained.lake.train(trained.mapping, "tiny", resume="never", on_data=on_data)
    with pytest.raises(RunNameError, match="in case only"):
        trained.lake.train(trained.mapping, "TINY", on_data=on_data)
    assert seen == []


def test_a_bad_record_section_is_refused_before_any_work(tmp_path: Path) -> None:
    mapping = tiny.config(tmp_path / "absent.txt", record={"weight": True})
    with pytest.raises(ConfigError, match=r"unknown config key 'record.weight'. Did you mean"):
        Trainer(Lake(str(tmp_path / "lake")).storage, "a", configs.load(mapping))


@pytest.mark.parametrize(("share", "is_told"), [(0.0, True), (1e9, False)])
def test_much_time_for_metrics_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float, is_told: bool
) -> None:
    monkeypatch.setattr(trainers, "METRICS_SHARE", share)
    record = {"checkpoints": "never", "metrics": ["gini"]}
    mapping = tiny.config(tiny.write_text(tmp_path / "text.txt"), max_steps=1, record=record)
    (*_, remark) = ("", *Lake(str(tmp_path / "lake")).train(mapping, "r").remarks)
    pattern = r"record\.metrics took \d+\.\d s of \d+\.\d s; a larger every, or fewer names, takes"
    assert (re.match(pattern, remark) is not None) == is_told
