"""A stored state as a live model: the way from the lake back to `torch.nn.Module`.

`Lake.load_model` and the trainer's resume call it. Nothing is unpickled: tensors come from Parquet
and are verified against their content hash.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import nn

from pico import config as configs
from pico import models
from pico.errors import ConfigError, RecordError
from pico.lake.snapshot import Snapshot
from pico.record.tensors import to_torch


def run_row(snapshot: Snapshot, run: str) -> dict[str, Any]:
    """Return a run's row of the `runs` table, `config` parsed.

    Raises:
        RunNameError: if the lake has no such run.
    """
    snapshot.check_run(run)
    rows = snapshot.read("runs", runs=[run]).to_pylist()
    if not rows:
        raise RecordError(f"run {run!r} has no row in the runs table")
    row: dict[str, Any] = rows[0]
    row["config"] = json.loads(row["config"]) if row["config"] else None
    return row


def weight_steps(snapshot: Snapshot, run: str) -> list[int]:
    """Return the steps at which the run's weights are stored, ascending."""
    return sorted({e.min_step for e in snapshot.files("weights", [run]) if e.min_step is not None})


def state_dict(snapshot: Snapshot, run: str, step: int) -> dict[str, torch.Tensor]:
    """Return the weights of a run at a step; frozen tensors come from where they were stored once.

    Raises:
        RecordError: if no weights are stored at that step; the message lists the nearest.
    """
    steps = weight_steps(snapshot, run)
    if step not in steps:
        near = sorted(sorted(steps, key=lambda other: abs(other - step))[:5])
        raise RecordError(
            f"run {run!r} has no weights at step {step}; the nearest steps are "
            f"{', '.join(map(str, near)) or 'none'}"
        )
    parameters = snapshot.read("parameters", runs=[run]).to_pylist()
    frozen = {row["name"] for row in parameters if not row["trainable"]}
    stored = snapshot.tensors("weights", run, step)
    state = {row.keys["name"]: to_torch(row.tensor) for row in stored}
    for earlier in steps[: steps.index(step)]:
        missing = frozen - set(state)
        if not missing:
            break
        found = snapshot.tensors("weights", run, earlier, lambda k, m=missing: k["name"] in m)  # type: ignore[misc]
        state |= {row.keys["name"]: to_torch(row.tensor) for row in found}
    for row in parameters:
        if row["alias_of"] in state:
            state[row["name"]] = state[row["alias_of"]]
    return state


def load_model(
    snapshot: Snapshot, run: str, step: int | None = None, model: nn.Module | None = None
) -> nn.Module:
    """Return a model with the weights of a run at a step, in evaluation mode.

    Args:
        snapshot: a snapshot of the lake.
        run: name of the run.
        step: a step with stored weights; by default the last one.
        model: a module of the right shape, for runs that were recorded from a foreign training
            loop; by default a pico-decoder is built from the run's config.

    Raises:
        RunNameError: if the lake has no such run.
        RecordError: if the step has no weights, or they do not fit the model.
        ConfigError: if the run has no config to build a model from and none was given.
    """
    row = run_row(snapshot, run)
    steps = weight_steps(snapshot, run)
    if step is None:
        if not steps:
            raise RecordError(f"run {run!r} has no stored weights")
        step = steps[-1]
    state = state_dict(snapshot, run, step)
    if model is None:
        if not row["config"]:
            raise ConfigError(
                f"run {run!r} stores no config to build a model from; in Python, pass "
                "model=your_module"
            )
        sizes = configs.load(row["config"]).model
        model = models.build(sizes, row["vocab_size"], seed=0)
    try:
        for name, value in (*model.named_parameters(), *model.named_buffers()):
            if name in state:
                value.data = value.data.to(state[name].dtype)
        model.load_state_dict(state)
    except RuntimeError as error:
        raise RecordError(
            f"the weights of run {run!r} do not fit the model: {' '.join(str(error).split())}"
        ) from None
    return model.eval()
