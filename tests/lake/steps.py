"""Steps as a trainer commits them, and what a lake shows of them."""

import json
import time

import numpy as np

from pico import schema
from pico.lake import table
from pico.lake.codec import Tensor
from pico.lake.commit import Stream, Transaction
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from pico.lake.table import TensorRow


def add_step(transaction: Transaction, step: int, run: str = "r") -> None:
    """One step in two tables, as a trainer writes it."""
    rows = [TensorRow({"name": "w"}, Tensor.of(np.full(3, step, np.float32)))]
    table.write_tensors(transaction, "weights", {"run": run, "step": step}, rows)
    scalars = {"run_id": [run], "global_step": [step], "name": ["loss"], "value": [float(step)]}
    table.write_rows(transaction, "scalars", {"run": run}, schema.table("scalars").batch(scalars))


def commit_step(stream: Stream, step: int) -> int | None:
    transaction = stream.begin()
    add_step(transaction, step)
    return transaction.commit()


def steps(storage: Storage) -> tuple[list[int], list[int]]:
    snapshot = Snapshot.take_or_empty(storage)
    return tuple(
        sorted(snapshot.read(name, ["global_step"])["global_step"].to_pylist())
        for name in ("weights", "scalars")
    )


def data_files(storage: Storage) -> list[str]:
    return [f.path for f in storage.list("") if f.path.split("/")[0] in schema.tables()]


def live_files(storage: Storage) -> list[str]:
    return sorted(entry.path for entry in Snapshot.take_or_empty(storage).all_files())


def assert_clean(storage: Storage) -> None:
    assert data_files(storage) == live_files(storage)
    assert not storage.list(".staging")


def expire(storage: Storage, stream: str = "train.r") -> None:
    """Make the newest holder of a stream look dead."""
    path = storage.list(f".leases/{stream}")[-1].path
    record = json.loads(storage.read(path)) | {"heartbeat": time.time() - 500}
    record |= {"process_start": "1"}  # known dead: a store's clock cannot be turned back
    storage.put(path, json.dumps(record).encode())
