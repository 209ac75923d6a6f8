"""Probing stored checkpoints: as training itself does, once, and whatever happens in between."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import pico
from pico.errors import DataError, LeaseError, PicoError, RecordError, RunNameError
from pico.evaluate import load, probe
from pico.lake.commit import Stream
from pico.lake.snapshot import Snapshot
from tests.stress import forks
from tests.train import tiny

torch.set_num_threads(1)
SCORED = {
    "text": {"n_sequences": 3, "every": 2, "record": ["token_scores"], "layer_scores": True},
    "repeat": {"n_sequences": 2, "every": 2, "record": ["token_scores", "attention"]},
}


def train(folder: Path, run: str = "first", probes: Any = None, **changes: Any) -> pico.Lake:
    text = tiny.write_text(folder / "text.txt")
    config = tiny.config(text, **changes)
    config["record"] = {"checkpoints": {"every": 2}, "weights": True, "probes": probes or {}}
    lake = pico.Lake(str(folder / "lake"))
    lake.train(config, run)
    return lake


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run `scored` was scored while it trained; `later` is the same run without."""
    folder = tmp_path_factory.mktemp("probe")
    train(folder, "scored", SCORED)
    sizes = {name: {"n_sequences": plan["n_sequences"]} for name, plan in SCORED.items()}
    train(folder, "later", sizes)
    return folder / "lake"


@pytest.fixture
def lake(made: Path, tmp_path: Path) -> pico.Lake:
    """A copy of that lake, for one test alone."""
    shutil.copytree(made, tmp_path / "copy")
    return pico.Lake.open(str(tmp_path / "copy"))


def rows(lake: pico.Lake, table: str, run: str) -> list[dict[str, Any]]:
    found = lake.snapshot().read(table, runs=[run]).to_pylist()
    return [{k: v for k, v in row.items() if k != "run_id"} for row in found]


def tokens(lake: pico.Lake, run: str) -> list[tuple[Any, ...]]:
    names = "step, probe, sequence_id, position, layer, token_id, target_id, loss, entropy, rank"
    return lake.sql(
        f"SELECT {names}, top1_id FROM token_scores WHERE run = '{run}' ORDER BY ALL"
    ).fetchall()


def test_probing_later_gives_what_training_gave(lake: pico.Lake) -> None:
    even = [0, 2, 4, 6]
    lake.probe("later", "text", steps=even, layer_scores=True)
    done = lake.probe("later", "repeat", "token_scores,attention", even)
    assert (done.steps, done.present) == (even, 0)
    assert tokens(lake, "later") == tokens(lake, "scored")
    assert len(tokens(lake, "later")) == 4 * (3 * 15 * 3 + 2 * 15)
    kept = [row for row in rows(lake, "metrics", "later") if row["site"] == "attention"]
    order = ("global_step", "layer", "head", "metric")
    by = lambda row: tuple(row[name] for name in order)  # noqa: E731
    assert sorted(kept, key=by) == sorted(rows(lake, "metrics", "scored"), key=by)
    assert len(kept) == 4 * 2 * 2 * 3
    assert lake.verify(deep=True).is_sound


def test_what_is_there_is_not_computed_again(
    lake: pico.Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    real = load.load_model
    monkeypatch.setattr(
        load, "load_model", lambda s, run, step: seen.append(step) or real(s, run, step)
    )
    lake.probe("scored", "text", "token_scores,activations:z", [0, 1], layer_scores=True)
    assert seen == [0, 1]  # activations of step 0, everything of step 1
    before = tokens(lake, "scored")
    done = lake.probe("scored", "text", "token_scores,activations:z", [0, 1], layer_scores=True)
    assert (seen, done.steps, done.present) == ([0, 1], [], 2)
    done = lake.probe("scored", ["text", "repeat"], steps="0:2")
    assert (seen[2:], done.steps, done.present) == ([1], [1], 2)  # repeat at step 1
    keys = [row[:5] for row in tokens(lake, "scored")]
    assert len(set(keys)) == len(keys) > len(before)


def test_activations_are_those_of_the_model(lake: pico.Lake) -> None:
    lake.probe("later", "repeat", "activations:resid.post+q.rot", "last", positions="last")
    stored = lake.sql(
        "SELECT site, layer, tensor.shape, tensor.value FROM activations "
        "WHERE run = 'later' AND probe = 'repeat' AND site IN ('resid.post', 'q.rot')"
    ).fetchall()
    assert {(site, layer) for site, layer, *_ in stored} == {
        (site, layer) for site in ("resid.post", "q.rot") for layer in (0, 1)
    }
    ids = lake.sql("SELECT tokens FROM probes WHERE probe = 'repeat' ORDER BY sequence_id")
    model = lake.load_model("later")
    with torch.no_grad():
        last = model(torch.tensor([row for (row,) in ids.fetchall()]))[:, -1]
    [stream] = [value for site, layer, _, value in stored if (site, layer) == ("resid.post", 1)]
    with torch.no_grad():
        found = model.de_embedding_proj(model.output_norm(torch.tensor(stream).view(2, -1)))
    torch.testing.assert_close(found, last, rtol=1e-5, atol=1e-6)


def test_an_interruption_keeps_whole_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = train(tmp_path)
    real, n_loaded = load.load_model, 0

    def dying(snapshot: Snapshot, run: str, step: int) -> Any:
        nonlocal n_loaded
        n_loaded += 1
        if n_loaded == 3:
            raise KeyboardInterrupt
        return real(snapshot, run, step)

    monkeypatch.setattr(load, "load_model", dying)
    with pytest.raises(KeyboardInterrupt):
        lake.probe("first", "repeat", "token_scores,attention")
    assert {row["global_step"] for row in rows(lake, "token_scores", "first")} == {0, 1}
    monkeypatch.setattr(load, "load_model", real)
    done = lake.probe("first", "repeat", "token_scores,attention")
    assert (done.steps, done.present) == ([2, 3, 4, 5, 6], 2)
    assert lake.verify(deep=True).is_sound


def _probing(url: str, n_steps: int) -> None:
    """Probe, and die without a word when so many steps are scored and one is written."""
    real, n_done = probe.write_rows, 0

    def deadly(*given: Any) -> None:
        nonlocal n_done
        real(*given)
        n_done += 1
        if n_done > n_steps:
            os.kill(os.getpid(), signal.SIGKILL)

    probe.write_rows = deadly
    pico.Lake(url).probe("first", "repeat")


@pytest.mark.parametrize("n_steps", [0, 4])
def test_a_kill_loses_the_step_under_way(tmp_path: Path, n_steps: int) -> None:
    lake = train(tmp_path)
    process, pipe = forks.start(_probing, lake.storage.url, n_steps)
    with pytest.raises(EOFError):
        forks.answer(process, pipe)
    assert process.exitcode == -signal.SIGKILL
    assert len({row["global_step"] for row in rows(lake, "token_scores", "first")}) == n_steps
    done = lake.probe("first", "repeat")
    assert done.steps == list(range(n_steps, 7))
    assert lake.verify(deep=True).is_sound


def test_one_process_at_a_time_and_training_meanwhile(tmp_path: Path) -> None:
    lake = train(tmp_path)
    with Stream(lake.storage, "derive.first.probe"), pytest.raises(LeaseError):
        lake.probe("first", "repeat")
    with Stream(lake.storage, "train.first"):
        assert lake.probe("first", "repeat", steps="last").steps == [6]


def test_going_back_takes_scores_with_it(tmp_path: Path) -> None:
    lake = train(tmp_path)
    lake.probe("first", "repeat", "token_scores,attention,activations:z")
    config = tiny.config(tmp_path / "text.txt")
    config["record"] = {"checkpoints": {"every": 2}, "weights": True, "probes": {}}
    lake.train(config, "first", resume=4)
    for table in ("token_scores", "metrics", "activations"):
        assert {row["global_step"] for row in rows(lake, table, "first")} == {0, 1, 2, 3, 4}
    assert lake.probe("first", "repeat").steps == [5, 6]
    assert lake.verify(deep=True).is_sound


def test_a_run_that_is_changed_meanwhile_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = train(tmp_path)
    states = iter([{("a", "1")}, {("a", "2")}])
    monkeypatch.setattr(probe, "_weights", lambda *_: next(states))
    with pytest.raises(RecordError, match="was changed at step 0 while it was probed"):
        lake.probe("first", "repeat")
    assert rows(lake, "token_scores", "first") == []


def test_a_run_that_goes_back_during_the_commit_keeps_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = train(tmp_path)
    lake.probe("first", "repeat", "token_scores,activations:z", 0)
    before = tokens(lake, "first")
    states = iter([{("a", "1")}, {("a", "1")}, {("a", "2")}])
    monkeypatch.setattr(probe, "_weights", lambda *_: next(states))
    with pytest.raises(RecordError, match="was changed at step 1 while it was probed"):
        lake.probe("first", "repeat", "token_scores,activations:z", 1)
    assert tokens(lake, "first") == before
    assert {row["global_step"] for row in rows(lake, "activations", "first")} == {0}
    monkeypatch.undo()
    assert lake.probe("first", "repeat", "token_scores,activations:z", 1).steps == [1]
    assert lake.verify(deep=True).is_sound


def test_positions_that_are_there(lake: pico.Lake) -> None:
    """All positions hold the last one; the last one is not all."""
    lake.probe("later", "repeat", "activations:z", [0], positions="all")
    assert lake.probe("later", "repeat", "activations:z", [0], positions="last").steps == []
    lake.probe("later", "repeat", "activations:z", [2], positions="last")
    with pytest.raises(RecordError, match="has z of probe 'repeat' at step 2 for 1 of 16 pos"):
        lake.probe("later", "repeat", "activations:z", [0, 2], positions="all")
    assert len([r for r in rows(lake, "activations", "later") if r["site"] == "z"]) == 4


def test_layers_that_are_missing_are_added(tmp_path: Path) -> None:
    lake = train(tmp_path)
    config = tiny.config(tmp_path / "text.txt")
    sites = {"probe": "repeat", "sites": ["z"], "layers": [1], "positions": "all", "every": 3}
    config["record"] = {"weights": True, "activations": [sites]}
    lake.train(config, "second")
    done = lake.probe("second", "repeat", "activations:z", "3")
    assert (done.steps, done.written["activations"]) == ([3], 1)
    at = [(r["layer"], r["input_hash"]) for r in rows(lake, "activations", "second")]
    assert sorted(at)[0] == (0, at[0][1])
    assert lake.probe("second", "repeat", "activations:z", "3").steps == []


def test_a_folder_of_other_weights_is_told_apart(lake: pico.Lake, tmp_path: Path) -> None:
    lake.load_model("later", 6, as_="hf").save_pretrained(tmp_path / "m")
    (tmp_path / "mine.jsonl").write_text('{"tokens": [1, 2, 3]}')
    before = lake.snapshot().runs()
    with pytest.raises(RecordError, match="no probe 'txt'"):
        lake.probe(tmp_path / "m", "txt", run="hf")
    with pytest.raises(RecordError, match="no site 'zz'"):
        lake.probe(tmp_path / "m", str(tmp_path / "mine.jsonl"), "activations:zz", run="hf")
    assert lake.snapshot().runs() == before
    lake.probe(tmp_path / "m", str(tmp_path / "mine.jsonl"), run="hf", step=6)
    stats = {r["name"]: r["frobenius_norm"] for r in rows(lake, "tensor_stats", "hf")}
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "m")
    assert stats == {
        name: pytest.approx(float(p.detach().norm()), rel=1e-6)
        for name, p in theirs.named_parameters()
    }
    lake.load_model("later", 4, as_="hf").save_pretrained(tmp_path / "m")
    with pytest.raises(RunNameError, match="'hf' has other weights at step 6 than"):
        lake.probe(tmp_path / "m", str(tmp_path / "mine.jsonl"), run="hf", step=6)
    lake.probe(tmp_path / "m", str(tmp_path / "mine.jsonl"), run="hf", step=4)
    assert {row["global_step"] for row in rows(lake, "token_scores", "hf")} == {4, 6}
    assert lake.verify(deep=True).is_sound


def test_a_data_set_that_no_lake_can_name(lake: pico.Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """As imported runs have: their probes are kept under the run's own name."""
    real = load.run_row
    monkeypatch.setattr(load, "run_row", lambda *of: {**real(*of), "dataset": "org/some-data"})
    assert lake.probe("later", "repeat", steps=0).steps == [0]
    stored = lake.snapshot().read("probes").to_pylist()
    assert {row["dataset_id"] for row in stored if row["probe"] == "repeat"} >= {"later"}
    with pytest.raises(RecordError, match="no held-out text in this lake"):
        lake.probe("later", "text", steps=0)


def test_a_run_of_a_foreign_loop_needs_its_module(lake: pico.Lake, tmp_path: Path) -> None:
    """With NaN among its weights: scores are NaN, ranks are NULL, and nothing is left out."""
    model = lake.load_model("later", 6)
    with pico.Recorder(lake, run="mine", model=model, record={"weights": {"every": 1}}) as recorder:
        for weight in (model.layers[1].attention.q_proj.weight, model.output_norm.weight):
            weight.data.view(-1)[0] = float("nan")
        recorder.step()
    (tmp_path / "mine.jsonl").write_text('{"tokens": [1, 2, 3, 1, 2, 3]}')
    file = str(tmp_path / "mine.jsonl")
    with pytest.raises(PicoError, match="stores no config to build a model from"):
        lake.probe("mine", file)
    done = lake.probe("mine", file, "token_scores,attention", model=model)
    assert done.steps == [0, 1]
    found = rows(lake, "token_scores", "mine")
    sound = [row for row in found if row["global_step"] == 0]
    broken = [row for row in found if row["global_step"] == 1]
    assert len(sound) == len(broken) == 5
    assert all(np.isfinite(row["loss"]) and row["rank"] is not None for row in sound)
    assert all(np.isnan(row["loss"]) and row["rank"] is None for row in broken)
    heads = [r for r in rows(lake, "metrics", "mine") if r["layer"] == 1 and r["global_step"] == 1]
    assert len(heads) == 2 * 3 and any(np.isnan(row["value"]) for row in heads)


def test_a_file_can_be_given_a_name(lake: pico.Lake, tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text('{"tokens": [1, 2, 3]}')
    lake.probe("later", f"verse={tmp_path / 'mine.jsonl'}", steps=0)
    assert {row["probe"] for row in rows(lake, "token_scores", "later")} == {"verse"}


def test_a_folder_of_hugging_face(lake: pico.Lake, tmp_path: Path) -> None:
    """Scores of the folder are those of transformers itself, and those of the run it came from."""
    lake.load_model("later", 6, as_="hf").save_pretrained(tmp_path / "saved.model")
    ids = np.random.default_rng(0).integers(0, 200, (2, 12))
    file = tmp_path / "mine.jsonl"
    file.write_text("".join(f'{{"tokens": {row.tolist()}}}\n' for row in ids))
    lake.probe(tmp_path / "saved.model", str(file), "token_scores,attention", run="hf", step=9)
    found = [r["loss"] for r in rows(lake, "token_scores", "hf")]
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved.model")
    with torch.no_grad():
        expected = theirs(torch.from_numpy(ids), labels=torch.from_numpy(ids)).loss.item()
    assert np.mean(found) == pytest.approx(expected, abs=1e-5)
    lake.probe("later", str(file), "token_scores,attention", "last")
    ours = [r for r in rows(lake, "token_scores", "later") if r["probe"] == "mine"]
    np.testing.assert_allclose(found, [row["loss"] for row in ours], atol=1e-5)
    heads = {
        run: [(r["layer"], r["head"], r["metric"], round(r["value"], 4)) for r in kept]
        for run in ("hf", "later")
        for kept in [[r for r in rows(lake, "metrics", run) if r["probe"] == "mine"]]
    }
    assert heads["hf"] == heads["later"] and len(heads["hf"]) == 2 * 2 * 2
    again = lake.probe(tmp_path / "saved.model", str(file), run="hf", step=9)
    assert again.steps == []
    with pytest.raises(RunNameError, match="has other tensors than"):
        lake.probe(tmp_path / "saved.model", str(file), run="later", step=9)
    [row] = [row for row in lake.runs() if row["run"] == "hf"]
    assert row["family"] == "llama"


def test_texts_are_tokenised_as_the_run_was(lake: pico.Lake, tmp_path: Path) -> None:
    (tmp_path / "a poem.txt").write_text("Ka lo mira te.\n\nSunver do peli or an qui.\n")
    lake.probe("later", str(tmp_path / "a poem.txt"), steps="last")
    texts = lake.sql(
        "SELECT detokenize(p.tokens, d.tokenizer) FROM probes p JOIN datasets d USING (dataset) "
        "WHERE probe = 'a-poem' ORDER BY sequence_id"
    ).fetchall()
    whole = ("Ka lo mira te.", "Sunver do peli or an qui.")
    assert len(texts) == 2
    for (shown,), text in zip(texts, whole, strict=True):
        assert len(shown) > 4 and text.startswith(shown)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"target": "nosuch"}, RunNameError, "no run 'nosuch'"),
        ({"probes": "txt"}, RecordError, "no probe 'txt'. Did you mean 'text'"),
        ({"steps": "7"}, RecordError, "no weights at step 7; the nearest are"),
        ({"steps": "7:9"}, RecordError, "no weights at steps 7:9; there are some at 0 to 6"),
        ({"steps": "x"}, RecordError, "steps are all, last, numbers, or ranges"),
        ({"record": "losses"}, RecordError, "record takes token_scores, attention and"),
        ({"record": "activations:zz"}, RecordError, "no site 'zz'"),
        ({"record": "attention", "layer_scores": True}, RecordError, "rows of token_scores; add"),
        ({"probes": "nosuch.txt"}, DataError, "cannot read nosuch.txt: No such file"),
    ],
)
def test_mistakes_are_one_line(
    lake: pico.Lake, given: dict[str, Any], error: type[PicoError], message: str
) -> None:
    with pytest.raises(error, match=message):
        lake.probe(**{"target": "later", **given})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no sequence of two tokens or more"),
        ('{"tokens": [1]}', "holds no sequence of two tokens or more"),
        ('{"tokens": [1, -2]}', 'line 1, has neither "text" nor "tokens"'),
        ('{"tokens": [1, 2]}\n[3]', 'line 2, has neither "text" nor "tokens"'),
        ("{", "line 1, is no JSON"),
        ('{"tokens": [1, 100000]}', "has the token id 100000, and the vocabulary of run 'later'"),
    ],
)
def test_a_file_that_is_no_probe(lake: pico.Lake, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "odd.jsonl").write_text(text)
    before = len(Snapshot.take(lake.storage).read("probes"))
    with pytest.raises(DataError, match=message):
        lake.probe("later", str(tmp_path / "odd.jsonl"))
    assert len(Snapshot.take(lake.storage).read("probes")) == before


def test_steps_that_a_text_names() -> None:
    known = [0, 1, 2, 4, 8]
    for text, expected in {
        "all": known,
        "last": [8],
        "2,0": [0, 2],
        "1:4": [1, 2, 4],
        ":1, last": [0, 1, 8],
        "4:": [4, 8],
    }.items():
        assert probe.choose_steps(known, text) == expected
    with pytest.raises(RecordError, match="no stored weights"):
        probe.choose_steps([], "all")
