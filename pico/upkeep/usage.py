"""Which data sets and tokenizers runs use, and which runs branched from others.

`remove` asks what nobody uses any more, `copy` what has to come along.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from pico.lake import table
from pico.lake.snapshot import Snapshot, partition

DATA_TABLES = ("datasets", "documents", "probes", "sequences")
_NAMES_OF_DATASETS = {"batches": "dataset", "sequence_scores": "dataset"}


@dataclass(frozen=True)
class Data:
    """Names of data sets (held-out parts are data sets too) and of tokenizers."""

    datasets: frozenset[str]
    tokenizers: frozenset[str]


def used(snapshot: Snapshot, runs: Collection[str]) -> Data:
    """Return what of the lake's data the given runs use.

    A run uses the data set of its `runs` row with its held-out part, those that its batches and
    scores name, those that hold its probes, and their tokenizers.
    """
    rows = snapshot.read("runs", ["dataset", "tokenizer"], runs=runs).to_pylist()
    datasets = {row["dataset"] for row in rows}
    tokenizers = {row["tokenizer"] for row in rows}
    for name, column in _NAMES_OF_DATASETS.items():
        datasets |= _distinct(snapshot, name, column, runs)
    hashes = _distinct(snapshot, "activations", "input_hash", runs) - {None}
    if hashes:
        for row in snapshot.read("probes", ["dataset_id", "input_hash"]).to_pylist():
            if row["input_hash"] in hashes:
                datasets.add(row["dataset_id"])
    for row in snapshot.read("datasets", ["dataset_id", "tokenizer", "extra"]).to_pylist():
        if row["dataset_id"] in datasets:
            datasets.add(_heldout(row["extra"]))
            tokenizers.add(row["tokenizer"])
    everything = known(snapshot)
    return Data(everything.datasets & datasets, everything.tokenizers & tokenizers)


def known(snapshot: Snapshot) -> Data:
    """Return all data sets and tokenizers that the lake has files of."""
    return Data(
        _values(snapshot, "dataset", DATA_TABLES), _values(snapshot, "tokenizer", ["vocab"])
    )


def children(snapshot: Snapshot, run: str) -> tuple[str, ...]:
    """Return the runs that branched from a run, sorted."""
    rows = snapshot.read("runs", ["run_id", "parent_run"]).to_pylist()
    return tuple(sorted(row["run_id"] for row in rows if row["parent_run"] == run))


def _distinct(snapshot: Snapshot, name: str, column: str, runs: Collection[str]) -> set[str | None]:
    found: set[str | None] = set()
    for entry in snapshot.files(name, runs):
        rows = table.read(snapshot.storage, [entry], [column])
        found |= set(rows[column].unique().to_pylist())
    return found


def _heldout(extra: str | None) -> str | None:
    try:
        noted = json.loads(extra or "{}")
    except ValueError:
        return None
    name = noted.get("heldout") if isinstance(noted, dict) else None
    return name if isinstance(name, str) else None


def _values(snapshot: Snapshot, key: str, tables: Iterable[str]) -> frozenset[str]:
    files = (entry for name in tables for entry in snapshot.files(name))
    return frozenset(partition(entry.path)[key] for entry in files)
