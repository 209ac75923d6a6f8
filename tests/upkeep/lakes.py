"""Lakes for the tests of upkeep, ways to damage them, and what verify says of them."""

from __future__ import annotations

import io
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from pico import schema
from pico.lake import log, table
from pico.lake.codec import Tensor
from pico.lake.commit import Stream
from pico.lake.log import Entry
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from pico.lake.table import TensorRow
from pico.upkeep.verify import verify
from tests.train import tiny


def config(lake: Path) -> dict[str, Any]:
    """Return the config of the trained run, whose text lies beside its lake."""
    record = {
        "checkpoints": {"every": 3},
        "weights": True,
        "gradients": True,
        "activations": [{"probe": "text", "schedule": {"every": 2}, "sites": ["resid.post"]}],
        "tensor_stats": {"weights": {"every": 1}, "gradients": {"every": 1}},
    }
    return tiny.config(lake.parent / "text.txt", record=record)


def kinds(storage: Storage, **options: Any) -> list[str]:
    """Return the kinds of everything that verify finds."""
    return [finding.kind for finding in verify(storage, **options).findings]


def live(storage: Storage, table_name: str, **narrow: Any) -> list[Entry]:
    return Snapshot.take(storage).files(table_name, **narrow)


def commits(storage: Storage) -> Iterator[tuple[str, list[Entry]]]:
    for file in storage.list(log.ROOT):
        yield file.path, log.read_file(storage, file.path)


def relog(storage: Storage, path: str, **changes: Any) -> None:
    """Change what the log says of a file; the copies in level files too."""
    for place, entries in commits(storage):
        if any(entry.path == path for entry in entries):
            changed = [replace(e, **changes) if e.path == path else e for e in entries]
            metadata = {"txn": changed[0].txn, "stream": place.split("/")[1]}
            storage.put(place, log.encode(changed, metadata))


def replace_file(storage: Storage, entry: Entry, data: bytes) -> None:
    """Put other bytes in a data file's place, and let the log say so."""
    storage.put(entry.path, data)
    relog(storage, entry.path, bytes=len(data), hash=xxhash.xxh3_128_hexdigest(data))


def change_rows(storage: Storage, entry: Entry, change: Callable[[pa.Table], pa.Table]) -> None:
    """Rewrite a data file with changed rows, as a faulty writer could have written it."""
    rows = pq.read_table(io.BytesIO(storage.read(entry.path)))
    sink = io.BytesIO()
    pq.write_table(change(rows), sink, write_page_checksum=True)
    replace_file(storage, entry, sink.getvalue())


def set_column(rows: pa.Table, name: str, values: list[Any]) -> pa.Table:
    index = rows.column_names.index(name)
    field = rows.schema.field(name)
    return rows.set_column(index, field, pa.array(values, field.type))


def flip(storage: Storage, path: str, position: int) -> None:
    """Flip one bit of a file; negative positions count from the end."""
    data = bytearray(storage.read(path))
    data[position] ^= 4
    storage.put(path, bytes(data))


def age(storage: Storage, seconds: float, *paths: str) -> None:
    """Make files of a local lake look older; by default all of them."""
    assert storage.folder is not None
    then = time.time() - seconds
    for path in paths or [file.path for file in storage.list("")]:
        os.utime(storage.folder / path, (then, then))


def weights(
    storage: Storage,
    states: dict[int, dict[str, Any]],
    rates: dict[int, float] | None = None,
    run: str = "r",
) -> None:
    """Write a run whose weights and learning rates are given by step."""
    with Stream(storage, f"train.{run}") as stream:
        for step, tensors in states.items():
            transaction = stream.begin()
            rows = [
                TensorRow({"name": name}, Tensor.of(np.asarray(value, np.float32)))
                for name, value in tensors.items()
            ]
            table.write_tensors(transaction, "weights", {"run": run, "step": step}, rows)
            transaction.commit()
        if rates:
            transaction = stream.begin()
            columns = {
                "run_id": [run] * len(rates),
                "global_step": list(rates),
                "group": [0] * len(rates),
                "lr": list(rates.values()),
                "weight_decay": [0.0] * len(rates),
            }
            rows = schema.table("param_groups").batch(columns)
            table.write_rows(transaction, "param_groups", {"run": run}, rows)
            transaction.commit()


def take_away(storage: Storage, entries: list[Entry], stream: str, withdraw: bool = False) -> None:
    """Commit that files do not count any more."""
    with Stream(storage, stream) as opened:
        transaction = opened.begin()
        transaction.take_away(entries, withdraw)
        transaction.commit()


def orphan(storage: Storage, stream: str, folder: str = "scalars/run=r") -> str:
    """Leave a published file that no commit names, as a writer killed at the wrong moment does."""
    with Stream(storage, stream) as opened:
        transaction = opened.begin()
        path, sink = transaction.create(folder)
        sink.write(b"PAR1")
        sink.finish()
        sink.publish()
        transaction._sinks.clear()
    return path


def copy(lake: Path, to: Path) -> Storage:
    """Copy a lake on a local disk."""
    shutil.copytree(lake, to)
    return Storage(str(to))
