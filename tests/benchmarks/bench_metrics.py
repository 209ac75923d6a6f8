"""Time seven metrics of weight matrices, and OV spectra of heads, against pico-analyze's way.

    python -m tests.benchmarks.bench_metrics [PAIRS]

The peer is written here from a description of what pico-analyze computes: `torch.sort` for Gini,
a full `torch.svd` for each rank metric, `torch.norm` for each norm; for a head's circuit the full
product and its `torch.svd`. Both sides have two workers with one BLAS thread each, which is decided
before numpy is loaded, as is how numpy sorts (`pico.processor`): hence a process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from pico import processor
from tests.benchmarks import measure
from tests.benchmarks.measure import Line, Result

NAMES = (
    "gini",
    "hoyer",
    "per",
    "condition_number",
    "frobenius_norm",
    "nuclear_norm",
    "max_abs",
)
WORKERS = 2
PICO_SMALL = {"v 128x384": (128, 384), "o 384x384": (384, 384), "down 384x1536": (384, 1536)}
HEADS, KV_HEADS, D_HEAD, D_MODEL = 12, 4, 128, 1536  # pico-large
SLOW_HEADS = 2


def run(pairs: int = 9) -> Result:
    """Return the times of both ways, measured in a process with single-threaded BLAS."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    command = [sys.executable, "-m", "tests.benchmarks.bench_metrics", "--json", str(pairs)]
    done = subprocess.run(
        command, env={**os.environ, **threads}, stdout=subprocess.PIPE, text=True, check=True
    )
    found = json.loads(done.stdout)
    return Result(found["title"], [Line(**line) for line in found["lines"]], found["notes"])


def _measure(pairs: int) -> Result:
    processor.prefer_fast_sorts()
    result = Result("(g) Seven metrics of matrices; OV spectra of heads")
    _metrics(result, "24 matrices of 768x3072", (768, 3072), 24, min(pairs, 3), 18.0)
    for name, shape in PICO_SMALL.items():
        _metrics(result, f"pico-small, 12 layers of {name}", shape, 12, pairs, 6.0)
    _spectra(result, pairs)
    result.notes.append(
        f"{', '.join(NAMES)}; {WORKERS} threads with one BLAS thread each on both sides. Values "
        "agree to 1e-3, condition numbers to 2e-2 (the peer's are of float32)."
    )
    return result


def _metrics(
    result: Result, what: str, shape: tuple[int, int], n: int, pairs: int, target: float
) -> None:
    import numpy as np
    import torch

    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape, dtype=np.float32) * np.float32(0.02) for _ in range(n)]
    tensors = [torch.from_numpy(array) for array in arrays]
    torch.set_num_threads(1)
    found = measure.alternate(
        {
            "ours": lambda: _timed_stacks(arrays),
            "theirs": lambda: _timed(_as_pico_analyze_does, tensors),
        },
        pairs,
        warm_up=shape[0] < 768,
    )
    for ours, theirs in zip(found["ours"][0][1], found["theirs"][0][1], strict=True):
        for name, value in zip(NAMES, theirs, strict=True):
            assert abs(ours[name] - value) <= (2e-2 if "cond" in name else 1e-3) * value, name
    mine, peer = ([seconds for seconds, _ in found[side]] for side in ("ours", "theirs"))
    result.add_ratio(what, mine, "sort, svd, norm in torch", peer, target)


def _spectra(result: Result, pairs: int) -> None:
    import numpy as np
    import torch

    from pico import metrics

    rng = np.random.default_rng(1)
    v = rng.standard_normal((KV_HEADS * D_HEAD, D_MODEL), dtype=np.float32)
    o = rng.standard_normal((D_MODEL, HEADS * D_HEAD), dtype=np.float32)
    torch.set_num_threads(1)

    def ours() -> tuple[float, list[Any]]:
        return _timed(lambda head: metrics.ov_spectrum(v, o, HEADS, KV_HEADS, head), range(HEADS))

    def theirs() -> tuple[float, list[Any]]:
        seconds, values = _timed(lambda head: _full_product(v, o, head), range(SLOW_HEADS))
        return seconds * HEADS / SLOW_HEADS, values

    found = measure.alternate({"ours": ours, "theirs": theirs}, min(pairs, 3), warm_up=False)
    for thin, full in zip(found["ours"][0][1], found["theirs"][0][1], strict=False):
        np.testing.assert_allclose(thin, full[:D_HEAD], rtol=1e-3)
    mine, peer = ([seconds for seconds, _ in found[side]] for side in ("ours", "theirs"))
    result.add_ratio(
        "OV spectra of 12 heads, pico-large", mine, "svd of the full products", peer, 50.0
    )
    result.notes.append(f"The full products are measured on {SLOW_HEADS} heads and scaled to 12.")


def _timed(function: Callable[[Any], Any], items: Sequence[Any]) -> tuple[float, list[Any]]:
    with ThreadPoolExecutor(WORKERS) as pool:
        start = time.perf_counter()
        answers = list(pool.map(function, items))
        return time.perf_counter() - start, answers


def _timed_stacks(arrays: Sequence[Any]) -> tuple[float, list[Any]]:
    """Compute as a worker of `pico metrics compute` does: small tensors some at a time."""
    from pico.compute.tasks import STACK_BYTES, STACK_TENSORS
    from pico.metrics import registry

    size = min(STACK_TENSORS, max(1, STACK_BYTES // arrays[0].nbytes))
    stacks = [arrays[start : start + size] for start in range(0, len(arrays), size)]
    seconds, found = _timed(lambda stack: registry.compute_many(stack, NAMES), stacks)
    return seconds, [values for stack in found for values in stack]


def _as_pico_analyze_does(tensor: Any) -> tuple[float, ...]:
    import torch

    ordered, _ = torch.sort(tensor.abs().flatten())
    n = ordered.numel()
    index = torch.arange(1, n + 1, dtype=tensor.dtype)
    gini = torch.sum((2 * index - n - 1) * ordered) / (n * torch.sum(ordered))
    ratio = torch.sum(tensor.abs()) / torch.sqrt(torch.sum(tensor**2))
    hoyer = (n**0.5 - ratio) / (n**0.5 - 1)
    _, values, _ = torch.svd(tensor)
    shares = values / torch.sum(values)
    per = torch.exp(-torch.sum(shares * torch.log(shares))) / len(values)
    _, values, _ = torch.svd(tensor)
    norms = [torch.norm(tensor, p=p) for p in ("fro", "nuc", float("inf"))]
    return tuple(float(x) for x in (gini, hoyer, per, values.max() / values.min(), *norms))


def _full_product(v: Any, o: Any, head: int) -> Any:
    import torch

    group = head * KV_HEADS // HEADS
    left = torch.from_numpy(o[:, head * D_HEAD : (head + 1) * D_HEAD])
    right = torch.from_numpy(v[group * D_HEAD : (group + 1) * D_HEAD])
    _, values, _ = torch.svd(left @ right)
    return values.numpy()


def main() -> None:
    """Run and print; with `--json`, measure here and print for the process that asked."""
    if "--json" in sys.argv:
        print(json.dumps(asdict(_measure(measure.pairs_asked()))))
        return
    measure.show(run(measure.pairs_asked()))


if __name__ == "__main__":
    main()
