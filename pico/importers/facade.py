"""The methods of `pico.Lake` that bring foreign material in; `Lake` inherits them.

Each calls one function of this package. Those that need torch import it when they are called.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from pico.errors import MissingExtraError
from pico.lake.storage import Storage

if TYPE_CHECKING:
    from pico.importers.analysis import Analyzed
    from pico.importers.analysis_plan import Numbers
    from pico.importers.pico_train import Imported

Progress = Callable[[int, int], None]


class Importers:
    """What can be brought into a lake from elsewhere."""

    storage: Storage

    def import_pico_train(
        self,
        path: str | os.PathLike[str],
        run: str | None = None,
        devices: int | None = None,
        steps: Collection[int] | None = None,
        dry_run: bool = False,
        on_progress: Progress | None = None,
    ) -> Imported:
        """Import a run of pico-train; what the lake has of it already is not imported again.

        Args:
            path: folder of the run, with `training_config.yaml` and `checkpoints/`.
            run: its name in the lake; by default the one that pico-train gave it.
            devices: on how many it was trained. On one, pico-train scrambles activations, which
                is undone.
            steps: checkpoints to import; by default all, which must be without a gap.
            dry_run: only check, and say what would be imported.
            on_progress: called with the checkpoints done and to do.

        Raises:
            DataError: if the folder is no such run, lacks a checkpoint, a file of it is broken, or
                it holds activations and nobody says on how many devices it ran.
            RunNameError: if the name is malformed, or that of another run.
            LeaseError: if another process writes the run.
            MissingExtraError: without torch.
        """
        try:
            from pico.importers import pico_train
        except ModuleNotFoundError as error:
            if error.name is not None and error.name.split(".")[0] == "torch":
                raise MissingExtraError("torch", "train") from None
            raise
        return pico_train.import_run(
            self.storage, os.fspath(path), run, devices, steps, dry_run, on_progress
        )

    def analyze(
        self,
        config: str | os.PathLike[str] | Mapping[str, Any],
        run: str,
        numbers: Numbers = "both",
        dry_run: bool = False,
        on_progress: Progress | None = None,
    ) -> Analyzed:
        """Compute what a config of pico-analyze asks for, and keep it in the table `metrics`.

        Args:
            config: path of its YAML file, or what such a file holds.
            run: name of the run.
            numbers: `ours`; `pico`, what pico-analyze itself gives; or both where they differ.
            dry_run: only say what would be computed.
            on_progress: called with the values done and to do.

        Raises:
            ConfigError: with every problem of the config, or if the run lacks what it asks for.
            RunNameError: if the lake has no such run.
            LeaseError: if another process analyzes the run.
        """
        from pico.importers import analysis

        given = config if isinstance(config, Mapping) else os.fspath(config)
        return analysis.analyze(self.storage, given, run, numbers, dry_run, on_progress)
