"""The benchmarks run, at sizes where their figures mean nothing, so that they do not rot."""

from __future__ import annotations

import sys

import pytest
import torch

from pico.config import ModelConfig
from tests.benchmarks import (
    bench_bytes,
    bench_compute,
    bench_log,
    bench_recorder,
    bench_sql,
    bench_stats,
    bench_train_step,
    measure,
    plan_scale,
    run_all,
)

TINY = ModelConfig(d_model=24, n_layers=2, n_heads=4, n_kv_heads=2, vocab_size=64, context=128)


def test_train_step() -> None:
    found = bench_train_step.run(1, TINY, batch=2, seq_len=8)
    assert found["ours_s"] > 0 and found["ratio_min"] <= found["ratio"] <= found["ratio_max"]
    assert found["ours_loss"] == pytest.approx(found["theirs_loss"], abs=1e-3)


def test_recorder() -> None:
    result = bench_recorder.run(2, TINY, batch=2, seq_len=8, straight=True)
    assert [bool(line.target) for line in result.lines] == [True, False]


def test_recorder_windows_hold_one_capture_each(tmp_path) -> None:
    from pico.lake.snapshot import Snapshot
    from pico.lake.storage import Storage

    loop = bench_recorder.Loop(TINY, 2, 8)
    loop.record(str(tmp_path), {"every": bench_recorder.WINDOW, "from": 1})
    for n_captures in (1, 2):
        loop.window(bench_recorder.WINDOW)
        snapshot = Snapshot.take(Storage(str(tmp_path)))
        for table in ("weights", "gradients", "activations"):
            assert len(snapshot.files(table)) == n_captures
    loop.recorder.abort()


def test_bytes() -> None:
    result = bench_bytes.run(models={"nano": TINY}, steps={"nano": 1})
    assert len(result.lines) == 4
    assert all(line.met is not None for line in result.lines)


def test_bytes_knows_the_shipped_models() -> None:
    models = bench_bytes.shipped()
    assert models.keys() == bench_bytes.TARGETS.keys()
    assert models["pico-small"].d_model == 384 and models["nano"].vocab_size == 2048


def test_bytes_counts_the_weights_of_the_dtype() -> None:
    model = torch.nn.Linear(64, 64)
    assert 0 < bench_bytes._lake_bytes(model.to(torch.bfloat16)) < 3 * 64 * 65 + 10_000


def test_sql_and_its_peers_agree() -> None:
    name = "layers.1.attention.q_proj.weight"
    result = bench_sql.run(1, TINY, n_checkpoints=3, name=name)
    assert len([line for line in result.lines if line.met is not None]) == 4


def test_stats_and_its_peer_agree() -> None:
    result = bench_stats.run(1, TINY, n_checkpoints=3)
    assert "norms" in result.title and len(result.lines) == 3


def test_log() -> None:
    result = bench_log.run(1, few=3, many=40, window=20)
    assert [bool(line.target) for line in result.lines] == [True] * 4
    assert result.lines[1].figure == "10"  # 2 · 16 + 8 commits


def test_compute(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # starting a cluster takes long
    result = bench_compute.run(1, lake_bytes=1, width=24, n_few=1)
    assert [bool(line.target) for line in result.lines] == [True] * 3
    assert any("ray is absent" in note for note in result.notes)


def test_plan_scale() -> None:
    result = plan_scale.run(n_runs=3, n_checkpoints=4, n_tensors=30)
    assert "(0.0 million)" in result.title and len(result.lines) == 5
    assert result.lines[-1].met


def test_a_failing_benchmark_does_not_lose_the_others(tmp_path, monkeypatch, capsys) -> None:
    def good(pairs: int) -> measure.Result:
        result = measure.Result("good")
        result.add_ratio("ours", [1.0, 1.0, 2.0], "theirs", [2.0, 3.0, 4.0], 1.5)
        result.add_ratio("slow", [2.0], "theirs", [1.0], 1.5)
        return result

    def bad(pairs: int) -> measure.Result:
        raise RuntimeError("no luck")

    monkeypatch.setattr(run_all, "BENCHMARKS", {"bad": bad, "good": good})
    output = tmp_path / "RESULTS.md"
    assert run_all.main(["--quick", "--output", str(output)]) == 1
    text = output.read_text("utf-8")
    assert "RuntimeError: no luck" in text and "3 pairs" in text
    assert "| ours | 1.00 s (1.00-2.00) | theirs | 3.00 s (2.00-4.00) | 2.00x" in text
    assert ">= 1.5x | yes |" in text and ">= 1.5x | **no** |" in text
    assert "duckdb" in text and "cores" in text
    assert "no luck" in capsys.readouterr().out


def test_rivals_change_places() -> None:
    calls: list[str] = []
    rivals = {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}
    measure.alternate(rivals, 3)
    assert calls == ["a", "b", "b", "a", "a", "b", "b", "a"]
