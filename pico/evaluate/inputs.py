"""The probes that somebody names: built in, stored in the lake, or a file.

`probe` calls `find`. A built-in probe of a run has the tokens that training would give it, so that
what is scored afterwards and what was scored while training are about the same input.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from pico.data import corpus, tokenize
from pico.data.loader import SequenceReader
from pico.data.tokenize import Tokenizer
from pico.errors import DataError, PicoError, RecordError, RunNameError, did_you_mean
from pico.lake.names import check_name
from pico.lake.snapshot import Snapshot
from pico.record import probes
from pico.record.probeplan import PROBES
from pico.record.probes import Probe

N_SEQUENCES = 8
"""Sequences of a built-in probe where nothing else is said."""


def find(
    snapshot: Snapshot,
    name: str,
    row: Mapping[str, Any],
    tokenizer_file: Path | None = None,
    seq_len: int | None = None,
) -> Probe:
    """Return the probe of a name, for a run.

    Args:
        snapshot: of the lake.
        name: `text`, `repeat`, a probe that the lake has, or the path of a `.txt` or `.jsonl` file,
            as `NAME=FILE` where the probe shall not be named after it.
        row: the run's row of the table `runs`.
        tokenizer_file: a `tokenizer.json` for texts, where the run's data set has none.
        seq_len: tokens of a sequence; by default those that training used, at most the model's.

    Raises:
        RecordError: for a name that is none of these, or a probe that the run cannot have.
        DataError: for a file that holds no texts or tokens.
    """
    found = _find(snapshot, name, row, tokenizer_file, seq_len)
    largest, size = int(found.tokens.max()), row["vocab_size"]
    if size is not None and largest >= size:
        raise DataError(
            f"probe {found.name!r} has the token id {largest}, and the vocabulary of run "
            f"{row['run_id']!r} has {size}"
        )
    return found


def _find(
    snapshot: Snapshot,
    name: str,
    row: Mapping[str, Any],
    tokenizer_file: Path | None,
    seq_len: int | None,
) -> Probe:
    dataset = _dataset(row)
    if name.endswith((".txt", ".jsonl")) or os.path.sep in name:
        return _of_file(name, dataset, _tokenizer(snapshot, dataset, tokenizer_file), seq_len, row)
    stored = _stored(snapshot, dataset, name)
    if stored is not None:
        return stored
    if name == "repeat":
        return probes.repeat(*_sizes(row, name, seq_len), dataset)
    if name == "text":
        return _text(snapshot, row, dataset, seq_len)
    known = {*PROBES, *_names(snapshot, dataset)}
    raise RecordError(
        f"no probe {name!r}.{did_you_mean(name, known)} Probes: {', '.join(sorted(known))}; or a "
        "file that ends in .txt or .jsonl"
    )


def _dataset(row: Mapping[str, Any]) -> str:
    """Return the data set that a run's probes belong to: its own, or one of the run's name.

    An imported run may have been trained on a data set whose name no lake can have.
    """
    name: str = row["dataset"] or row["run_id"]
    try:
        return check_name(name, "data set")
    except RunNameError:
        return str(row["run_id"])


def _settings(row: Mapping[str, Any], name: str) -> Mapping[str, int]:
    record = (row["config"] or {}).get("record") or {}
    found: Mapping[str, int] = (record.get("probes") or {}).get(name) or {}
    return found


def _length(row: Mapping[str, Any], name: str, seq_len: int | None) -> int:
    most = row["seq_len"] or 128
    return min(seq_len or _settings(row, name).get("seq_len", most), most)


def _sizes(row: Mapping[str, Any], name: str, seq_len: int | None) -> tuple[int, int, int, int]:
    """Return vocabulary, length, number of sequences and seed of the probe `repeat`."""
    settings = _settings(row, name)
    if not row["vocab_size"]:
        raise RecordError(
            f"run {row['run_id']!r} does not say its vocab_size; give a file of tokens"
        )
    n = settings.get("n_sequences", N_SEQUENCES)
    return row["vocab_size"], _length(row, name, seq_len), n, settings.get("seed", 0)


def _text(snapshot: Snapshot, row: Mapping[str, Any], dataset: str, seq_len: int | None) -> Probe:
    heldout = f"{dataset}.heldout"
    if not _has_sequences(snapshot, heldout):
        raise RecordError(
            f"run {row['run_id']!r} has no held-out text in this lake for the probe text; "
            "name a .txt file instead"
        )
    reader = SequenceReader(snapshot, heldout)
    n = _settings(row, "text").get("n_sequences", N_SEQUENCES)
    ids = list(range(min(n, reader.n_sequences)))
    made = probes.make("text", reader.rows(ids)[:, : _length(row, "text", seq_len)], heldout, ids)
    return probes.masked(made, reader.counted(ids))


def _has_sequences(snapshot: Snapshot, dataset: str) -> bool:
    start = f"sequences/dataset={dataset}/"
    return any(e.path.startswith(start) for e in snapshot.files("sequences"))


def _counted(snapshot: Snapshot, dataset: str, ids: Sequence[int]) -> npt.NDArray[np.bool_] | None:
    """Return which targets of a stored probe of held-out rows count, None where all do."""
    if not dataset.endswith(".heldout") or not _has_sequences(snapshot, dataset):
        return None
    reader = SequenceReader(snapshot, dataset)
    return reader.counted(ids) if max(ids) < reader.n_sequences else None


def _stored(snapshot: Snapshot, dataset: str, name: str) -> Probe | None:
    """Return a probe that the lake has, of the run's data set or its held-out part."""
    for of in (dataset, f"{dataset}.heldout"):
        rows = snapshot.read(
            "probes", filter=(pc.field("dataset_id") == of) & (pc.field("probe") == name)
        ).sort_by("sequence_id")
        if rows.num_rows:
            ids = rows["sequence_id"].to_pylist()
            made = probes.make(name, rows["tokens"].to_pylist(), of, ids)
            return probes.masked(made, _counted(snapshot, of, ids) if name == "text" else None)
    return None


def _names(snapshot: Snapshot, dataset: str) -> set[str]:
    rows = snapshot.read("probes", ["dataset_id", "probe"]).to_pylist()
    return {row["probe"] for row in rows if row["dataset_id"] in (dataset, f"{dataset}.heldout")}


def _tokenizer(snapshot: Snapshot, dataset: str, file: Path | None) -> Tokenizer | None:
    if file is not None and file.is_file():
        return tokenize.load(str(file))
    try:
        return corpus.tokenizer_of(snapshot, dataset)
    except PicoError:
        return None


def _of_file(
    given: str,
    dataset: str,
    tokenizer: Tokenizer | None,
    seq_len: int | None,
    row: Mapping[str, Any],
) -> Probe:
    """Return a probe from a file: a sequence from each line of JSON, or from each paragraph."""
    word, is_named, rest = given.partition("=")
    path = Path(rest if is_named and not Path(given).exists() else given)
    name = word if path != Path(given) else re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).strip("-.")
    lists = []
    for where, item in _items(path):
        if isinstance(item, str):
            if tokenizer is None:
                raise DataError(
                    f"{where} is text, and the lake keeps no tokenizer of data set {dataset!r}; "
                    'give lines with "tokens": [1, 2, …]'
                )
            item = tokenizer.encode_batch([item])[0]
        if len(item) >= 2:
            lists.append(item)
    if not lists:
        raise DataError(f"{path} holds no sequence of two tokens or more; a probe needs one")
    length = min(seq_len or row["seq_len"] or 2**30, min(map(len, lists)))
    return probes.make(name or "file", np.asarray([item[:length] for item in lists]), dataset)


def _items(path: Path) -> Iterator[tuple[str, str | Sequence[int]]]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DataError(f"{path} is no UTF-8 text") from None
    if path.suffix != ".jsonl":
        paragraphs = [part.strip() for part in re.split(r"\n\s*\n", text)]
        yield from ((str(path), part) for part in paragraphs if part)
        return
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number},"
        try:
            item = json.loads(line)
        except ValueError:
            raise DataError(f"{where} is no JSON") from None
        found: Any = item.get("tokens", item.get("text")) if isinstance(item, dict) else None
        whole = isinstance(found, list) and all(type(each) is int and each >= 0 for each in found)
        if not whole and not isinstance(found, str):
            raise DataError(f'{where} has neither "text" nor "tokens", a list of token ids')
        yield where, found
