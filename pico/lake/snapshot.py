"""What counts at one moment: the live files of a lake, and reading rows and tensors from them.

A `Snapshot` is the union of all streams of the log; readers take one and read exactly its files, so
that commits made meanwhile neither appear by halves nor move anything. `sql`, `record` and
`evaluate` read through it. The same files are listed without this package by

    SELECT path FROM read_parquet('LAKE/_log/*/*.parquet')
    GROUP BY path HAVING bool_and(action = 'add') ORDER BY path

as long as no replacement is void; `live` says what that is, and has the query for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pico import schema
from pico.errors import NotALakeError, RunNameError, did_you_mean
from pico.lake import entries as log_entries
from pico.lake import live, log, table
from pico.lake.log import Entry
from pico.lake.storage import Storage
from pico.lake.table import TensorRow
from pico.schema import TableSchema


class Snapshot:
    """The live files of a lake at the moment it was taken."""

    def __init__(self, storage: Storage, entries: Sequence[Entry] | pa.Table) -> None:
        """Work out the live files from log entries; `take` is the usual way in.

        Args:
            storage: the lake's place.
            entries: those of all streams; `LogReader.rows` returns them as a table.
        """
        self.storage = storage
        rows = entries if isinstance(entries, pa.Table) else log_entries.to_rows(entries)
        self._rows = rows
        self._is_live = live.live(rows)
        self._tables: dict[str, _Files] = {}

    @classmethod
    def take(cls, storage: Storage, reader: log.LogReader | None = None) -> Snapshot:
        """Read the log of a lake.

        Args:
            storage: the lake's place.
            reader: a log reader to use again, so that only new commits are read.

        Raises:
            NotALakeError: if there is no log.
        """
        rows = (reader or log.LogReader(storage)).rows()
        if not rows.num_rows and not storage.paths(log.ROOT):
            raise NotALakeError(
                f"no lake at {storage.url!r}; make one with pico train or pico demo, "
                "or name another with --lake"
            )
        return cls(storage, rows)

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
        if table not in self._tables:
            self._tables[table] = _Files(self._live, table)
        self._tables[table].check_versions(spec)
        return self._tables[table].holding(runs, steps)

    def all_files(self) -> list[Entry]:
        """Return every live file."""
        return log_entries.from_rows(self._live)

    def taken_away(self) -> list[Entry]:
        """Return the files that were added and are no longer live.

        They were withdrawn or removed, or what added them was void (see `live`).
        """
        is_added = pc.equal(self._rows["action"], "add")
        gone = pc.and_(is_added, pc.invert(self._is_live))
        return log_entries.from_rows(self._rows.filter(gone))

    def runs(self) -> list[str]:
        """Return the names of the runs that have rows, sorted."""
        names = _path_values(self._live["path"], "run").unique().to_pylist()
        return sorted(name for name in names if name)

    @cached_property
    def _live(self) -> pa.Table:
        if pc.all(self._is_live, min_count=0).as_py():
            return self._rows
        return self._rows.filter(self._is_live)

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


class _Files:
    """The live files of one table, to be narrowed by run and step."""

    def __init__(self, live_rows: pa.Table, table: str) -> None:
        self._live = live_rows
        is_of_table = pc.equal(live_rows["table"], table)
        self._places = np.flatnonzero(is_of_table.to_numpy())
        deciding = live_rows.select(["path", "schema_version", "min_step", "max_step"])
        self._rows = deciding.filter(is_of_table)

    @cached_property
    def _runs(self) -> pa.ChunkedArray:
        return _path_values(self._rows["path"], "run")

    def check_versions(self, spec: TableSchema) -> None:
        """Refuse versions that are not known, with the first file that has one."""
        versions = self._rows["schema_version"]
        for version in versions.unique().to_pylist():
            first = pc.index(versions, version).as_py()
            spec.check_version(version, self._rows["path"][first].as_py())

    def holding(self, runs: Collection[str] | None, steps: Collection[int] | None) -> list[Entry]:
        """Return the files that can hold rows of these runs and steps."""
        is_wanted = np.zeros(self._live.num_rows, np.bool_)
        places = self._places
        if steps is not None:
            places = places[_overlaps(self._rows, steps)]
        is_wanted[places] = True
        if runs is not None:
            named = pa.array(list(runs), pa.string())
            may_hold = pc.or_(pc.is_null(self._runs), pc.is_in(self._runs, value_set=named))
            is_wanted[self._places[~may_hold.to_numpy()]] = False
        return log_entries.from_rows(self._live.filter(pa.array(is_wanted)))


def _overlaps(rows: pa.Table, steps: Collection[int]) -> npt.NDArray[np.bool_]:
    """Say of each file whether one of the steps lies in its range; without a range it may."""
    asked = np.unique(np.array(list(steps), np.int64))
    lowest, highest = (pc.fill_null(rows[name], 0).to_numpy() for name in ("min_step", "max_step"))
    following = np.searchsorted(asked, lowest)
    # The least step that is not below the range must not be above it either.
    padded = np.append(asked, np.iinfo(np.int64).max)
    found = (following < len(asked)) & (padded[following] <= highest)
    unknown = pc.or_(pc.is_null(rows["min_step"]), pc.is_null(rows["max_step"]))
    may_hold: npt.NDArray[np.bool_] = found | unknown.to_numpy().astype(np.bool_)
    return may_hold


def _path_values(paths: pa.ChunkedArray, key: str) -> pa.ChunkedArray:
    """Return what `partition` says of a path key, for every path; NULL where it has none."""
    found = []
    for chunk in paths.chunks:
        value = partition(chunk[0].as_py()).get(key) if len(chunk) else None
        # The files of a stream are those of one run; to look whether that is so costs less.
        if value and pc.all(pc.match_substring(chunk, f"/{key}={value}/")).as_py():
            found.append(pa.repeat(value, len(chunk)))
        else:
            matched = pc.extract_regex(chunk, rf"/{key}=(?P<value>[^/]*)/")
            found.append(pc.struct_field(matched, "value"))
    return pa.chunked_array(found, pa.string())
