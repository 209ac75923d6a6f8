"""The rows of a run of pico-train that are no tensors: the run, its checkpoints, its numbers.

`pico_train` calls it. Losses and learning rates are read from the text logs, with the digits that
pico-train prints (four decimals of a loss, three digits of a rate); results of its evaluations from
their JSON files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import xxhash

from pico.errors import DataError, one_line
from pico.importers.pico_folder import RunFolder, StepFolder
from pico.importers.pico_model import PicoModel
from pico.record import runs
from pico.record.rows import Rows

FORMAT = "pico-train"
TRAIN = "train"
"""The split of the training batch."""
_STARTS = re.compile(r"Step (\d{1,12}) -- .*Training Metrics")
_NUMBERS = {
    "loss": re.compile(r"[├└]── Loss: (\S+)"),
    "learning_rate": re.compile(r"[├└]── Learning Rate: (\S+)"),
    "inf_or_nan_count": re.compile(r"[├└]── Inf/NaN count: (\S+)"),
}


def of_run(
    run: str, folder: RunFolder, model: PicoModel, dtypes: Mapping[str, str], devices: int | None
) -> Rows:
    """Return the `runs` and `parameters` rows.

    Args:
        run: its name in the lake.
        folder: where it lies.
        model: its parameters.
        dtypes: by name the element types of the stored weights.
        devices: on how many it was trained, if that was told.
    """
    config = model.config
    note = {
        "format": FORMAT,
        "name": folder.name,
        "devices": devices,
        "activations": "unscrambled" if devices == 1 else "as stored",
        "config": folder.config,
    }
    info = {
        "suite": FORMAT,
        "family": "pico-decoder",
        "seq_len": config["data"]["seq_len"],
        "batch_size": config["batch"]["size"],
        "tokens_per_step": tokens_per_step(model),
        "dataset": folder.get("data", "dataset", "name", default=None),
        "tokenizer": folder.get("data", "tokenizer", "name", default=None),
        "config": json.dumps(config),
        "extra": json.dumps({"import": note}, default=str),
    }
    return runs.describe(run, model.module, model.described(dtypes), None, info)


def tokens_per_step(model: PicoModel) -> int:
    """Return the tokens of an optimizer step."""
    return int(model.config["batch"]["size"] * model.config["data"]["seq_len"])


def checkpoint(step: StepFolder, model: PicoModel, schedule: Any, is_whole: bool) -> dict[str, Any]:
    """Return the `checkpoints` row of a step."""
    return {
        "tokens": tokens_per_step(model) * step.step,
        "planned": True,
        "scheduler": None if schedule is None else json.dumps(schedule),
        "complete": is_whole,
    }


def evaluations(step: StepFolder, folder: RunFolder, model: PicoModel) -> list[dict[str, Any]]:
    """Return the `evaluations` rows of a step.

    Raises:
        DataError: if the file holds no results.
    """
    if step.evaluation is None:
        return []
    try:
        text = step.evaluation.read_bytes()
        results = json.loads(text)
        numbers = {str(task): float(value) for task, value in results.items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{step.evaluation} holds no results: {one_line(error)}") from None
    return [
        {
            "tokens": tokens_per_step(model) * step.step,
            "task": task,
            "metric": "perplexity",
            "value": value,
            "engine": FORMAT,
            "source_file": step.evaluation.relative_to(folder.path).as_posix(),
            "content_hash": xxhash.xxh3_128_hexdigest(text),
        }
        for task, value in numbers.items()
    ]


def scalars(folder: RunFolder) -> dict[int, list[dict[str, Any]]]:
    """Return the `scalars` rows by step; where a step was logged again, the last one.

    Raises:
        DataError: if a log cannot be read.
    """
    found: dict[int, dict[str, float]] = {}
    for log in sorted(folder.logs, key=lambda file: (file.stat().st_mtime, file.name)):
        current: dict[str, float] | None = None
        try:
            with log.open(encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    start = _STARTS.search(line)
                    if start:
                        current = found[int(start[1])] = {}
                    elif current is not None:
                        current |= _numbers(line)
        except OSError as error:
            raise DataError(f"cannot read {log}: {error.strerror}") from None
    return {
        step: [{"name": name, "value": value} for name, value in numbers.items()]
        for step, numbers in sorted(found.items())
        if numbers
    }


def _numbers(line: str) -> dict[str, float]:
    for name, pattern in _NUMBERS.items():
        match = pattern.search(line)
        if match:
            try:
                return {name: float(match[1])}
            except ValueError:
                return {}
    return {}
