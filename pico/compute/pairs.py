"""Which tensor each tensor is compared with, and which metrics of two are defined for them.

`missing` calls `pair_up`. A partner has the same name, site, state, stage and probe at the step
and run of the reference; activations also the same input, told by `input_hash`. What has no
partner is counted as skipped, so that a run with other layers does no harm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pico.compute.asked import Asked, Reference
from pico.compute.stored import QUALIFIERS, Tensors, joined, stored
from pico.errors import MetricError
from pico.lake.snapshot import Snapshot


@dataclass(frozen=True)
class Pairs:
    """Tensors with their partners, row by row."""

    own: Tensors
    other: Tensors
    n_alone: int
    """Tensors without a partner."""


def resolve(snapshot: Snapshot, run: str, table: str, reference: Reference) -> Reference:
    """Return a reference with its run, and a number for the step `last`.

    Raises:
        MetricError: if tensors would be compared with themselves alone.
    """
    other = reference.run or run
    if reference.step is None and other == run:
        raise MetricError(
            f"run {run!r} at the same step is the run itself; give --reference-step, or another run"
        )
    if reference.step != "last":
        return Reference(other, reference.step)
    steps = [entry.max_step for entry in snapshot.files(table, [other])]
    return Reference(other, max((step for step in steps if step is not None), default=-1))


def pair_up(snapshot: Snapshot, own: Tensors, table: str, reference: Reference) -> Pairs:
    """Find the partner of each tensor.

    Args:
        snapshot: where both are.
        own: the tensors of one run.
        table: their table.
        reference: from `resolve`.
    """
    assert reference.run is not None and reference.step != "last"
    step = reference.step
    steps = [step] if step is not None else pc.unique(own.rows["global_step"]).to_pylist()
    other = stored(snapshot, reference.run, table, steps)
    at = pc.index_in(_partner(own, table, step), value_set=_partner(other, table, step))
    has_partner = at.is_valid().to_numpy(zero_copy_only=False)
    places = np.flatnonzero(has_partner)
    partners = at.drop_null().to_numpy().astype(np.int64)
    return Pairs(own.take(places), other.take(partners), len(own) - len(places))


def _partner(tensors: Tensors, table: str, step: int | None) -> pa.Array:
    """Return per row a text that is equal for partners, NULL for what can have none."""
    rows = tensors.rows
    columns = ["name", *QUALIFIERS]
    if step is None:
        columns.append("global_step")
    if table == "activations":
        columns.append("input_hash")
    keys = joined(rows[name] for name in columns)
    if table == "activations":
        keys = pc.if_else(pc.is_valid(rows["input_hash"]), keys, pa.scalar(None, pa.string()))
    keys = keys.combine_chunks() if isinstance(keys, pa.ChunkedArray) else keys
    return keys


def defined(pairs: Pairs, asked: Sequence[Asked]) -> npt.NDArray[np.bool_]:
    """Say for each pair and metric whether the metric is defined for tensors of these shapes."""
    found = np.zeros((len(pairs.own), len(asked)), np.bool_)
    any_shape = np.array([item.metric.any_shape for item in asked], np.bool_)
    sides = [
        zip(side.rows["dtype"].to_pylist(), side.rows["shape"].to_pylist(), strict=True)
        for side in (pairs.own, pairs.other)
    ]
    for at, ((dtype, shape), (other_dtype, other_shape)) in enumerate(zip(*sides, strict=True)):
        if dtype.startswith("complex") or other_dtype.startswith("complex"):
            continue
        found[at] = np.where(any_shape, shape == other_shape, _same_samples(shape, other_shape))
    return found


def _same_samples(shape: list[int], other: list[int]) -> bool:
    """Whether two shapes are those of representations of equally many samples."""
    if len(shape) < 2 or len(other) < 2:
        return False
    return shape[0] == other[0] and math.prod(shape[:-1]) == math.prod(other[:-1])
