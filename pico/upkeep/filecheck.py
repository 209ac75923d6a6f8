"""Whether the live data files are what the log and their schemas say.

`verify` calls it. The first thing that is wrong with a file is its finding; what follows from that
is not reported again. Bytes are read in portions, tensors one at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pico import schema
from pico.errors import CorruptError, PicoError, SchemaError, one_line
from pico.lake import intact, table
from pico.lake.log import Entry
from pico.lake.snapshot import partition
from pico.lake.storage import Storage
from pico.record.stats import summarize
from pico.upkeep.report import Finding

_KEYS = 1 << 18
"""Keys that are gathered before they are compared."""
_STATS_KEYS = ("name", "expert", "stage", "state", "site", "probe")
_STATS_VALUES = ("frobenius_norm", "mean", "std", "max_abs")
_TOLERANCE = 1e-6
"""Relative; another machine may add up in another order."""

Described = Mapping[tuple[Any, ...], Mapping[str, Any]]
"""(table, step, name, …) → the `tensor_stats` row of a stored tensor."""


def check(storage: Storage, entry: Entry, listed: int | None, deep: bool) -> Finding | None:
    """Return the first thing that is wrong with a live file.

    Args:
        storage: the lake's place.
        entry: what the log says of the file.
        listed: its size as the store listed it; None if it was not listed.
        deep: read every page of it, checksums compared.
    """

    def finding(kind: str, message: str) -> Finding:
        return about(entry, kind, f"{entry.path} {message}")

    try:
        if listed is not None and listed != entry.bytes:
            return finding("file.size", f"has {listed:,} bytes, the log says {entry.bytes:,}")
        size, digest = table.guarded(entry, lambda: intact.digest(storage, entry.path))
        if size != entry.bytes:
            return finding("file.size", f"has {size:,} bytes, the log says {entry.bytes:,}")
        if digest != entry.hash:
            return finding("file.hash", f"is damaged: its hash is {digest}, not {entry.hash}")
        schema.table(entry.table).check_version(entry.schema_version, entry.path)
        raw = table.guarded(entry, lambda: pq.ParquetFile(storage.open(entry.path)))
        if raw.metadata.num_rows != entry.rows:
            n_rows = raw.metadata.num_rows
            return finding("file.rows", f"has {n_rows:,} rows, the log says {entry.rows:,}")
        file = table.open_file(storage, entry)
        if deep:
            _read_all(entry, file)
        wrong = _misplaced(entry, file)
    except FileNotFoundError:
        return finding("file.missing", "is missing although the log names it")
    except SchemaError as error:
        return about(entry, "file.schema", one_line(error))
    except PicoError as error:
        is_missing = isinstance(error, CorruptError) and not _exists(storage, entry.path)
        return about(entry, "file.missing" if is_missing else "file.unreadable", one_line(error))
    return None if wrong is None else finding(*wrong)


def about(entry: Entry, kind: str, message: str) -> Finding:
    """Return a finding about a file, its run and step filled in."""
    keys = partition(entry.path)
    step = int(keys["step"]) if keys.get("step", "").isdigit() else None
    return Finding(kind, message, entry.path, keys.get("run"), step)


def _exists(storage: Storage, path: str) -> bool:
    try:
        storage.open(path).close()
    except FileNotFoundError:
        return False
    except (PicoError, pa.ArrowException):
        return True
    return True


def _read_all(entry: Entry, file: pq.ParquetFile) -> None:
    for group in range(file.num_row_groups):
        table.guarded(entry, lambda g=group: file.read_row_group(g))  # type: ignore[misc]


def _misplaced(entry: Entry, file: pq.ParquetFile) -> tuple[str, str] | None:
    """Say which rows do not fit the path of their file or the steps that the log tells."""
    spec = schema.table(entry.table)
    keys = partition(entry.path)
    names = [
        c for c in {*spec.path_columns.values(), "global_step"} if c in file.schema_arrow.names
    ]
    rows = table.guarded(entry, lambda: file.read(columns=names))
    for key, column in spec.path_columns.items():
        found = [str(item) for item in pc.unique(rows[column]).to_pylist()]
        if found not in ([], [keys.get(key)]):
            other = next(item for item in found if item != keys.get(key))
            return "file.key", f"holds rows of {key} {other!r}"
    if "global_step" in names and rows.num_rows:
        ends = pc.min_max(rows["global_step"])
        steps = (ends["min"].as_py(), ends["max"].as_py())
        if steps != (entry.min_step, entry.max_step):
            said = f"{entry.min_step} to {entry.max_step}"
            return "file.steps", f"holds steps {steps[0]} to {steps[1]}, the log says {said}"
    return None


def repeated_keys(storage: Storage, entries: Iterable[Entry]) -> Iterator[Finding]:
    """Yield a finding per file that repeats a primary key of its table.

    Files are taken in the order of their first steps, and keys are kept only while a later file
    can hold their step.
    """
    order = sorted(entries, key=lambda e: (e.table, _folder(e), _first(e), e.path))
    for (name, _), group in groupby(order, key=lambda e: (e.table, _folder(e))):
        files = list(group)
        columns = list(schema.table(name).primary_key)
        seen, pending, n_pending = None, list[pa.Table](), 0
        for index, entry in enumerate(files):
            try:
                keys = table.read(storage, [entry], columns)
            except PicoError as error:  # it could be read a moment ago
                yield about(entry, "file.unreadable", one_line(error))
                keys = schema.table(name).arrow.empty_table().select(columns)
            pending.append(keys.append_column("file", pa.array([index] * len(keys), pa.int32())))
            n_pending += len(keys)
            is_last = index + 1 == len(files)
            if not is_last and n_pending < max(_KEYS, 0 if seen is None else len(seen)):
                continue
            parts = pending if seen is None else [seen, *pending]
            seen, twice = _count(pa.concat_tables(parts), columns)
            yield from _twice(files, twice, columns)
            if not is_last and "global_step" in columns:
                seen = seen.filter(pc.field("global_step") >= _first(files[index + 1]))
            pending, n_pending = [], 0


def _count(keys: pa.Table, columns: Sequence[str]) -> tuple[pa.Table, pa.Table]:
    """Return the distinct keys, and those that stand there more than once."""
    counted = keys.group_by(columns).aggregate([("file", "max"), ([], "count_all")])
    distinct = counted.select([*columns, "file_max"]).rename_columns([*columns, "file"])
    return distinct, distinct.filter(pc.greater(counted["count_all"], 1))


def _twice(files: Sequence[Entry], twice: pa.Table, columns: Sequence[str]) -> Iterator[Finding]:
    for index in pc.unique(twice["file"]).to_pylist():
        repeated = twice.filter(pc.field("file") == index).select(columns)
        key = {k: v for k, v in repeated.slice(0, 1).to_pylist()[0].items() if v is not None}
        entry = files[index]
        n = f"{len(repeated):,} primary key{'s' if len(repeated) > 1 else ''}"
        yield about(entry, "rows.twice", f"{entry.path} repeats {n} of {entry.table}: {key}")


def _folder(entry: Entry) -> str:
    """Return the partition within which a table's primary keys can meet."""
    return entry.path.rpartition("/")[0]


def _first(entry: Entry) -> int:
    return -1 if entry.min_step is None else entry.min_step


def tensors(
    storage: Storage, entries: Sequence[Entry], described: Described, is_whole: bool
) -> Iterator[Finding | None]:
    """Compare each tensor of one step with its hash and its statistics; None: it is right.

    Args:
        storage: the lake's place.
        entries: files of one tensor table, run and step.
        described: statistics of stored tensors.
        is_whole: whether these are all live files of the step; else parts may be lacking.
    """
    name = entries[0].table
    found = table.read_tensors(storage, entries, verify=False)
    while True:
        try:
            row = next(found)
        except StopIteration:
            return
        except PicoError as error:
            if is_whole:
                yield about(entries[0], "tensor.hash", one_line(error))
            return
        step = int(row.keys["global_step"])
        if row.tensor.content_hash != row.keys["content_hash"]:
            message = f"{name} {row.keys['name']!r} at step {step} does not fit its content hash"
            yield about(entries[0], "tensor.hash", message)
            continue
        stats = described.get((name, step, *(row.keys.get(key) for key in _STATS_KEYS)))
        wrong = None if stats is None else _misdescribed(row, stats)
        message = f"{name} {row.keys['name']!r} at step {step}: tensor_stats says {wrong}"
        yield None if wrong is None else about(entries[0], "tensor.stats", message)


def _misdescribed(row: table.TensorRow, stats: Mapping[str, Any]) -> str | None:
    """Say which statistic is wrong, if one is."""
    if stats["content_hash"] != row.tensor.content_hash:
        return f"content_hash {stats['content_hash']}, not {row.tensor.content_hash}"
    array = row.tensor.to_numpy()
    truth = vars(summarize(abs(array) if array.dtype.kind == "c" else array))
    for name in ("numel", "nonfinite"):
        if stats[name] != truth[name]:
            return f"{name} {stats[name]}, not {truth[name]}"
    scale = truth["max_abs"] or 0.0
    for name in _STATS_VALUES:
        if not _agree(stats[name], truth[name], scale):
            return f"{name} {stats[name]}, not {truth[name]}"
    return None


def _agree(said: float | None, true: float | None, scale: float) -> bool:
    if said is None or true is None:
        return said is true
    if not (math.isfinite(said) and math.isfinite(true)):
        return repr(said) == repr(true)
    floor = _TOLERANCE * scale if math.isfinite(scale) else 0.0
    return math.isclose(said, true, rel_tol=_TOLERANCE, abs_tol=floor)


def descriptions(
    storage: Storage, entries: Iterable[Entry]
) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Return the statistics rows of stored tensors from the `tensor_stats` files of one run."""
    found = {}
    keys = ("table_name", "global_step", *_STATS_KEYS)
    columns = [*keys, "content_hash", "numel", "nonfinite", *_STATS_VALUES]
    for entry in entries:
        try:
            rows = table.read(storage, [entry], columns, pc.field("content_hash").is_valid())
        except PicoError:
            continue  # it was sound a moment ago: taken away and collected since
        found.update({tuple(row[key] for key in keys): row for row in rows.to_pylist()})
    return found
