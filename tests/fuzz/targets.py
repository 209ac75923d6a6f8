"""What is fuzzed: for each kind of file, whole examples, and how a damaged one is read.

A target's `read` returns what the reader made of a file, in a form that can be compared. `TARGETS`
says which of them must give the answer of the whole file or a `PicoError`; for the others there is
no one right answer (a changed config may be another config), and any answer will do.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import yaml

import pico
from pico import config, resources
from pico.data import sources, tokenize
from pico.data.loader import SequenceReader
from pico.lake import lease
from pico.lake.codec import Tensor
from pico.lake.commit import Stream
from pico.lake.log import LogReader
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from pico.lake.table import TensorRow, write_rows, write_tensors
from pico.schema import files as schema_files
from pico.schema import table
from pico.sql import library, session, statements
from tests.fuzz.mutate import Random, damaged, rewritten

N_ROWS = 5000


class Bench:
    """A lake in a folder of its own and whatever else is read, made once per process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.storage = Storage(str(folder / "lake"))
        with Stream(self.storage, "train.r") as stream:
            for step in range(18):  # so many that the log has a level file
                self._write(stream, step)
        with Stream(self.storage, "data.text") as stream:
            self._write_sequences(stream)
        self.snapshot = Snapshot.take(self.storage)
        lines = (json.dumps({"text": f"line {n} of a file", "n": [1, None]}) for n in range(20))
        self.text = "\n".join([*lines, ""]).encode()
        tokenizer = tokenize.train(["low lower lowest, new newer newest"] * 9, 270)
        self.tokenizer = tokenizer.to_json().encode()

    def _write(self, stream: Stream, step: int) -> None:
        transaction = stream.begin()
        at = {"run": "r", "step": step}
        if step % 6 == 0:
            random = np.random.default_rng(step)
            shapes = {"a": (8, 16), "b": (4,), "c": (30, 30), "d": ()}
            rows = [
                TensorRow(
                    {"name": name, "layer": n, "component": "o"},
                    Tensor.of(random.standard_normal(shape, np.float32)),
                )
                for n, (name, shape) in enumerate(shapes.items())
            ]
            rows.append(TensorRow({"name": "e"}, Tensor.of(random.standard_normal(9))))
            write_tensors(transaction, "weights", at, rows)
        n = N_ROWS if step == 0 else 3
        columns = {
            "run_id": ["r"] * n,
            "global_step": [step] * n,
            "name": [f"name{i}" for i in range(n)],
            "value": np.arange(n) / 7,
        }
        write_rows(transaction, "scalars", {"run": "r"}, table("scalars").batch(columns))
        transaction.commit()

    def _write_sequences(self, stream: Stream) -> None:
        transaction = stream.begin()
        n = 40
        tokens = np.random.default_rng(0).integers(0, 1000, (n, 17)).tolist()
        columns = {"dataset_id": ["text"] * n, "sequence_id": range(n), "tokens": tokens}
        rows = table("sequences").batch(columns)
        write_rows(transaction, "sequences", {"dataset": "text"}, [rows[:20], rows[20:]])
        row = {
            "dataset_id": ["text"],
            "n_sequences": [n],
            "seq_len": [16],
            "tokenizer": ["bpe"],
            "fingerprint": ["0"],
        }
        write_rows(transaction, "datasets", {"dataset": "text"}, table("datasets").batch(row))
        transaction.commit()

    def lake_file(self, table: str) -> list[Path]:
        assert self.storage.folder is not None
        return [self.storage.folder / entry.path for entry in self.snapshot.files(table)]


def put(path: Path, data: bytes) -> None:
    """Put a file under a name, as a new file: the old one may still be mapped into memory."""
    new = path.with_name(f"{path.name}.new")
    new.write_bytes(data)
    os.replace(new, path)


@dataclass(frozen=True)
class Target:
    """A kind of file and how it is read."""

    files: Callable[[Bench], dict[Path, bytes]]
    """Whole examples."""
    mutate: Callable[[bytes, Random, bytes], bytes]
    read: Callable[[Bench, Path], Any]
    is_exact: bool
    """Whether an answer must be that of the whole file."""
    may_raise: tuple[type[BaseException], ...] = ()
    """What a reader that is not ours raises."""


def _stored(paths: Callable[[Bench], list[Path]]) -> Callable[[Bench], dict[Path, bytes]]:
    return lambda bench: {path: path.read_bytes() for path in paths(bench)}


def _given(name: str, data: Callable[[Bench], bytes]) -> Callable[[Bench], dict[Path, bytes]]:
    return lambda bench: {bench.folder / name: data(bench)}


def _packaged(folder: str, ending: str) -> Callable[[Bench], dict[Path, bytes]]:
    def files(bench: Bench) -> dict[Path, bytes]:
        found = sorted(resources.folder(folder).glob(f"*{ending}"))
        return {bench.folder / path.name: path.read_bytes() for path in found}

    return files


def _json(data: bytes, random: Random, _: bytes) -> bytes:
    return rewritten(data, random, "json")


def _yaml(data: bytes, random: Random, _: bytes) -> bytes:
    return rewritten(data, random, "yaml")


def _log_files(bench: Bench) -> list[Path]:
    assert bench.storage.folder is not None
    found = sorted((bench.storage.folder / "_log" / "train.r").rglob("*.parquet"))
    levels = [path for path in found if path.parent.name != "train.r"]
    assert levels, "the log must be so long that there is a level file"
    return [*levels, *found[-4:]]


def _read_tensors(bench: Bench, path: Path) -> Any:
    at = next(e for e in bench.snapshot.files("weights") if path.name in e.path)
    tensors = bench.snapshot.tensors("weights", "r", at.min_step or 0)
    return [(dict(row.keys), row.tensor.shape, row.tensor.data.tobytes()) for row in tensors]


def _read_sequences(bench: Bench, path: Path) -> Any:
    return SequenceReader(bench.snapshot, "text").rows([3, 21, 22, 39, 0]).tolist()


def _read_log(bench: Bench, path: Path) -> Any:
    return LogReader(bench.storage).entries()


def _open_lake(bench: Bench, path: Path) -> Any:
    lake = pico.Lake.open(bench.storage.url)
    return lake.runs(), lake.coverage("r")


def _read_schema(bench: Bench, path: Path) -> Any:
    found = schema_files.parse(path.read_bytes(), path.name)
    return found.arrow, [found.at(version).arrow for version in found.known_versions]


def _read_tokenizer(bench: Bench, path: Path) -> Any:
    tokenizer = tokenize.load(path)
    ids = tokenizer.encode_batch(["low new est <|endoftext|> \u00e9\u65e5"])[0]
    return tokenizer.name, tokenizer.decode(ids), len(tokenizer.token_bytes())


def _read_lease(bench: Bench, path: Path) -> Any:
    holder = lease.holder(bench.storage, "train.r")
    return holder and (holder.describe(), holder.is_free())


def _read_documents(bench: Bench, path: Path) -> Any:
    return [document.text for document in sources.documents(str(path))]


def _query_duckdb(bench: Bench, path: Path) -> Any:
    connection = session.connect(bench.snapshot, threads=1, memory_limit="500MB")
    try:
        name = path.relative_to(bench.storage.folder or path).parts[0]
        return statements.fetch(statements.query(connection, f"SELECT * FROM {name}")).num_rows
    finally:
        connection.close()


def _scan_polars(bench: Bench, path: Path) -> Any:
    name = path.relative_to(bench.storage.folder or path).parts[0]
    return pico.Lake(bench.storage.url).scan(name).collect().height


def _lease_files(bench: Bench) -> list[Path]:
    assert bench.storage.folder is not None
    return sorted((bench.storage.folder / ".leases" / "train.r").iterdir())


_weights = _stored(lambda bench: bench.lake_file("weights"))
_scalars = _stored(lambda bench: bench.lake_file("scalars")[:3])
_both = _stored(lambda b: [*b.lake_file("weights")[:2], *b.lake_file("scalars")[:2]])


def _planted(read: Callable[[Bench, Path], Any], is_exact: bool = False) -> Target:
    """Return a target that goes wrong for some of the damaged files."""
    return Target(_given("plain.txt", lambda _: b"a whole file" * 50), damaged, read, is_exact)


def _is_odd(path: Path) -> bool:
    return path.read_bytes() != b"a whole file" * 50


PLANTED = {
    "abort": _planted(lambda _, path: os.abort() if _is_odd(path) else None),
    "hang": _planted(lambda _, path: time.sleep(1e6) if _is_odd(path) else None),
    "bomb": _planted(lambda _, path: np.ones(1 << 33) if _is_odd(path) else None),
    "wrong": _planted(lambda _, path: path.read_bytes(), is_exact=True),
    "foreign": _planted(lambda _, path: {}["key"] if _is_odd(path) else None),
}
"""Faults that the pool must find and name."""
TARGETS = {
    "tensor files": Target(_weights, damaged, _read_tensors, True),
    "tensor files as rows": Target(
        _weights, damaged, lambda bench, _: bench.snapshot.read("weights"), True
    ),
    "row files": Target(_scalars, damaged, lambda bench, _: bench.snapshot.read("scalars"), True),
    "sequence files": Target(
        _stored(lambda bench: bench.lake_file("sequences")), damaged, _read_sequences, True
    ),
    "log files": Target(_stored(_log_files), damaged, _read_log, True),
    "log files, lake opened": Target(_stored(_log_files), damaged, _open_lake, True),
    "schema files": Target(_packaged("schemas", ".json"), _json, _read_schema, False),
    "configs": Target(
        _given(
            "run.yaml", lambda _: yaml.safe_dump(config.as_mapping(config.RunConfig())).encode()
        ),
        _yaml,
        lambda _, path: config.as_mapping(config.load(path)),
        False,
    ),
    "tokenizers": Target(
        _given("tokenizer.json", lambda bench: bench.tokenizer), _json, _read_tokenizer, False
    ),
    "query headers": Target(
        _packaged("queries", ".sql"), damaged, lambda _, path: library.parse(path), False
    ),
    "leases": Target(_stored(_lease_files), _json, _read_lease, False),
    "text in JSONL": Target(
        _given("text.jsonl", lambda bench: bench.text), damaged, _read_documents, False
    ),
    "data files in SQL": Target(_both, damaged, _query_duckdb, False),
    "data files in Polars": Target(
        _both,
        damaged,
        _scan_polars,
        False,
        (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError),
    ),
}
