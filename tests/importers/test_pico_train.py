"""Runs of pico-train become runs of a lake: real output of that tool, and runs made here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import xxhash
from safetensors.torch import load_file
from torch import nn

from pico import Lake
from pico.errors import DataError, MissingExtraError, PicoError, RunNameError
from pico.importers import pico_train
from pico.lake.log import LogReader
from pico.record.tensors import to_torch
from tests.importers.pico_run import SUFFIXES, Writer, captured


def tensors(lake: Lake, table: str, run: str, step: int, **wanted: Any) -> dict[str, torch.Tensor]:
    rows = lake.snapshot().tensors(
        table, run, step, lambda keys: all(keys[k] == v for k, v in wanted.items())
    )
    return {row.keys["name"]: to_torch(row.tensor) for row in rows}


def content(lake: Lake, run: str) -> dict[str, list[str]]:
    """Return all that a lake tells of a run, but for what tells one recording from another."""
    own = {"run_uuid", "created_at"}
    tables = ("runs", "parameters", "checkpoints", "weights", "activations", "gradients")
    tables += ("optimizer", "scalars", "evaluations", "tensor_stats")
    found = {}
    for table in tables:
        rows = lake.snapshot().read(table, runs=[run])
        kept = rows.drop_columns([name for name in rows.column_names if name in own])
        found[table] = sorted(map(str, kept.to_pylist()))
    return found


def commits(lake: Lake) -> int:
    return len(lake.storage.paths("_log"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Writer:
    """A run on one device, 7 samples in sub-batches of 3."""
    return Writer(tmp_path_factory.mktemp("runs") / "small").run(4)


@pytest.fixture(scope="module")
def lake(made: Writer, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = Lake(str(tmp_path_factory.mktemp("lakes") / "lake"))
    lake.import_pico_train(made.path, devices=1)
    return lake


@pytest.fixture
def copy(made: Writer, tmp_path: Path) -> Path:
    """A copy of the run, to be spoilt."""
    return Path(shutil.copytree(made.path, tmp_path / "small"))


@pytest.fixture(scope="module")
def real(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Lake]:
    """Real output of pico-train, and the lake that it was imported into."""
    path = shared / "data" / "pico_train_run"
    lake = Lake(str(tmp_path_factory.mktemp("lakes") / "real"))
    lake.import_pico_train(path, devices=1)
    return path, lake


def test_real_weights_are_those_of_the_files(real: tuple[Path, Lake]) -> None:
    path, lake = real
    for step in (0, 2, 4, 6):
        file = load_file(path / "checkpoints" / f"step_{step}" / "model.safetensors")
        stored = tensors(lake, "weights", "smoke", step)
        assert len(stored) == len(file) == 21
        for name, tensor in file.items():
            assert torch.equal(stored[name.removeprefix("pico_decoder.")], tensor)


def test_a_real_run_is_probed_like_one_of_ours(real: tuple[Path, Lake], tmp_path: Path) -> None:
    """Its data set has a name that no lake can have; its losses are those of its own model."""
    lake = Lake(str(shutil.copytree(real[1].storage.url, tmp_path / "copy")))
    done = lake.probe("smoke", "repeat", "token_scores,attention", "last")
    assert done.steps == [6]
    [ids] = lake.sql("SELECT list(tokens ORDER BY sequence_id) FROM probes").fetchall()
    tokens = torch.tensor(ids[0])
    with torch.no_grad():
        logits = lake.load_model("smoke", 6)(tokens)[:, :-1].double()
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    [mean] = lake.sql("SELECT avg(loss) FROM token_scores WHERE step = 6").fetchall()
    assert mean[0] == pytest.approx(float(expected), abs=1e-6)


def test_real_activations_are_those_of_a_forward_pass(real: tuple[Path, Lake]) -> None:
    path, lake = real
    for step in (0, 2, 4):
        data = path / "checkpoints" / f"step_{step}" / "learning_dynamics" / "train_data"
        table = pa.ipc.open_stream((data / "data-00000-of-00001.arrow").read_bytes()).read_all()
        tokens = torch.tensor(table["input_ids"].to_pylist())
        found = captured(lake.load_model("smoke", step), tokens, 8)
        stored = tensors(lake, "activations", "smoke", step, probe=None)
        names = {"attention.v_proj": "attention.v_proj", "attention.o_proj": "attention"}
        names["swiglu.w_2"] = "swiglu"
        for suffix in SUFFIXES:
            for layer in (0, 1):
                expected = found["activations"][f"layers.{layer}.{suffix}"]
                got = stored[f"layers.{layer}.{names[suffix]}"]
                torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6)
        gradients = tensors(lake, "gradients", "smoke", step, probe=None)
        for name, gradient in found["gradients"].items():
            torch.testing.assert_close(gradients[f"{name}.weight"], gradient, rtol=1e-3, atol=1e-7)


def test_real_run_is_described_verified_and_loaded(real: tuple[Path, Lake]) -> None:
    path, lake = real
    (row,) = lake.snapshot().read("runs", runs=["smoke"]).to_pylist()
    assert (row["family"], row["suite"], row["n_params"]) == ("pico-decoder", "pico-train", 369120)
    assert (row["n_heads"], row["n_kv_heads"], row["d_head"], row["d_model"]) == (12, 4, 8, 96)
    note = json.loads(row["extra"])["import"]
    assert note["devices"] == 1 and note["activations"] == "unscrambled"
    assert note["config"]["training"]["optimization"]["gradient_accumulation_steps"] == 2
    assert lake.verify(deep=True).is_sound and not lake.verify().findings
    saved = torch.load(
        path / "checkpoints" / "step_6" / "fabric_state" / "checkpoint.pt", weights_only=False
    )
    state = tensors(lake, "optimizer", "smoke", 6, state="exp_avg_sq")
    for at, name in enumerate(saved["_model"]):
        assert torch.equal(state[name], saved["_optimizer"]["state"][at]["exp_avg_sq"])
    rows = lake.snapshot().read("checkpoints", runs=["smoke"]).to_pylist()
    assert [(r["global_step"], r["tokens"], r["complete"]) for r in rows] == [
        (0, 0, False),
        (2, 512, False),
        (4, 1024, False),
        (6, 1536, True),
    ]


def test_activations_of_one_device_are_put_right(made: Writer, lake: Lake) -> None:
    for (step, split), found in made.truth.items():
        probe = None if split == "train" else "val"
        stored = tensors(lake, "activations", "small", step, probe=probe)
        for layer in (0, 1):
            for suffix, name in [("v_proj", "attention.v_proj"), ("o_proj", "attention")]:
                expected = found["activations"][f"layers.{layer}.attention.{suffix}"]
                assert torch.equal(stored[f"layers.{layer}.{name}"], expected)
    rows = lake.snapshot().read("activations", runs=["small"], steps=[0]).to_pylist()
    notes = [json.loads(row["extra"])["pico-train"] for row in rows]
    assert all(note["unscrambled"] and note["devices"] == 1 for note in notes)
    assert {row["site"] for row in rows} == {"v", "attn.out", "mlp.out"}


def test_activations_of_several_devices_are_left_as_they_are(tmp_path: Path) -> None:
    run = Writer(tmp_path / "small", devices=2).run(2)
    lake = Lake(str(tmp_path / "lake"))
    lake.import_pico_train(run.path, devices=2)
    stored = tensors(lake, "activations", "small", 0, probe=None)
    expected = run.truth[0, "train"]["activations"]["layers.1.swiglu.w_2"]
    assert torch.equal(stored["layers.1.swiglu"], expected)


def test_gradients_that_were_summed_say_so(made: Writer, lake: Lake) -> None:
    stored = tensors(lake, "gradients", "small", 2, probe=None)
    for name, gradient in made.truth[2, "train"]["gradients"].items():
        assert torch.equal(stored[f"{name}.weight"], gradient)
    rows = lake.snapshot().read("gradients", runs=["small"]).to_pylist()
    assert {row["stage"] for row in rows} == {"summed"}  # 7 samples are 3 sub-batches of 3
    assert {json.loads(row["extra"])["pico-train"]["sub_batches"] for row in rows} == {3}


def test_numbers_of_logs_and_evaluations_come_along(made: Writer, lake: Lake) -> None:
    rows = lake.snapshot().read("scalars", runs=["small"]).to_pylist()
    losses = {row["global_step"]: row["value"] for row in rows if row["name"] == "loss"}
    net = Writer(made.path.parent / "again").model
    tokens = made.inputs[0]
    loss = nn.functional.cross_entropy(net(tokens[:, :-1]).transpose(1, 2), tokens[:, 1:])
    assert sorted(losses) == [0, 1, 2, 3] and losses[0] == pytest.approx(loss.item(), abs=6e-5)
    results = lake.snapshot().read("evaluations", runs=["small"]).to_pylist()
    assert {r["global_step"]: r["value"] for r in results} == {0: 40.5, 2: 42.5, 4: 44.5}
    assert results[0]["source_file"] == "eval_results/step_0.json"


def test_input_hash_is_that_of_the_tokens_seen(made: Writer, lake: Lake) -> None:
    rows = lake.snapshot().read("activations", runs=["small"], steps=[2]).to_pylist()
    tokens = made.inputs[2][:, :-1].numpy().astype(np.int64)
    expected = xxhash.xxh3_128_hexdigest(str(list(tokens.shape)).encode() + tokens.tobytes())
    hashes = {(row["probe"], row["input_hash"]) for row in rows}
    assert hashes == {(None, expected), ("val", None)}
    assert {tuple(r["positions"]) for r in rows if r["probe"] is None} == {(7,)}


def test_a_commit_per_checkpoint_and_none_when_nothing_is_new(made: Writer, tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))
    seen: list[tuple[int, int]] = []
    done = lake.import_pico_train(
        made.path, devices=1, on_progress=lambda d, t: seen.append((d, t))
    )
    assert done.steps == [0, 2, 4] and seen == [(0, 3), (1, 3), (2, 3), (3, 3)]
    history = LogReader(lake.storage).history("train.small")
    assert len(history) == 3
    n_commits = commits(lake)
    again = lake.import_pico_train(made.path)  # the lake knows on how many devices it ran
    assert (again.steps, again.n_present) == ([], 3) and commits(lake) == n_commits


def test_an_interrupted_import_goes_on(made: Writer, lake: Lake, tmp_path: Path) -> None:
    other = Lake(str(tmp_path / "lake"))

    def stop(done: int, total: int) -> None:
        if done == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        other.import_pico_train(made.path, devices=1, on_progress=stop)
    states = other.snapshot().read("checkpoints", ["global_step"])["global_step"].to_pylist()
    assert states == [0] and other.verify(deep=True).is_sound
    done = other.import_pico_train(made.path)
    assert (done.steps, done.n_present) == ([2, 4], 1)
    assert content(other, "small") == content(lake, "small")
    assert not other.verify(deep=True).findings


@pytest.mark.slow
def test_an_import_that_was_killed_goes_on(made: Writer, lake: Lake, tmp_path: Path) -> None:
    other = Lake(str(tmp_path / "lake"))
    command = [sys.executable, "-m", "pico.cli", "import", "pico-train", str(made.path)]
    command += ["--devices", "1", "--lake", other.storage.url]
    for n_commits in (1, 2):
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
            while process.poll() is None and commits(other) < n_commits:
                time.sleep(0.005)
            process.kill()
        assert commits(other) == 0 or other.verify(deep=True).is_sound
    other.import_pico_train(made.path, devices=1)
    assert content(other, "small") == content(lake, "small")


@pytest.mark.slow
def test_a_run_that_has_grown_is_continued(tmp_path: Path) -> None:
    run = Writer(tmp_path / "small")
    run.checkpoint()
    run.train()
    run.train()
    run.checkpoint()
    lake, whole = Lake(str(tmp_path / "lake")), Lake(str(tmp_path / "whole"))
    assert lake.import_pico_train(run.path, devices=1).steps == [0, 2]
    run.train()
    assert lake.import_pico_train(run.path).steps == []  # what batch 2 caused has come
    assert tensors(lake, "gradients", "small", 2, probe=None)
    run.train()
    run.checkpoint(is_last=True)
    assert lake.import_pico_train(run.path).steps == [4]
    whole.import_pico_train(run.path, devices=1)
    missing = {  # step 2 was imported before pico-train had captured its val split
        table: sorted(set(rows) - set(content(lake, "small")[table]))
        for table, rows in content(whole, "small").items()
    }
    assert {table for table, rows in missing.items() if rows} <= {
        "activations",
        "gradients",
        "tensor_stats",
    }
    assert all("'probe': 'val'" in row for rows in missing.values() for row in rows)


def test_chosen_steps_alone(made: Writer, tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))
    assert lake.import_pico_train(made.path, run="two", devices=1, steps=[0, 2]).steps == [0, 2]
    scalars = lake.snapshot().read("scalars", ["global_step"])["global_step"].to_pylist()
    assert set(scalars) == {0, 1, 2, 3}
    with pytest.raises(DataError, match=r"no checkpoint step_3; it has 0, 2, 4"):
        lake.import_pico_train(made.path, run="two", devices=1, steps=[3])


def test_a_dry_run_writes_nothing(made: Writer, tmp_path: Path) -> None:
    lake = Lake(str(tmp_path / "lake"))
    done = lake.import_pico_train(made.path, devices=1, dry_run=True)
    assert done.steps == [0, 2, 4] and "to import" in str(done)
    assert done.rows()[0] == {
        "step": 0, "weights": 1, "activations": 2, "gradients": 2, "optimizer": 0
    }  # fmt: skip
    assert not (tmp_path / "lake").exists()


def test_devices_must_be_told(made: Writer, lake: Lake, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"say on how many it ran .*config.yaml speaks of 1"):
        Lake(str(tmp_path / "lake")).import_pico_train(made.path)
    with pytest.raises(DataError, match=r"with --devices 1 before, not 2"):
        lake.import_pico_train(made.path, devices=2)
    with pytest.raises(DataError, match="at least 1, not 0"):
        lake.import_pico_train(made.path, devices=0)


def test_a_name_belongs_to_one_folder(made: Writer, lake: Lake, tmp_path: Path) -> None:
    other = Writer(tmp_path / "small")
    with torch.no_grad():
        for parameter in other.model.parameters():
            parameter.mul_(1.5)
    other.run(4)
    with pytest.raises(RunNameError, match="other weights at step 4"):
        lake.import_pico_train(other.path, devices=1)
    with pytest.raises(RunNameError, match=r"'small' is in .* already and was not imported"):
        lake.import_pico_train(made.path, run="SMALL", devices=1)


class Hostile:
    """Unpickles as a call of `os.mkdir`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def spoil_truncated(path: Path) -> None:
    file = path / "checkpoints" / "step_2" / "learning_dynamics" / "val_gradients.pt"
    file.write_bytes(file.read_bytes()[:-400])


def spoil_hostile(path: Path) -> None:
    file = path / "checkpoints" / "step_2" / "learning_dynamics" / "val_gradients.pt"
    torch.save({"layers.0.attention.v_proj": Hostile(path / "harm")}, file)


def spoil_cut_weights(path: Path) -> None:
    file = path / "checkpoints" / "step_2" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-40])


def spoil_shape(path: Path) -> None:
    file = path / "checkpoints" / "step_2" / "learning_dynamics" / "val_gradients.pt"
    torch.save({"layers.0.attention.v_proj": torch.zeros(5, 5)}, file)


def spoil_name(path: Path) -> None:
    file = path / "checkpoints" / "step_2" / "learning_dynamics" / "val_activations.pt"
    torch.save({"layers.9.attention.v_proj": torch.zeros(5, 12)}, file)


def spoil_activation(path: Path) -> None:
    file = path / "checkpoints" / "step_2" / "learning_dynamics" / "val_activations.pt"
    torch.save({"layers.0.attention.v_proj": torch.zeros(5, 7)}, file)


def spoil_data(path: Path) -> None:
    data = path / "checkpoints" / "step_0" / "learning_dynamics" / "train_data"
    (data / "data-00000-of-00001.arrow").write_bytes(b"no arrow")


def spoil_results(path: Path) -> None:
    (path / "eval_results" / "step_2.json").write_text('{"paloma": "much"}')


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (spoil_truncated, "val_gradients.pt: it is no file of torch.save, or is damaged"),
        (spoil_hostile, "val_gradients.pt: it holds more than tensors and plain values"),
        (spoil_cut_weights, "model.safetensors: the bytes of tensor .* are not where"),
        pytest.param(
            spoil_shape,
            r"has shape \[5, 5\], by training_config.yaml it has \[12, 24\]",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            spoil_name,
            "tensor 'layers.9.attention.v_proj' is none of the model",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            spoil_activation, r"has shape \[5, 7\], not \[samples, 12\]", marks=pytest.mark.slow
        ),
        pytest.param(spoil_data, "it is no data set of token ids", marks=pytest.mark.slow),
        pytest.param(spoil_results, "step_2.json holds no results", marks=pytest.mark.slow),
    ],
    ids=lambda item: getattr(item, "__name__", ""),
)
def test_a_broken_file_stops_the_import_before_its_checkpoint(
    copy: Path, tmp_path: Path, spoil: Any, message: str
) -> None:
    spoil(copy)
    lake = Lake(str(tmp_path / "lake"))
    with pytest.raises(DataError, match=message) as caught:
        lake.import_pico_train(copy, devices=1)
    assert "\n" not in str(caught.value)
    states = lake.snapshot().read("checkpoints", ["global_step"])["global_step"].to_pylist()
    assert states == [0] and lake.verify(deep=True).is_sound
    assert not list(lake.storage.paths(".staging")) and not (copy / "harm").exists()


def lack_config(path: Path) -> None:
    (path / "training_config.yaml").unlink()


def lack_checkpoints(path: Path) -> None:
    shutil.rmtree(path / "checkpoints")


def lack_step(path: Path) -> None:
    shutil.rmtree(path / "checkpoints" / "step_2")


def lack_files(path: Path) -> None:
    shutil.rmtree(path / "checkpoints" / "step_2")
    (path / "checkpoints" / "step_2").mkdir()


def lack_size(path: Path) -> None:
    file = path / "training_config.yaml"
    file.write_text(file.read_text().replace("  d_model: 24\n", ""))


def odd_size(path: Path) -> None:
    file = path / "training_config.yaml"
    file.write_text(file.read_text().replace("  d_model: 24\n", "  d_model: many\n"))


def no_decoder(path: Path) -> None:
    file = path / "training_config.yaml"
    file.write_text(file.read_text().replace("_n_heads: 4\n", "_n_heads: 5\n"))


def outside(path: Path) -> None:
    file = path / "training_config.yaml"
    text = file.read_text().replace("  run_name", "  checkpoints_dir: ../elsewhere\n  run_name")
    file.write_text(text)


def no_yaml(path: Path) -> None:
    (path / "training_config.yaml").write_text("{")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (shutil.rmtree, "no folder"),
        (lack_config, "is no run of pico-train: it has no training_config.yaml"),
        (lack_checkpoints, "there is no checkpoints/step_N in it"),
        (lack_step, "has no checkpoint step_2; it has 0, 4"),
        (lack_files, "step_2 holds neither weights nor learning dynamics"),
        (lack_size, "has no model.d_model"),
        (odd_size, "model.d_model must be a whole number above 0, not 'many'"),
        (no_decoder, "is no pico-decoder's: .*d_model 24 is not a multiple of n_heads 5"),
        (outside, "checkpoints_dir must be a folder of the run"),
        (no_yaml, "is not valid YAML"),
    ],
    ids=lambda item: getattr(item, "__name__", ""),
)
def test_a_folder_that_is_no_run_is_refused(
    copy: Path, tmp_path: Path, spoil: Any, message: str
) -> None:
    spoil(copy)
    with pytest.raises(PicoError, match=message) as caught:
        Lake(str(tmp_path / "lake")).import_pico_train(copy, devices=1)
    assert "\n" not in str(caught.value) and not (tmp_path / "lake").exists()


def test_a_checkpoint_that_lacks_its_weights_is_refused(
    copy: Path, made: Writer, tmp_path: Path
) -> None:
    """It may be one that is being written; nothing of the run is imported by halves."""
    missing = sorted(copy.glob("checkpoints/step_*/model.safetensors"))[1]
    missing.unlink()
    lake = Lake(str(tmp_path / "lake"))
    with pytest.raises(DataError, match=r"has no model.safetensors, as other checkpoints have"):
        lake.import_pico_train(copy, devices=1)
    assert not (tmp_path / "lake").exists()


def test_weights_that_were_only_captured(copy: Path, made: Writer, tmp_path: Path) -> None:
    for file in copy.rglob("model.safetensors"):
        file.unlink()
    lake = Lake(str(tmp_path / "lake"))
    lake.import_pico_train(copy, devices=1)
    stored = tensors(lake, "weights", "small", 2)
    captured_there = made.truth[2, "val"]["weights"]
    assert stored.keys() == {f"{name}.weight" for name in captured_there}
    assert all(torch.equal(stored[f"{n}.weight"], t) for n, t in captured_there.items())


def test_without_torch_the_extra_is_named(
    made: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("pico.importers.pico_")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delattr("pico.importers.pico_train", raising=False)
    with pytest.raises(MissingExtraError, match=r"torch is not installed.*pico-lake\[train\]"):
        Lake(str(tmp_path / "lake")).import_pico_train(made.path, devices=1)


def test_a_summary_for_people() -> None:
    done = pico_train.Imported("tiny", [0], 2, 1_500_000, {0: {"weights": 3}})
    assert str(done) == (
        "run 'tiny': 1 checkpoints imported (3 tensors, 1.5 MB read), 2 there already"
    )
