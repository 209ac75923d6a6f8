"""Keep seven metrics of a lake of 2 GB: the first time, again, by one worker, by two, and on Ray.

    python -m tests.benchmarks.bench_compute [PAIRS]

The lake is one run of random matrices of a 768-wide model. (c) and (d) compute in fresh processes
with one worker; peak memory is what the kernel says (VmHWM), pages of mapped files included. (e)
and (f) compute over the first steps of the same lake: (e) whole calls, commits included, on copies
that hold no metrics yet; (f) the tasks of such a call alone, handed to an engine that has been
started, so that no start-up is in it.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from pico.compute import asked, materialize, missing, tasks
from pico.compute.tasks import Task, Threads
from pico.lake.codec import Tensor
from pico.lake.commit import Stream
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from pico.lake.table import TensorRow, write_tensors
from pico.metrics import registry
from tests.benchmarks import measure
from tests.benchmarks.measure import Line, Result

ROOT = Path(__file__).resolve().parents[2]
WIDTH, HIDDEN = 768, 3072
SHAPES = {"gate": (HIDDEN, WIDTH), "down": (WIDTH, HIDDEN), "o": (WIDTH, WIDTH), "norm": (WIDTH,)}
METRICS = (
    "gini",
    "hoyer",
    "per",
    "condition_number",
    "frobenius_norm",
    "nuclear_norm",
    "max_abs",
)
LAKE_BYTES = 2_000_000_000
RUN = "big"
BASE_BYTES = 300_000_000
"""What a worker may take beside four times the largest tensor."""


def fill(url: str, n_steps: int, width: int = WIDTH) -> int:
    """Write a lake of so many checkpoints; returns the bytes of its tensors."""
    storage, n_bytes = Storage(url), 0
    rng = np.random.default_rng(0)
    with Stream(storage, f"train.{RUN}") as stream:
        for step in range(n_steps):
            transaction, rows = stream.begin(), []
            for name, shape in SHAPES.items():
                scaled = tuple(n * width // WIDTH for n in shape)
                tensor = Tensor.of(rng.standard_normal(scaled, dtype=np.float32))
                rows.append(TensorRow({"name": name, "component": name}, tensor))
                n_bytes += tensor.data.nbytes
            write_tensors(transaction, "weights", {"run": RUN, "step": step}, rows)
            transaction.commit()
    return n_bytes


def step_bytes(width: int = WIDTH) -> int:
    """Return the bytes of the tensors of one checkpoint."""
    return 4 * sum(int(np.prod([n * width // WIDTH for n in s])) for s in SHAPES.values())


def in_a_process(url: str) -> dict[str, float]:
    """Compute twice with one worker in a fresh process; returns what it says, and its own time."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.bench_compute", "--child", url],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return {**found, "process": time.perf_counter() - start}


def _child(url: str) -> None:
    """What the fresh process does, and says of itself."""
    from pico import Lake

    lake = Lake.open(url)
    first, done = measure.timed(lambda: lake.compute_metrics(METRICS, workers=1))
    second, again = measure.timed(lambda: lake.compute_metrics(METRICS, workers=1))
    if again.computed or again.present != done.computed + done.reused + done.present:
        raise AssertionError("a second call computes nothing, and finds what the first kept")
    status = Path("/proc/self/status").read_text("ascii").splitlines()
    peak = next(line.split()[1] for line in status if line.startswith("VmHWM"))
    found = {"first": first, "second": second, "peak": int(peak) * 1024, "computed": done.computed}
    print(json.dumps(found))


def run(
    pairs: int = 9, lake_bytes: int = LAKE_BYTES, width: int = WIDTH, n_few: int = 24
) -> Result:
    """Return figures (c), (d), (e) and (f)."""
    result = Result(f"(c)-(f) Keep {len(METRICS)} metrics of a lake of {lake_bytes / 1e9:g} GB")
    with tempfile.TemporaryDirectory() as folder:
        url = str(Path(folder, "lake"))
        n_steps = max(1, round(lake_bytes / step_bytes(width)))
        n_bytes = fill(url, n_steps, width)
        largest = 4 * max(
            int(np.prod([n * width // WIDTH for n in shape])) for shape in SHAPES.values()
        )
        result.notes.append(
            f"{n_steps} checkpoints of {len(SHAPES)} tensors, {n_bytes / 1e9:.2f} GB of float32; "
            f"the largest tensor has {largest / 1e6:.1f} MB. Metrics: {', '.join(METRICS)}."
        )
        _again(result, url, largest, n_steps)
        few = str(Path(folder, "few"))
        fill(few, min(n_few, n_steps), width)
        _workers(result, few, min(pairs, 5))
        _ray(result, few, min(pairs, 5))
    return result


def _again(result: Result, url: str, largest: int, n_steps: int) -> None:
    """Measure the first computation and later ones, the first in a process of its own."""
    first = in_a_process(url)
    matrices = sum(len(shape) > 1 for shape in SHAPES.values())
    spectral = sum(registry.get(name).needs_matrix for name in METRICS)
    everything = n_steps * (len(SHAPES) * (len(METRICS) - spectral) + matrices * spectral)
    if first["computed"] != everything:
        raise AssertionError(f"{first['computed']} values instead of {everything}")
    later = [in_a_process(url) for _ in range(3)]
    seconds = [first["second"], *(turn["first"] for turn in later)]
    ratio = statistics.median(seconds) / first["first"]
    result.lines.append(
        Line(
            "(c) a second call on an unchanged lake",
            measure.seconds(seconds),
            "the first",
            measure.seconds([first["first"]]),
            f"{ratio:.2%}",
            "<= 1%",
            ratio <= 0.01,
        )
    )
    started = statistics.median(turn["process"] for turn in later)
    result.notes.append(
        f"(c) is about the call; a process that only finds that nothing is missing takes "
        f"{started:.2f} s, nearly all of it Python's start and imports."
    )
    limit = BASE_BYTES + 4 * largest
    result.lines.append(
        Line(
            "(d) peak memory of the first, one worker",
            peer="300 MB + 4 x the largest tensor",
            figure=f"{first['peak'] / 1e6:.0f} MB",
            target=f"<= {limit / 1e6:.0f} MB",
            met=first["peak"] <= limit,
        )
    )
    result.notes.append(f"(d) of a call that finds nothing to do: {later[0]['peak'] / 1e6:.0f} MB.")


@contextmanager
def fresh(url: str) -> Iterator[Storage]:
    """Give a copy of a lake that shares its files on disk."""
    with tempfile.TemporaryDirectory(dir=Path(url).parent) as folder:
        copy = Path(folder, "lake")
        shutil.copytree(url, copy, copy_function=os.link)
        yield Storage(str(copy))


def _workers(result: Result, url: str, pairs: int) -> None:
    """Compare whole calls with one worker and with two."""

    def with_workers(n: int) -> Callable[[], float]:
        def once() -> float:
            with fresh(url) as storage:
                return measure.timed(
                    lambda: materialize.compute(storage, metrics=METRICS, workers=n)
                )[0]

        return once

    times = measure.alternate({"two": with_workers(2), "one": with_workers(1)}, pairs)
    result.add_ratio("(e) two workers", times["two"], "one worker", times["one"], 1.7)


def planned(storage: Storage) -> list[Task]:
    """Return the tasks of computing everything."""
    singles, _ = asked.choose(METRICS, None)
    question = missing.Question(RUN, "weights", tuple(singles))
    return list(tasks.cut(missing.plan(Snapshot.take(storage), question).jobs()))


def _ray(result: Result, url: str, pairs: int) -> None:
    """Compare the same tasks on two threads and on two Ray workers."""
    try:
        import ray  # noqa: F401
    except ModuleNotFoundError:
        result.notes.append("(f) not measured: ray is absent (pip install 'pico-lake[ray]').")
        return
    from pico import cluster

    storage = Storage(url)
    todo = planned(storage)
    threads = Threads(2)
    with cluster.engine("auto", 2) as on_ray:
        started, _ = measure.timed(lambda: _answers(on_ray, storage, todo))
        if _answers(on_ray, storage, todo) != _answers(threads, storage, todo):
            raise AssertionError("both compute the same")
        rivals = {
            "ray": lambda: measure.timed(lambda: _answers(on_ray, storage, todo))[0],
            "threads": lambda: measure.timed(lambda: _answers(threads, storage, todo))[0],
        }
        times = measure.alternate(rivals, pairs, warm_up=False)
    ratios = sorted(a / b for a, b in zip(times["ray"], times["threads"], strict=True))
    ratio = ratios[len(ratios) // 2]
    result.lines.append(
        Line(
            f"(f) {len(todo)} tasks on Ray, two workers",
            measure.seconds(times["ray"]),
            "two threads",
            measure.seconds(times["threads"]),
            f"{ratio:.2f}x ({ratios[0]:.2f}-{ratios[-1]:.2f})",
            "<= 1.3x",
            ratio <= 1.3,
        )
    )
    result.notes.append(f"(f) Starting the actors and the first round took {started:.1f} s.")


def _answers(engine: Any, storage: Storage, todo: list[Task]) -> dict[str, Any]:
    return {text: values for done in engine(storage, todo) for text, values in done}


def main() -> None:
    """Run and print."""
    if sys.argv[1:2] == ["--child"]:
        _child(sys.argv[2])
        return
    start = time.perf_counter()
    measure.show(run(measure.pairs_asked()))
    print(f"  ({time.perf_counter() - start:.0f} s in all)")


if __name__ == "__main__":
    main()
