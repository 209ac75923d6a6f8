"""A folder that Hugging Face's transformers wrote, as a model to be probed.

`Lake.probe` calls it for a folder in place of a run. Weights are read from safetensors, code of the
folder is never run. The model becomes a run of the lake without weights, so that its scores have a
home; statistics and hashes of the weights are kept.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
from torch import nn

from pico import schema
from pico.errors import DataError, MissingExtraError, RunNameError, one_line
from pico.lake.commit import Stream
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from pico.lake.table import TensorRow
from pico.models import architecture
from pico.record import hooks, rows, runs
from pico.record.tensors import to_host


def load(path: Path) -> nn.Module:
    """Return the language model of a folder, in evaluation mode.

    Raises:
        DataError: if it holds none that transformers can read.
        MissingExtraError: without transformers.
    """
    if not (path / "config.json").is_file():
        raise DataError(f"{path} holds no config.json; give a run, or a folder of a saved model")
    try:
        import transformers
    except ModuleNotFoundError:
        raise MissingExtraError("transformers", "hf") from None
    progress = transformers.utils.logging
    was_shown = progress.is_progress_bar_enabled()
    progress.disable_progress_bar()
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            str(path),
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            dtype="auto",
        )
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise DataError(f"{path} is no model that can be read: {one_line(error)}") from None
    finally:
        if was_shown:
            progress.enable_progress_bar()
    found: nn.Module = model.eval()
    return found


def run_row(run: str, model: nn.Module, path: Path) -> dict[str, Any]:
    """Return the row of the table `runs` that a folder's model has, every column."""
    made = _described(run, model, path)["runs"][0]
    return {name: made.get(name) for name in schema.table("runs").column_names}


def describe(storage: Storage, run: str, step: int, model: nn.Module, path: Path) -> None:
    """Write what the lake keeps of a folder's model, unless it is there: no weights.

    That is its rows of `runs` and `parameters`, and `tensor_stats` of its weights at `step`, by
    whose hashes another model of that name is told apart.

    Raises:
        RunNameError: if the name is malformed, or that of a run with other tensors, or other
            weights at the step.
    """
    snapshot = Snapshot.take_or_empty(storage)
    is_known = run in snapshot.runs()
    if is_known:
        _check_shapes(snapshot, run, model, path)
    parameters = {info.name: info for info in architecture.parameters(model)}
    tensors = [
        TensorRow(keys, to_host(value))
        for keys, value in hooks.weights(model, parameters, lambda _: True)
    ]
    stored = snapshot.read(
        "tensor_stats",
        ["name", "content_hash", "table_name"],
        [run],
        [step],
        pc.field("table_name") == "weights",
    ).to_pylist()
    hashes = {row["name"]: row["content_hash"] for row in stored}
    if hashes and hashes != {row.keys["name"]: row.tensor.content_hash for row in tensors}:
        raise RunNameError(
            f"run {run!r} has other weights at step {step} than {path}; give another --step or "
            "another name with --run"
        )
    if hashes:
        return
    with Stream(storage, f"train.{run}") as stream:
        runs.check_free(storage, run, or_resumed=is_known)
        transaction = stream.begin()
        if not is_known:
            rows.write(transaction, run, _described(run, model, path))
        buffer = rows.RowBuffer(run)
        stats = [rows.stats_row("weights", tensor, stored=True) for tensor in tensors]
        buffer.add("tensor_stats", step, stats)
        rows.write(transaction, run, buffer.take())
        transaction.commit()


def _check_shapes(snapshot: Snapshot, run: str, model: nn.Module, path: Path) -> None:
    stored = snapshot.read("parameters", ["name", "shape"], [run]).to_pylist()
    mine = {item.name: list(item.shape) for item in architecture.parameters(model)}
    if {row["name"]: row["shape"] for row in stored} != mine:
        raise RunNameError(
            f"run {run!r} has other tensors than {path}; choose another name with --run"
        )


def _described(run: str, model: nn.Module, path: Path) -> rows.Rows:
    config: Any = getattr(model, "config", None)
    info = {
        "family": getattr(config, "model_type", None),
        "seq_len": min(getattr(config, "max_position_embeddings", 128), 128),
        "extra": json.dumps({"folder": path.name}),
    }
    return runs.describe(run, model, architecture.parameters(model), None, info)
