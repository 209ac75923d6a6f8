"""What a lake lacks of a run that another lake has, and in which commits it has to come.

`copy` asks, before it writes and again once it holds the run. The answer depends on the two logs
alone, so that a copy that was killed, or one of a run that went on or was resumed meanwhile, is the
same question again. Files are compared by name (or by the note of the copy); where the source has
merged files of which the target has the parts, and nothing else changed, the target keeps them.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from pico.errors import RunNameError
from pico.lake.log import Entry, LogReader
from pico.lake.snapshot import Snapshot, partition
from pico.lake.storage import Storage
from pico.upkeep import inventory
from pico.upkeep.copyfile import source_of

GROUP_BYTES = 256 * 1024 * 1024
GROUP_COMMITS = 64
"""A commit of a copy holds at most so many of the source's, and no further one beyond the bytes."""
_ELSEWHERE = "copy"


@dataclass
class History:
    """A lake's log at one moment, stream by stream."""

    storage: Storage
    streams: dict[str, list[Entry]]

    @classmethod
    def take(cls, storage: Storage, reader: LogReader) -> History:
        """Read the log; derived rows and replacements before what they were made of."""
        return cls(storage, {name: reader.stream(name) for name in reader.streams()})

    @cached_property
    def snapshot(self) -> Snapshot:
        """What counts at that moment."""
        entries = [entry for stream in self.streams.values() for entry in stream]
        return Snapshot(self.storage, entries)

    @cached_property
    def live(self) -> dict[str, Entry]:
        """Live files by path."""
        return {entry.path: entry for entry in self.snapshot.all_files()}

    @cached_property
    def paths(self) -> set[str]:
        """Every path that the log names."""
        return {entry.path for stream in self.streams.values() for entry in stream}

    @cached_property
    def added(self) -> dict[str, tuple[str, Entry]]:
        """Path → stream and entry of the commit that added it."""
        return {
            entry.path: (name, entry)
            for name, stream in self.streams.items()
            for entry in stream
            if entry.action == "add"
        }

    def place(self, path: str) -> tuple[str, str]:
        """Return stream and transaction whose place in history a file has."""
        stream, entry = self.added[path]
        origin = entry.stands_for
        return origin if origin and origin in self._positions else (stream, entry.txn)

    def position(self, path: str) -> int:
        """Return where in its stream's history a file stands."""
        return self._positions[self.place(path)]

    def interval(self, path: str) -> int:
        """Return between which of its run's checkpoints a file was committed."""
        return bisect.bisect_left(self._checkpoints[self.place(path)[0]], self.position(path))

    @cached_property
    def _positions(self) -> dict[tuple[str, str], int]:
        found: dict[tuple[str, str], int] = {}
        for name, stream in self.streams.items():
            for index, entry in enumerate(stream):
                found.setdefault((name, entry.txn), index)
        return found

    @cached_property
    def _checkpoints(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = defaultdict(list)
        for name, stream in self.streams.items():
            for entry in stream:
                if entry.action == "add" and entry.table == "checkpoints":
                    found[name].append(self._positions[name, entry.txn])
        return {name: sorted(set(found[name])) for name in self.streams}


@dataclass
class Group:
    """One commit of a copy."""

    stream: str
    withdraw: list[Entry] = field(default_factory=list)
    """Files of the target that do not count in the source any more."""
    add: list[Entry] = field(default_factory=list)
    """Files of the source."""
    stands_for: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Path in the source → place in the target's history, where it is not the commit's own."""


@dataclass
class RunPlan:
    """The commits that make a run of the target equal to the source's, in order."""

    groups: list[Group]
    native_tables: tuple[str, ...]
    """Tables of which the target has derived rows of its own, and gets more."""

    @property
    def bytes(self) -> int:
        """Size of all files to copy."""
        return sum(entry.bytes for group in self.groups for entry in group.add)


def plan(source: History, target: History, run: str, name: str) -> RunPlan:
    """Return what has to be committed so that run `name` of the target is the source's `run`.

    Raises:
        RunNameError: if the run has a history of its own in the target.
    """
    return _Planner(source, target, run, name).plan()


class _Planner:
    def __init__(self, source: History, target: History, run: str, name: str) -> None:
        self._source, self._target, self._run, self._name = source, target, run, name
        self._copies: dict[str, list[Entry]] = defaultdict(list)
        self._native: set[str] = set()
        own: dict[str, str] = {}
        for path, (_, entry) in source.added.items():
            if _is_of(path, run):
                own.setdefault(source_of(entry), path)  # a copy that went on and is copied back
                own[path] = path
        for entry in target.live.values():
            if not _is_of(entry.path, name):
                continue
            origin = own.get(source_of(entry)) or own.get(entry.path)
            if origin is not None:
                self._copies[origin].append(entry)
                continue
            stream = target.added[entry.path][0]
            if stream in (f"train.{name}", f"derive.{name}.upkeep"):
                raise RunNameError(
                    f"run {name!r} was changed in {target.storage.url} after it was copied there "
                    f"({stream} committed {entry.path}); copy it under another name (--as), or "
                    "remove it there first (pico rm)"
                )
            self._native.add(entry.table)

    def plan(self) -> RunPlan:
        lacking: dict[str, list[Entry]] = defaultdict(list)
        first: dict[str, Group] = {}
        ends: dict[str, int] = {}
        train = self._stream(f"train.{self._run}")
        first[train] = Group(train)
        for (stream, _, _), (missing, dead) in sorted(self._by_key().items()):
            if missing and dead and self._is_merged_only(missing, dead):
                continue
            lacking[stream] += missing
            if dead:
                at = stream if missing else train  # as a resume withdraws what derives from it
                copies = [copy for path in dead for copy in self._copies[path]]
                first.setdefault(at, Group(at)).withdraw += copies
                if missing:
                    last = max(self._source.position(entry.path) for entry in missing)
                    ends[stream] = max(ends.get(stream, -1), last)
        groups: list[Group] = []
        for stream in [train, *sorted(set(first) | set(lacking) - {train})]:
            if any(group.stream == stream for group in groups):
                continue
            begun = first.get(stream, Group(stream))
            groups += self._groups(begun, lacking[stream], ends.get(stream, -1))
        gets = {entry.table for group in groups for entry in group.add}
        return RunPlan(groups, tuple(sorted(self._native & gets)))

    def _by_key(self) -> dict[tuple[str, str, int], tuple[list[Entry], list[str]]]:
        """Return, per stream, table and checkpoint interval, what lacks and what is dead."""
        found: dict[tuple[str, str, int], tuple[list[Entry], list[str]]] = defaultdict(
            lambda: ([], [])
        )
        for path, entry in self._source.live.items():
            if _is_of(path, self._run) and path not in self._copies:
                found[self._key(path)][0].append(entry)
        for path in self._copies:
            if path not in self._source.live:
                found[self._key(path)][1].append(path)
        return found

    def _key(self, path: str) -> tuple[str, str, int]:
        stream = self._source.place(path)[0]
        table = self._source.added[path][1].table
        return self._stream(stream), table, self._source.interval(path)

    def _is_merged_only(self, missing: Sequence[Entry], dead: Sequence[str]) -> bool:
        """Whether the source has merged or migrated just what the target has in other files."""
        position = self._source.position
        return (
            all(entry.stands_for for entry in missing)
            and max(position(e.path) for e in missing) == max(position(path) for path in dead)
            and sum(entry.rows for entry in missing)
            == sum(copy.rows for path in dead for copy in self._copies[path])
        )

    def _groups(self, begun: Group, lacking: Iterable[Entry], end: int) -> list[Group]:
        """Cut files into commits, in the source's order; none spans a checkpoint."""
        position = self._source.position
        groups, group, n_commits, at = [begun], begun, 0, -1
        ordered = sorted(lacking, key=lambda entry: (position(entry.path), entry.path))
        for entry in ordered:
            here = position(entry.path)
            if here != at:
                n_commits += 1
                n_bytes = sum(item.bytes for item in group.add)
                holds_checkpoint = any(item.table == "checkpoints" for item in group.add)
                is_full = n_bytes >= GROUP_BYTES or n_commits > GROUP_COMMITS
                if at >= end and group.add and (is_full or holds_checkpoint):
                    group, n_commits = Group(begun.stream), 1
                    groups.append(group)
            at = here
            group.add.append(entry)
            after = self._checkpoint_after(begun, here) if begun.stream[:6] == "train." else None
            if after is not None:
                group.stands_for[entry.path] = after
        return [group for group in groups if group.add or group.withdraw]

    def _checkpoint_after(self, begun: Group, position: int) -> tuple[str, str] | None:
        """Return the place of the next checkpoint that the target has and keeps."""
        gone = {entry.path for entry in begun.withdraw}
        for at, place, path in self._checkpoints:
            if at >= position and path not in gone:
                return place
        return None

    @cached_property
    def _checkpoints(self) -> list[tuple[int, tuple[str, str], str]]:
        found = [
            (self._source.position(path), self._target.place(copy.path), copy.path)
            for path, copies in self._copies.items()
            for copy in copies
            if copy.table == "checkpoints"
        ]
        return sorted(found)

    def _stream(self, stream: str) -> str:
        """Return the target's stream for what a stream of the source holds of the run."""
        if stream == f"train.{self._run}":
            return f"train.{self._name}"
        kind, _, rest = stream.partition(".")
        is_own = kind == "derive" and inventory.owner(stream) == self._run
        writer = rest.rpartition(".")[2] if is_own else _ELSEWHERE
        return f"derive.{self._name}.{writer}"


def _is_of(path: str, run: str) -> bool:
    return partition(path).get("run") == run
