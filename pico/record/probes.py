"""Probes: fixed, named inputs whose activations are compared across steps and runs.

The trainer makes the built-in ones (`text` from held-out rows, `repeat` from random tokens twice);
other training loops hand their own to `Recorder`. The token ids go into the `probes` table once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
import torch
import xxhash

from pico import schema
from pico.errors import RecordError
from pico.lake import waiting
from pico.lake.commit import Stream
from pico.lake.names import check_name
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from pico.lake.table import write_rows
from pico.record.hooks import hash_bytes

_PATIENCE = 30.0


@dataclass(frozen=True, eq=False)
class Probe:
    """A fixed input: token ids `(n_sequences, n_tokens)`, int64, and where they come from."""

    name: str
    tokens: npt.NDArray[np.int64]
    dataset: str
    sequence_ids: Sequence[int]
    counted: npt.NDArray[np.bool_] | None = None
    """`(n_sequences, n_tokens)`: whether a token's target counts in a loss; None: all do."""

    @property
    def input_hash(self) -> str:
        """xxh3-128 over the token ids, the same that activations of the probe carry."""
        return xxhash.xxh3_128_hexdigest(hash_bytes(torch.from_numpy(self.tokens)))


def make(name: str, tokens: npt.ArrayLike, dataset: str, ids: Sequence[int] | None = None) -> Probe:
    """Make a probe from token ids.

    Raises:
        RecordError: when they are not a matrix of whole numbers.
        RunNameError: when `dataset` cannot name a data set.
    """
    check_name(dataset, "data set")
    array = np.asarray(tokens)
    if array.ndim != 2 or not array.size or not np.issubdtype(array.dtype, np.integer):
        raise RecordError(
            f"probe {name!r} must be a non-empty matrix of token ids (sequences x tokens), "
            f"not {array.dtype} of shape {list(array.shape)}"
        )
    return Probe(name, array.astype(np.int64), dataset, ids or list(range(array.shape[0])))


def masked(probe: Probe, counted: npt.NDArray[np.bool_] | None) -> Probe:
    """Return a probe of a data set's rows with what `SequenceReader.counted` says of them."""
    if counted is None:
        return probe
    return replace(probe, counted=counted[:, : probe.tokens.shape[1]])


def repeat(vocab_size: int, seq_len: int, n_sequences: int, seed: int, dataset: str) -> Probe:
    """Make the `repeat` probe: random tokens, each sequence's first half said twice."""
    half = max(seq_len // 2, 1)
    draws = np.random.default_rng(seed).integers(0, vocab_size, (n_sequences, half))
    return make("repeat", np.concatenate([draws, draws], axis=1), dataset)


def store(storage: Storage, probe: Probe) -> None:
    """Write a probe's token ids into the lake unless they are there already.

    Raises:
        RecordError: when the data set has a different probe of that name.
    """
    waiting.wait_for(lambda: _stored(storage, probe), _PATIENCE, pause=0.2)


def _stored(storage: Storage, probe: Probe) -> bool:
    """Store a probe unless it is there; returns True."""
    if _is_stored(storage, probe):
        return True
    with Stream(storage, f"data.{probe.dataset}") as stream:
        if _is_stored(storage, probe):
            return True
        transaction = stream.begin()
        n = len(probe.tokens)
        rows = schema.table("probes").batch(
            {
                "dataset_id": [probe.dataset] * n,
                "probe": [probe.name] * n,
                "input_hash": [probe.input_hash] * n,
                "sequence_id": list(probe.sequence_ids),
                "tokens": probe.tokens.tolist(),
            }
        )
        write_rows(transaction, "probes", {"dataset": probe.dataset}, rows)
        transaction.commit()
        return True


def _is_stored(storage: Storage, probe: Probe) -> bool:
    rows = Snapshot.take_or_empty(storage).read(
        "probes",
        columns=["dataset_id", "probe", "input_hash"],
        filter=(pc.field("dataset_id") == probe.dataset) & (pc.field("probe") == probe.name),
    )
    hashes = set(rows["input_hash"].to_pylist())
    if hashes and hashes != {probe.input_hash}:
        raise RecordError(
            f"data set {probe.dataset!r} already has another probe named {probe.name!r}, of "
            f"{rows.num_rows} sequences; a probe is the same in all runs: use its settings "
            f"(record.probes.{probe.name}) or another name"
        )
    return bool(hashes)
