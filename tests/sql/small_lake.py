"""A small lake for the SQL tests: two runs, written through the lake API, with known content."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np

from pico import schema
from pico.lake.codec import Tensor
from pico.lake.commit import Stream
from pico.lake.storage import Storage
from pico.lake.table import TensorRow, write_rows, write_tensors

STEPS = (0, 2, 5)
RUNS = ("first", "second")
WEIGHTS = (
    ("embed.weight", None, "embed", (6, 4)),
    ("layers.0.attention.o_proj.weight", 0, "o", (4, 4)),
    ("layers.1.attention.o_proj.weight", 1, "o", (4, 4)),
    ("output_norm.weight", None, "norm.final", (4,)),
)
SITES = (("embed", None, "resid.pre"), ("layers.0", 0, "resid.post"), ("layers.1", 1, "resid.post"))
TOKENS = {0: b"<s>", 1: b"caf", 2: b"\xc3", 3: b"\xa9", 4: b" bar"}
SEQUENCES = {7: [1, 2, 3], 8: [4, 4, 2]}


def weight(run: str, step: int, name: str) -> np.ndarray[Any, Any]:
    """The tensor that the lake holds; `output_norm.weight` never changes."""
    shape = next(shape for known, _, _, shape in WEIGHTS if known == name)
    if name == "output_norm.weight":
        return np.arange(1, 5, dtype=np.float32)
    seed = [RUNS.index(run), step, [w[0] for w in WEIGHTS].index(name)]
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def activation(run: str, step: int, name: str) -> np.ndarray[Any, Any]:
    """The probe activation that the lake holds, (5 samples, 3 features)."""
    seed = [7, RUNS.index(run), step, [s[0] for s in SITES].index(name)]
    return np.random.default_rng(seed).standard_normal((5, 3), dtype=np.float32)


def write_run(storage: Storage, run: str) -> None:
    with Stream(storage, f"train.{run}") as stream:
        transaction = stream.begin()
        write_rows(transaction, "runs", {"run": run}, _run_row(run))
        transaction.commit()
        for step in STEPS:
            transaction = stream.begin()
            at = {"run": run, "step": step}
            write_tensors(transaction, "weights", at, _weight_rows(run, step))
            write_tensors(transaction, "gradients", at, _gradient_rows(run, step))
            write_tensors(transaction, "activations", at, _activation_rows(run, step))
            write_rows(transaction, "scalars", {"run": run}, _scalar_rows(run, step))
            write_rows(transaction, "batches", {"run": run}, _batch_rows(run, step))
            transaction.commit()


def write_data(storage: Storage) -> None:
    with Stream(storage, "data.text") as stream:
        transaction = stream.begin()
        sequences = {
            "dataset_id": ["text"] * len(SEQUENCES),
            "sequence_id": list(SEQUENCES),
            "tokens": list(SEQUENCES.values()),
        }
        write_rows(
            transaction,
            "sequences",
            {"dataset": "text"},
            schema.table("sequences").batch(sequences),
        )
        dataset = {
            "dataset_id": ["text"],
            "n_sequences": [2],
            "seq_len": [2],
            "tokenizer": ["bpe"],
            "fingerprint": ["0"],
        }
        write_rows(
            transaction, "datasets", {"dataset": "text"}, schema.table("datasets").batch(dataset)
        )
        vocab = {
            "tokenizer_id": ["bpe"] * len(TOKENS),
            "token_id": list(TOKENS),
            "bytes": list(TOKENS.values()),
            "text": [repr(token) for token in TOKENS.values()],
        }
        write_rows(transaction, "vocab", {"tokenizer": "bpe"}, schema.table("vocab").batch(vocab))
        transaction.commit()


def write_lake(storage: Storage) -> Storage:
    write_data(storage)
    for run in RUNS:
        write_run(storage, run)
    return storage


def _run_row(run: str) -> Any:
    row = {
        "run_id": [run],
        "run_uuid": [f"uuid-{run}"],
        "created_at": [datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)],
        "dataset": ["text"],
        "tokenizer": ["bpe"],
    }
    return schema.table("runs").batch(row)


def _weight_rows(run: str, step: int) -> list[TensorRow]:
    return [
        TensorRow(
            {"name": name, "layer": layer, "component": component, "param": "weight"},
            Tensor.of(weight(run, step, name)),
        )
        for name, layer, component, _ in WEIGHTS
    ]


def _gradient_rows(run: str, step: int) -> list[TensorRow]:
    return [
        TensorRow({**row.keys, "stage": stage}, row.tensor)
        for row in _weight_rows(run, step)
        for stage in ("raw", "clipped")
    ]


def _activation_rows(run: str, step: int) -> list[TensorRow]:
    return [
        TensorRow(
            {"name": name, "layer": layer, "site": site, "probe": "text", "input_hash": "h"},
            Tensor.of(activation(run, step, name)),
        )
        for name, layer, site in SITES
    ]


def _scalar_rows(run: str, step: int) -> Any:
    values = {"loss": float("nan") if step == 5 else 4.0 - step, "grad_norm": 1.0}
    if step == 0:
        values["heldout_loss"] = 4.5
    rows = {
        "run_id": [run] * len(values),
        "global_step": [step] * len(values),
        "name": list(values),
        "value": list(values.values()),
    }
    return schema.table("scalars").batch(rows)


def _batch_rows(run: str, step: int) -> Any:
    rows = {
        "run_id": [run] * 2,
        "global_step": [step] * 2,
        "rank": [0, 0],
        "micro_step": [0, 0],
        "position": [0, 1],
        "dataset": ["text"] * 2,
        "sequence_id": [8, 7],
        "loss": [0.5, 0.25],
    }
    return schema.table("batches").batch(rows)
