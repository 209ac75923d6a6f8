"""The first run, end to end: what the project is for, asked as its users ask it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pico
from pico import metrics
from pico.data import corpus
from tests.train import tiny

torch.set_num_threads(1)
N = 12
RECORD: dict[str, Any] = {
    "checkpoints": {"every": 10},
    "weights": "pythia",
    "gradients": {"schedule": "pythia", "stages": ["raw", "clipped"]},
    "optimizer": "pythia",
    "activations": [
        {"probe": "text", "schedule": "pythia", "sites": list(tiny.SITES), "positions": "all"},
        {"probe": "repeat", "schedule": "pythia", "sites": ["z"], "positions": "last"},
        {"schedule": "pythia", "sites": ["resid.post"], "positions": "last"},
    ],
    "tensor_stats": {"weights": True, "gradients": True},
    "pairs": True,
    "probes": {"text": {"n_sequences": 4}, "repeat": {"n_sequences": 4}},
}


def mapping(source: Path, **changes: Any) -> dict[str, Any]:
    return tiny.config(source, **{"max_steps": N, "record": RECORD, **changes})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds in one lake, the first of them again in another, in another micro-batch too."""
    made = tmp_path_factory.mktemp("acceptance")
    source = tiny.write_text(made / "text.txt")
    lake, other = pico.Lake(str(made / "lake")), pico.Lake(str(made / "other"))
    lake.train(mapping(source), "one")
    lake.train(mapping(source, seeds={"init": 4}), "two")
    other.train(mapping(source), "one")
    other.train(mapping(source, batch={"micro_size": 4}), "micro")
    return made


@pytest.fixture(scope="module")
def lake(folder: Path) -> pico.Lake:
    return pico.Lake.open(str(folder / "lake"))


def test_one_question_in_one_statement(lake: pico.Lake) -> None:
    rows = lake.sql(
        "SELECT step, layer, gini(tensor), per(tensor) FROM gradients "
        "WHERE run = 'one' AND component = 'o' AND stage = 'raw' ORDER BY ALL"
    ).fetchall()
    assert [(step, layer) for step, layer, *_ in rows] == [
        (step, layer) for step in (0, 1, 2, 4, 8, N - 1) for layer in (0, 1)
    ]
    for step, layer, gini, per in rows:
        name = f"layers.{layer}.attention.o_proj.weight"
        stored = tiny.tensors(lake.storage.url, "gradients", "one", step, stage="raw")[name]
        assert gini == pytest.approx(float(metrics.gini(stored)), rel=1e-12)
        sigma = np.linalg.svd(stored.astype(np.float64), compute_uv=False)
        p = sigma / sigma.sum()
        entropy = -(p * np.log(p, where=p > 0, out=np.zeros_like(p))).sum()
        assert per == pytest.approx(np.exp(entropy) / min(stored.shape), rel=1e-6)


def test_the_question_as_it_is_written(lake: pico.Lake) -> None:
    rows = lake.sql(
        "SELECT step, layer, gini(tensor), per(tensor) FROM gradients WHERE component='o' "
        "ORDER BY ALL"
    ).fetchall()
    assert len(rows) == 2 * 2 * 2 * 6
    assert all(0 <= gini <= 1 and 0 < per <= 1 for *_, gini, per in rows)


def test_the_text_seen_at_a_step(lake: pico.Lake) -> None:
    rows = lake.sql(
        """
        SELECT b.position, string_agg(v.bytes::VARCHAR, '|' ORDER BY t.place)
        FROM batches b
        JOIN (
            SELECT dataset, sequence_id, unnest(tokens) AS token_id,
                generate_subscripts(tokens, 1) AS place
            FROM sequences
        ) t USING (dataset, sequence_id)
        JOIN runs r ON r.run = b.run
        JOIN vocab v ON v.tokenizer = r.tokenizer AND v.token_id = t.token_id
        WHERE b.run = 'one' AND b.step = 10
        GROUP BY ALL ORDER BY ALL
        """
    ).fetchall()
    tokenizer = corpus.tokenizer_of(lake.snapshot(), "text")
    pieces = tokenizer.token_bytes()
    batch = lake.batch("one", 10)
    assert len(rows) == len(batch) == 8
    shipped = lake.query("text_seen", run="one", step=10).pl()
    source = (Path(str(lake.storage.folder)).parent / "text.txt").read_text("utf-8")
    end = pieces[tokenizer.end_of_text]
    for (_, shown), ids, text in zip(rows, batch, shipped["text"], strict=True):
        assert shown.count("|") == len(ids) - 1
        seen = b"".join(pieces[i] for i in ids)
        assert text == seen.decode("utf-8", errors="replace")
        for part in seen.split(end):
            assert part.decode() in source


def test_cka_with_the_last_step_and_between_runs(lake: pico.Lake) -> None:
    to_last = lake.sql(
        """
        SELECT a.step, a.name, a.site, a.probe, cka(a.tensor, b.tensor)
        FROM activations a JOIN activations b USING (run, name, site, probe)
        WHERE a.run = 'one' AND b.step = 12 AND a.probe IS NOT NULL ORDER BY ALL
        """
    ).fetchall()
    n_points = 2 * (len(tiny.SITES) + 1)
    assert len(to_last) == 6 * n_points
    stored = {
        (step, row.keys["name"], row.keys["site"], row.keys["probe"]): row.tensor.to_numpy()
        for step in {row[0] for row in to_last}
        for row in lake.snapshot().tensors("activations", "one", step)
    }
    for step, *point, value in to_last:
        x, y = (stored[(at, *point)] for at in (step, 12))
        assert value == pytest.approx(_cka(x, y), abs=1e-6)
        if step == 12:
            assert value == pytest.approx(1.0)
    shipped = lake.query("cka_to_last", run="one").pl()
    assert shipped["cka"].sum() == pytest.approx(sum(row[-1] for row in to_last))
    between = lake.query("cka_between_runs", run="one", other="two").pl().drop_nulls("probe")
    assert len(between) == 6 * n_points
    assert between["cka"].is_between(0, 1 + 1e-9).all()
    first = between.filter((between["step"] == 0) & (between["site"] == "q"))
    assert (first["cka"] < 0.999).all()  # two initialisations


def _cka(x: np.ndarray, y: np.ndarray) -> float:
    """Linear CKA by its definition, with explicitly centred Gram matrices."""
    n = len(x)
    centring = np.eye(n) - 1 / n
    k, m = (centring @ (z.astype(np.float64) @ z.T.astype(np.float64)) @ centring for z in (x, y))
    return float((k * m).sum() / np.sqrt((k * k).sum() * (m * m).sum()))


def test_the_same_seeds_give_the_same_bytes(folder: Path) -> None:
    tiny.assert_same_run(folder / "lake", folder / "other", "one")
    hashes = tiny.content(folder / "lake", "weights", "one")
    two = tiny.content(folder / "lake", "weights", "two")
    assert hashes.keys() == two.keys()
    assert sum(hashes[key] != two[key] for key in hashes) > 0.7 * len(hashes)


def test_data_sets_are_the_same_bytes_too(folder: Path) -> None:
    for table in ("sequences", "documents", "vocab", "datasets", "probes"):
        first, second = (tiny.rows(folder / name, table) for name in ("lake", "other"))
        assert first == second
        assert first


def test_micro_batches_change_no_batch(folder: Path) -> None:
    seen = {}
    for run in ("one", "micro"):
        rows = tiny.rows(folder / "other", "batches", run)
        rows.sort(key=lambda row: (row["global_step"], row["micro_step"], row["position"]))
        seen[run] = [(row["global_step"], row["sequence_id"]) for row in rows]
        assert {row["global_step"] for row in rows} == set(range(N))
    assert seen["one"] == seen["micro"]
    micro_steps = {r["micro_step"] for r in tiny.rows(folder / "other", "batches", "micro")}
    assert micro_steps == {0, 1}
    # averaged, not summed: the gradient's norm does not depend on the number of micro-steps
    for step in (0, 4):
        one, micro = (
            tiny.tensors(folder / "other", "gradients", run, step, stage="raw")
            for run in ("one", "micro")
        )
        for name, value in one.items():
            assert np.linalg.norm(micro[name]) == pytest.approx(np.linalg.norm(value), rel=2e-3)


def test_checkpoint_0_and_1_differ(folder: Path) -> None:
    """The first learning rate is above zero, so that the first update is one."""
    first, second = (tiny.tensors(folder / "lake", "weights", "one", step) for step in (0, 1))
    assert all((first[name] != second[name]).any() for name in first)


def test_update_ratios_exist_on_a_sparse_schedule(lake: pico.Lake) -> None:
    rows = lake.query("update_ratio", run="one").pl()
    assert set(rows["step"]) >= {0, 1, 2, 4, 8}
    url = lake.storage.url
    before, after = (tiny.tensors(url, "weights", "one", step) for step in (8, 9))
    name = "layers.1.swiglu.w_2.weight"
    row = rows.filter((rows["step"] == 8) & (rows["name"] == name))
    assert len(row) == 1
    ratio = np.linalg.norm(after[name] - before[name]) / np.linalg.norm(before[name])
    assert any(value == pytest.approx(ratio, rel=1e-5) for value in row.row(0)
               if isinstance(value, float))  # fmt: skip


def test_statistics_at_every_step_say_what_the_tensors_say(lake: pico.Lake) -> None:
    n, steps = lake.sql(
        "SELECT count(*), count(DISTINCT step) FROM tensor_stats "
        "WHERE run = 'one' AND table_name = 'weights'"
    ).fetchall()[0]
    n_tensors = lake.sql("SELECT count(*) FROM parameters WHERE run = 'one'").fetchall()[0][0]
    assert (n, steps) == ((N + 1) * n_tensors, N + 1)
    differing = lake.sql(
        """
        SELECT count(*) FROM tensor_stats s JOIN weights w USING (run, step, name, content_hash)
        WHERE s.table_name = 'weights'
            AND abs(s.frobenius_norm - frobenius_norm(w.tensor)) > 1e-9 * s.frobenius_norm
        """
    ).fetchall()
    assert differing == [(0,)]


def test_learning_happens(tmp_path: Path) -> None:
    """Held-out loss ends below the entropy of the token frequencies: more than counting."""
    source = tiny.write_text(tmp_path / "text.txt")
    config = tiny.config(
        source,
        max_steps=150,
        optimizer={"lr": 2e-2, "warmup_steps": 5},
        model={"d_model": 48},
        evaluate={"every": 0, "n_sequences": 64},
        record={"checkpoints": "never"},
    )
    lake = pico.Lake(str(tmp_path / "lake"))
    outcome = lake.train(config, "run")
    counts = np.array([row["count"] for row in tiny.rows(tmp_path / "lake", "vocab")])
    p = counts[counts > 0] / counts.sum()
    assert outcome.heldout_loss is not None
    assert outcome.heldout_loss < -(p * np.log(p)).sum() - 0.3
