"""Whether the log is whole: no gaps, every file readable, level files equal to what they copy.

`verify` calls it. Damage is reported, never raised: what can be read is read, a damaged commit from
the level file that copies it, so that the rest of the lake can still be judged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from pico.errors import CorruptError, LakeError, SchemaError
from pico.lake import lease, log
from pico.lake.log import Entry
from pico.lake.snapshot import partition
from pico.lake.storage import Storage
from pico.upkeep import inventory
from pico.upkeep.report import Finding

_READERS = 8

_LOSSES = ("log.gap", "log.lost", "log.damaged")

Contents = dict[str, list[Entry] | None]
"""Log file → its entries; None where it cannot be read."""


@dataclass
class LogState:
    """What the log says, as far as it can be read, and what is wrong with it."""

    entries: list[Entry] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    n_streams: int = 0
    n_commits: int = 0

    @property
    def lost(self) -> set[str]:
        """Streams of which a commit is missing or damaged."""
        return {
            path.split("/")[1]
            for path in (item.path or "" for item in self.findings if item.kind in _LOSSES)
            if not _level(path)
        }


def check(storage: Storage, wanted: Callable[[str], bool] = lambda stream: True) -> LogState:
    """Read and compare the whole log.

    A finding is believed only when a second look confirms it: a listing that overlaps a commit
    can lack files that were there before others that it has.

    Args:
        storage: the lake's place.
        wanted: whether findings about a stream are wanted; all streams are read.
    """
    first = _look(storage, wanted)
    if not first.findings:
        return first
    before = {(item.kind, item.path) for item in first.findings}
    second = _look(storage, wanted)
    second.findings = [item for item in second.findings if (item.kind, item.path) in before]
    return second


def _look(storage: Storage, wanted: Callable[[str], bool]) -> LogState:
    state = LogState()
    told = _told(storage)  # before the log is listed, so that the log has what leases tell
    streams = log.by_stream(storage.paths(log.ROOT))
    for stream, last in told.items():
        found = log.last_seq(streams.get(stream, []))
        if found < last and wanted(stream):
            message = f"the log of {stream} ends at commit {found}, but commit {last} was made"
            path = log.commit_path(stream, found + 1)
            state.findings.append(Finding("log.lost", message, path, inventory.owner(stream)))
    for stream, paths in streams.items():
        with ThreadPoolExecutor(_READERS) as pool:
            reads = pool.map(partial(_read, storage), paths)
            contents: Contents = {}
            for path, (entries, problem) in zip(paths, reads, strict=True):
                contents[path] = entries
                if problem is not None and wanted(stream):
                    state.findings.append(problem)
        commits = {log.last_seq([p]): p for p in paths if _level(p) == 0}
        state.n_streams += 1
        state.n_commits += len(commits)
        state.entries += _entries(commits, contents, log.last_seq(paths))
        if wanted(stream):
            state.findings += _gaps(stream, commits, log.last_seq(paths))
            state.findings += _levels(stream, commits, contents)
    if not state.lost:
        state.findings += _contradictions(state.entries)
    return state


def _told(storage: Storage) -> dict[str, int]:
    """Return the last commit of each stream that a lease tells of."""
    told = {}
    for stream in {path.split("/")[1] for path in storage.paths(inventory.LEASES)}:
        try:
            holder = lease.holder(storage, stream)
        except CorruptError:
            continue  # a finding of its own
        if holder is not None:
            told[stream] = holder.last_seq
    return told


def _read(storage: Storage, path: str) -> tuple[list[Entry] | None, Finding | None]:
    run = inventory.owner(path.split("/")[1])
    try:
        return log.read_file(storage, path), None
    except (LakeError, SchemaError, FileNotFoundError) as error:
        return None, Finding("log.damaged", str(error), path, run)


def _level(path: str) -> int:
    folder = path.split("/")[-2]
    return int(folder.removeprefix("level=")) if folder.startswith("level=") else 0


def span(path: str) -> range:
    """Return the numbers of the commits that a log file holds."""
    last = log.last_seq([path])
    return range(last - log.FANOUT ** _level(path) + 1, last + 1)


def _entries(commits: Mapping[int, str], contents: Contents, last: int) -> list[Entry]:
    """Return the entries of a stream in order; lost commits are taken from their copies."""
    by_seq = {seq: contents[path] for seq, path in commits.items()}
    copies = {path: found for path, found in contents.items() if _level(path) and found is not None}
    entries: dict[tuple[int, str, str], Entry] = {}
    is_whole = all(by_seq.get(seq) is not None for seq in range(last + 1))
    for seq in range(last + 1):
        found = by_seq.get(seq)
        if found is None:
            copy = next((path for path in copies if seq in span(path)), None)
            found = copies[copy] if copy else []
        for entry in found:  # a copy holds commits that stand as well; those count once
            entries.setdefault((seq if is_whole else 0, entry.action, entry.path), entry)
    return list(entries.values())


def _gaps(stream: str, commits: Mapping[int, str], last: int) -> Iterator[Finding]:
    """Yield a finding per stretch of missing commits; level files replace none of them."""
    run = inventory.owner(stream)
    seq = 0
    while seq <= last:
        if seq in commits:
            seq += 1
            continue
        first = seq
        while seq <= last and seq not in commits:
            seq += 1
        path = log.commit_path(stream, first)
        n_more = seq - first - 1
        also = f" and the {n_more} after it are" if n_more else " is"
        yield Finding("log.gap", f"{path}{also} missing although later commits stand", path, run)


def _levels(stream: str, commits: Mapping[int, str], contents: Contents) -> Iterator[Finding]:
    """Yield level files that differ from their commits, and those that should be there."""
    run = inventory.owner(stream)
    for path in filter(_level, contents):
        parts = [contents.get(commits.get(seq, "")) for seq in span(path)]
        copied = contents[path]
        if copied is None or any(part is None for part in parts):
            continue
        if copied != [entry for part in parts for entry in part or []]:
            message = f"{path} differs from the commits that it copies"
            yield Finding("log.level", message, path, run)
    for path in missing_levels(stream, contents):
        # The commit after it would have been refused while it was being written.
        message = f"{path} is missing; pico compact writes it"
        yield Finding("log.level-missing", message, path, run)


def missing_levels(stream: str, paths: Iterable[str]) -> list[str]:
    """Return the level files that a stream's commits complete and that are not there."""
    present = set(paths)
    n_commits = log.last_seq(present)  # the last one's copies may be under way
    level, found = 1, []
    while log.FANOUT**level <= n_commits:
        for end in range(log.FANOUT**level, n_commits + 1, log.FANOUT**level):
            path = f"{log.ROOT}/{stream}/level={level}/{end - 1:012d}.parquet"
            if path not in present:
                found.append(path)
        level += 1
    return found


def _contradictions(entries: Iterable[Entry]) -> Iterator[Finding]:
    """Yield files that were added twice, or taken away and never added."""
    entries = list(entries)
    added = Counter(entry.path for entry in entries if entry.action == "add")
    for path, times in added.items():
        if times > 1:
            yield Finding("log.twice", f"{times} commits add {path}", path, _run(path))
    gone = dict.fromkeys(entry.path for entry in entries if entry.action != "add")
    for path in gone:
        if path not in added:
            message = f"a commit takes {path} away, which none has added"
            yield Finding("log.unknown", message, path, _run(path))


def _run(path: str) -> str | None:
    return partition(path).get("run")
