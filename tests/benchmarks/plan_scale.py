"""Plan the metrics of 1,000 runs with 154 checkpoints of 200 tensors, 30.8 million in all.

    python -m tests.benchmarks.plan_scale [RUNS]

The log is a table in memory with a row per file, as a reader of the real one has it. What stands in
for the 154,000 files is one function, `groups.keys`: it returns the key columns of 200 tensors of a
12-layer model with hashes of their own and the sizes of a 768-wide one. Everything else is what
`pico metrics compute` runs: the snapshot, the plan of each run, jobs and tasks. Times are CPU
times; what the source itself takes is subtracted, and what reading a real file's keys costs is
measured apart, on one that is written for it. Who asks the source for values fails.
"""

from __future__ import annotations

import resource
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pico.compute import asked, missing, tasks
from pico.compute.equals import Elsewhere
from pico.compute.missing import Question
from pico.lake import groups
from pico.lake.codec import Tensor
from pico.lake.commit import Stream
from pico.lake.entries import to_rows
from pico.lake.groups import FileKeys
from pico.lake.log import Entry
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from pico.lake.table import TensorRow, write_tensors
from tests.benchmarks import measure
from tests.benchmarks.measure import Line, Result

RUNS, CHECKPOINTS, TENSORS = 1000, 154, 200
WORKERS = 64
"""Among whom the tasks are dealt out, in the figures."""
METRICS = "gini,hoyer,per,effective_rank,stable_rank,condition_number,frobenius_norm"
WIDTH = 768
GROUP_BYTES = WIDTH * WIDTH * 4 * 0.85
"""What the values of a matrix take on disk; a matrix is alone in its row group."""
TASKS_OF = 5
"""Runs whose tasks are made as objects; of the others the plan alone, which is what decides."""


class Source:
    """The key columns of any file, made up; remembers how long that took."""

    def __init__(self, n_tensors: int) -> None:
        """Make what all files have in common."""
        names = [f"layers.{n % 12}.module_{n // 12}.weight" for n in range(n_tensors)]
        shapes = [[WIDTH, WIDTH] if n % 3 else [WIDTH] for n in range(n_tensors)]
        self._common = {
            "name": pa.array(names),
            "layer": pa.array([n % 12 for n in range(n_tensors)], pa.int32()),
            "component": pa.array([("q", "o", "norm.attn")[n % 3] for n in range(n_tensors)]),
            "param": pa.array(["weight"] * n_tensors),
            "part": pa.array([0] * n_tensors, pa.int16()),
            "n_parts": pa.array([1] * n_tensors, pa.int16()),
            "dtype": pa.array(["float32"] * n_tensors),
            "shape": pa.array(shapes, pa.list_(pa.int32())),
        }
        self._n_rows = np.ones(n_tensors, np.int64)
        sizes = [GROUP_BYTES if len(shape) > 1 else 4 * WIDTH for shape in shapes]
        self._n_bytes = np.array(sizes, np.int64)
        self._random = np.random.default_rng(0)
        self.seconds = 0.0
        self.n_files = 0

    def __call__(self, storage: Storage, entry: Entry, columns: list[str]) -> FileKeys:
        """Return what `groups.keys` would, and refuse values."""
        start = time.process_time()
        if {"value", "raw"} & set(columns):
            raise AssertionError("planning asked for values")
        n = len(self._n_rows)
        text = self._random.bytes(16 * n).hex()
        made = {
            **self._common,
            "content_hash": pa.array([text[32 * k : 32 * k + 32] for k in range(n)]),
        }
        rows = pa.table({name: made[name] for name in columns})
        self.seconds += time.process_time() - start
        self.n_files += 1
        return FileKeys(rows, self._n_rows, self._n_bytes)


@contextmanager
def in_place(source: Source) -> Iterator[None]:
    """Let a source answer for the files."""
    real = groups.keys
    groups.keys = source  # type: ignore[assignment]
    try:
        yield
    finally:
        groups.keys = real


def log_of(n_runs: int, n_checkpoints: int) -> pa.Table:
    """Return the log of so many runs: a file of weights for each checkpoint."""
    made = []
    for run in range(n_runs):
        for step in range(n_checkpoints):
            txn = uuid.uuid4().hex
            path = f"weights/run=r{run:04d}/step={1000 * step}/{txn}.parquet"
            made.append(
                Entry(
                    "add", "weights", path, TENSORS, 1 << 27, txn, 1, 1000 * step, 1000 * step, txn
                )
            )
    return to_rows(made)


def run(
    pairs: int = 9,
    n_runs: int = RUNS,
    n_checkpoints: int = CHECKPOINTS,
    n_tensors: int = TENSORS,
) -> Result:
    """Return time, memory and bytes of planning; it is done once, whatever `pairs`."""
    result = Result(
        f"Plan {n_runs:,} runs x {n_checkpoints} checkpoints x {n_tensors} tensors "
        f"({n_runs * n_checkpoints * n_tensors / 1e6:.1f} million)"
    )
    rows = log_of(n_runs, n_checkpoints)
    source = Source(n_tensors)
    with tempfile.TemporaryDirectory() as folder, in_place(source):
        before = _peak()
        start = time.process_time()
        found = _plan(Snapshot(Storage(folder), rows))
        seconds = time.process_time() - start - source.seconds
    if source.n_files != n_runs * n_checkpoints:
        raise AssertionError("every file's keys are read once")
    if found["tensors"] != n_runs * n_checkpoints * n_tensors:
        raise AssertionError("every tensor is planned")
    result.lines += [
        Line("planning, without reading", figure=f"{seconds:.1f} s of CPU"),
        Line("  of it for a tensor", figure=f"{seconds / found['tensors'] * 1e6:.1f} us"),
        Line("memory that it adds at its peak", figure=f"{(_peak() - before) / 1e6:.0f} MB"),
        Line(
            f"bytes of values that each of {WORKERS} workers reads",
            figure=f"{found['bytes'] / WORKERS / 1e9:.1f} GB",
        ),
        Line("bytes of values that planning reads", figure="0", target="0", met=True),
    ]
    result.notes.append(
        f"{found['values'] / 1e6:.0f} million values are missing. Of {found['task_runs']} runs the "
        f"tasks were made too: {found['tasks'] / max(found['task_runs'], 1):.0f} a run, "
        f"{found['task_seconds'] / max(found['jobs'], 1) * 1e6:.0f} us a tensor."
    )
    result.notes.append(_reading(n_tensors))
    return result


def _plan(snapshot: Snapshot) -> dict[str, Any]:
    """Plan run by run, as a dry run does, and count."""
    singles = tuple(asked.choose(METRICS, None)[0])
    found = dict.fromkeys(
        ("tensors", "values", "bytes", "tasks", "jobs", "task_seconds", "task_runs"), 0.0
    )
    elsewhere = Elsewhere(tuple(item.label for item in singles))
    for name in snapshot.runs():
        work = missing.plan(snapshot, Question(name, "weights", singles), elsewhere)
        lack = work.lack(elsewhere)
        found["tensors"] += work.n_tensors
        found["values"] += lack.values
        found["bytes"] += lack.n_bytes
        if found["task_runs"] < TASKS_OF:
            start = time.process_time()
            jobs = work.jobs()
            found["tasks"] += len(list(tasks.cut(jobs)))
            found["jobs"] += len(jobs)
            found["task_runs"] += 1
            found["task_seconds"] += time.process_time() - start
    return found


def _reading(n_tensors: int) -> str:
    """Say what reading the keys of one real file costs."""
    with tempfile.TemporaryDirectory() as folder:
        storage = Storage(str(Path(folder, "lake")))
        rng = np.random.default_rng(0)
        with Stream(storage, "train.r") as stream:
            transaction = stream.begin()
            write_tensors(
                transaction,
                "weights",
                {"run": "r", "step": 0},
                (
                    TensorRow(
                        {"name": f"layers.{n}.weight", "layer": n, "component": "o"},
                        Tensor.of(rng.standard_normal((210, 210), dtype=np.float32)),
                    )
                    for n in range(n_tensors)
                ),
            )
            transaction.commit()
        (entry,) = Snapshot.take(storage).files("weights")
        columns = ["name", "layer", "component", "param", "part", "n_parts", "dtype", "shape"]
        columns.append("content_hash")
        times = [measure.timed(lambda: groups.keys(storage, entry, columns))[0] for _ in range(9)]
        metadata = groups.open_file(storage, entry).parquet.metadata
        n_bytes = metadata.serialized_size + sum(
            metadata.row_group(group).column(place).total_compressed_size
            for group in range(metadata.num_row_groups)
            for place in range(metadata.num_columns)
            if metadata.schema.column(place).path in (*columns, "shape.list.element")
        )
        return (
            f"Reading the keys of a real file with {n_tensors} tensors, each in a row group of its "
            f"own: {statistics.median(times) * 1e3:.1f} ms, {n_bytes / 1e3:.0f} KB of "
            f"{entry.bytes / 1e6:.0f} MB, footer included."
        )


def _peak() -> int:
    """Return the greatest memory that this process has had."""
    try:
        status = Path("/proc/self/status").read_text("ascii").splitlines()
        return 1024 * int(next(line.split()[1] for line in status if line.startswith("VmHWM")))
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    """Run and print."""
    numbers = [word for word in sys.argv[1:] if word.isdigit()]
    start = time.perf_counter()
    measure.show(run(n_runs=int(numbers[0]) if numbers else RUNS))
    print(f"  ({time.perf_counter() - start:.0f} s in all)")


if __name__ == "__main__":
    main()
