"""What a lake has of a run that is being imported, so that an import goes on where it stood.

Importers of runs ask it before they write, and again once they hold the run's stream.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pico.errors import RunNameError
from pico.lake.snapshot import Snapshot


@dataclass
class Present:
    """The part of a run that the lake has."""

    steps: set[int]
    """Its checkpoints."""
    is_last_caused: bool
    """Whether tensors of the training batch are there at the last checkpoint."""
    last_scalar: int
    """The last step with scalars, -1 for none."""
    note: dict[str, Any]
    """What the import noted about the run under `extra.import`."""

    @property
    def last(self) -> int:
        """The last checkpoint, -1 for none."""
        return max(self.steps, default=-1)

    @classmethod
    def of(cls, snapshot: Snapshot, run: str, format: str) -> Present:
        """Return what a lake has of a run.

        Raises:
            RunNameError: if the run was not imported from this format, or another run's name
                differs in case only.
        """
        twins = [name for name in snapshot.runs() if name.lower() == run.lower()]
        if not twins:
            return cls(set(), False, -1, {})
        row: dict[str, Any] = next(iter(snapshot.read("runs", ["extra"], [run]).to_pylist()), {})
        extra = json.loads(row.get("extra") or "{}") if twins == [run] else {}
        note = extra.get("import") if isinstance(extra, dict) else None
        if not isinstance(note, dict) or note.get("format") != format:
            raise RunNameError(
                f"run {twins[0]!r} is in {snapshot.storage.url} already and was not imported from "
                f"{format}; choose another name with --as"
            )
        steps = snapshot.read("checkpoints", ["global_step"], [run])["global_step"].to_pylist()
        last = max(steps, default=-1)
        probes = [
            snapshot.read(table, ["probe"], [run], [last])["probe"].to_pylist()
            for table in ("gradients", "activations")
        ]
        is_caused = any(probe is None for found in probes for probe in found)
        scalars = snapshot.read("scalars", ["global_step"], [run])["global_step"].to_pylist()
        return cls(set(steps), is_caused, max(scalars, default=-1), note)
