"""Batches for training: the order says which sequences, the lake holds their tokens.

The trainer asks `Loader.batch(step)`; nothing here depends on what was asked before, so a resumed
run, another micro-batch or another model sees the same rows at the same step.
"""

from __future__ import annotations

import copy
import json
from collections import OrderedDict
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from pico.data import induction, order
from pico.errors import CorruptError, DataError
from pico.lake.log import Entry
from pico.lake.snapshot import Snapshot, partition
from pico.lake.table import open_file

CACHE_BYTES = 1 << 30
"""Token ids that a reader keeps in memory."""


class SequenceReader:
    """Random access to the rows of a data set in the lake, a cache of row groups in between."""

    def __init__(self, snapshot: Snapshot, dataset: str, cache_bytes: int = CACHE_BYTES) -> None:
        """Find the data set's files and which rows each of their row groups holds.

        Raises:
            DataError: if the lake has no such data set.
            CorruptError: if its rows are not numbered from 0 without a gap.
        """
        self._storage = snapshot.storage
        files = [e for e in snapshot.files("sequences") if partition(e.path)["dataset"] == dataset]
        if not files:
            raise DataError(f"no data set {dataset!r} in {snapshot.storage.url}")
        self.dataset = dataset
        described = snapshot.read(
            "datasets", ["dataset_id", "extra"], filter=pc.field("dataset_id") == dataset
        )
        extras = [json.loads(extra or "{}") for extra in described["extra"].to_pylist()]
        self._is_masked = any(induction.MASKED in extra for extra in extras)
        self._groups: list[tuple[Entry, int]] = []
        starts = [(first, n, entry, g) for entry in files for g, first, n in self._layout(entry)]
        starts.sort(key=lambda item: item[0])
        bounds = [0]
        for first, n_rows, entry, group in starts:
            if first != bounds[-1]:
                raise CorruptError(f"data set {dataset!r} lacks sequence {bounds[-1]}")
            self._groups.append((entry, group))
            bounds.append(first + n_rows)
        self._bounds = np.array(bounds)
        self._cache: OrderedDict[int, npt.NDArray[np.int32]] = OrderedDict()
        self._masks: dict[int, npt.NDArray[np.bool_]] = {}
        self._cached_bytes, self._cache_bytes = 0, cache_bytes

    def with_cache(self, cache_bytes: int) -> SequenceReader:
        """Return a reader of the same rows with a cache of its own, still empty."""
        twin = copy.copy(self)
        twin._cache, twin._cached_bytes, twin._cache_bytes = OrderedDict(), 0, cache_bytes
        twin._masks = {}
        return twin

    @property
    def n_sequences(self) -> int:
        """Number of rows of the data set."""
        return int(self._bounds[-1])

    def rows(self, sequence_ids: Sequence[int]) -> npt.NDArray[np.int64]:
        """Return token ids `(len(sequence_ids), seq_len + 1)`, int64, in the order asked for.

        Raises:
            DataError: for an id that the data set does not have.
        """
        ids = self._checked(sequence_ids)
        if not ids.size:
            return self._group(0)[:0].astype(np.int64)
        picked = [self._group(group)[row] for group, row in self._places(ids)]
        return np.stack(picked).astype(np.int64)

    def counted(self, sequence_ids: Sequence[int]) -> npt.NDArray[np.bool_] | None:
        """Return which targets count in a loss, `(len(sequence_ids), seq_len)`; None: all do.

        Target t is token t + 1. The spans of a sequence stand in `sequences.extra`, which is read
        only where the data set's own `extra` says so.

        Raises:
            DataError: for an id that the data set does not have.
        """
        ids = self._checked(sequence_ids)
        if not self._is_masked:
            return None
        if not ids.size:
            return self._mask(0)[:0]
        return np.stack([self._mask(group)[row] for group, row in self._places(ids)])

    def _checked(self, sequence_ids: Sequence[int]) -> npt.NDArray[np.int64]:
        ids = np.asarray(sequence_ids, dtype=np.int64)
        if ids.size and (ids.min() < 0 or ids.max() >= self.n_sequences):
            raise DataError(
                f"data set {self.dataset!r} has sequences 0 to {self.n_sequences - 1}, "
                f"not {int(ids.max() if ids.min() >= 0 else ids.min())}"
            )
        return ids

    def _places(self, ids: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
        """Yield the row group of each sequence and its place there."""
        groups = np.searchsorted(self._bounds, ids, side="right") - 1
        for i, group in zip(ids, groups, strict=True):
            yield int(group), int(i - self._bounds[group])

    def _layout(self, entry: Entry) -> list[tuple[int, int, int]]:
        """Return (row group, first sequence id, rows) of a file, from its footer."""
        file = open_file(self._storage, entry)
        found = []
        for group in range(file.num_row_groups):
            statistics = file.statistics(group, "sequence_id")
            if statistics is None or not statistics.has_min_max:
                raise CorruptError(f"{entry.path} has no statistics of its sequence ids")
            first, n_rows = statistics.min, file.parquet.metadata.row_group(group).num_rows
            if statistics.max - first + 1 != n_rows:
                raise CorruptError(
                    f"{entry.path} has gaps between sequences {first} and {statistics.max}"
                )
            found.append((group, first, n_rows))
        return found

    def _group(self, index: int) -> npt.NDArray[np.int32]:
        if index in self._cache:
            self._cache.move_to_end(index)
            return self._cache[index]
        entry, group = self._groups[index]
        columns = ["tokens", "extra"] if self._is_masked else ["tokens"]
        table = open_file(self._storage, entry).read_row_group(group, columns)
        column = table["tokens"].combine_chunks()
        flat = column.flatten().to_numpy(zero_copy_only=False)
        if flat.size % len(column):
            raise CorruptError(f"{entry.path} has sequences of different lengths")
        rows: npt.NDArray[np.int32] = flat.reshape(len(column), -1).copy()
        self._cache[index] = rows
        self._cached_bytes += rows.nbytes
        if self._is_masked:  # dropped together with the tokens, a quarter of their size
            extras = table["extra"].to_pylist()
            masks = [induction.spans_of(each, rows.shape[1] - 1) for each in extras]
            self._masks[index] = np.stack(masks)
        while self._cached_bytes > self._cache_bytes and len(self._cache) > 1:
            oldest, dropped = self._cache.popitem(last=False)
            self._cached_bytes -= dropped.nbytes
            self._masks.pop(oldest, None)
        return rows

    def _mask(self, index: int) -> npt.NDArray[np.bool_]:
        self._group(index)
        return self._masks[index]


class Loader:
    """The batches of a run: sequence ids from the order, tokens from the lake."""

    def __init__(self, reader: SequenceReader, order_name: str, seed: int, batch_size: int) -> None:
        """Fix the order (see `pico.data.order`), its seed and the batch size in sequences."""
        self._reader, self._order, self._seed = reader, order_name, seed
        self._batch_size = batch_size

    def batch(self, step: int) -> tuple[list[int], npt.NDArray[np.int64]]:
        """Return the sequence ids of a step and their tokens `(batch_size, seq_len + 1)`."""
        ids = order.sequence_ids(
            self._order, self._seed, step, self._batch_size, self._reader.n_sequences
        )
        return ids, self._reader.rows(ids)

    def counted(self, sequence_ids: Sequence[int]) -> npt.NDArray[np.bool_] | None:
        """Return which targets of sequences count; see `SequenceReader.counted`."""
        return self._reader.counted(sequence_ids)

    def shared_by(self, n_readers: int) -> Loader:
        """Return a loader to be copied to that many processes; they share the cache's size."""
        reader = self._reader.with_cache(CACHE_BYTES // n_readers)
        return Loader(reader, self._order, self._seed, self._batch_size)
