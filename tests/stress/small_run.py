"""A training run that takes a moment, and what a lake shows of it, to be compared.

`train` goes on from the last checkpoint, as `pico train` does, and tells each commit that it was
told of to a file outside the lake: what stands there must never be lost.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pico import schema
from pico.lake.commit import Transaction
from pico.lake.log import LogReader
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from pico.record.recorder import Recorder
from pico.train import checkpoint
from tests.record import loops

RUN = "r"
STEPS = 4
RECORD: dict[str, Any] = {
    "checkpoints": {"every": 2},
    "weights": {"every": 2},
    "gradients": {"every": 3},
    "tensor_stats": {"gradients": {"every": 1}},
}
_ASIDE = ("run_id", "run_uuid", "created_at")
TENSORS = ("weights", "gradients", "optimizer", "activations")


def train(
    storage: Storage, told: Path, run: str = RUN, n_steps: int = STEPS,
    record: Mapping[str, Any] = RECORD,
) -> None:  # fmt: skip
    """Train to the end, from the run's last checkpoint if it has one."""
    torch.set_num_threads(1)
    start = checkpoint.last_checkpoint(storage, run)
    if start == n_steps:
        return
    random.seed(0)
    np.random.seed(0)
    model = loops.mlp(dropout=0.3)
    optimizer = loops.sgd(model)
    if start is not None:
        checkpoint.restore(storage, run, start, model, optimizer)
    tell_commits(told)
    with Recorder(
        storage, run, model, optimizer, record, max_steps=n_steps, resume_from=start
    ) as recorder:
        for number in range(start or 0, n_steps):
            loss = loops.step(model, optimizer, number)
            recorder.batch(list(range(number * 5, number * 5 + 5)), "d")
            recorder.step(loss=loss)


def tell_commits(told: Path) -> None:
    """From now on, append the transaction of every commit that returned to a file."""
    commit = Transaction.commit
    handle = os.open(told, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def telling(self: Transaction) -> int | None:
        seq = commit(self)
        if seq is not None:
            os.write(handle, f"{self.id}\n".encode())
        return seq

    Transaction.commit = telling


def commits_told(told: Path) -> list[str]:
    """Return the transactions that the trainer was told are committed."""
    return told.read_text().split() if told.exists() else []


@dataclass(frozen=True)
class Shown:
    """What a lake shows: rows of every table, and the content of its live files."""

    rows: Mapping[str, frozenset[str]]
    files: Counter[tuple[str, str]]

    def difference(self, other: Shown) -> str:
        """Say where the rows differ; empty if they do not."""
        return "; ".join(
            f"{name}: {len(self.rows[name] - other.rows[name])} rows too many, "
            f"{len(other.rows[name] - self.rows[name])} missing"
            for name in self.rows
            if self.rows[name] != other.rows[name]
        )


def shown(snapshot: Snapshot, run: str = RUN) -> Shown:
    """Read all of a run through the API; tensors are verified by their content hash."""
    rows = {}
    for name, spec in schema.tables().items():
        found = snapshot.read(name, runs=[run]).to_pylist()
        keys = [tuple(repr(row[key]) for key in spec.primary_key) for row in found]
        assert len(set(keys)) == len(keys), f"{name} shows a key twice"
        kept = [{k: v for k, v in row.items() if k not in _ASIDE} for row in found]
        rows[name] = frozenset(repr(row) for row in kept)
    for name in TENSORS:
        for step in {e.min_step for e in snapshot.files(name, [run])}:
            for row in snapshot.tensors(name, run, step):
                assert row.tensor.data is not None
    files = Counter((e.table, e.hash) for e in snapshot.all_files() if e.table != "runs")
    return Shown(rows, files)


def prefixes(storage: Storage, run: str = RUN) -> list[Shown]:
    """Return what the lake showed after none, one, two … of a run's commits."""
    entries = LogReader(storage).stream(f"train.{run}")
    txns = list(dict.fromkeys(entry.txn for entry in entries))
    return [
        shown(Snapshot(storage, [e for e in entries if e.txn in txns[:n]]), run)
        for n in range(len(txns) + 1)
    ]
