"""Values that the lake holds of identical tensors, in the same run or in any other.

`missing` asks before it has something computed. Which runs hold values of a hash is told by one
sorted array of 8 bytes a tensor (the hash's first 44 bits and the run's number), so that a lake of
30 million tensors needs 250 MB; what it finds is compared with whole hashes afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pico.compute.asked import Label
from pico.compute.stored import IDENTITY
from pico.lake import table as lake_table
from pico.lake.snapshot import Snapshot

_RUN_BITS = 20
_DIGITS = 11
_COLUMNS = [
    *("table_name", *IDENTITY, "head", "ref_run", "ref_step", "ref_name"),
    *("metric", "args", "metric_version", "tensor_hash", "value"),
]


def kept(snapshot: Snapshot, run: str, labels: Sequence[Label]) -> pa.Table:
    """Return a run's kept values of some metrics, with the number of the label as `label`."""
    spec = {"metric": pa.string(), "args": pa.string(), "metric_version": pa.int32()}
    wanted = pa.table(
        [pa.array([label[at] for label in labels], t) for at, t in enumerate(spec.values())],
        names=list(spec),
    )
    names = pc.field("metric").isin(wanted["metric"].unique().to_pylist())
    tables = []
    for entry in snapshot.files("metrics", [run]):
        rows = lake_table.read(snapshot.storage, [entry], _COLUMNS, names)
        tables.append(_labelled(rows.filter(pc.is_null(rows["head"])), wanted))
    empty = lake_table.empty("metrics").select(_COLUMNS)
    return pa.concat_tables(tables) if tables else _labelled(empty, wanted)


def _labelled(rows: pa.Table, wanted: pa.Table) -> pa.Table:
    """Return the rows whose metric, arguments and version are wanted."""
    place = np.full(rows.num_rows, -1, np.int64)
    for number, (name, args, version) in enumerate(zip(*wanted.to_pydict().values(), strict=True)):
        same_args = pc.is_null(rows["args"]) if args is None else pc.equal(rows["args"], args)
        is_it = pc.and_(pc.equal(rows["metric"], name), pc.equal(rows["metric_version"], version))
        is_it = pc.fill_null(pc.and_(is_it, same_args), False)
        place[is_it.to_numpy(zero_copy_only=False)] = number
    hidden = ["head", "metric", "args", "metric_version"]
    labelled = rows.drop_columns(hidden).append_column("label", pa.array(place))
    return labelled.filter(pa.array(place >= 0))


class Known:
    """Values by hash and label, of the tensors that one run lacks something of."""

    def __init__(self, hashes: pa.Array, n_labels: int) -> None:
        """Know nothing about these hashes yet."""
        self.hashes = hashes
        self.values = np.full((len(hashes), n_labels), np.nan)
        self.has = np.zeros((len(hashes), n_labels), np.bool_)

    def learn(self, rows: pa.Table) -> None:
        """Take the values of these hashes from rows that `kept` returns."""
        at = pc.index_in(rows["tensor_hash"], value_set=self.hashes)
        told = pc.and_(pc.is_valid(at), pc.is_valid(rows["value"]))
        if not pc.any(told, min_count=0).as_py():
            return
        place = at.filter(told).to_numpy(), rows["label"].filter(told).to_numpy()
        self.values[place] = rows["value"].filter(told).to_numpy()
        self.has[place] = True


class Elsewhere:
    """Tells in which runs values of a tensor hash are kept; read when first needed."""

    def __init__(self, labels: Sequence[Label]) -> None:
        """Know nothing yet about values of these metrics."""
        self._labels = labels
        self._runs: list[str] = []
        self._levels: list[npt.NDArray[np.uint64]] = []
        self._is_read = False

    def teach(
        self, snapshot: Snapshot, run: str, known: Known, needed: npt.NDArray[np.bool_]
    ) -> None:
        """Let `known` learn what other runs hold of what `needed` says, by hash and label."""
        self._read(snapshot)
        open_places = np.flatnonzero((needed & ~known.has).any(axis=1))
        if not len(open_places):
            return
        for other in self.runs_with(known.hashes.take(pa.array(open_places))):
            if other != run:
                known.learn(kept(snapshot, other, self._labels))
                if not (needed & ~known.has).any():
                    return

    def note(self, run: str, hashes: pa.Array) -> None:
        """Remember that a run holds values of these hashes, or will."""
        if run not in self._runs:
            self._runs.append(run)
        number = np.uint64(self._runs.index(run))
        level = _merged([_prefixes(hashes) | number])
        if not len(level):
            return
        # Sizes that double, as a binary counter has them, keep merging and asking logarithmic.
        while self._levels and len(self._levels[-1]) <= 2 * len(level):
            level = _merged([self._levels.pop(), level])
        self._levels.append(level)

    def runs_with(self, hashes: pa.Array) -> list[str]:
        """Return the runs that hold values of one of these hashes, in the order noted."""
        wanted = np.unique(_prefixes(hashes))
        found: set[int] = set()
        for level in self._levels:
            first = np.searchsorted(level, wanted)
            stop = np.searchsorted(level, wanted + np.uint64(1 << _RUN_BITS))
            for low, high in zip(first[stop > first], stop[stop > first], strict=True):
                found.update((level[low:high] & np.uint64((1 << _RUN_BITS) - 1)).tolist())
        return [self._runs[number] for number in sorted(found)]

    def holds(self, hashes: pa.Array) -> npt.NDArray[np.bool_]:
        """Say of each hash whether some run holds values of it, or will."""
        prefixes = _prefixes(hashes)
        found = np.zeros(len(prefixes), np.bool_)
        for level in self._levels:
            at = np.searchsorted(level, prefixes)
            near = level[np.minimum(at, len(level) - 1)] >> np.uint64(_RUN_BITS)
            found |= (at < len(level)) & (near == prefixes >> np.uint64(_RUN_BITS))
        return found

    def _read(self, snapshot: Snapshot) -> None:
        if self._is_read:
            return
        self._is_read = True
        names = pc.field("metric").isin(sorted({name for name, _, _ in self._labels}))
        for run in snapshot.runs():
            for entry in snapshot.files("metrics", [run]):
                rows = lake_table.read(snapshot.storage, [entry], ["metric", "tensor_hash"], names)
                self.note(run, pc.unique(rows["tensor_hash"]))


def _merged(levels: list[npt.NDArray[np.uint64]]) -> npt.NDArray[np.uint64]:
    """Return all numbers in order, each once; in half the memory that `numpy.union1d` takes."""
    every = np.concatenate(levels)
    every.sort()
    is_first = np.ones(len(every), np.bool_)
    np.not_equal(every[1:], every[:-1], out=is_first[1:])
    return every if is_first.all() else every[is_first]


def _prefixes(hashes: pa.Array) -> npt.NDArray[np.uint64]:
    """Return the first 44 bits of hexadecimal hashes, shifted to leave room for a run's number."""
    codes = _first_letters(hashes)
    digits = (codes & np.uint64(15)) + np.uint64(9) * (codes >> np.uint64(6))
    value = np.zeros(len(codes), np.uint64)
    for place in range(_DIGITS):
        value = (value << np.uint64(4)) | (digits[:, place] & np.uint64(15))
    return value << np.uint64(_RUN_BITS)


def _first_letters(hashes: pa.Array) -> npt.NDArray[np.uint64]:
    """Return the codes of the first letters of each hash, zeros after the end of a short one."""
    cut = pc.utf8_slice_codeunits(hashes, 0, _DIGITS)
    if pc.all(pc.equal(pc.binary_length(cut), _DIGITS), min_count=0).as_py() and not cut.offset:
        letters = np.frombuffer(cut.buffers()[2] or b"", np.uint8, _DIGITS * len(cut))
    else:  # hashes that `pico` did not make
        texts = [text.encode()[:_DIGITS] for text in cut.to_pylist()]
        letters = np.array(texts, dtype=f"S{_DIGITS}").view(np.uint8)
    return letters.reshape(len(cut), _DIGITS).astype(np.uint64)
