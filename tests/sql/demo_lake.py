"""A lake like the demo's, written by hand in a moment: two runs on the same data, every table.

The weights of a run grow from step to step; tests replace some of them, as somebody who uploads
checkpoints under the wrong steps would, and everything else (log, hashes, statistics) fits.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from pico import schema
from pico.lake.codec import Tensor
from pico.lake.commit import Stream, Transaction
from pico.lake.storage import Storage
from pico.lake.table import TensorRow, write_rows, write_tensors
from pico.record.stats import summarize

RUNS = ("seed-0", "seed-1")
STEPS = (0, 1, 2, 4, 8, 16)
MAX_STEPS = 16
BATCH, SEQ_LEN = 2, 7
N_SEQUENCES = 24
PARAMETERS = (
    ("embed.weight", None, "embed", (12, 6)),
    *((f"layers.{i}.q.weight", i, "q", (6, 6)) for i in range(3)),
    *((f"layers.{i}.o.weight", i, "o", (6, 6)) for i in range(3)),
    *((f"layers.{i}.norm.weight", i, "norm.attn", (6,)) for i in range(3)),
    ("norm.weight", None, "norm.final", (6,)),
    ("unembed.weight", None, "unembed", (12, 6)),
)
"""Name, layer, component and shape of the twelve parameters."""
SHARD = ("embed.weight", "layers.0.q.weight", "layers.0.o.weight", "layers.0.norm.weight")
"""A third of them, such as one of three files would hold."""
VOCAB = {0: b"<end>", 1: b"import", 2: b" os", 3: b" re", 4: b"\n", 5: b"\xc3", 6: b"\xa9"}
WITH_OS = (5, 9)
"""The sequences that hold `import os`."""

States = dict[int, dict[str, Any]]


def states(run: str) -> States:
    """Return a run's weights by step and name: matrices of std 0.5 and norms of 1, growing."""
    made: States = {step: {} for step in STEPS}
    for index, (name, _, _, shape) in enumerate(PARAMETERS):
        draw = np.random.default_rng([RUNS.index(run) if run in RUNS else 9, index])
        start = np.ones(shape) if len(shape) == 1 else draw.normal(0, 0.5, shape)
        for step in STEPS:
            change = draw.normal(0, 0.01, shape) if step else 0.0
            made[step][name] = (start * (1 + step / 8) + change).astype(np.float32)
    return made


def replaced(run: str, step: int, names: Any = None, by: int = STEPS[-1]) -> States:
    """Return a run's weights, those of one step (or some of them) replaced by another step's."""
    made = states(run)
    for name in made[step] if names is None else names:
        made[step][name] = made[by][name]
    return made


def sequence(sequence_id: int) -> list[int]:
    """Return the tokens of a sequence: `SEQ_LEN` + 1 of them."""
    return [4, 1, 2 if sequence_id in WITH_OS else 3, 4, 5, 6, 4, 5]


def shown(place: int) -> int:
    """Return the sequence at a place of the order: all in turn, then again."""
    return place % N_SEQUENCES


def write(storage: Storage, **weights: States) -> Storage:
    """Write the lake; `weights` by run (`seed_0`) stand for what the runs would hold."""
    write_data(storage)
    for run in RUNS:
        write_run(storage, run, weights.get(run.replace("-", "_")))
    return storage


def write_data(storage: Storage) -> None:
    with Stream(storage, "data.text") as stream:
        transaction = stream.begin()
        ids = list(range(N_SEQUENCES))
        _rows(
            transaction,
            "sequences",
            {"dataset": "text"},
            sequence_id=ids,
            tokens=[sequence(i) for i in ids],
            doc_ids=[[i // 12] if i != 11 else [0, 1] for i in ids],
            doc_starts=[[0] if i != 11 else [0, 4] for i in ids],
            origin=["library"] * len(ids),
        )
        _rows(
            transaction,
            "documents",
            {"dataset": "text"},
            doc_id=[0, 1],
            uri=["a.py", "b.py"],
            n_tokens=[91, 100],
        )
        _rows(
            transaction,
            "datasets",
            {"dataset": "text"},
            n_sequences=[N_SEQUENCES],
            seq_len=[SEQ_LEN],
            tokenizer=["bytes"],
            fingerprint=["0"],
        )
        _rows(
            transaction,
            "vocab",
            {"tokenizer": "bytes"},
            token_id=list(VOCAB),
            bytes=list(VOCAB.values()),
            text=[repr(token) for token in VOCAB.values()],
        )
        transaction.commit()


def write_run(
    storage: Storage,
    run: str,
    weights: States | None = None,
    rates: Mapping[int, float] | None = None,
    order: Any = shown,
    **info: Any,
) -> None:
    """Write a run; `rates` by step are constant by default and `{}` where none is known.

    Args:
        storage: the lake.
        run: its name.
        weights: what it holds, by step and name.
        rates: the learning rate by step.
        order: the sequence at each place of the order.
        info: columns of `runs` that differ.
    """
    rates = dict.fromkeys(range(MAX_STEPS), 0.1) if rates is None else rates
    with Stream(storage, f"train.{run}") as stream:
        transaction = stream.begin()
        _write_description(transaction, run, info)
        transaction.commit()
        for step, tensors in (states(run) if weights is None else weights).items():
            transaction = stream.begin()
            _write_state(transaction, run, step, tensors)
            transaction.commit()
        transaction = stream.begin()
        _write_batches(transaction, run, order, info.get("batch_size", BATCH))
        if rates:
            columns = {"global_step": list(rates), "lr": list(rates.values())}
            groups, decay = [0] * len(rates), [0.0] * len(rates)
            keys = {"run": run}
            _rows(transaction, "param_groups", keys, group=groups, weight_decay=decay, **columns)
        transaction.commit()


def _write_description(transaction: Transaction, run: str, info: Mapping[str, Any]) -> None:
    config = {"max_steps": MAX_STEPS, "record": {"checkpoints": "pythia"}}
    row = {
        "run_uuid": f"uuid-{run}",
        "created_at": datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
        "dataset": "text",
        "tokenizer": "bytes",
        "seq_len": SEQ_LEN,
        "batch_size": BATCH,
        "config": json.dumps(config),
        **info,
    }
    _rows(transaction, "runs", {"run": run}, **{key: [value] for key, value in row.items()})
    names, layers, components, shapes = map(list, zip(*PARAMETERS, strict=True))
    _rows(
        transaction,
        "parameters",
        {"run": run},
        name=names,
        layer=layers,
        component=components,
        param=["weight"] * len(names),
        shape=[list(shape) for shape in shapes],
        dtype=["float32"] * len(names),
        numel=[int(np.prod(shape)) for shape in shapes],
        trainable=[True] * len(names),
        param_group=[0] * len(names),
        init=["constant(1.0)" if len(shape) == 1 else "normal(0.0, 0.5)" for shape in shapes],
    )


def _write_state(transaction: Transaction, run: str, step: int, tensors: Mapping[str, Any]) -> None:
    at = {"run": run, "step": step}
    places = {name: (layer, component) for name, layer, component, _ in PARAMETERS}
    rows = [
        TensorRow(
            {
                "name": name,
                "layer": places[name][0],
                "component": places[name][1],
                "param": "weight",
            },
            Tensor.of(value),
        )
        for name, value in tensors.items()
    ]
    write_tensors(transaction, "weights", at, rows)
    raw = [TensorRow({**row.keys, "stage": "raw"}, row.tensor) for row in rows]
    write_tensors(transaction, "gradients", at, raw)
    draw = np.random.default_rng([3, step])
    activations = [
        TensorRow(
            {"name": f"layers.{i}", "layer": i, "site": site, "probe": "text", "input_hash": "h"},
            Tensor.of(draw.standard_normal((5, 3), dtype=np.float32)),
        )
        for i in range(3)
        for site in ("resid.post",)
    ]
    write_tensors(transaction, "activations", at, activations)
    stats = [summarize(np.asarray(value)) for value in tensors.values()]
    _rows(
        transaction,
        "tensor_stats",
        {"run": run},
        global_step=[step] * len(rows),
        table_name=["weights"] * len(rows),
        **{key: [row.keys[key] for row in rows] for key in ("name", "layer", "component", "param")},
        content_hash=[row.tensor.content_hash for row in rows],
        **{key: [getattr(item, key) for item in stats] for key in vars(stats[0])},
    )
    _rows(
        transaction,
        "checkpoints",
        {"run": run},
        global_step=[step],
        planned=[True],
        complete=[True],
    )


def _write_batches(transaction: Transaction, run: str, order: Any, batch_size: int) -> None:
    places = range(MAX_STEPS * BATCH)
    _rows(
        transaction,
        "batches",
        {"run": run},
        global_step=[place // batch_size for place in places],
        rank=[0] * len(places),
        micro_step=[0] * len(places),
        position=[place % batch_size for place in places],
        sequence_id=[order(place) for place in places],
        loss=[float(place) for place in places],
    )
    steps = list(range(MAX_STEPS))
    values = [4.0 - step / 8 for step in steps]
    names = ["loss"] * len(steps)
    _rows(transaction, "scalars", {"run": run}, global_step=steps, name=names, value=values)


def _rows(
    transaction: Transaction, table: str, keys: Mapping[str, str], **columns: list[Any]
) -> None:
    ((key, value),) = keys.items()
    n_rows = len(next(iter(columns.values())))
    spec = schema.table(table)
    batch = spec.batch({f"{key}_id": [value] * n_rows, **columns})
    write_rows(transaction, table, keys, batch)
