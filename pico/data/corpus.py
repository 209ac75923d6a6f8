"""From a text source to a data set in the lake: sequences, documents, vocabulary, held-out part.

The trainer calls `prepare`; a data set that is in the lake already, made from the same text with
the same settings, is used again. The held-out documents become a data set of their own,
`<name>.heldout`, so that no packed row mixes the two. Memory stays at a few thousand rows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from pico import schema
from pico.config import INDUCTION, DataConfig
from pico.data import heldout, induction, pack, sources, tokenize, vocabulary
from pico.data.tokenize import Tokenizer
from pico.errors import DataError
from pico.lake import waiting
from pico.lake.commit import Stream, Transaction
from pico.lake.names import check_name
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from pico.lake.table import write_rows

Notify = Callable[[str, int, int | None], None]

_BATCH = 2048
_PATIENCE = 600.0


@dataclass(frozen=True)
class Corpus:
    """A data set that is ready for training."""

    dataset: str
    heldout: str | None
    """Data set of the held-out part; None if nothing was held out."""
    tokenizer: Tokenizer
    is_new: bool
    """Whether it was made now."""
    remarks: tuple[str, ...] = ()
    """What was replaced or skipped while the text was read, if it was read now."""


def prepare(storage: Storage, config: DataConfig, notify: Notify | None = None) -> Corpus:
    """Return the data set that a config describes, making it if the lake has none.

    Args:
        storage: the lake's place.
        config: source, tokenizer and sequence length.
        notify: called with a message, the amount done and the total where it is known.

    Raises:
        DataError: if the source is absent or empty, or `seq_len` is longer than the text.
        RunNameError: if the name may not name a data set.
    """
    notify = notify or (lambda message, done, total: None)
    is_synthetic = config.source == INDUCTION
    remarks: tuple[str, ...] = ()
    if is_synthetic:
        decisive = json.dumps(induction.decisive(config)).encode()
        settings, threshold = xxhash.xxh3_128_hexdigest(decisive), 0
    else:
        notify("reading text", 0, None)
        settings, threshold, remarks = _settings(config)
    is_given = config.name is not None
    name = config.name if config.name is not None else sources.default_name(config.source)
    base = check_name(name, "data set")

    def find_or_make() -> Corpus | None:
        name, stored = _find(storage, base, settings, is_given)
        if stored is not None:
            return stored
        with Stream(storage, f"data.{name}") as stream:
            name_now, stored = _find(storage, base, settings, is_given)
            if stored is not None or name_now != name:
                return stored
            if is_synthetic:
                return _make_synthetic(stream, name, config, settings, notify)
            made = _make(stream, name, config, settings, threshold, notify)
            return replace(made, remarks=remarks)

    return waiting.wait_for(find_or_make, _PATIENCE, pause=0.5)


def tokenizer_of(snapshot: Snapshot, dataset: str) -> Tokenizer:
    """Return the tokenizer that a data set of the lake was made with.

    Raises:
        DataError: if the lake has no such data set, or it keeps no tokenizer.
    """
    rows = _rows(snapshot, dataset)
    text = (json.loads(rows[0]["extra"] or "{}") if rows else {}).get("tokenizer_json")
    if text is None:
        raise DataError(f"data set {dataset!r} keeps no tokenizer in {snapshot.storage.url}")
    return Tokenizer.from_json(text)


def _settings(config: DataConfig) -> tuple[str, int, tuple[str, ...]]:
    """Read the text once; return a hash of all that decides the rows, threshold and remarks."""
    digest = xxhash.xxh3_128()
    source = sources.documents(config.source, config.max_bytes)
    documents = _hashed(source, digest)
    threshold = heldout.heldout_threshold(documents, config.heldout_fraction)
    for _ in documents:  # without a held-out part the pass above reads nothing
        pass
    given = tokenize.load(config.tokenizer).name if config.tokenizer else None
    decisive = [given, given or config.vocab_size, config.seq_len, config.heldout_fraction]
    digest.update(json.dumps(decisive).encode())
    found = source.report
    is_lossy = found.n_replaced or found.n_binary or found.n_empty
    remarks = (f"text: {found.summary()}",) if is_lossy and config.source != "stdlib" else ()
    return digest.hexdigest(), threshold, remarks


def _hashed(documents: Iterable[sources.Document], digest: Any) -> Iterator[sources.Document]:
    for document in documents:
        digest.update(f"{document.uri}\0{len(document.text)}\0{document.text}".encode())
        yield document


def _find(storage: Storage, base: str, settings: str, is_given: bool) -> tuple[str, Corpus | None]:
    """Return the name to use and the data set of that name with these settings, if there is one."""
    snapshot = Snapshot.take_or_empty(storage)
    for name in (base, f"{base}-{settings[:8]}"):
        rows = _rows(snapshot, name)
        if not rows:
            return name, None
        extra = json.loads(rows[0]["extra"] or "{}")
        if extra.get("settings") == settings:
            tokenizer = Tokenizer.from_json(extra["tokenizer_json"])
            return name, Corpus(name, extra["heldout"], tokenizer, is_new=False)
        if is_given:
            raise DataError(
                f"data set {name!r} is in the lake with other text or settings; "
                "give data.name another name, or leave it out"
            )
    raise DataError(f"data set {base!r} and its twin are taken; give data.name another name")


def _rows(snapshot: Snapshot, dataset: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = snapshot.read(
        "datasets", filter=pc.field("dataset_id") == dataset
    ).to_pylist()
    return rows


def _make(
    stream: Stream,
    name: str,
    config: DataConfig,
    settings: str,
    threshold: int,
    notify: Notify,
) -> Corpus:
    """Tokenise, pack and commit both parts at once."""

    def texts(held_out: bool) -> Iterator[sources.Document]:
        documents = sources.documents(config.source, config.max_bytes)
        return (d for d in documents if heldout.is_heldout(d, threshold) == held_out)

    if config.tokenizer:
        tokenizer = tokenize.load(config.tokenizer)
    else:
        notify("training the tokenizer", 0, None)
        tokenizer = tokenize.train((d.text for d in texts(False)), config.vocab_size)
    heldout_name = f"{name}.heldout" if threshold else None
    extra = {
        "settings": settings,
        "heldout": heldout_name,
        "tokenizer_json": tokenizer.to_json(),
    }
    transaction = stream.begin()
    try:
        part = _Part(transaction, name, config, tokenizer, notify)
        counts = part.write(texts(False), extra)
        if heldout_name is not None:
            try:
                _Part(transaction, heldout_name, config, tokenizer, notify).write(
                    texts(True), extra
                )
            except DataError as error:
                raise DataError(
                    f"the held-out part is too small: {error}; or raise data.heldout_fraction"
                ) from None
        vocabulary.write(transaction, tokenizer, counts)
    except BaseException:
        transaction.rollback()
        raise
    transaction.commit()
    return Corpus(name, heldout_name, tokenizer, is_new=True)


def _make_synthetic(
    stream: Stream, name: str, config: DataConfig, settings: str, notify: Notify
) -> Corpus:
    """Draw and commit both parts; the held-out rows are the next ones of the same draws."""
    tokenizer = Tokenizer.from_json(induction.tokenizer_json(config.vocab_size))
    n = config.induction.n_sequences
    n_heldout = math.ceil(n * config.heldout_fraction)
    heldout_name = f"{name}.heldout" if n_heldout else None
    extra = {
        "settings": settings,
        "heldout": heldout_name,
        "tokenizer_json": tokenizer.to_json(),
        induction.MASKED: True,
    }
    transaction = stream.begin()
    try:
        counts = _Part(transaction, name, config, tokenizer, notify).draw(range(n), extra)
        if heldout_name is not None:
            part = _Part(transaction, heldout_name, config, tokenizer, notify)
            part.draw(range(n, n + n_heldout), extra)
        vocabulary.write(transaction, tokenizer, counts)
    except BaseException:
        transaction.rollback()
        raise
    transaction.commit()
    return Corpus(name, heldout_name, tokenizer, is_new=True)


class _Part:
    """One data set on its way into a transaction."""

    def __init__(
        self,
        transaction: Transaction,
        name: str,
        config: DataConfig,
        tokenizer: Tokenizer,
        notify: Notify,
    ) -> None:
        self._transaction, self._name, self._config = transaction, name, config
        self._tokenizer, self._notify = tokenizer, notify
        self._origins: list[tuple[str, str]] = []
        self._digest = xxhash.xxh3_128()

    def write(
        self, documents: Iterable[sources.Document], extra: dict[str, Any]
    ) -> np.ndarray[Any, Any]:
        """Write sequences, documents and the `datasets` row; returns the count of each token."""
        lists = self._tokenizer.encode_stream(self._noted(documents))
        packed = pack.pack(lists, self._config.seq_len, self._tokenizer.end_of_text)
        partition = {"dataset": self._name}
        write_rows(self._transaction, "sequences", partition, self._batches(packed))
        n = len(self._origins)
        documents_table = schema.table("documents").batch(
            {
                "dataset_id": [self._name] * n,
                "doc_id": list(range(n)),
                "origin": [origin for origin, _ in self._origins],
                "uri": [uri for _, uri in self._origins],
                "n_tokens": list(packed.document_lengths),
            }
        )
        write_rows(self._transaction, "documents", partition, documents_table)
        self._describe(packed.n_sequences, {**extra, "n_dropped_tokens": packed.n_dropped})
        return packed.token_counts(self._tokenizer.vocab_size)

    def draw(self, numbers: range, extra: dict[str, Any]) -> np.ndarray[Any, Any]:
        """Write synthetic sequences and the `datasets` row; returns the count of each token."""
        counts = np.zeros(self._tokenizer.vocab_size, dtype=np.int64)
        partition = {"dataset": self._name}
        write_rows(self._transaction, "sequences", partition, self._drawn(numbers, counts))
        self._describe(len(numbers), extra)
        return counts

    def _drawn(self, numbers: range, counts: np.ndarray[Any, Any]) -> Iterator[pa.Table]:
        sizes = self._config.vocab_size, self._config.seq_len
        for first in range(0, len(numbers), _BATCH):
            seed, some = self._config.induction.seed, numbers[first : first + _BATCH]
            tokens, spans = zip(*(induction.sequence(seed, i, *sizes) for i in some), strict=True)
            joined = np.concatenate(tokens)
            self._digest.update(joined.tobytes())
            counts += np.bincount(joined, minlength=len(counts))
            nothing: list[list[int]] = [[]] * len(some)
            rows = {
                "dataset_id": [self._name] * len(some),
                "sequence_id": np.arange(first, first + len(some)),
                "tokens": self._lists(joined),
                "doc_ids": nothing,
                "doc_starts": nothing,
                "origin": [INDUCTION] * len(some),
                "extra": [induction.mask_of(span) for span in spans],
            }
            yield schema.table("sequences").batch(rows)
            self._notify(f"drawing {self._name}", first + len(some), len(numbers))

    def _describe(self, n_sequences: int, extra: dict[str, Any]) -> None:
        row = {
            "dataset_id": [self._name],
            "uri": [self._config.source],
            "n_sequences": [n_sequences],
            "seq_len": [self._config.seq_len],
            "tokenizer": [self._tokenizer.name],
            "fingerprint": [self._digest.hexdigest()],
            "extra": [json.dumps(extra)],
        }
        table = schema.table("datasets").batch(row)
        write_rows(self._transaction, "datasets", {"dataset": self._name}, table)

    def _noted(self, documents: Iterable[sources.Document]) -> Iterator[str]:
        for document in documents:
            self._origins.append((document.origin, document.uri))
            yield document.text

    def _batches(self, packed: pack.Packed) -> Iterator[pa.Table]:
        rows: list[pack.Sequence] = []
        first = 0
        for sequence in packed:
            self._digest.update(sequence.tokens.tobytes())
            rows.append(sequence)
            if len(rows) == _BATCH:
                yield self._table(rows, first)
                first, rows = first + len(rows), []
                self._notify(f"tokenising {self._name}", first, None)
        if rows:
            yield self._table(rows, first)

    def _table(self, rows: list[pack.Sequence], first: int) -> pa.Table:
        return schema.table("sequences").batch(
            {
                "dataset_id": [self._name] * len(rows),
                "sequence_id": np.arange(first, first + len(rows)),
                "tokens": self._lists(np.concatenate([row.tokens for row in rows])),
                "doc_ids": [row.doc_ids for row in rows],
                "doc_starts": [row.doc_starts for row in rows],
                "origin": [self._origins[row.doc_ids[0]][0] for row in rows],
            }
        )

    def _lists(self, joined: np.ndarray[Any, Any]) -> pa.Array:
        """Return token ids as a column of lists, a sequence each."""
        width = self._config.seq_len + 1
        offsets = pa.array(np.arange(len(joined) // width + 1, dtype=np.int32) * width)
        kind = schema.table("sequences").arrow.field("tokens").type
        return pa.ListArray.from_arrays(offsets, pa.array(joined), type=kind)
