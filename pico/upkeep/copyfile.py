"""Bringing one data file into another lake: its bytes as they are, or its rows under another name.

`copy` calls it. Whatever goes over is compared with the source's log on the way: bytes with their
size and hash, tensors whose rows are written anew with their content hash as well. Memory holds one
row group, and on stores without folders one file.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pico import schema
from pico.errors import CorruptError
from pico.lake import intact, table
from pico.lake.commit import Transaction, file_tag
from pico.lake.datafile import PartitionFiles
from pico.lake.entries import STANDS_FOR
from pico.lake.log import Entry
from pico.lake.snapshot import partition
from pico.lake.storage import Storage
from pico.upkeep import migrate

COPIED = "copied"
"""Key of `extra` in the log that names the file which another one is a copy of."""


class CopyTransaction(Transaction):
    """A transaction that can begin files of given names and need not keep finished ones open."""

    def begin_at(self, path: str) -> Any:
        """Begin a data file at a path that no file of the lake has; returns its sink."""
        self._sinks[path] = self.stream.storage.create(path, self._staging)
        return self._sinks[path]

    def settle(self) -> None:
        """Send finished files off where an open one stands in memory; the log names none yet."""
        if self.stream.storage.folder is not None:
            return
        while self._sinks:
            path, sink = next(iter(self._sinks.items()))
            self._published.append(path)
            sink.publish()
            del self._sinks[path]


def source_of(entry: Entry) -> str:
    """Return the path of the file that a file is a copy of; its own if nothing is noted."""
    if entry.extra is None or f'"{COPIED}"' not in entry.extra:
        return entry.path
    try:
        noted = json.loads(entry.extra)
    except ValueError:
        return entry.path
    path = noted.get(COPIED) if isinstance(noted, dict) else None
    return path if isinstance(path, str) else entry.path


def new_uuid(run_uuid: str, name: str) -> str:
    """Return the identity of a copy under another name: always the same for the same two."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"pico:run:{run_uuid}:{name}"))


def copy_bytes(
    source: Storage,
    transaction: CopyTransaction,
    entry: Entry,
    taken: set[str],
    stands_for: tuple[str, str] | None,
) -> None:
    """Copy a file as it is, under its own name where that is free.

    Args:
        source: where the file lies.
        transaction: the commit that will publish the copy.
        entry: what the source's log says of it.
        taken: paths that the target's log names.
        stands_for: stream and transaction whose place the copy takes; None for its own commit's.

    Raises:
        CorruptError: if the file is missing or has not the size and hash of the log.
    """
    folder, _, name = entry.path.rpartition("/")
    tag = file_tag(transaction.stream.name)  # by which the next writer finds what a dead one left
    path = f"{folder}/{tag}{name[8:]}"
    if path in taken or not _is_named_by_us(name):
        path = f"{folder}/{tag}{str(uuid.uuid4())[8:]}.parquet"
    sink = transaction.begin_at(path)
    table.guarded(entry, lambda: _pour(source, entry, sink))
    sink.finish()
    transaction.add(replace(entry, path=path, extra=_note(entry, path, stands_for)))
    transaction.settle()


def rewrite(
    source: Storage,
    transaction: CopyTransaction,
    entry: Entry,
    run: str,
    stands_for: tuple[str, str] | None,
) -> None:
    """Write a run's file anew as a file of run `run`, row group by row group.

    Raises:
        CorruptError: if bytes or tensors are not what their hashes say.
    """
    table.guarded(entry, lambda: _pour(source, entry, None))
    spec = schema.table(entry.table)
    file = table.open_file(source, entry)
    keys: dict[str, Any] = {**partition(entry.path), "run": run}
    if "step" in keys:
        keys["step"] = int(keys["step"])
    old = partition(entry.path)["run"]
    note = _note(entry, "", stands_for)
    with PartitionFiles(transaction, spec, keys, extra=note) as files:
        for group in range(file.num_row_groups):
            rows = _renamed(file.read_row_group(group), old, run)
            if spec.kind == "tensor":
                table.guarded(entry, lambda r=rows: migrate.check_tensors(r, entry))  # type: ignore[misc]
            files.write(spec.check(rows))
    transaction.settle()


def _pour(source: Storage, entry: Entry, sink: Any) -> None:
    found = intact.digest(source, entry.path, *([] if sink is None else [sink.write]))
    if found != (entry.bytes, entry.hash):
        raise CorruptError(
            f"{entry.path} of {source.url} is damaged: its bytes have not the size and hash that "
            "the log says; pico verify tells more"
        )


def _renamed(rows: pa.Table, old: str, new: str) -> pa.Table:
    changed: Mapping[str, pa.Array] = {"run_id": pa.repeat(new, rows.num_rows)}
    if "ref_run" in rows.column_names:
        own = pc.fill_null(pc.equal(rows["ref_run"], old), False)
        changed = {**changed, "ref_run": pc.if_else(own, new, rows["ref_run"])}
    if "run_uuid" in rows.column_names:
        listed = rows.select(["run_uuid", "extra"]).to_pylist()
        uuids = [new_uuid(row["run_uuid"], new) for row in listed]
        extras = [_with_origin(row["extra"], old, row["run_uuid"]) for row in listed]
        changed = {**changed, "run_uuid": pa.array(uuids), "extra": pa.array(extras, pa.string())}
    for name, values in changed.items():
        index = rows.column_names.index(name)
        rows = rows.set_column(index, rows.schema.field(name), values)
    return rows


def _with_origin(extra: str | None, run: str, run_uuid: str) -> str:
    noted = json.loads(extra or "{}")
    return json.dumps({**noted, "copied_from": {"run": run, "run_uuid": run_uuid}})


def _note(entry: Entry, path: str, stands_for: tuple[str, str] | None) -> str | None:
    noted: dict[str, Any] = {}
    if path != entry.path:
        noted[COPIED] = entry.path
    if stands_for is not None:
        noted[STANDS_FOR] = {"stream": stands_for[0], "txn": stands_for[1]}
    return json.dumps(noted) if noted else None


def _is_named_by_us(name: str) -> bool:
    return len(name) == len("00000000-0000-0000-0000-000000000000.parquet")
