"""Time the norms of every tensor over 50 checkpoints: `tensor_stats` against loading every file.

    python -m tests.benchmarks.bench_stats [PAIRS]

The recorder wrote the statistics when it wrote the weights, so SQL only reads numbers; the peer
loads each safetensors file and takes the norm of each tensor. Both answers are compared.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from safetensors.torch import load_file

import pico
from pico.config import ModelConfig
from tests.benchmarks import checkpoints, measure
from tests.benchmarks.checkpoints import Checkpoints

QUERY = (
    f"SELECT step, name, frobenius_norm FROM tensor_stats "
    f"WHERE run = '{checkpoints.RUN}' AND table_name = 'weights' ORDER BY step, name"
)


def run(
    pairs: int = 9,
    config: ModelConfig = checkpoints.MODEL,
    n_checkpoints: int = checkpoints.N_CHECKPOINTS,
) -> measure.Result:
    """Return the times of both ways to all norms."""
    with checkpoints.written(config, n_checkpoints) as stored:
        found = measure.alternate(
            {
                "sql": lambda: _sql(stored),
                "load_file": lambda: measure.timed(lambda: _load_file(stored)),
            },
            pairs,
        )
    _check_close(found["sql"][0]["answer"], found["load_file"][0][1])
    n_norms = len(found["sql"][0]["answer"])
    result = measure.Result(f"(e) {n_norms:,} norms: every tensor of {n_checkpoints} checkpoints")
    peer = [seconds for seconds, _ in found["load_file"]]
    connect, first, second = (
        [turn[part] for turn in found["sql"]] for part in ("connect", "first", "second")
    )
    both = [a + b for a, b in zip(connect, first, strict=True)]
    result.add_ratio("SQL on tensor_stats, first query", first, "load_file and norm", peer, 10.0)
    result.add_ratio("SQL on tensor_stats, second query", second, "load_file and norm", peer, 10.0)
    result.add_ratio("pico.connect and first query", both, "load_file and norm", peer)
    result.notes.append(
        "The recorder accumulates in float64, the peer is torch.linalg.vector_norm in float32; "
        "the answers agree to 1e-5."
    )
    return result


def _sql(stored: Checkpoints) -> dict[str, Any]:
    connect, connection = measure.timed(lambda: pico.connect(stored.lake))
    try:
        first, rows = measure.timed(lambda: connection.sql(QUERY).fetchall())
        second, _ = measure.timed(lambda: connection.sql(QUERY).fetchall())
    finally:
        connection.close()
    return {"connect": connect, "first": first, "second": second, "answer": rows}


def _load_file(stored: Checkpoints) -> list[tuple[int, str, float]]:
    return [
        (step, name, torch.linalg.vector_norm(tensor).item())
        for step, path in enumerate(stored.safetensors_files)
        for name, tensor in sorted(load_file(path).items())
    ]


def _check_close(ours: list[Any], theirs: list[Any]) -> None:
    if [row[:2] for row in ours] != [row[:2] for row in theirs]:
        raise AssertionError("the rivals do not list the same tensors")
    if any(abs(a[2] - b[2]) > 1e-5 * b[2] for a, b in zip(ours, theirs, strict=True)):
        raise AssertionError("the rivals do not agree on the norms")


def main() -> None:
    """Run and print."""
    start = time.perf_counter()
    measure.show(run(measure.pairs_asked()))
    print(f"  ({time.perf_counter() - start:.0f} s in all)")


if __name__ == "__main__":
    main()
