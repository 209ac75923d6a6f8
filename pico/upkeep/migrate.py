"""`pico migrate`: rewrites files of older schema versions as files of the current one.

`Lake.migrate` calls `migrate`. Our readers never need it, they upgrade rows as they read; plain
readers break on files of one table that differ in columns, and need it once after an upgrade.

One commit adds the new files and removes the old, so a reader sees either; a resume that withdraws
old ones meanwhile makes the commit void (`lake.live`). Row groups go over one by one. Nothing
damaged is copied: bytes must have the hash that the log says, tensors their content hash. Killed or
refused at any moment it leaves a valid lake; called again it goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pico import schema
from pico.errors import CorruptError, LeaseError, SchemaError
from pico.lake import codec, entries, intact, log, table
from pico.lake.commit import Stream, Transaction
from pico.lake.datafile import PartitionFiles
from pico.lake.log import Entry
from pico.lake.snapshot import Snapshot, partition
from pico.lake.storage import Storage

PORTION_FILES = 64
PORTION_BYTES = 64 * 1024 * 1024
"""A commit replaces at most so many files, and no further one beyond so many bytes."""


@dataclass(frozen=True)
class Migration:
    """What was rewritten, or would be."""

    files: Mapping[str, int]
    """Table → files of older versions."""
    rows: int
    bytes: int
    """Size of these files."""
    skipped: tuple[str, ...] = ()
    """Why files were left as they are, a sentence each."""
    dry_run: bool = False

    def __str__(self) -> str:
        """Say it in a line, and in one more for each reason to skip something."""
        n_files = sum(self.files.values())
        if n_files:
            done = "would migrate" if self.dry_run else "migrated"
            tables = ", ".join(f"{n:,} of {name}" for name, n in sorted(self.files.items()))
            told = f"{done} {_count(n_files, 'file')} ({tables}): "
            told += f"{_count(self.rows, 'row')}, {self.bytes:,} bytes"
        elif self.skipped:
            told = "migrated nothing"
        else:
            told = "nothing to migrate: every file has the current version of its table"
        return "\n".join([told, *(f"skipped: {reason}" for reason in self.skipped)])


@dataclass(frozen=True)
class _Old:
    """A live file of an older version and what the file that replaces it stands for."""

    entry: Entry
    stands_for: tuple[str, str]

    @property
    def stream(self) -> str:
        """The stream on which it is replaced."""
        stream = self.stands_for[0]
        if stream.startswith("data."):
            return stream
        return f"derive.{partition(self.entry.path)['run']}.upkeep"


def migrate(
    storage: Storage,
    *,
    run: str | None = None,
    dry_run: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Migration:
    """Rewrite live files of older schema versions as the current ones.

    Safe while others read and write. The old files stay until `gc` deletes them. What a writer
    holds (a data set that is being made, another upkeep of a run) or what is damaged is skipped.

    Args:
        storage: the lake's place.
        run: only this run's files; by default all, those of data sets included.
        dry_run: only say what would be rewritten.
        progress: called with the files done and the files to do.

    Raises:
        NotALakeError: if there is no log.
        RunNameError: for a run that the lake does not have.
        StorageError: if the store refuses; what was committed before stays.
    """
    reader = log.LogReader(storage)
    snapshot = Snapshot.take(storage, reader)
    if run is not None:
        snapshot.check_run(run)
    old = [item for item in _older(reader, snapshot) if run in (None, _run(item.entry))]
    if dry_run:
        return _told((item.entry for item in old), (), dry_run=True)
    by_stream: dict[str, list[_Old]] = {}
    for item in old:
        by_stream.setdefault(item.stream, []).append(item)
    done: list[Entry] = []
    skipped: list[str] = []
    n_seen = 0
    for stream, items in by_stream.items():
        try:
            with Stream(storage, stream) as opened:
                for portion in _portions(items):
                    done += _replace(opened, reader, portion, skipped)
                    n_seen += len(portion)
                    if progress is not None:
                        progress(n_seen, len(old))
        except LeaseError as error:
            skipped.append(str(error))
    return _told(done, skipped)


def _run(entry: Entry) -> str | None:
    return partition(entry.path).get("run")


def _older(reader: log.LogReader, snapshot: Snapshot) -> list[_Old]:
    """Return the live files of older versions, those of one commit together, oldest first."""
    known = schema.tables()
    live = {
        entry.path: entry
        for entry in snapshot.all_files()
        if entry.table in known and 1 <= entry.schema_version < known[entry.table].version
    }
    found: list[_Old] = []
    wanted = pa.array(list(live), pa.string())
    for stream in reader.streams() if live else ():
        rows = reader.rows(stream)
        added = pc.and_(pc.equal(rows["action"], "add"), pc.is_in(rows["path"], value_set=wanted))
        for path in rows["path"].filter(added).to_pylist():
            entry = live[path]
            found.append(_Old(entry, entry.stands_for or (stream, entry.txn)))
    return found


def _portions(items: Iterable[_Old]) -> Iterator[list[_Old]]:
    """Cut files into what one commit replaces."""
    portion: list[_Old] = []
    for item in items:
        if portion and (
            len(portion) >= PORTION_FILES
            or sum(other.entry.bytes for other in portion) >= PORTION_BYTES
        ):
            yield portion
            portion = []
        portion.append(item)
    if portion:
        yield portion


def _replace(
    stream: Stream, reader: log.LogReader, portion: Iterable[_Old], skipped: list[str]
) -> list[Entry]:
    """Replace files in one commit and return those that were; gets reasons into `skipped`."""
    live = {entry.path for entry in Snapshot.take(stream.storage, reader).all_files()}
    transaction = stream.begin()
    done = []
    for item in portion:
        if item.entry.path not in live:  # withdrawn, removed or replaced since it was found
            continue
        try:
            _rewrite(stream.storage, transaction, item)
        except (CorruptError, SchemaError) as error:
            skipped.append(str(error))
        else:
            done.append(item.entry)
    transaction.take_away(done, withdraw=False)
    transaction.commit()
    return done


def _rewrite(storage: Storage, transaction: Transaction, item: _Old) -> None:
    """Write a file's rows anew with the current columns.

    Raises:
        CorruptError: if bytes or tensors are not what their hashes say.
    """
    entry, spec = item.entry, schema.table(item.entry.table)
    table.guarded(entry, lambda: _check_bytes(storage, entry))
    file = table.open_file(storage, entry)
    keys: dict[str, Any] = dict(partition(entry.path))
    if "step" in keys:
        keys["step"] = int(keys["step"])
    note = entries.replacement(*item.stands_for)
    with PartitionFiles(transaction, spec, keys, extra=note) as files:
        for group in range(file.num_row_groups):
            rows = spec.check(file.read_row_group(group))
            if spec.kind == "tensor":
                table.guarded(entry, lambda r=rows: check_tensors(r, entry))  # type: ignore[misc]
            files.write(rows)


def _check_bytes(storage: Storage, entry: Entry) -> None:
    _, found = intact.digest(storage, entry.path)
    if found != entry.hash:
        raise CorruptError(
            f"{entry.path} is damaged: its bytes have not the hash that the log says; "
            "pico verify tells more"
        )


def check_tensors(rows: pa.Table, entry: Entry) -> None:
    """Compare whole tensors with their content hash; parts are vouched for by their file's.

    Raises:
        CorruptError: naming the tensor and the file.
    """
    columns = ("name", "n_parts", "dtype", "shape", "content_hash", "raw")
    keys = rows.select(columns).to_pylist()
    values = rows["value"].combine_chunks()
    for row, value in zip(keys, values, strict=True):
        if row["n_parts"] != 1:
            continue
        floats = value.values.to_numpy() if value.is_valid else None
        tensor = codec.decode(row["dtype"], row["shape"], [floats], [row["raw"]])
        if tensor.content_hash != row["content_hash"]:
            raise CorruptError(
                f"tensor {row['name']!r} in {entry.path} is damaged: its content hash differs"
            )


def _told(files: Iterable[Entry], skipped: Iterable[str], dry_run: bool = False) -> Migration:
    listed = list(files)
    return Migration(
        files=Counter(entry.table for entry in listed),
        rows=sum(entry.rows for entry in listed),
        bytes=sum(entry.bytes for entry in listed),
        skipped=tuple(skipped),
        dry_run=dry_run,
    )


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")
