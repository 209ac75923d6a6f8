"""`pico copy`: whole runs from one lake into another, or under another name; merging two lakes.

`Lake.copy` calls `copy`. Nothing is written before everything is checked that could forbid it. Then
data sets, the runs' own commits in the source's order, and what derives from them go over; a step
of the source appears whole or not at all, and none shares a commit with what follows a checkpoint,
so that a copied run can be resumed from any of its checkpoints. A copy that was killed, or whose
source went on meanwhile, is finished by calling again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pico.errors import ConfigError, NotALakeError, RunNameError
from pico.lake import log
from pico.lake.commit import Stream
from pico.lake.log import LogReader
from pico.lake.names import check_name
from pico.lake.storage import Storage
from pico.upkeep import copydata, copyfile, copyplan, places
from pico.upkeep.copyfile import CopyTransaction
from pico.upkeep.copyplan import Group, History

Progress = Callable[[int, int], None]


@dataclass
class Copied:
    """What was copied, or would be."""

    source: str
    target: str
    runs: tuple[str, ...] = ()
    """Names in the target of all runs asked for, those that were there already included."""
    datasets: tuple[str, ...] = ()
    """Data sets and tokenizers that were copied."""
    files: int = 0
    bytes: int = 0
    withdrawn: int = 0
    """Files of the target that do not count in the source any more."""
    warnings: list[str] = field(default_factory=list)
    dry_run: bool = False

    def __str__(self) -> str:
        """Say it in a line, and in one more for each warning."""
        done = "would copy" if self.dry_run else "copied"
        n_runs = f"{len(self.runs):,} run{'' if len(self.runs) == 1 else 's'}"
        if self.files or self.withdrawn:
            told = f"{done} {n_runs} ({', '.join(self.runs)}) to {self.target}: "
            told += f"{self.files:,} files ({places.size(self.bytes)})"
            if self.withdrawn:
                told += f"; {self.withdrawn:,} files there do not count any more"
        else:
            told = f"nothing to copy: {self.target} has {n_runs} already"
        return "\n".join([told, *(f"warning: {item}" for item in self.warnings)])


def copy(
    source: Storage,
    target: Storage,
    *,
    runs: Sequence[str] | None = None,
    as_name: str | None = None,
    datasets: bool = True,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Copied:
    """Copy runs with the data sets, vocabularies and probes that they use.

    A run under another name is another run: it gets a `run_uuid` of its own (the same each time),
    its `runs.extra` says what it is a copy of, and `parent_run` stays what it was.

    Args:
        source: the lake to read; the right to read is enough, and it may be written meanwhile.
        target: the lake to write; made if there is none.
        runs: names of the runs; by default all, which merges the source into the target.
        as_name: another name for the one run that is copied.
        datasets: whether data sets and vocabularies come along.
        dry_run: only check, and say what would be copied.
        progress: called with the bytes copied and the bytes to copy.

    Raises:
        NotALakeError: if the source is no lake, or the target is something else.
        RunNameError: for an unknown run, or names that other runs of the target have.
        DataError: for data sets, vocabularies or probes that differ from the target's of that name.
        ConfigError: if `as_name` is given with several runs.
        LeaseError: if a run is being written in the target.
        CorruptError: if a file of the source is missing or damaged.
        StorageError: if the target's store refuses; call again when it does not.
    """
    task = _Task(source, target, datasets, progress)
    names = task.names(runs, as_name)
    task.check_names(names)
    plans = {run: copyplan.plan(task.source, task.now, run, name) for run, name in names.items()}
    data = task.data(list(names))
    groups = [*data, *(group for planned in plans.values() for group in planned.groups)]
    task.total = sum(entry.bytes for group in groups for entry in group.add)
    told = task.told
    told.runs, told.dry_run = tuple(names.values()), dry_run
    for run, planned in plans.items():
        told.warnings += [
            f"{target.url} has {table} of run {names[run]!r} of its own; rows may stand there twice"
            for table in planned.native_tables
        ]
    if dry_run:
        for group in groups:
            task.count(group)
        return told
    if data:
        task.copy_data(list(names))
    for run, name in names.items():
        if plans[run].groups:
            task.copy_run(run, name)
    return told


class _Task:
    """One call of `copy`."""

    def __init__(
        self, source: Storage, target: Storage, datasets: bool, progress: Progress | None
    ) -> None:
        self.source = History.take(source, LogReader(source))
        if not self.source.streams and not source.paths(log.ROOT):
            raise NotALakeError(f"no lake at {source.url!r}; name the one to copy from")
        self._with_data, self._progress = datasets, progress
        self._target, self._reader = target, LogReader(target)
        self.now = History.take(target, self._reader)
        self.told = Copied(source.url, target.url)
        self.total = self._done = 0

    def names(self, runs: Sequence[str] | None, as_name: str | None) -> dict[str, str]:
        """Return the runs to copy with their names in the target."""
        snapshot = self.source.snapshot
        wanted = snapshot.runs() if runs is None else [snapshot.check_run(run) for run in runs]
        if as_name is None:
            return {run: run for run in wanted}
        if len(wanted) != 1:
            raise ConfigError(
                f"one run can be copied as {as_name!r}, not {len(wanted)}; name the run"
            )
        return {wanted[0]: check_name(as_name)}

    def check_names(self, names: dict[str, str]) -> None:
        """Refuse names that belong to other runs of the target, all of them at once."""
        ours, theirs = _identities(self.source), _identities(self.now)
        problems = []
        for run, name in names.items():
            is_new = run != name
            mine = copyfile.new_uuid(ours.get(run) or "", name) if is_new else ours.get(run)
            twins = [other for other in theirs if other.lower() == name.lower()]
            for other in twins:
                if other != name:
                    problems.append(f"{name!r} differs from {other!r} in case only")
                elif theirs[other] != mine:
                    problems.append(f"{name!r} is another run there")
        if problems:
            raise RunNameError(
                f"{self._target.url} has runs with names that the copy needs: "
                f"{'; '.join(problems)}; copy each under another name (--as), nothing was written"
            )

    def data(self, runs: list[str]) -> list[Group]:
        """Return the commits that bring the data which runs use."""
        return copydata.plan(self.source, self.now, runs) if self._with_data else []

    def copy_data(self, runs: list[str]) -> None:
        """Copy what lacks of the data; another writer's data set is looked at again."""
        for stream_name in [group.stream for group in self.data(runs)]:
            with Stream(self._target, stream_name) as stream:
                self.now = History.take(self._target, self._reader)
                for group in self.data(runs):
                    if group.stream == stream_name:
                        self._commit(stream, group, None)

    def copy_run(self, run: str, name: str) -> None:
        """Copy what lacks of a run, under the leases of the streams that it goes to."""
        with Stream(self._target, f"train.{name}") as train:
            self.now = History.take(self._target, self._reader)
            self.check_names({run: name})
            for group in copyplan.plan(self.source, self.now, run, name).groups:
                if group.stream == train.name:
                    self._commit(train, group, name if run != name else None)
            for stream_name in self._derived(run, name):
                with Stream(self._target, stream_name) as stream:
                    self.now = History.take(self._target, self._reader)
                    for group in copyplan.plan(self.source, self.now, run, name).groups:
                        if group.stream == stream_name:
                            self._commit(stream, group, name if run != name else None)

    def _derived(self, run: str, name: str) -> list[str]:
        self.now = History.take(self._target, self._reader)
        groups = copyplan.plan(self.source, self.now, run, name).groups
        return sorted({group.stream for group in groups} - {f"train.{name}"})

    def count(self, group: Group) -> None:
        """Note what a commit brings and takes."""
        told = self.told
        told.files += len(group.add)
        told.bytes += sum(entry.bytes for entry in group.add)
        told.withdrawn += len(group.withdraw)
        if group.stream.startswith("data."):
            told.datasets = tuple(sorted({*told.datasets, *copydata.named(group)}))

    def _commit(self, stream: Stream, group: Group, name: str | None) -> None:
        """Copy the files of a group and publish them at once."""
        transaction = CopyTransaction(stream)
        stream._open.append(transaction)
        transaction.take_away(group.withdraw, withdraw=True)
        source = self.source.storage
        for entry in group.add:
            place = group.stands_for.get(entry.path)
            if name is None:
                copyfile.copy_bytes(source, transaction, entry, self.now.paths, place)
            else:
                copyfile.rewrite(source, transaction, entry, name, place)
            self._done += entry.bytes
            if self._progress is not None:
                self._progress(min(self._done, self.total), self.total)
        transaction.commit()
        self.count(group)


def _identities(history: History) -> dict[str, str | None]:
    """Return the runs of a lake with their `run_uuid`; None for one without a `runs` row."""
    found: dict[str, str | None] = dict.fromkeys(history.snapshot.runs())
    for row in history.snapshot.read("runs", ["run_id", "run_uuid"]).to_pylist():
        found[row["run_id"]] = row["run_uuid"]
    return found
