"""Resuming: which checkpoint to go on from, whether the config still fits, and restoring it.

The trainer calls it. A checkpoint is what the lake holds at a step listed in `checkpoints`:
weights, optimizer state and generator states; there is no other file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import torch
from torch import nn

from pico import config as configs
from pico.config import RunConfig
from pico.errors import ConfigError, DataError, RecordError
from pico.evaluate import load
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from pico.record import rng, runs, withdraw
from pico.record.tensors import to_torch

_FREE_TO_CHANGE = (
    "max_steps",
    "record",
    "evaluate",
    "accelerator",
    "batch.micro_size",
    "data.workers",
)
"""Config keys that a resumed run may change (`max_steps` moves the end of the decay)."""


Resume: TypeAlias = Literal["auto", "never"] | int
"""From the last checkpoint or not at all, or from the checkpoint at a step."""


def checkpoints(storage: Storage, run: str) -> list[int] | None:
    """Return the steps of a run's complete checkpoints; None if the lake has no such run.

    Raises:
        RecordError: if the run is there but has no checkpoint to go on from.
    """
    snapshot = Snapshot.take_or_empty(storage)
    if run not in snapshot.runs():
        return None
    rows = snapshot.read("checkpoints", ["global_step", "complete"], runs=[run]).to_pylist()
    steps = sorted(row["global_step"] for row in rows if row["complete"])
    if not steps:
        raise RecordError(
            f"run {run!r} has no checkpoint to resume from; record.checkpoints was never due"
        )
    return steps


def last_checkpoint(storage: Storage, run: str) -> int | None:
    """Return the step of a run's last complete checkpoint; raises as `checkpoints` does."""
    steps = checkpoints(storage, run)
    return None if steps is None else steps[-1]


def starting_step(storage: Storage, run: str, resume: Resume = "auto") -> int | None:
    """Return the step at which training goes on; None for a run that begins.

    Raises:
        RunNameError: if the name is malformed, taken by a run that is not to be resumed, or not
            in the lake although a step of it is asked for.
        RecordError: if the run is there but has no such checkpoint, or none at all.
    """
    runs.check_free(storage, run, resume != "never")
    if resume == "never":
        return None
    steps = checkpoints(storage, run)
    if resume == "auto":
        return None if steps is None else steps[-1]
    if steps is None:
        Snapshot.take(storage).check_run(run)
    elif resume not in steps:
        raise RecordError(
            f"run {run!r} has no checkpoint at step {resume}; {withdraw.listing(steps)}"
        )
    return resume


def is_evaluated(storage: Storage, run: str, step: int) -> bool:
    """Say whether the lake holds the held-out loss of a run's state at a step."""
    scalars = Snapshot.take(storage).read("scalars", ["name"], runs=[run], steps=[step])
    return "heldout_loss" in scalars["name"].to_pylist()


def check_config(storage: Storage, run: str, config: RunConfig) -> None:
    """Refuse to resume a run whose config differs in what decides the arithmetic.

    Raises:
        ConfigError: naming every key that differs, with both values.
    """
    stored = load.run_row(Snapshot.take(storage), run)["config"]
    if stored is None:
        raise ConfigError(f"run {run!r} was not started by pico train; it cannot be resumed")
    before, now = _flat(configs.as_mapping(configs.load(stored))), _flat(configs.as_mapping(config))
    differing = [
        f"{key} was {before.get(key)!r}, is {now.get(key)!r}"
        for key in sorted(before | now)
        if before.get(key) != now.get(key) and not key.startswith(_FREE_TO_CHANGE)
    ]
    if differing:
        raise ConfigError(
            f"run {run!r} cannot be resumed with another config: {'; '.join(differing)}"
        )


def check_dataset(storage: Storage, run: str, dataset: str) -> None:
    """Refuse to resume a run whose text has changed since, so that its data set is another one.

    Raises:
        DataError: naming both data sets.
    """
    before = load.run_row(Snapshot.take(storage), run)["dataset"]
    if before != dataset:
        raise DataError(
            f"run {run!r} was trained on data set {before!r}, but data.source now gives "
            f"{dataset!r}: its text has changed; bring it back, or begin a new run"
        )


def restore(
    storage: Storage, run: str, step: int, model: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Put weights, optimizer state and generators back to what they were at a checkpoint."""
    snapshot = Snapshot.take(storage)
    model.load_state_dict(load.state_dict(snapshot, run, step))
    named = dict(model.named_parameters())
    optimizer.state.clear()
    for row in snapshot.tensors("optimizer", run, step):
        value: Any = to_torch(row.tensor)
        if row.keys.get("extra"):
            value = value.item()
        elif value.ndim:
            value = value.to(named[row.keys["name"]].device)
        optimizer.state[named[row.keys["name"]]][row.keys["state"]] = value
    rows = snapshot.read("checkpoints", runs=[run], steps=[step]).to_pylist()
    rng.restore(rows[-1])


def _flat(mapping: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in mapping.items():
        if isinstance(value, Mapping) and key != "record":
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
