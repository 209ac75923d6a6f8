"""`pico compact`: many small files of a run's row tables become few, and the log opens fast again.

`Lake.compact` calls `compact`. A training run commits a small file per table at each commit; read
together they cost a request each. Files are merged only where resuming treats them alike: within
one stream, and for the run's own stream only between two checkpoints, so that no file spans one.
The merged files are committed as replacements on `derive.<run>.upkeep`; the old ones stay for
readers of older snapshots until `gc`. A resume that withdraws one of them at the same moment makes
the whole replacement void (see `lake.live`), in either order.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pico import schema
from pico.errors import CorruptError, LeaseError, SchemaError, did_you_mean, one_line
from pico.lake import log
from pico.lake.commit import Stream
from pico.lake.log import Entry, LogReader
from pico.lake.snapshot import Snapshot, partition
from pico.lake.storage import Storage
from pico.upkeep import logcheck, merge, places
from pico.upkeep.merge import CheckedTransaction, Merge

__all__ = ["Compacted", "compact"]

TARGET_BYTES = 64 * 1024 * 1024
"""Files are merged up to about this size; one that has half of it is left alone."""
TARGET_ROWS = 1 << 22
"""Rows in one merged file; they are sorted in memory."""
_COMMIT_FILES = 64
_COMMIT_BYTES = 2 * TARGET_BYTES

Progress = Callable[[int, int], None]


@dataclass
class Compacted:
    """What compact merged, or would merge."""

    dry_run: bool = False
    merges: list[Merge] = field(default_factory=list)
    levels: list[str] = field(default_factory=list)
    """Level files of the log that were missing."""
    skipped: list[str] = field(default_factory=list)
    """Why groups of files were left as they are."""

    @property
    def n_before(self) -> int:
        """Files that were merged."""
        return sum(len(item.files) for item in self.merges)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per run and table: files before and after, rows, bytes before."""
        groups = places.by(self.merges, lambda item: (item.run, item.table))
        return [
            {
                "run": run,
                "table": table,
                "files": sum(len(item.files) for item in items),
                "merged_into": len(items),
                "rows": sum(item.rows for item in items),
                "bytes": sum(item.bytes for item in items),
            }
            for (run, table), items in groups.items()
        ]

    def __str__(self) -> str:
        """Say in one line what was done."""
        would = "would merge" if self.dry_run else "merged"
        parts = []
        if self.merges:
            parts.append(f"{would} {self.n_before:,} files into {len(self.merges):,}")
        if self.levels:
            verb = "would write" if self.dry_run else "wrote"
            parts.append(f"{verb} {len(self.levels):,} level files of the log")
        if self.skipped:
            n = len(self.skipped)
            parts.append(f"left {n:,} group{'s' * (n != 1)} alone: {self.skipped[0]}")
        return "; ".join(parts) or "nothing to merge"


def compact(
    storage: Storage,
    *,
    run: str | None = None,
    tables: Collection[str] | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Compacted:
    """Merge small files of row tables, and write level files of the log that are missing.

    Args:
        storage: the lake's place.
        run: one run; by default all.
        tables: row tables such as `scalars`; by default all.
        dry_run: only say what would be done.
        progress: called with the files merged and the files to merge.

    Raises:
        NotALakeError: if there is no log.
        RunNameError: if the lake has no such run.
        SchemaError: for a table that is no row table of runs.
        LeaseError: if another process looks after `run` at the moment; of all runs, such are
            left out, and the answer says so.
    """
    wanted = _check_tables(tables)
    reader = LogReader(storage)
    snapshot = Snapshot.take(storage, reader)
    runs = snapshot.runs() if run is None else [snapshot.check_run(run)]
    done = Compacted(dry_run)
    files = places.by(snapshot.all_files(), lambda entry: partition(entry.path).get("run"))
    planned = {name: list(plan(storage, reader, name, wanted, files[name])) for name in runs}
    total = sum(len(item.files) for merges in planned.values() for item in merges)

    def report(n_files: int) -> None:
        if progress is not None and total:
            progress(min(n_files, total), total)

    for name, merges in planned.items():
        if dry_run:
            done.merges += merges
        elif merges:
            try:
                _compact_run(storage, reader, name, wanted, done, report)
            except LeaseError as error:
                if run is not None:
                    raise
                done.skipped.append(one_line(error))
    done.levels += _write_levels(storage, dry_run)
    return done


def plan(
    storage: Storage,
    reader: LogReader,
    run: str,
    tables: Collection[str],
    live: Sequence[Entry],
) -> Iterator[Merge]:
    """Yield the groups of a run's live files that should be one file each."""
    places_of = _Places(storage, reader, run)
    found: dict[tuple[str, str, int], list[tuple[int, str, Entry]]] = {}
    for entry in live:
        if entry.table not in tables:
            continue
        if entry.schema_version != schema.table(entry.table).version:
            continue  # pico migrate brings it up to date first
        place = places_of.find(entry)
        if place is not None:
            stream, position, txn, interval = place
            found.setdefault((entry.table, stream, interval), []).append((position, txn, entry))
    for (table, stream, _), members in sorted(found.items(), key=lambda item: item[0]):
        members.sort(key=lambda item: (item[0], item[2].path))
        for part in _portions(members):
            files = tuple(entry for _, _, entry in part)
            yield Merge(run, table, stream, part[-1][1], files)


def _portions(
    members: Sequence[tuple[int, str, Entry]],
) -> Iterator[list[tuple[int, str, Entry]]]:
    """Cut files, in order, into groups of about the target size; large ones stay alone."""
    part: list[tuple[int, str, Entry]] = []
    n_bytes = n_rows = 0
    for member in members:
        entry = member[2]
        if entry.bytes * 2 >= TARGET_BYTES or entry.rows * 2 >= TARGET_ROWS:
            continue
        if part and (n_bytes + entry.bytes > TARGET_BYTES or n_rows + entry.rows > TARGET_ROWS):
            if len(part) > 1:
                yield part
            part, n_bytes, n_rows = [], 0, 0
        part.append(member)
        n_bytes, n_rows = n_bytes + entry.bytes, n_rows + entry.rows
    if len(part) > 1:
        yield part


class _Places:
    """Where in a stream's history the rows of a file were committed first."""

    def __init__(self, storage: Storage, reader: LogReader, run: str) -> None:
        self._positions: dict[tuple[str, str], int] = {}
        self._checkpoints: dict[str, list[int]] = {}
        self._added: dict[str, tuple[str, str]] = {}
        for stream in log.by_stream(storage.paths(log.ROOT)):
            if _run_of(stream) != run:
                continue
            checkpoints: list[int] = []
            for entry in reader.stream(stream):
                place = (stream, entry.txn)
                position = self._positions.setdefault(place, len(self._positions))
                if entry.action == "add":
                    self._added[entry.path] = place
                    if entry.table == "checkpoints" and checkpoints[-1:] != [position]:
                        checkpoints.append(position)
            self._checkpoints[stream] = checkpoints if stream.startswith("train.") else []

    def find(self, entry: Entry) -> tuple[str, int, str, int] | None:
        """Return stream, position, transaction and checkpoint interval; None if not known.

        A checkpoint's own commit is the last of its interval.
        """
        place = entry.stands_for or self._added.get(entry.path)
        if place is None or place not in self._positions:
            return None
        position = self._positions[place]
        interval = bisect.bisect_left(self._checkpoints[place[0]], position)
        return place[0], position, place[1], interval


def _run_of(stream: str) -> str | None:
    kind, _, rest = stream.partition(".")
    if kind == "derive":
        return rest.rpartition(".")[0]
    return rest if kind == "train" else None


def _compact_run(
    storage: Storage,
    reader: LogReader,
    run: str,
    tables: Collection[str],
    done: Compacted,
    report: Callable[[int], None],
) -> None:
    """Merge a run's files under the lease of its upkeep until nothing is left to merge."""
    refused: set[tuple[Entry, ...]] = set()
    with Stream(storage, f"derive.{run}.upkeep") as stream:
        while True:
            files = Snapshot.take(storage, reader).all_files()
            files = [entry for entry in files if partition(entry.path).get("run") == run]
            planned = plan(storage, reader, run, tables, files)
            merges = [item for item in planned if item.files not in refused]
            if not merges:
                return
            _merge(stream, merges, refused, done, report)


def _merge(
    stream: Stream,
    merges: Sequence[Merge],
    refused: set[tuple[Entry, ...]],
    done: Compacted,
    report: Callable[[int], None],
) -> None:
    """Write and commit groups of files, several at a time; note those that cannot be read."""
    transaction, pending = CheckedTransaction(stream), list[Merge]()
    for item in merges:
        try:
            rows = merge.read(stream.storage, item)
        except (CorruptError, SchemaError) as error:
            refused.add(item.files)
            done.skipped.append(one_line(error))
            continue
        merge.write(transaction, item, rows)
        pending.append(item)
        if len(pending) >= _COMMIT_FILES or sum(m.bytes for m in pending) >= _COMMIT_BYTES:
            _commit(transaction, pending, done, report)
            transaction, pending = CheckedTransaction(stream), []
    _commit(transaction, pending, done, report)


def _commit(
    transaction: CheckedTransaction,
    pending: Sequence[Merge],
    done: Compacted,
    report: Callable[[int], None],
) -> None:
    transaction.commit()
    done.merges += pending
    report(done.n_before)


def _write_levels(storage: Storage, dry_run: bool) -> list[str]:
    """Write the level files that the log lacks, from the commits themselves; return their paths."""
    written = []
    for stream, paths in log.by_stream(storage.paths(log.ROOT)).items():
        for path in logcheck.missing_levels(stream, paths):
            span = logcheck.span(path)
            if not dry_run:
                commits = [log.read_commit(storage, stream, seq) for seq in span]
                entries = [entry for commit in commits for entry in commit.entries]
                metadata = {"stream": stream, "first": str(span[0])}
                storage.put_new(path, log.encode(entries, metadata))
            written.append(path)
    return written


def _check_tables(tables: Collection[str] | None) -> list[str]:
    of_runs = [
        name
        for name, spec in schema.tables().items()
        if spec.kind == "rows" and list(spec.partition) == ["run"]
    ]
    for name in tables or ():
        if name not in of_runs:
            raise SchemaError(
                f"{name!r} is no row table of runs.{did_you_mean(name, of_runs)} "
                f"Row tables: {', '.join(of_runs)}"
            )
    return of_runs if tables is None else list(tables)
