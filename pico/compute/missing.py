"""Finds which metrics of which stored tensors the lake does not hold yet.

`materialize` calls `plan` for one run and table at a time. It is an anti-join of the tensors' keys
and content hashes with the rows of the `metrics` table, arguments, reference and metric version
included; it reads keys and hashes, never a value of a tensor. Values that the lake holds of an
identical tensor are found along the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pico.compute import pairs
from pico.compute.asked import Asked, Label, Reference
from pico.compute.equals import Elsewhere, Known, kept
from pico.compute.stored import IDENTITY, Tensors, joined, stored
from pico.compute.summary import Lack, Summary
from pico.compute.tasks import Job, by_reference
from pico.lake.snapshot import Snapshot


@dataclass(frozen=True)
class Question:
    """What is wanted of one run and table: metrics of one tensor, or of two."""

    run: str
    table: str
    asked: tuple[Asked, ...]
    reference: Reference | None = None
    """For metrics of two tensors; the run and, unless it is the same step, the step are numbers."""

    @property
    def runs(self) -> list[str]:
        """The run, and the other one that it is compared with."""
        other = self.reference.run if self.reference is not None else None
        return [self.run] if other is None or other == self.run else [self.run, other]

    @property
    def labels(self) -> tuple[Label, ...]:
        """What the values are kept under."""
        return tuple(asked.label for asked in self.asked)


@dataclass
class Work:
    """What one run lacks in one table."""

    question: Question
    own: Tensors
    """The tensors that lack something."""
    other: Tensors | None
    """What each of them is compared with."""
    hashes: pa.Array
    """Of each of them: its content hash, of a pair both."""
    lacks: npt.NDArray[np.bool_]
    """(tensors, metrics): what is missing."""
    known: Known
    """Values of identical tensors, by different hash and metric."""
    present: list[int]
    """Values that are there already, by metric."""
    skipped: list[int]
    """Tensors that each metric is not defined for, or that have no partner."""

    @property
    def n_tensors(self) -> int:
        """Number of different tensors, or pairs, that lack something."""
        return len(self.known.hashes)

    @cached_property
    def at(self) -> npt.NDArray[np.int64]:
        """For each tensor, the place of its hash in `known`."""
        found = pc.index_in(self.hashes, value_set=self.known.hashes)
        return np.asarray(found.to_numpy(zero_copy_only=False), np.int64)

    @cached_property
    def needed(self) -> npt.NDArray[np.bool_]:
        """(hashes, metrics): what is missing somewhere."""
        found = np.zeros_like(self.known.has)
        np.logical_or.at(found, self.at, self.lacks)
        return found

    @cached_property
    def first(self) -> npt.NDArray[np.int64]:
        """For each hash, the first tensor that has it."""
        _, first = np.unique(self.at, return_index=True)
        return first.astype(np.int64)

    @property
    def to_compute(self) -> npt.NDArray[np.bool_]:
        """(hashes, metrics): what no identical tensor tells."""
        return self.needed & ~self.known.has

    @property
    def summary(self) -> Summary:
        """What is there already, and what is not defined."""
        return Summary(present=sum(self.present), skipped=sum(self.skipped))

    def jobs(self) -> list[Job]:
        """Return what has to be computed, in the order in which it is best read."""
        to_compute = self.to_compute
        places = np.flatnonzero(to_compute.any(axis=1))
        rows = self.first[places]
        labels = self.question.labels
        own = self.own.tensors(rows)
        other = [None] * len(own) if self.other is None else self.other.tensors(rows)
        n_bytes = self.own.rows["n_bytes"].to_numpy()[rows]
        jobs = [
            Job(
                self.known.hashes[int(place)].as_py(),
                tensor,
                partner,
                tuple(labels[n] for n in np.flatnonzero(to_compute[place])),
                int(size),
            )
            for place, tensor, partner, size in zip(places, own, other, n_bytes, strict=True)
        ]
        if self.other is not None:
            return by_reference(jobs)
        return sorted(jobs, key=_place)

    def lack(self, elsewhere: Elsewhere) -> Lack:
        """Say how much is missing and what computing it reads; `elsewhere` takes note of it.

        What an earlier run of the same call will have is told by 44 bits of each hash: among 30
        million tensors about 30 are taken for others, which changes these numbers alone.
        """
        to_compute = self.to_compute
        to_compute[elsewhere.holds(self.known.hashes)] = False  # another run will have it
        elsewhere.note(self.question.run, self.known.hashes)
        rows = self.first[to_compute.any(axis=1)]
        sides = [self.own] if self.other is None else [self.own, self.other]
        return Lack(
            self.question.run,
            self.question.table,
            tensors=len(rows),
            values=int(self.lacks.sum()),
            to_compute=int(to_compute.sum()),
            n_bytes=sum(_group_bytes(side, rows) for side in sides),
        )


def plan(snapshot: Snapshot, question: Question, elsewhere: Elsewhere | None = None) -> Work:
    """Find what is missing; reads keys and hashes, never a value of a tensor.

    Args:
        snapshot: the files that count.
        question: run, table, metrics and reference.
        elsewhere: where to look for identical tensors in other runs; by default nowhere.
    """
    run, table, asked = question.run, question.table, question.asked
    own, other, n_alone = stored(snapshot, run, table), None, 0
    if question.reference is None:
        is_defined = _defined(own, asked)
    else:
        found = pairs.pair_up(snapshot, own, table, question.reference)
        own, other, n_alone = found.own, found.other, found.n_alone
        is_defined = pairs.defined(found, asked)
    hashes = _hashes(own, other)
    values = kept(snapshot, run, question.labels)
    lacks = is_defined & ~_present(values, question, own, other, hashes)
    lacking = np.flatnonzero(lacks.any(axis=1))
    work = Work(
        question,
        own.take(lacking),
        other.take(lacking) if other is not None else None,
        hashes.take(pa.array(lacking)),
        lacks[lacking],
        Known(pc.unique(hashes.take(pa.array(lacking))), len(asked)),
        (is_defined & ~lacks).sum(axis=0).tolist(),
        ((~is_defined).sum(axis=0) + n_alone).tolist(),
    )
    if work.n_tensors:
        work.known.learn(values)
        if elsewhere is not None:
            elsewhere.teach(snapshot, run, work.known, work.needed)
    return work


def _defined(tensors: Tensors, asked: Sequence[Asked]) -> npt.NDArray[np.bool_]:
    """Say for each tensor and metric whether the metric is defined for it."""
    is_complex = _bools(pc.starts_with(tensors.rows["dtype"], "complex"))
    is_matrix = _bools(pc.greater_equal(pc.list_value_length(tensors.rows["shape"]), 2))
    needs_matrix = np.array([item.metric.needs_matrix for item in asked], np.bool_)
    return ~is_complex[:, None] & (is_matrix[:, None] | ~needs_matrix[None, :])


def _present(
    values: pa.Table, question: Question, own: Tensors, other: Tensors | None, hashes: pa.Array
) -> npt.NDArray[np.bool_]:
    """Say for each tensor and metric whether its value is kept."""
    present = np.zeros((len(own), len(question.asked)), np.bool_)
    keys: list[pa.ChunkedArray | pa.Array] = [own.rows[name] for name in IDENTITY]
    nothing = pa.nulls(len(own), pa.string())
    ref = [nothing, nothing, nothing]
    if other is not None and question.reference is not None:
        run = pa.repeat(question.reference.run, len(own))
        ref = [run, other.rows["global_step"], other.rows["name"]]
    wanted = joined([*keys, *ref, hashes])
    columns = [*IDENTITY, "ref_run", "ref_step", "ref_name", "tensor_hash"]
    rows = values.filter(pc.equal(values["table_name"], question.table))
    at = pc.index_in(joined(rows[name] for name in columns), value_set=_whole(wanted))
    found = at.is_valid()
    present[at.filter(found).to_numpy(), rows["label"].filter(found).to_numpy()] = True
    return present


def _hashes(own: Tensors, other: Tensors | None) -> pa.Array:
    mine = _whole(own.rows["content_hash"])
    if other is None:
        return mine
    return pc.binary_join_element_wise(mine, _whole(other.rows["content_hash"]), ":")


def _group_bytes(tensors: Tensors, places: npt.NDArray[np.int64]) -> int:
    """Return the stored bytes of values of the row groups that hold these tensors."""
    rows = tensors.rows.select(["file", "group", "n_bytes"]).take(pa.array(places))
    sizes = rows.group_by(["file", "group"]).aggregate([("n_bytes", "max")])
    return int(pc.sum(sizes["n_bytes_max"]).as_py() or 0)


def _place(job: Job) -> tuple[str, int, int]:
    piece = job.tensor.pieces[0]
    return piece.entry.path, piece.group, piece.row


def _whole(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _bools(column: pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    return np.asarray(column.to_numpy(zero_copy_only=False), np.bool_)
