"""`pico gc`: deletes what no reader and no writer can want any more.

`Lake.gc` calls `gc`. It deletes only, and only when older than the grace age: files that a commit
has taken away; files and staging of writers that died; what single puts and uploads left behind;
leases of epochs that are over. A live file is never touched: files are listed before leases and log
are read, and a stream whose last writer did not let it go is fenced before its files are judged.
Being killed at any moment leaves the lake valid.
"""

from __future__ import annotations

import math
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pico.errors import ConfigError, CorruptError, LeaseError, NotALakeError
from pico.lake import lease, log
from pico.lake.log import Entry
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage, StoredFile
from pico.upkeep import inventory, places
from pico.upkeep.inventory import Inventory

__all__ = ["GRACE", "Collected", "Garbage", "age", "gc"]

GRACE = 24 * 3600.0
"""Seconds that what was taken away stays, for readers that still read it."""
_PORTION = 256
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

Dated = tuple[Entry, float]
"""What the log says of a file, and a time not earlier than the commit that says so."""
What = Literal["taken away", "uncommitted", "unfinished", "old lease", "upload"]


@dataclass(frozen=True)
class Garbage:
    """A file to delete: what it is, and its size."""

    what: What
    path: str
    bytes: int


@dataclass(frozen=True)
class Collected:
    """What gc deleted, or would delete."""

    items: tuple[Garbage, ...]
    dry_run: bool = False

    @property
    def bytes(self) -> int:
        """Bytes freed."""
        return sum(item.bytes for item in self.items)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per file."""
        return [asdict(item) for item in self.items]

    def __str__(self) -> str:
        """Say in one line how much of what was deleted."""
        if not self.items:
            return "nothing to delete"
        counts = Counter(item.what for item in self.items)
        what = ", ".join(f"{number:,} {kind}" for kind, number in counts.items())
        done = "would delete" if self.dry_run else "deleted"
        n_files = f"{len(self.items):,} file{'s' if len(self.items) > 1 else ''}"
        return f"{done} {n_files}, {places.size(self.bytes)}: {what}"


def age(given: float | str) -> float:
    """Return an age in seconds: a number of them, or text with the unit `s`, `m`, `h` or `d`.

    >>> age("24h")
    86400.0

    Raises:
        ConfigError: for what is no age.
    """
    text = str(given).strip().lower()
    unit = _UNITS.get(text[-1:], 0)
    try:
        seconds = float(text[:-1]) * unit if unit else float(text)
    except ValueError:
        seconds = math.nan
    if isinstance(given, str) and seconds and not unit:
        seconds = math.nan  # `7` might be meant as days
    if not 0 <= seconds < math.inf:
        raise ConfigError(f"{given!r} is no age; write it with its unit: 24h, 7d, 30m or 90s")
    return seconds


def gc(
    storage: Storage,
    *,
    older_than: float = GRACE,
    dry_run: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Collected:
    """Delete what is of no use and older than a grace age.

    Args:
        storage: the lake's place.
        older_than: the grace age in seconds. It must exceed the time that a reader keeps a
            snapshot and that a writer needs for one commit.
        dry_run: only say what would be deleted.
        progress: called with the files deleted and the files to delete.

    Raises:
        NotALakeError: if there is no log.
        CorruptError: if the log is damaged: then nothing is known to be of no use.
    """
    found = inventory.take(storage)
    before = time.time() - older_than
    dated = _dated(storage, found)
    if not dated and not log.by_stream(found.files):
        raise NotALakeError(f"no lake at {storage.url!r}; name another with --lake")
    items = [
        *(
            Garbage("taken away", f.path, f.size)
            for f in _taken_away(storage, found, dated, before)
        ),
        *_uncommitted(storage, found, {entry.path for entry, _ in dated}, before, dry_run),
        *(
            Garbage("unfinished", f.path, f.size)
            for f in _unfinished(storage, found, before, dry_run)
        ),
        *(Garbage("old lease", f.path, f.size) for f in found.old_leases() if f.modified < before),
    ]
    uploads = [upload for upload in storage.unfinished_uploads() if upload.started < before]
    if not dry_run:
        _delete(storage, items, progress or (lambda done, total: None))
        storage.abort_uploads(uploads)
    items += [Garbage("upload", upload.path, 0) for upload in uploads]
    return Collected(tuple(items), dry_run)


def _dated(storage: Storage, found: Inventory) -> list[Dated]:
    """Return every entry of the log, dated.

    Level files are read instead of commits; an entry then counts as old as the youngest commit
    beside it, which only makes gc wait longer.
    """
    dated: list[Dated] = []
    streams = log.by_stream(storage.paths(log.ROOT))
    for stream, holder in found.holders.items():
        if holder is not None and log.last_seq(streams.get(stream, [])) < holder.last_seq:
            raise CorruptError(
                f"commit {holder.last_seq} of {stream} was made and is lost; nothing is deleted "
                "from a lake whose log lacks commits (pico verify tells more)"
            )
    for stream, paths in streams.items():
        gap = log.first_gap(paths)
        if gap >= 0:
            raise CorruptError(
                f"{log.commit_path(stream, gap)} is missing; nothing is deleted from a lake whose "
                "log has a gap"
            )
        following = 0
        for path in log.cover(paths):
            last = log.last_seq([path])
            commits = [log.commit_path(stream, seq) for seq in range(following, last + 1)]
            following = last + 1
            when = max(
                found.files[item].modified if item in found.files else time.time()
                for item in commits
            )
            try:
                dated += [(entry, when) for entry in log.read_file(storage, path)]
            except FileNotFoundError:
                raise CorruptError(f"{path} has vanished; is another program deleting?") from None
    return dated


def _taken_away(
    storage: Storage, found: Inventory, dated: Sequence[Dated], before: float
) -> Iterator[StoredFile]:
    """Yield files that do not count since before the cutoff."""
    live = {e.path for e in Snapshot(storage, [entry for entry, _ in dated]).all_files()}
    withdrawn = _first(((e.path, when) for e, when in dated if e.action == "withdraw"))
    void = _void_since(dated, withdrawn)
    removed = _first(
        (e.path, when) for e, when in dated if e.action == "remove" and e.txn not in void
    )
    for entry, _ in dated:
        if entry.action != "add" or entry.path in live or entry.path not in found.files:
            continue
        since = [
            withdrawn.get(entry.path, math.inf),
            removed.get(entry.path, math.inf),
            void.get(entry.txn, math.inf),
        ]
        if min(since) < before:
            yield found.files[entry.path]


def _void_since(dated: Sequence[Dated], withdrawn: Mapping[str, float]) -> dict[str, float]:
    """Return since when each void replacement does not count, by transaction.

    `lake.live` says which are void; this says when they became so: at the first withdrawal of a
    file that they replace, or when the replacement that had added such a file became void.
    """
    replacing = {e.txn: when for e, when in dated if e.action == "add" and e.stands_for}
    added_by = {e.path: e.txn for e, _ in dated if e.action == "add"}
    replaced: dict[str, list[str]] = {txn: [] for txn in replacing}
    for entry, _ in dated:
        if entry.action == "remove" and entry.txn in replacing:
            replaced[entry.txn].append(entry.path)
    void: dict[str, float] = {}
    while True:
        known = dict(void)
        for txn, paths in replaced.items():
            reasons = [withdrawn[path] for path in paths if path in withdrawn]
            reasons += [known[added_by[p]] for p in paths if added_by.get(p) in known]
            if reasons:
                void[txn] = max(replacing[txn], min(reasons))
        if void == known:
            return void


def _first(times: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Return the earliest time of each path."""
    first: dict[str, float] = {}
    for path, when in times:
        first[path] = min(when, first.get(path, when))
    return first


def _uncommitted(
    storage: Storage, found: Inventory, named: set[str], before: float, dry_run: bool
) -> Iterator[Garbage]:
    """Yield old data files of streams without a live writer that no commit names or will name."""
    old = [file for file in found.unnamed(named) if file.modified < before]
    for streams, files in places.by(old, lambda f: tuple(found.writers_of(f.path))).items():
        if any(found.is_held(stream) for stream in streams):
            continue
        if dry_run:
            committed: set[str] = set()
        elif all(_fence(storage, found, stream) for stream in streams):
            committed = {e.path for e in log.LogReader(storage).entries()}
        else:
            continue
        for file in files:
            if file.path not in committed:
                yield Garbage("uncommitted", file.path, file.size)


def _fence(storage: Storage, found: Inventory, stream: str) -> bool:
    """Make sure that no earlier writer of a stream can commit any more; False: it is in use.

    A writer that is only asleep could wake up and commit files that were deleted meanwhile. A new
    epoch and an empty commit in the place of its next one stop it.
    """
    holder = found.holders.get(stream)
    if stream not in found.holders or (holder is not None and holder.released):
        return True
    try:
        mine = lease.acquire(storage, stream)
    except LeaseError:
        return False
    try:
        seq = log.last_seq(log.listed(storage, stream)) + 1
        epoch = str(mine.epoch)
        metadata = {"txn": uuid.uuid4().hex, "stream": stream, "last": str(seq), "epoch": epoch}
        if storage.put_new(log.commit_path(stream, seq), log.encode([], metadata)):
            mine.last_seq = seq
            log.consolidate(storage, stream, seq)
    finally:
        mine.release(tidy=False)  # what is younger stays for the next writer to clear
    return True


def _unfinished(
    storage: Storage, found: Inventory, before: float, dry_run: bool
) -> Iterator[StoredFile]:
    """Yield old unfinished files of streams without a live writer, and of puts."""
    old = [item for item in found.staged() if item[0].modified < before]
    for stream, items in places.by(old, lambda item: item[1]).items():
        if stream is not None and found.is_held(stream):
            continue
        if stream is None or dry_run or _fence(storage, found, stream):
            yield from (file for file, _ in items)


def _delete(storage: Storage, items: list[Garbage], progress: Callable[[int, int], None]) -> None:
    for start in range(0, len(items), _PORTION):
        portion = items[start : start + _PORTION]
        storage.delete(item.path for item in portion)
        progress(start + len(portion), len(items))
    folders = {item.path.rpartition("/")[0] for item in items if item.what == "unfinished"}
    for folder in folders - {f"{inventory.STAGING}/put", f"{inventory.STAGING}/probe"}:
        if not storage.paths(folder):
            storage.delete_staging(folder)
