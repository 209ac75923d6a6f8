"""The beginning of a run in the lake: its stream, its name, its `runs` and `parameters` rows.

`Recorder` calls it once. Opening a run that is resumed withdraws what came after the checkpoint
(see `withdraw`), so that no step is ever shown twice.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from pico import schema
from pico.errors import RecordError, RunNameError, did_you_mean
from pico.lake.commit import Stream
from pico.lake.names import check_name
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from pico.models import architecture
from pico.models.architecture import ParameterInfo
from pico.record import rng, withdraw
from pico.record.rows import Rows

_DISTRIBUTIONS = ("pico-lake", "torch", "lightning", "numpy", "pyarrow", "tokenizers")


def open_stream(storage: Storage, run: str, resume_from: int | None) -> tuple[Stream, int]:
    """Open a run's stream for writing; a new run must have a new name.

    Args:
        storage: the lake's place.
        run: name of the run.
        resume_from: the step of the checkpoint to go on from, None for a new run.

    Returns:
        The stream, and how many steps were withdrawn.

    Raises:
        RunNameError: if the name is malformed, or taken by another run (ignoring case).
        LeaseError: if another process is recording the run.
        RecordError: if there is no checkpoint at `resume_from`.
    """
    check_free(storage, run, or_resumed=True)
    stream = Stream(storage, f"train.{run}")
    try:
        check_free(storage, run, or_resumed=resume_from is not None)
        n_withdrawn = 0
        if resume_from is not None:
            n_withdrawn = withdraw.after(stream, run, resume_from)
    except BaseException:
        stream.close()
        raise
    return stream, n_withdrawn


def check_free(storage: Storage, run: str, or_resumed: bool) -> None:
    """Refuse a run's name that is malformed or taken; `or_resumed` allows the run itself.

    Raises:
        RunNameError: saying which.
    """
    check_name(run)
    taken = Snapshot.take_or_empty(storage).runs()
    twin = next((name for name in taken if name.lower() == run.lower() and name != run), None)
    if twin is not None:
        raise RunNameError(
            f"run {run!r} differs from run {twin!r} in case only; choose another name"
        )
    if run in taken and not or_resumed:
        raise RunNameError(
            f"run {run!r} is in {storage.url} already; resume it (pico train does; pico.Recorder: "
            "resume_from=STEP) "
            "or choose another name"
        )


def storage_of(lake: Any, storage_options: Mapping[str, Any] | None) -> Storage:
    """Return the storage of a lake given as a URL or as an object that has one."""
    if isinstance(lake, (str, os.PathLike)):
        return Storage(os.fspath(lake), storage_options)
    storage = lake if isinstance(lake, Storage) else getattr(lake, "storage", None)
    if not isinstance(storage, Storage):
        raise RecordError(f"a lake is a URL or a pico.Lake, not {type(lake).__name__}")
    return storage


def checkpoint_row(
    tokens: int | None, planned: bool, scheduler: Any, complete: bool
) -> dict[str, Any]:
    """Return a row of `checkpoints` with the generators as they are now.

    Args:
        tokens: seen so far.
        planned: whether the schedule asked for it.
        scheduler: of the learning rate; its `state_dict` is kept.
        complete: whether the optimizer's state is there too.
    """
    state = None if scheduler is None else scheduler.state_dict()
    return {
        "tokens": tokens,
        "planned": planned,
        "scheduler": None if state is None else json.dumps(state, default=str),
        "complete": complete,
        **rng.capture(),
    }


def describe(
    run: str,
    model: nn.Module,
    parameters: Sequence[ParameterInfo],
    optimizer: torch.optim.Optimizer | None,
    info: Mapping[str, Any],
) -> Rows:
    """Return the `runs` and `parameters` rows of a new run.

    Args:
        run: its name.
        model: the model.
        parameters: what is known of its parameters.
        optimizer: whose groups they are in.
        info: columns of `runs`; `init` beside them says by name how parameters were initialised,
            as `normal(MEAN, STD)`, `uniform(LOW, HIGH)`, `constant(VALUE)` or in other words.

    Raises:
        RecordError: for another key of `info` that is no column of `runs`.
    """
    info = dict(info)
    init = info.pop("init", {})
    columns = schema.table("runs").column_names
    for key in info:
        if key not in columns:
            raise RecordError(f"info: runs has no column {key!r}.{did_you_mean(key, columns)}")
    size = architecture.size(model)
    sizes = {name: value for name, value in size.items() if value is not None}
    versions = _library_versions()
    row = {
        "run_id": run,
        "run_uuid": str(uuid.uuid4()),
        "created_at": datetime.datetime.now(datetime.UTC),
        "code_version": versions.get("pico-lake"),
        "library_versions": json.dumps(versions),
        **sizes,
        **info,
    }
    groups = {
        id(parameter): index
        for index, group in enumerate(optimizer.param_groups if optimizer else [])
        for parameter in group["params"]
    }
    named = dict(model.named_parameters(remove_duplicate=False))
    rows = [
        {
            "run_id": run,
            **{key: value for key, value in vars(item).items() if key != "shape"},
            "shape": list(item.shape),
            "param_group": groups.get(id(named[item.name])),
            "init": init.get(item.name),
        }
        for item in parameters
    ]
    return {"runs": [row], "parameters": rows}


def group_row(index: int, group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `param_groups` row of an optimizer group."""
    settings = {
        key: value
        for key, value in group.items()
        if key not in ("params", "lr", "weight_decay") and _is_plain(value)
    }
    return {
        "group": index,
        "lr": float(group["lr"]),
        "weight_decay": float(group.get("weight_decay") or 0.0),
        "settings": json.dumps(settings, sort_keys=True),
    }


def _is_plain(value: Any) -> bool:
    plain = (int, float, str, bool, type(None))
    return isinstance(value, plain) or (
        isinstance(value, (tuple, list)) and all(isinstance(item, plain) for item in value)
    )


def _library_versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in _DISTRIBUTIONS:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
