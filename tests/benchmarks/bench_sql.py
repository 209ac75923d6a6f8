"""Time one attention tensor over 50 checkpoints: one SQL statement against loading every file.

    python -m tests.benchmarks.bench_sql [PAIRS]

Every rival computes the same Gini coefficient (`pico.metrics.gini`) of the same 96 x 96 matrix of
50 checkpoints of a 3.2 M-parameter model. A pair has a fresh connection, so the first query reads
every footer; the second finds them in DuckDB's cache. All files are warm in the page cache for
everybody.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import polars as pl
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import pico
from pico.config import ModelConfig
from pico.metrics import gini
from tests.benchmarks import checkpoints, measure
from tests.benchmarks.checkpoints import Checkpoints

NAME = "layers.5.attention.q_proj.weight"


def run(
    pairs: int = 9,
    config: ModelConfig = checkpoints.MODEL,
    n_checkpoints: int = checkpoints.N_CHECKPOINTS,
    name: str = NAME,
) -> measure.Result:
    """Return the times of SQL, first and second query, and of its peers."""
    with checkpoints.written(config, n_checkpoints) as stored:
        found = measure.alternate(
            {
                "sql": lambda: _sql(stored, name),
                "torch.load": lambda: measure.timed(lambda: _torch(stored, name)),
                "load_file": lambda: measure.timed(lambda: _load_file(stored, name)),
                "lazy": lambda: measure.timed(lambda: _lazy(stored, name)),
                "polars": lambda: measure.timed(lambda: _polars(stored, name)),
            },
            pairs,
        )
    _check_equal(found)
    return _report(stored, found)


def _report(stored: Checkpoints, found: dict[str, list[Any]]) -> measure.Result:
    result = measure.Result(
        f"(d) One tensor over {len(stored.torch_files)} checkpoints of "
        f"{stored.n_parameters / 1e6:.1f} M parameters by SQL"
    )
    peers = {
        peer: [seconds for seconds, _ in found[peer]]
        for peer in ("torch.load", "load_file", "lazy", "polars")
    }
    targets = {"torch.load": 8.0, "load_file": 1.5, "lazy": None}
    connect, first, second = (
        [turn[part] for turn in found["sql"]] for part in ("connect", "first", "second")
    )
    both = [a + b for a, b in zip(connect, first, strict=True)]
    for peer, target in targets.items():
        result.add_ratio("SQL, first query", first, peer, peers[peer], target)
        result.add_ratio("SQL, second query", second, peer, peers[peer], target)
    for peer in targets:
        result.add_ratio("pico.connect and first query", both, peer, peers[peer])
    result.add_ratio("SQL, second query", second, "Polars scan of the lake", peers["polars"])
    result.notes += [
        f"pico.connect alone: {measure.seconds(connect)}; it reads the log, makes the views and "
        "registers the functions, once a session.",
        "lazy: safetensors' safe_open and get_tensor, which read one tensor and no other.",
        "All rivals compute the same Gini coefficients; they are compared and equal.",
    ]
    return result


def _sql(stored: Checkpoints, name: str) -> dict[str, Any]:
    """Return the seconds of connecting, of the first and of the second query, and the answer."""
    query = (
        f"SELECT step, gini(tensor) FROM weights "
        f"WHERE run = '{checkpoints.RUN}' AND name = '{name}' ORDER BY step"
    )
    connect, connection = measure.timed(lambda: pico.connect(stored.lake))
    try:
        first, rows = measure.timed(lambda: connection.sql(query).fetchall())
        second, _ = measure.timed(lambda: connection.sql(query).fetchall())
    finally:
        connection.close()
    answer = [value for _, value in rows]
    return {"connect": connect, "first": first, "second": second, "answer": answer}


def _torch(stored: Checkpoints, name: str) -> list[float]:
    return [gini(torch.load(path, weights_only=True)[name].numpy()) for path in stored.torch_files]


def _load_file(stored: Checkpoints, name: str) -> list[float]:
    return [gini(load_file(path)[name].numpy()) for path in stored.safetensors_files]


def _lazy(stored: Checkpoints, name: str) -> list[float]:
    def one(path: Path) -> float:
        with safe_open(path, "pt") as file:
            return gini(file.get_tensor(name).numpy())

    return [one(path) for path in stored.safetensors_files]


def _polars(stored: Checkpoints, name: str) -> list[float]:
    frame = (
        pico.Lake.open(stored.lake)
        .scan("weights", checkpoints.RUN)
        .filter(pl.col("name") == name)
        .select("step", "value")
        .collect()
        .sort("step")
    )
    return [gini(value.to_numpy()) for value in frame["value"]]


def _check_equal(found: dict[str, list[Any]]) -> None:
    answers = [turn["answer"] for turn in found["sql"]]
    for peer in ("torch.load", "load_file", "lazy", "polars"):
        answers += [answer for _, answer in found[peer]]
    if any(answer != answers[0] for answer in answers):
        raise AssertionError("the rivals do not agree on the Gini coefficients")


def main() -> None:
    """Run and print."""
    start = time.perf_counter()
    measure.show(run(measure.pairs_asked()))
    print(f"  ({time.perf_counter() - start:.0f} s in all)")


if __name__ == "__main__":
    main()
