"""The queries about how a model learned, on a small trained lake, against numpy and torch."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pico
from pico import metrics
from tests.train import tiny

torch.set_num_threads(1)
STEPS = range(7)
RUNS = ("first", "second")
RECORDED = (0, 2, 4, 6)
RECORD = {
    "checkpoints": {"every": 3},
    "weights": True,
    "gradients": True,
    "optimizer": {"every": 2},
    "activations": [
        {
            "probe": "text",
            "schedule": {"every": 2},
            "sites": ["resid.post", "mlp.hidden"],
            "positions": "all",
        }
    ],
    "probes": {
        "text": {"n_sequences": 4, "every": 2, "record": ["token_scores"]},
        "repeat": {"n_sequences": 3, "every": 2, "record": ["token_scores", "attention"]},
    },
}
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> pico.Lake:
    folder = tmp_path_factory.mktemp("queries")
    source = tiny.write_text(folder / "text.txt")
    found = pico.Lake(str(folder / "lake"))
    for run, seed in (("first", 3), ("second", 4)):
        found.train(tiny.config(source, record=RECORD, seeds={"init": seed}), run)
    return found


def ask(lake: pico.Lake, name: str, **parameters: Any) -> Rows:
    found: Rows = lake.query(name, **parameters).pl().to_dicts()
    assert found, name
    return found


def table(lake: pico.Lake, name: str, run: str = "first") -> Rows:
    return lake.snapshot().read(name, runs=[run]).to_pylist()


def tensors(lake: pico.Lake, name: str, step: int, run: str = "first") -> dict[str, np.ndarray]:
    rows = lake.snapshot().tensors(name, run, step)
    site = lambda keys: keys.get("site") or keys.get("state") or ""  # noqa: E731
    return {f"{r.keys['name']} {site(r.keys)}".strip(): r.tensor.to_numpy() for r in rows}


def test_loss_by_tokens(lake: pico.Lake) -> None:
    rows = ask(lake, "loss_by_tokens")
    assert [r["tokens"] for r in rows if r["run"] == "first"] == [8 * 16 * s for s in STEPS]
    stored = {(r["global_step"], r["name"]): r["value"] for r in table(lake, "scalars")}
    for row in ask(lake, "loss_by_tokens", run="first"):
        assert row["loss"] == stored.get((row["step"], "loss"))
        assert row["heldout_loss"] == stored.get((row["step"], "heldout_loss"))


@pytest.mark.parametrize("of", ["weights", "gradients"])
def test_per_by_layer(lake: pico.Lake, of: str) -> None:
    rows = ask(lake, "per_by_layer", run="second", table=of)
    for row in rows:
        tensor = tensors(lake, of, row["step"], "second")[row["name"]]
        values = np.linalg.svd(tensor.astype(float), compute_uv=False)
        p = values / values.sum()
        expected = math.exp(-(p * np.log(p)).sum()) / len(values)
        assert row["per"] == pytest.approx(expected, rel=1e-5)
    n_steps = 7 if of == "weights" else 6
    assert len(rows) == n_steps * (2 + 2 * 7)  # embeddings, and seven matrices of two layers


def test_norm_growth(lake: pico.Lake) -> None:
    rows = ask(lake, "norm_growth", run="first")
    assert len(rows) == 7 * (3 + 2 * 9)  # embed, unembed, final norm; nine of each layer
    at = {step: tensors(lake, "weights", step) for step in STEPS}
    for row in rows:
        norm = np.linalg.norm(at[row["step"]][row["name"]].astype(float))
        first = np.linalg.norm(at[0][row["name"]].astype(float))
        assert row["frobenius_norm"] == pytest.approx(norm, rel=1e-6)
        assert row["growth"] == pytest.approx(norm / first, rel=1e-6)
    embed = ask(lake, "norm_growth", component="embed")
    assert {(r["run"], r["layer"]) for r in embed} == {("first", None), ("second", None)}


def test_gradient_cosine(lake: pico.Lake) -> None:
    rows = ask(lake, "gradient_cosine", run="first")
    assert len(rows) == 5 * 21
    for row in rows:
        a, b = (
            tensors(lake, "gradients", row[at])[row["name"]].astype(float).reshape(-1)
            for at in ("step", "next_step")
        )
        expected = a @ b / (np.linalg.norm(a) * np.linalg.norm(b))
        assert row["cosine"] == pytest.approx(expected, abs=1e-6)


def test_moments_at_jump(lake: pico.Lake) -> None:
    rows = ask(lake, "moments_at_jump", run="first")
    losses = {r["global_step"]: r["value"] for r in table(lake, "scalars") if r["name"] == "loss"}
    jump = max(range(1, 6), key=lambda step: losses[step] - losses[step - 1])
    step = jump - jump % 2  # recorded at even steps
    assert {(r["jump_step"], r["step"]) for r in rows} == {(jump, step)}
    assert rows[0]["loss"] == losses[jump] and rows[0]["loss_before"] == losses[jump - 1]
    stored = tensors(lake, "optimizer", step)
    assert len(rows) == 2 * 21
    for row in rows:
        moment = stored[f"{row['name']} {row['state']}"]
        assert row["frobenius_norm"] == pytest.approx(np.linalg.norm(moment), rel=1e-5)
        assert row["max_abs"] == pytest.approx(np.abs(moment).max(), rel=1e-6)


def test_cka_of_runs(lake: pico.Lake) -> None:
    rows = ask(lake, "cka_runs")
    last = {run: tensors(lake, "activations", 6, run)["layers.1 resid.post"] for run in RUNS}
    assert [(r["run"], r["other_run"]) for r in rows] == [(a, b) for a in RUNS for b in RUNS]
    for row in rows:
        assert (row["step"], row["other_step"], row["layer"]) == (6, 6, 1)
        expected = linear_cka(last[row["run"]], last[row["other_run"]])
        assert row["cka"] == pytest.approx(expected, abs=1e-6)
    early = ask(lake, "cka_runs", step=2, layer=0)
    first = {run: tensors(lake, "activations", 2, run)["layers.0 resid.post"] for run in RUNS}
    assert {(r["step"], r["layer"]) for r in early} == {(2, 0)}
    [cross] = [r for r in early if (r["run"], r["other_run"]) == RUNS]
    assert cross["cka"] == pytest.approx(linear_cka(*first.values()), abs=1e-6)
    assert cross["cka"] < 0.99


def test_cka_of_layers_and_of_steps(lake: pico.Lake) -> None:
    rows = ask(lake, "cka_layers", run="first", step=4)
    stored = tensors(lake, "activations", 4)
    assert [(r["layer"], r["other_layer"]) for r in rows] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for row in rows:
        a, b = (stored[f"layers.{row[at]} resid.post"] for at in ("layer", "other_layer"))
        assert row["cka"] == pytest.approx(linear_cka(a, b), abs=1e-6)
    assert {r["step"] for r in ask(lake, "cka_layers", run="first")} == {6}
    for most, kept in ((1, [6]), (2, [2, 6]), (3, [2, 6]), (4, [0, 2, 4, 6]), (99, [0, 2, 4, 6])):
        some = ask(lake, "cka_steps", run="first", most=most)
        assert sorted({r["step"] for r in some}) == kept and len(some) == len(kept) ** 2
        assert {r["layer"] for r in some} == {1}
    rows = ask(lake, "cka_steps", run="first", layer=0)
    assert [(r["step"], r["other_step"]) for r in rows] == [
        (a, b) for a in (0, 2, 4, 6) for b in (0, 2, 4, 6)
    ]
    for row in rows:
        a, b = (
            tensors(lake, "activations", row[at])["layers.0 resid.post"]
            for at in ("step", "other_step")
        )
        assert row["cka"] == pytest.approx(linear_cka(a, b), abs=1e-6)
    assert {r["layer"] for r in ask(lake, "cka_steps", run="first")} == {1}


def linear_cka(x: np.ndarray, y: np.ndarray) -> float:
    x, y = (a.astype(float) - a.astype(float).mean(0) for a in (x, y))
    over = np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y)
    return float(np.linalg.norm(x.T @ y) ** 2 / over)


def scores(lake: pico.Lake, probe: str, run: str = "first") -> Rows:
    return [r for r in table(lake, "token_scores", run) if r["probe"] == probe]


def test_loss_by_frequency(lake: pico.Lake) -> None:
    counts = {r["token_id"]: r["count"] for r in lake.snapshot().read("vocab").to_pylist()}
    bands: dict[tuple[int, int], list[float]] = {}
    for row in scores(lake, "text"):
        count = max(counts[row["target_id"]], 1)
        band = 10 ** math.floor(math.log10(count))
        bands.setdefault((row["global_step"], band), []).append(row["loss"])
    found = ask(lake, "loss_by_frequency", run="first")
    assert {(r["step"], r["count_from"]) for r in found} == bands.keys()
    assert len({band for _, band in bands}) > 1
    for row in found:
        losses = bands[row["step"], row["count_from"]]
        assert (row["n_targets"], row["loss"]) == (len(losses), pytest.approx(np.mean(losses)))


def test_loss_by_surprisal(lake: pico.Lake) -> None:
    [row] = [r for r in lake.runs() if r["run"] == "first"]
    sequences = [
        r["tokens"]
        for r in lake.snapshot().read("sequences").to_pylist()
        if r["dataset_id"] == row["dataset"]
    ]
    pairs = Counter(p for tokens in sequences for p in itertools.pairwise(tokens))
    firsts, seconds = Counter[int](), Counter[int]()
    for (a, b), n in pairs.items():
        firsts[a] += n
        seconds[b] += n
    total, size = sum(pairs.values()), lake.load_model("first").config.vocab_size
    bands: dict[tuple[int, float], list[tuple[float, float]]] = {}
    for score in scores(lake, "text"):
        a, b = score["token_id"], score["target_id"]
        p = (pairs[a, b] + (seconds[b] + 1) / (total + size)) / (firsts[a] + 1)
        key = (score["global_step"], math.floor(-math.log(p) / 1.5) * 1.5)
        bands.setdefault(key, []).append((-math.log(p), score["loss"]))
    found = ask(lake, "loss_by_surprisal", run="first", width=1.5)
    assert {(r["step"], r["surprisal_from"]) for r in found} == bands.keys()
    for r in found:
        surprisal, loss = np.mean(bands[r["step"], r["surprisal_from"]], axis=0)
        assert r["n_targets"] == len(bands[r["step"], r["surprisal_from"]])
        assert (r["surprisal"], r["loss"]) == (pytest.approx(surprisal), pytest.approx(loss))


def test_induction_by_head(lake: pico.Lake) -> None:
    rows = ask(lake, "induction_by_head", run="first")
    assert [(r["layer"], r["head"], r["step"]) for r in rows] == [
        (layer, head, step) for layer in (0, 1) for head in (0, 1) for step in (0, 2, 4, 6)
    ]
    ids = lake.sql("SELECT tokens FROM probes WHERE probe = 'repeat' ORDER BY sequence_id")
    tokens = torch.tensor([row for (row,) in ids.fetchall()])
    model = lake.load_model("first", 4, as_="hf")
    model.set_attn_implementation("eager")
    with torch.no_grad():
        patterns = model(tokens, output_attentions=True).attentions
    half = tokens.shape[1] // 2
    for row in rows:
        if row["step"] == 4:
            p = patterns[row["layer"]][:, row["head"]]
            wanted = np.mean([p[:, i, i - half + 1].numpy() for i in range(half, 2 * half)])
            assert row["score"] == pytest.approx(float(wanted), abs=1e-5)
    assert ask(lake, "induction_by_head", metric="attention_entropy")[0]["score"] > 0.5


def test_in_context_score(lake: pico.Lake) -> None:
    for row in ask(lake, "in_context_score", run="first", probe="text", share=0.25):
        of_step = [r for r in scores(lake, "text") if r["global_step"] == row["step"]]
        n = 15
        early = [r["loss"] for r in of_step if r["position"] < n / 4]
        late = [r["loss"] for r in of_step if r["position"] >= 3 * n / 4]
        assert row["early_loss"] == pytest.approx(np.mean(early))
        assert row["late_loss"] == pytest.approx(np.mean(late))
        assert row["in_context_score"] == pytest.approx(np.mean(late) - np.mean(early))


def test_anisotropy(lake: pico.Lake) -> None:
    rows = ask(lake, "anisotropy")
    assert {(r["run"], r["step"]) for r in rows} == {
        (r, s) for r in ("first", "second") for s in STEPS
    }
    for row in rows:
        if row["run"] == "first":
            tensor = tensors(lake, "weights", row["step"])[row["name"]]
            unit = tensor / np.linalg.norm(tensor.astype(float), axis=1, keepdims=True)
            cosines = unit @ unit.T
            m = len(unit)
            expected = (cosines.sum() - np.trace(cosines)) / (m * (m - 1))
            assert row["mean_cosine"] == pytest.approx(expected, abs=1e-6)
    assert ask(lake, "anisotropy", component="unembed")[0]["component"] == "unembed"


def test_dead_units(lake: pico.Lake) -> None:
    for threshold in (0.01, 0.9):
        rows = ask(lake, "dead_units", run="first", threshold=threshold)
        assert [(r["layer"], r["step"]) for r in rows] == [
            (a, b) for a in (0, 1) for b in (0, 2, 4, 6)
        ]
        for row in rows:
            stored = tensors(lake, "activations", row["step"])
            [hidden] = [
                value
                for name, value in stored.items()
                if name.startswith(f"layers.{row['layer']}.") and name.endswith("mlp.hidden")
            ]
            norms = np.linalg.norm(hidden.astype(float), axis=0)
            dead = int((norms <= threshold * np.median(norms)).sum())
            assert (row["n_units"], row["n_dead"]) == (96, dead)
            assert row["dead_share"] == pytest.approx(dead / 96)
    assert any(row["n_dead"] for row in rows)


def test_worst_batches(lake: pico.Lake) -> None:
    losses = {r["global_step"]: r["value"] for r in table(lake, "scalars") if r["name"] == "loss"}
    before = {s: np.mean([losses[p] for p in range(max(s - 3, 0), s)]) for s in range(1, 6)}
    order = sorted(before, key=lambda s: before[s] - losses[s])
    rows = ask(lake, "worst_batches", run="first", batches=2, window=3)
    assert list(dict.fromkeys(r["step"] for r in rows)) == order[:2]
    assert rows[0]["excess"] == pytest.approx(losses[order[0]] - before[order[0]])
    assert len(rows) == 16
    tokenizer_text = {
        (r["position"], r["text"]): r["sequence_loss"] for r in rows if r["step"] == order[0]
    }
    seen = ask(lake, "text_seen", run="first", step=order[0])
    assert tokenizer_text == {(r["position"], r["text"]): r["loss"] for r in seen}


def test_bytes_per_table(lake: pico.Lake) -> None:
    rows = ask(lake, "bytes_per_table")
    folder = Path(str(lake.storage.folder))
    for row in rows:
        inside = f"run={row['run']}/**" if row["run"] else "**"
        files = [p for p in (folder / row["table_name"]).glob(f"{inside}/*.parquet")]
        assert (row["files"], row["bytes"]) == (len(files), sum(p.stat().st_size for p in files))
    assert {r["run"] for r in rows} == {"first", "second", None}
    assert {r["run"] for r in ask(lake, "bytes_per_table", run="first")} == {"first"}


JOINING = {
    "gradient_cosine": 21,
    "update_ratio": 21,
    "effective_rank_by_layer": 16,
    "sparsity_by_layer": 21,
    "norm_growth": 21,
    "per_by_layer": 16,
    "moments_at_jump": 21,
    "init_std": 21,
}


@pytest.mark.parametrize("name", JOINING)
def test_embeddings_are_not_lost_in_joins(lake: pico.Lake, name: str) -> None:
    """Of 21 tensors three have no layer: a plain join on layers drops them without a word."""
    rows = ask(lake, name, run="first")
    assert len({row["name"] for row in rows}) == JOINING[name]
    assert {row["layer"] for row in rows} == {None, 0, 1}


def test_metrics_functions_agree_with_the_queries(lake: pico.Lake) -> None:
    row = ask(lake, "per_by_layer", run="first", component="embed")[0]
    tensor = tensors(lake, "weights", row["step"])[row["name"]]
    assert row["per"] == pytest.approx(metrics.per(tensor), rel=1e-12)
