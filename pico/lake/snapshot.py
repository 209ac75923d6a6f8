"""What counts at one moment: the live files of a lake, and reading rows and tensors from them.

A `Snapshot` is the union of all streams of the log; readers take one and read exactly its files, so
that commits made meanwhile neither appear by halves nor move anything. `sql`, `record` and
`evaluate` read through it. The same files are listed without this package by

    SELECT path FROM read_parquet('LAKE/_log/*/*.parquet')
    GROUP BY path HAVING bool_and(action = 'add') ORDER BY path
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pico import schema
from pico.errors import NotALakeError, RunNameError, did_you_mean
from pico.lake import log, table
from pico.lake.log import Entry
from pico.lake.storage import Storage
from pico.lake.table import TensorRow


class Snapshot:
    """The live files of a lake at the moment it was taken."""

    def __init__(self, storage: Storage, entries: Sequence[Entry]) -> None:
        """Work out the live files from log entries; `take` is the usual way in."""
        self.storage = storage
        gone = {entry.path for entry in entries if entry.action != "add"}
        self._live = [e for e in entries if e.action == "add" and e.path not in gone]

    @classmethod
    def take(cls, storage: Storage, reader: log.LogReader | None = None) -> Snapshot:
        """Read the log of a lake.

        Args:
            storage: the lake's place.
            reader: a log reader to use again, so that only new commits are read.

        Raises:
            NotALakeError: if there is no log.
        """
        if not storage.list(log.ROOT):
            raise NotALakeError(
                f"no lake at {storage.url!r}; make one with pico train or pico demo, "
                "or name another with --lake"
            )
        return cls(storage, (reader or log.LogReader(storage)).entries())

    @classmethod
    def take_or_empty(cls, storage: Storage) -> Snapshot:
        """Read the log of a lake; where there is none yet, return a snapshot without files."""
        try:
            return cls.take(storage)
        except NotALakeError:
            return cls(storage, [])

    def files(
        self,
        table: str,
        runs: Collection[str] | None = None,
        steps: Collection[int] | None = None,
    ) -> list[Entry]:
        """Return the live files of a table that can hold rows of these runs and steps.

        Raises:
            SchemaError: if there is no such table, or a file is of a version not known here.
        """
        spec = schema.table(table)
        found = [entry for entry in self._live if entry.table == table]
        for entry in found:
            spec.check_version(entry.schema_version, entry.path)
        if runs is not None:
            found = [e for e in found if partition(e.path).get("run") in (*runs, None)]
        if steps is not None:
            found = [e for e in found if _can_hold(e, steps)]
        return found

    def all_files(self) -> list[Entry]:
        """Return every live file."""
        return list(self._live)

    def runs(self) -> list[str]:
        """Return the names of the runs that have rows, sorted."""
        names = {partition(entry.path).get("run") for entry in self._live}
        return sorted(name for name in names if name)

    def check_run(self, run: str) -> str:
        """Return `run` if the lake has it.

        Raises:
            RunNameError: with the nearest name.
        """
        runs = self.runs()
        if run not in runs:
            raise RunNameError(
                f"no run {run!r} in {self.storage.url}.{did_you_mean(run, runs)} "
                f"Runs: {', '.join(runs) or 'none'}"
            )
        return run

    def read(
        self,
        name: str,
        columns: Sequence[str] | None = None,
        runs: Collection[str] | None = None,
        steps: Collection[int] | None = None,
        filter: pc.Expression | None = None,
    ) -> pa.Table:
        """Read rows of a table; no rows where it has none."""
        files = self.files(name, runs, steps)
        if not files:
            return table.empty(name).select(columns or schema.table(name).column_names)
        if steps is not None and "global_step" in schema.table(name).column_names:
            within = pc.field("global_step").isin(list(steps))
            filter = within if filter is None else filter & within
            if columns is not None and "global_step" not in columns:
                rows = table.read(self.storage, files, [*columns, "global_step"], filter)
                return rows.select(columns)
        return table.read(self.storage, files, columns, filter)

    def tensors(
        self,
        name: str,
        run: str,
        step: int,
        keep: Callable[[Mapping[str, Any]], bool] = lambda keys: True,
    ) -> Iterator[TensorRow]:
        """Yield the tensors of one run and step from a tensor table, verified."""
        files = self.files(name, [run], [step])
        return table.read_tensors(self.storage, files, keep)


def partition(path: str) -> dict[str, str]:
    """Return the path keys of a data file.

    >>> partition("weights/run=tiny/step=5/x.parquet")
    {'run': 'tiny', 'step': '5'}
    """
    return dict(part.split("=", 1) for part in path.split("/")[1:-1] if "=" in part)


def _can_hold(entry: Entry, steps: Collection[int]) -> bool:
    if entry.min_step is None or entry.max_step is None:
        return True
    return any(entry.min_step <= step <= entry.max_step for step in steps)
