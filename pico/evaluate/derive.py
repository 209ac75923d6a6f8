"""New checkpoints made of stored ones: averages, and points between two.

`Lake.average` and `Lake.interpolate` call it. What is made is a run of its own with one step, that
everything takes which takes a run: `load_model`, `pico probe`, SQL. Arithmetic is torch's, in the
dtype of the weights.
"""

from __future__ import annotations

import datetime
import json
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pico import schema
from pico.errors import RecordError
from pico.evaluate import load
from pico.lake.commit import Stream
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from pico.lake.table import TensorRow, write_rows, write_tensors
from pico.record import rows, runs
from pico.record.tensors import to_host

Point = tuple[str, int]
"""A run and a step."""


def average(storage: Storage, run: str, steps: Sequence[int], as_run: str) -> int:
    """Write the mean of checkpoints of a run as a run of its own; returns its step, the last.

    Each tensor is `torch.stack(tensors).mean(0)`, bit for bit. Tensors of whole numbers must be
    equal.

    Args:
        storage: the lake's place.
        run: name of the run.
        steps: two or more, at which weights are stored.
        as_run: name of the new run.

    Raises:
        RecordError: for fewer than two steps, a step without weights, or tensors that do not fit.
        RunNameError: if the name is malformed or taken.
    """
    if len(set(steps)) < 2:
        raise RecordError(f"an average needs two steps or more, not {list(steps)}")
    points = [(run, step) for step in steps]
    made = {"average_of": {"run": run, "steps": list(steps)}}
    return _derive(storage, points, as_run, lambda x: torch.stack(x).mean(0), made)


def interpolate(storage: Storage, a: Point, b: Point, t: float, as_run: str) -> int:
    """Write the checkpoint at `(1 - t) a + t b` as a run of its own; returns its step.

    Args:
        storage: the lake's place.
        a: run and step where `t` is 0.
        b: run and step where `t` is 1.
        t: any number; outside 0 to 1 it goes beyond the two.
        as_run: name of the new run.

    Raises:
        RecordError: for a step without weights, tensors that do not fit, or a `t` that is not
            finite.
        RunNameError: if the name is malformed or taken.
    """
    if not math.isfinite(t):
        raise RecordError(
            f"t must be a finite number, 0 at the first point and 1 at the second, not {t}"
        )
    made = {"interpolation": {"a": list(a), "b": list(b), "t": t}}
    return _derive(storage, [a, b], as_run, lambda x: x[0] * (1 - t) + x[1] * t, made)


def _derive(
    storage: Storage,
    points: Sequence[Point],
    as_run: str,
    combine: Callable[[list[Tensor]], Tensor],
    made: Mapping[str, Any],
) -> int:
    snapshot = Snapshot.take(storage)
    run, step = points[-1]
    for name, _ in points:
        snapshot.check_run(name)
    row = dict(load.run_row(snapshot, run))
    parameters = snapshot.read("parameters", runs=[run])
    states = [load.state_dict(snapshot, *point) for point in points]
    _check(points, states)
    runs.check_free(storage, as_run, or_resumed=False)
    aliases = {r["name"] for r in parameters.to_pylist() if r["alias_of"]}
    names = [name for name in states[0] if name not in aliases]
    with Stream(storage, f"train.{as_run}") as stream:
        runs.check_free(storage, as_run, or_resumed=False)
        transaction = stream.begin()
        known = {r["name"]: r for r in parameters.to_pylist()}
        tensors = [
            TensorRow(_keys(name, known), to_host(_combined(name, states, combine)))
            for name in names
        ]
        write_tensors(transaction, "weights", {"run": as_run, "step": step}, tensors)
        buffer = rows.RowBuffer(as_run)
        stats = [rows.stats_row("weights", tensor, stored=True) for tensor in tensors]
        buffer.add("tensor_stats", step, stats)
        rows.write(transaction, as_run, buffer.take())
        row |= {
            "run_id": as_run,
            "run_uuid": str(uuid.uuid4()),
            "created_at": datetime.datetime.now(datetime.UTC),
            "parent_run": run,
            "parent_step": step,
            "config": _model_alone(row["config"]),
            "extra": json.dumps(made),
        }
        columns = {name: [row.get(name)] for name in schema.table("runs").column_names}
        write_rows(transaction, "runs", {"run": as_run}, schema.table("runs").batch(columns))
        place = parameters.column_names.index("run_id")
        named = parameters.set_column(
            place, parameters.schema.field(place), [[as_run] * len(known)]
        )
        write_rows(transaction, "parameters", {"run": as_run}, named)
        transaction.commit()
    return step


def _model_alone(config: Mapping[str, Any] | None) -> str | None:
    """Return what of a config says how to build the model; nothing was trained or planned here."""
    if config is None:
        return None
    return json.dumps({key: config[key] for key in ("model", "data", "seeds") if key in config})


def _combined(
    name: str, states: Sequence[Mapping[str, Tensor]], combine: Callable[[list[Tensor]], Tensor]
) -> Tensor:
    found = [state[name] for state in states]
    if found[0].is_floating_point():
        return combine(found)
    if any(not torch.equal(found[0], other) for other in found[1:]):
        raise RecordError(f"{name!r} holds {found[0].dtype} that differ; only floats can be mixed")
    return found[0]


def _check(points: Sequence[Point], states: Sequence[Mapping[str, Tensor]]) -> None:
    """Refuse states whose tensors differ in names, shapes or dtypes."""
    first = states[0]
    for (run, step), state in zip(points[1:], states[1:], strict=True):
        odd = sorted(first.keys() ^ state.keys())
        if odd:
            raise RecordError(f"run {run!r} at step {step} has other tensors, such as {odd[0]!r}")
        for name, tensor in state.items():
            mine = (tuple(first[name].shape), first[name].dtype)
            if mine != (tuple(tensor.shape), tensor.dtype):
                raise RecordError(
                    f"{name!r} is {mine[1]} of shape {mine[0]} at {points[0]}, and "
                    f"{tensor.dtype} of shape {tuple(tensor.shape)} at {(run, step)}"
                )


def _keys(name: str, known: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    row = known.get(name, {})
    return {"name": name, **{key: row.get(key) for key in ("layer", "component", "param")}}
