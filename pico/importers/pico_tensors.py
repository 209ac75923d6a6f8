"""The tensors of one checkpoint of pico-train, as rows of the lake's tensor tables.

`pico_train` calls it, a checkpoint at a time. What pico-train stores in its own way is put right
here, and `extra` says so:

- Activations captured on one device are scrambled: each sub-batch, a matrix (samples, features),
  was transposed and then read row by row as if it had not been. It is undone. On several devices
  they are in order.
- Captured gradients are summed over the sub-batches, not averaged. With more than one they are
  stored as they are, under stage `summed`, with the number of sub-batches.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import xxhash

from pico.errors import DataError
from pico.importers import tensorfile
from pico.importers.pico_folder import RunFolder, StepFolder
from pico.importers.pico_model import PicoModel, keys_of, plain_name
from pico.importers.ptfile import PtFile, PtReader
from pico.lake import codec
from pico.lake.table import TensorRow
from pico.record.hooks import hash_bytes

Tables = dict[str, list[TensorRow]]
PROBES = {"train": None, "val": "val"}
"""Split of a capture: its probe in the lake; the training batch has none."""


class StepTensors:
    """Reads the tensors of a run's checkpoints."""

    def __init__(
        self, folder: RunFolder, model: PicoModel, devices: int | None, reader: PtReader
    ) -> None:
        """Take what decides how captures are read from the run's config."""
        dynamics = ("checkpointing", "learning_dynamics")
        self._model, self._devices, self._reader = model, devices, reader
        self._batch = folder.count(*dynamics, "batch_size", default=8)
        self._position = folder.get(*dynamics, "sequence_idx", default=-1)
        if type(self._position) is not int:
            raise DataError(f"{folder.path}: learning_dynamics.sequence_idx must be a whole number")

    def state(self, step: StepFolder) -> tuple[Tables, Any]:
        """Return the state at a step by table, and what the fabric checkpoint says of the schedule.

        Raises:
            DataError: if a file is broken, or holds other tensors than the model has.
        """
        tables: Tables = {"weights": self.weights(step), **self._captures(step, "val")}
        facts = None
        if step.state is not None:
            tables["optimizer"], facts = self._optimizer(step)
        return tables, facts

    def caused(self, step: StepFolder) -> Tables:
        """Return what was captured on a step's training batch, by table; raises `DataError`."""
        return self._captures(step, "train")

    def weights(self, step: StepFolder) -> list[TensorRow]:
        """Return the weights at a step: the whole model, or what was captured of it.

        Raises:
            DataError: if a file is broken, or they are not those of the model.
        """
        found: dict[str, TensorRow] = {}
        for file in step.weights:
            self._add_weights(found, tensorfile.read(file), file)
        lacking = self._model.lacking(found)
        if step.weights and lacking:
            raise DataError(f"{step.path} lacks the weights {', '.join(lacking[:3])}")
        if not step.weights:
            for split in PROBES:
                captured = step.captures.get((split, "weights"))
                if captured is not None:
                    self._add_weights(found, self._reader.read(captured).tensors, captured)
        return list(found.values())

    def _add_weights(
        self, found: dict[str, TensorRow], tensors: Mapping[str, codec.Tensor], source: object
    ) -> None:
        for name, tensor in tensors.items():
            info = self._model.parameter(name, tensor, source)
            found[info.name] = TensorRow(keys_of(info), tensor)

    def _captures(self, step: StepFolder, split: str) -> Tables:
        """Return activations and gradients captured on one split."""
        n_tokens, input_hash = _input(step) if split == "train" else (None, None)
        seen = {"probe": PROBES[split], "input_hash": input_hash}
        tables: Tables = {}
        n_samples = None
        for kind in ("activations", "gradients"):
            source = step.captures.get((split, kind))
            if source is None:
                continue
            tensors = self._reader.read(source).tensors
            if kind == "activations":
                made = [self._activation(*item, source, n_tokens) for item in tensors.items()]
                n_samples = made[0].tensor.shape[0] if made else None
            else:
                made = [self._gradient(*item, source, n_samples) for item in tensors.items()]
            tables[kind] = [TensorRow({**row.keys, **seen}, row.tensor) for row in made]
        return tables

    def _activation(
        self, name: str, tensor: codec.Tensor, source: object, n_tokens: int | None
    ) -> TensorRow:
        info = self._model.parameter(name, None, source)
        if len(tensor.shape) != 2 or tensor.shape[1] != info.shape[0]:
            raise DataError(
                f"{source}: activation {name!r:.200} has shape {list(tensor.shape)}, not "
                f"[samples, {info.shape[0]}]"
            )
        position = self._position
        if position < 0:
            position = None if n_tokens is None else n_tokens + position
        note: dict[str, Any] = {"module": plain_name(name), "devices": self._devices}
        if self._devices == 1:
            tensor = unscrambled(tensor, self._batch)
            note |= {"unscrambled": True, "sub_batch": self._batch}
        keys = {
            **self._model.activation_keys(info),
            "positions": None if position is None else [position],
            "extra": json.dumps({"pico-train": note}),
        }
        return TensorRow(keys, tensor)

    def _gradient(
        self, name: str, tensor: codec.Tensor, source: object, n_samples: int | None
    ) -> TensorRow:
        info = self._model.parameter(name, tensor, source)
        n_summed = None if n_samples is None else -(-n_samples // self._batch)
        note = {"sub_batches": n_summed, "pass": "on a copy of the model"}
        keys = {
            **keys_of(info),
            "stage": "raw" if n_summed == 1 else "summed",
            "extra": json.dumps({"pico-train": note}),
        }
        return TensorRow(keys, tensor)

    def _optimizer(self, step: StepFolder) -> tuple[list[TensorRow], Any]:
        """Return the optimizer's buffers, named by the order of the model's parameters."""
        assert step.state is not None
        file = self._reader.read(step.state, ["_optimizer"])
        facts = file.facts if isinstance(file.facts, dict) else {}
        told = facts.get("_checkpoint_step")
        if told != step.step:
            raise DataError(f"{step.state} is of step {told!r:.40}, not of step {step.step}")
        names = list(facts["_model"]) if isinstance(facts.get("_model"), dict) else []
        ordered = [name for name in names if plain_name(name) in self._model.parameters]
        rows = []
        for parameter, state, tensor in _buffers(file):
            at = int(parameter) if parameter.isdecimal() else -1
            name = ordered[at] if 0 <= at < len(ordered) else parameter
            info = self._model.parameter(name, tensor if tensor.shape else None, step.state)
            rows.append(TensorRow({**keys_of(info), "state": state}, tensor))
        return rows, facts.get("_lr_scheduler")


def unscrambled(tensor: codec.Tensor, sub_batch: int) -> codec.Tensor:
    """Return activations (samples, features) as they were before pico-train scrambled them.

    Args:
        tensor: (samples, features), sub-batches of one device one after the other.
        sub_batch: samples of each; the last may have fewer.
    """
    n_samples, n_features = tensor.shape
    rows = tensor.data.reshape(n_samples, n_features)
    pieces = [
        rows[start : start + sub_batch].reshape(n_features, -1).T
        for start in range(0, n_samples, sub_batch)
    ]
    flat = np.concatenate(pieces).reshape(-1) if pieces else tensor.data
    return codec.Tensor(tensor.dtype, tensor.shape, np.ascontiguousarray(flat))


def _buffers(file: PtFile) -> Iterator[tuple[str, str, codec.Tensor]]:
    """Yield parameter, name of the buffer, and buffer of an optimizer's state."""
    for path, tensor in file.tensors.items():
        parts = path.split("/")
        if parts[:2] == ["_optimizer", "state"] and len(parts) == 4:
            yield parts[2], parts[3], tensor


def _input(step: StepFolder) -> tuple[int | None, str | None]:
    """Return how many tokens the model saw of each training sequence, and the input's hash."""
    if step.train_data is None:
        return None, None
    files = sorted(step.train_data.glob("*.arrow"))
    try:
        tables = [pa.ipc.open_stream(file.read_bytes()).read_all() for file in files]
        ids = [row for table in tables for row in table["input_ids"].to_pylist()]
        tokens = np.array(ids, np.int64)[:, :-1]
    except (pa.ArrowException, OSError, KeyError, ValueError, TypeError, IndexError):
        raise DataError(
            f"cannot read {step.train_data}: it is no data set of token ids of one length"
        ) from None
    return tokens.shape[1], xxhash.xxh3_128_hexdigest(hash_bytes(torch.from_numpy(tokens)))
