"""Imports a run of pico-train: a commit per checkpoint, as if it had been recorded here.

`Lake.import_pico_train` and `pico import pico-train` call `import_run`. The commit of checkpoint s
holds the state at s (weights, optimizer where it was kept, activations and gradients of the `val`
probe) and what batches before s caused (captures of the training batch, logged numbers); what the
last batch caused comes in a commit of its own. So a run that was imported can be resumed from,
compared and verified like any other, an import that was interrupted goes on where it stood, and one
that is complete has nothing to do.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pico.errors import DataError
from pico.importers import pico_folder
from pico.importers.pico_folder import CONFIG, RunFolder, StepFolder
from pico.importers.pico_rows import FORMAT
from pico.importers.pico_writer import Counts, Writer
from pico.importers.present import Present
from pico.importers.ptfile import PtReader
from pico.lake.commit import Stream, Transaction
from pico.lake.names import check_name
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage

Progress = Callable[[int, int], None]
_TABLES = ("weights", "activations", "gradients", "optimizer")


@dataclass
class Imported:
    """What an import did, or would do."""

    run: str
    steps: list[int]
    """Checkpoints that were imported."""
    n_present: int
    """Checkpoints that were there already."""
    n_bytes: int
    """Bytes of the files read."""
    tables: dict[int, Counts] = field(default_factory=dict)
    """By step and table the tensors written; of a dry run, the files to read."""
    is_dry: bool = False

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per checkpoint imported."""
        nothing = dict.fromkeys(_TABLES, 0)
        return [{"step": step, **nothing, **self.tables.get(step, {})} for step in self.steps]

    def __str__(self) -> str:
        """Say it in a line, for people."""
        verb = "to import" if self.is_dry else "imported"
        n_tensors = sum(n for counts in self.tables.values() for n in counts.values())
        tensors = "" if self.is_dry else f"{n_tensors} tensors, "
        return (
            f"run {self.run!r}: {len(self.steps)} checkpoints {verb} "
            f"({tensors}{self.n_bytes / 1e6:.1f} MB read), {self.n_present} there already"
        )


def import_run(
    storage: Storage,
    path: str | Path,
    run: str | None = None,
    devices: int | None = None,
    steps: Collection[int] | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Imported:
    """Import the checkpoints of a run of pico-train that the lake does not have yet.

    Args:
        storage: the lake, made if there is none.
        path: folder of the run.
        run: its name in the lake; by default the one that pico-train gave it.
        devices: on how many it was trained; asked for where activations were captured.
        steps: checkpoints to import; by default all, which must be without a gap.
        dry_run: only check, and say what would be imported.
        progress: called with the checkpoints done and to do.

    Raises:
        DataError: if the folder is no such run, lacks a checkpoint, or a file of it is broken;
            the checkpoints before that stay imported, and nothing of the broken one shows.
        RunNameError: if the name is malformed, or that of another run.
        LeaseError: if another process writes the run.
        MissingExtraError: without torch.
    """
    folder = pico_folder.find(path)
    name = check_name(run or re.sub(r"[^A-Za-z0-9._-]+", "-", folder.name))
    chosen = folder.chosen(steps)
    snapshot = Snapshot.take_or_empty(storage)
    present = Present.of(snapshot, name, FORMAT)
    devices = _devices(folder, chosen, devices, present)
    todo = _todo(name, chosen, present)
    done = Imported(
        name,
        [step.step for step in todo],
        len(chosen) - len(todo),
        sum(step.n_bytes for step in todo),
        tables={step.step: _files(step) for step in todo} if dry_run else {},
        is_dry=dry_run,
    )
    with PtReader(max(step.largest for step in folder.steps)) as reader:
        writer = Writer(name, folder, devices, reader, present)
        writer.check_same(snapshot)
        if dry_run or not (todo or writer.has_rest()):
            return done
        with Stream(storage, f"train.{name}") as stream:
            # Under the lease: what another import has written meanwhile is not to be done again.
            writer.present = Present.of(Snapshot.take_or_empty(storage), name, FORMAT)
            for n_done, step in enumerate(_todo(name, chosen, writer.present)):
                if progress is not None:
                    progress(n_done, len(todo))
                done.tables[step.step] = _commit(stream, lambda t, s=step: writer.checkpoint(t, s))  # type: ignore[misc]
                writer.committed(step)
            _commit(stream, writer.rest)
    if progress is not None:
        progress(len(todo), len(todo))
    return done


def _todo(run: str, chosen: Sequence[StepFolder], present: Present) -> list[StepFolder]:
    """Return the checkpoints that the lake does not have.

    Raises:
        DataError: if one of them would have to stand before one that is there.
    """
    todo = [step for step in chosen if step.step not in present.steps]
    if todo and todo[0].step < present.last:
        raise DataError(
            f"run {run!r} has checkpoint {present.last} already, step {todo[0].step} cannot come "
            "after it; import the folder anew under another name with --as"
        )
    return todo


def _devices(
    folder: RunFolder, chosen: Sequence[StepFolder], devices: int | None, present: Present
) -> int | None:
    """Return on how many devices a run was trained, as somebody has said.

    Raises:
        DataError: if it matters and nobody has, or the lake says otherwise.
    """
    if devices is not None and devices < 1:
        raise DataError(f"--devices must be at least 1, not {devices}")
    before = present.note.get("devices")
    if devices is None or before is None or devices == before:
        devices = before if devices is None else devices
    else:
        raise DataError(
            f"the run was imported with --devices {before} before, not {devices}; import it anew "
            "under another name with --as"
        )
    has_any = any(kind == "activations" for step in chosen for _, kind in step.captures)
    if devices is None and has_any:
        fabric = ("training", "fabric")
        told = [folder.get(*fabric, key, default=None) for key in ("num_devices", "num_nodes")]
        hint = ""
        if all(type(n) is int for n in told):
            hint = f"; {CONFIG} speaks of {told[0] * told[1]}"
        raise DataError(
            f"{folder.path} holds activations, which pico-train scrambles when it runs on one "
            f"device: say on how many it ran with --devices 1 or --devices N{hint}"
        )
    return devices


def _commit(stream: Stream, write: Callable[[Transaction], Counts]) -> Counts:
    transaction = stream.begin()
    try:
        counts = write(transaction)
        transaction.commit()
    except BaseException:
        transaction.rollback()
        raise
    return counts


def _files(step: StepFolder) -> dict[str, int]:
    """Return the files that a step has, by what they hold: for a look before an import."""
    kinds = [table for _, table in step.files()]
    return {table: kinds.count(table) for table in _TABLES}
