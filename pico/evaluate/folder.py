"""A folder that Hugging Face's transformers wrote, as a model to be probed.

`Lake.probe` calls it for a folder in place of a run. Weights are read from safetensors, code of the
folder is never run. The model becomes a run of the lake without weights, so that its scores have a
home.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import nn

from pico.errors import DataError, MissingExtraError, RunNameError, one_line
from pico.lake.commit import Stream
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from pico.models import architecture
from pico.record import rows, runs


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


def describe(storage: Storage, run: str, model: nn.Module, path: Path) -> None:
    """Write the `runs` and `parameters` rows of a folder's model unless they are there.

    Raises:
        RunNameError: if the name is malformed, or that of a run with other tensors.
    """
    parameters = architecture.parameters(model)
    if run in Snapshot.take_or_empty(storage).runs():
        stored = Snapshot.take(storage).read("parameters", ["name", "shape"], [run]).to_pylist()
        mine = {item.name: list(item.shape) for item in parameters}
        if {row["name"]: row["shape"] for row in stored} != mine:
            raise RunNameError(
                f"run {run!r} has other tensors than {path}; choose another name with --run"
            )
        return
    with Stream(storage, f"train.{run}") as stream:
        runs.check_free(storage, run, or_resumed=False)
        transaction = stream.begin()
        config: Any = getattr(model, "config", None)
        info = {
            "family": getattr(config, "model_type", None),
            "seq_len": min(getattr(config, "max_position_embeddings", 128), 128),
            "extra": json.dumps({"folder": path.name}),
        }
        rows.write(transaction, run, runs.describe(run, model, parameters, None, info))
        transaction.commit()
