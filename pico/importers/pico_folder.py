"""What lies in the folder of a run of pico-train: its config, its checkpoints, their files.

    training_config.yaml
    checkpoints/step_N/model.safetensors           the weights before update N
    checkpoints/step_N/fabric_state/checkpoint.pt  weights, optimizer, schedule, random state
    checkpoints/step_N/learning_dynamics/          {train,val}_{activations,gradients,weights}.pt
    eval_results/step_N.json   logs/*.log

`pico_train` reads it through this; no tensor is opened here, and what a folder lacks is an error
that says so.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pico import conversion
from pico.errors import ConfigError, DataError, one_line

CONFIG = "training_config.yaml"
SPLITS = ("train", "val")
KINDS = ("activations", "gradients", "weights")
_STEP = re.compile(r"step_(\d{1,12})")
_FOLDERS = {
    "checkpoints_dir": "checkpoints",
    "learning_dynamics_dir": "learning_dynamics",
    "fabric_checkpoint_dir": "fabric_state",
    "fabric_checkpoint_filename": "checkpoint.pt",
    "logs_dir": "logs",
}


@dataclass(frozen=True)
class StepFolder:
    """One checkpoint on the disk."""

    step: int
    path: Path
    weights: tuple[Path, ...]
    """Files of the whole model's weights: none, one, or the shards."""
    captures: Mapping[tuple[str, str], Path]
    """By split (`train`, `val`) and kind (`activations`, …) the captured tensors' file."""
    train_data: Path | None
    """Folder of the batch that `train` was captured on."""
    state: Path | None
    """File with the optimizer's state."""
    evaluation: Path | None

    def files(self) -> list[tuple[Path, str]]:
        """Return the files that an import reads, each with the table of what it holds."""
        captured = [
            (file, kind)
            for (_, kind), file in self.captures.items()
            if kind != "weights" or not self.weights
        ]
        state = [] if self.state is None else [(self.state, "optimizer")]
        return [*((file, "weights") for file in self.weights), *captured, *state]

    @property
    def n_bytes(self) -> int:
        """Bytes of the files that an import reads."""
        return sum(file.stat().st_size for file, _ in self.files())

    @property
    def largest(self) -> int:
        """Bytes of the largest `.pt` file."""
        return max((f.stat().st_size for f, _ in self.files() if f.suffix == ".pt"), default=0)


@dataclass(frozen=True)
class RunFolder:
    """A run of pico-train on the disk."""

    path: Path
    config: Mapping[str, Any]
    """What `training_config.yaml` says."""
    steps: Sequence[StepFolder]
    """Ascending, and at least one."""
    logs: Sequence[Path]

    @property
    def name(self) -> str:
        """The run's own name; by default its folder's."""
        return str(self.get("checkpointing", "run_name", default=None) or self.path.name)

    def get(self, *keys: str, default: Any = ...) -> Any:
        """Return a value of the config by its path of keys.

        Raises:
            DataError: if it is not there and there is no default.
        """
        value: Any = self.config
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is None and default is ...:
            raise DataError(f"{self.path / CONFIG} has no {'.'.join(keys)}")
        return default if value is None else value

    def count(self, *keys: str, default: Any = ...) -> int:
        """Return a whole number above zero of the config.

        Raises:
            DataError: if it is something else.
        """
        value = self.get(*keys, default=default)
        if type(value) is not int or value < 1:
            raise DataError(
                f"{self.path / CONFIG}: {'.'.join(keys)} must be a whole number above 0, "
                f"not {value!r:.40}"
            )
        return value

    def chosen(self, steps: Collection[int] | None) -> list[StepFolder]:
        """Return the checkpoints to import: all, which must be without a gap, or some by step.

        Raises:
            DataError: for a step that is not there, a gap where all are wanted, or a checkpoint
                without weights where others have them.
        """
        present = {step.step: step for step in self.steps}
        if steps is not None:
            wanted = sorted(set(steps))
            how = "name others, or none for all"
        else:
            every = self.count("checkpointing", "save_every_n_steps", default=1000)
            first, last = min(present), max(present)
            wanted = [step for step in range(first, last, every) if step % every == 0] or [first]
            wanted = sorted({*wanted, *present})
            how = "name the steps to import without it"
        lacking = [step for step in wanted if step not in present]
        if lacking:
            raise DataError(
                f"{self.path} has no checkpoint step_{lacking[0]}; it has {_listed(present)}: {how}"
            )
        without = [step for step in wanted if not present[step].weights]
        if without and len(without) < len(self.steps) and any(s.weights for s in self.steps):
            raise DataError(
                f"{present[without[0]].path} has no model.safetensors, as other checkpoints have: "
                "wait until it is written, or name the steps to import without it"
            )
        return [present[step] for step in wanted]


def find(path: str | Path) -> RunFolder:
    """Return what lies in a run's folder.

    Raises:
        DataError: if it is not the folder of a run of pico-train, or has no checkpoint.
    """
    path = Path(path)
    if not path.is_dir():
        raise DataError(f"no folder {path}")
    config = _config(path / CONFIG)
    section = config.get("checkpointing")
    own = section if isinstance(section, Mapping) else {}
    names = {key: own.get(key) or default for key, default in _FOLDERS.items()}
    names["eval_results_dir"] = _nested(own, "evaluation", "eval_results_dir") or "eval_results"
    for key, name in names.items():
        if not isinstance(name, str) or Path(name).is_absolute() or ".." in Path(name).parts:
            raise DataError(f"{path / CONFIG}: {key} must be a folder of the run, not {name!r:.80}")
    root = path / names["checkpoints_dir"]
    found = [(_STEP.fullmatch(item.name), item) for item in sorted(root.glob("step_*"))]
    steps = [_step(int(match[1]), item, path, names) for match, item in found if match]
    if not steps:
        raise DataError(f"{path} is no run of pico-train: there is no {root.name}/step_N in it")
    logs = sorted((path / names["logs_dir"]).glob("*.log"))
    return RunFolder(path, config, sorted(steps, key=lambda step: step.step), logs)


def _config(path: Path) -> dict[str, Any]:
    try:
        config = conversion.load_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(
            f"{path.parent} is no run of pico-train: it has no {CONFIG}; give the folder of one "
            "run, as runs/NAME"
        ) from None
    except (yaml.YAMLError, ConfigError, ValueError, RecursionError) as error:
        raise DataError(f"{path} is not valid YAML: {one_line(error)}") from None
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    if not isinstance(config, dict) or not isinstance(config.get("model"), dict):
        raise DataError(f"{path} is no config of pico-train: it has no section `model`")
    return config


def _step(step: int, path: Path, run: Path, names: Mapping[str, Any]) -> StepFolder:
    dynamics = path / names["learning_dynamics_dir"]
    files = {(split, kind): dynamics / f"{split}_{kind}.pt" for split in SPLITS for kind in KINDS}
    captures = {key: file for key, file in files.items() if file.is_file()}
    weights = tuple(sorted(path.glob("model*.safetensors")))
    state = path / names["fabric_checkpoint_dir"] / names["fabric_checkpoint_filename"]
    evaluation = run / names["eval_results_dir"] / f"step_{step}.json"
    data = dynamics / "train_data"
    if not weights and not captures:
        raise DataError(f"{path} holds neither weights nor learning dynamics; is it complete?")
    return StepFolder(
        step,
        path,
        weights,
        captures,
        data if data.is_dir() else None,
        state if state.is_file() else None,
        evaluation if evaluation.is_file() else None,
    )


def _nested(mapping: Mapping[str, Any], *keys: str) -> Any:
    value: Any = mapping
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _listed(steps: Collection[int]) -> str:
    names = [str(step) for step in sorted(steps)]
    return ", ".join(names if len(names) <= 12 else [*names[:6], "…", *names[-5:]])
