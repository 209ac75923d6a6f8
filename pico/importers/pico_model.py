"""What the tensors of pico-train are called in the lake, and what they must look like.

`pico_tensors` and `pico_rows` ask it. pico-train's model is our pico-decoder under other config
words, so the names, components, layers and sites are those of a `PicoDecoder` without memory; only
the prefixes that wrappers add are taken off.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from pico import config as configs
from pico import models
from pico.config import RunConfig
from pico.errors import ConfigError, DataError
from pico.importers.output_sites import OUTPUT_SITES
from pico.importers.pico_folder import CONFIG, RunFolder
from pico.lake import codec
from pico.models import architecture
from pico.models.architecture import ParameterInfo

_PREFIXES = (
    "_forward_module.",
    "_fsdp_wrapped_module.",
    "_orig_mod.",
    "module.",
    "pico_decoder.",
)
_SCHEDULES = {"linear_with_warmup": "linear", "cosine": "cosine"}
_PRECISIONS = ("32-true", "bf16-mixed", "bf16-true", "64-true")


class PicoModel:
    """The model of a run of pico-train: its parameters and sites by their names in the lake."""

    def __init__(self, folder: RunFolder) -> None:
        """Read the sizes from the run's config.

        Raises:
            DataError: if they are those of no pico-decoder.
        """
        self.config = run_config(folder)
        try:
            sizes = configs.load(self.config).model
            with torch.device("meta"):
                self.module = models.build(sizes, sizes.vocab_size, seed=0)
        except ConfigError as error:
            raise DataError(f"{folder.path / CONFIG} is no pico-decoder's: {error}") from None
        self.parameters = {info.name: info for info in architecture.parameters(self.module)}
        self._places = {
            (point.site, point.layer): point.module_name
            for points in architecture.sites(self.module).values()
            for point in points
        }

    def parameter(self, name: str, tensor: codec.Tensor | None, source: object) -> ParameterInfo:
        """Return the parameter that pico-train calls `name`, with or without `.weight`.

        Args:
            name: as it stands in a file.
            tensor: what the file has there, to compare the shape; None to compare nothing.
            source: the file, for the message.

        Raises:
            DataError: if the model has no such parameter, or it has another shape.
        """
        short = plain_name(name)
        info = self.parameters.get(short) or self.parameters.get(f"{short}.weight")
        if info is None:
            raise DataError(f"{source}: tensor {name!r:.200} is none of the model in {CONFIG}")
        if tensor is not None and tensor.shape != info.shape:
            raise DataError(
                f"{source}: tensor {name!r:.200} has shape {list(tensor.shape)}, by {CONFIG} it "
                f"has {list(info.shape)}"
            )
        return info

    def activation_keys(self, info: ParameterInfo) -> dict[str, Any]:
        """Return name, layer, component and site of what a parameter's module puts out."""
        module = info.name.rpartition(".")[0]
        site = OUTPUT_SITES.get(info.component or "", "")
        keys = {"layer": info.layer, "component": info.component}
        if (site, info.layer) in self._places:
            return {**keys, "name": self._places[site, info.layer], "site": site}
        return {**keys, "name": module, "site": f"{module}.out"}

    def described(self, dtypes: Mapping[str, str]) -> list[ParameterInfo]:
        """Return all parameters with the element types that are stored."""
        return [
            dataclasses.replace(info, dtype=dtypes.get(name, info.dtype))
            for name, info in self.parameters.items()
        ]

    def lacking(self, names: Iterable[str]) -> list[str]:
        """Return the parameters that are not among `names`."""
        return sorted(self.parameters.keys() - set(names))


def keys_of(info: ParameterInfo) -> dict[str, Any]:
    """Return the key columns of a parameter's tensors."""
    return {
        "name": info.name,
        "layer": info.layer,
        "component": info.component,
        "param": info.param,
    }


def plain_name(name: str) -> str:
    """Return a name without what wrappers put before it.

    >>> plain_name("_forward_module.layers.0.attention.v_proj")
    'layers.0.attention.v_proj'
    """
    while True:
        prefix = next((prefix for prefix in _PREFIXES if name.startswith(prefix)), None)
        if prefix is None:
            return name
        name = name.removeprefix(prefix)


def run_config(folder: RunFolder) -> dict[str, Any]:
    """Return pico-train's config in our words, as `runs.config` holds it.

    Seeds are left out: pico-train does not record them.

    Raises:
        DataError: if a size of the model is missing.
    """
    defaults = RunConfig()
    optimization = ("training", "optimization")
    size = folder.count("data", "dataloader", "batch_size", default=1024)
    accumulation = folder.count(*optimization, "gradient_accumulation_steps", default=1)
    precision = folder.get("training", "fabric", "precision", default=None)
    schedule = folder.get(*optimization, "lr_scheduler", default=None)
    return {
        "max_steps": folder.count("training", "max_steps", default=defaults.max_steps),
        "data": {
            "source": str(folder.get("data", "dataset", "name", default="unknown")),
            "seq_len": folder.count("model", "max_seq_len"),
        },
        "model": {
            "d_model": folder.count("model", "d_model"),
            "n_layers": folder.count("model", "n_layers"),
            "n_heads": folder.count("model", "attention_n_heads"),
            "n_kv_heads": folder.count("model", "attention_n_kv_heads"),
            "d_hidden": folder.count("model", "activation_hidden_dim"),
            "vocab_size": folder.count("model", "vocab_size"),
            "context": folder.count("model", "max_seq_len"),
            "rope_theta": folder.get("model", "position_emb_theta", default=10000.0),
            "norm_eps": folder.get("model", "norm_eps", default=1e-6),
        },
        "optimizer": {
            "lr": folder.get(*optimization, "lr", default=defaults.optimizer.lr),
            "betas": [0.9, 0.999],
            "weight_decay": 0.01,
            "warmup_steps": folder.get(*optimization, "lr_warmup_steps", default=0),
            "schedule": _SCHEDULES.get(schedule, defaults.optimizer.schedule),
            "max_grad_norm": None,
        },
        "batch": {
            "size": size,
            "micro_size": size // accumulation if size % accumulation == 0 else None,
        },
        "precision": precision if precision in _PRECISIONS else defaults.precision,
        "record": {
            "checkpoints": {
                "every": folder.count("checkpointing", "save_every_n_steps", default=1000)
            }
        },
    }
