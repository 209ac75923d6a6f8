"""The methods of `pico.Lake` that keep a lake healthy; `Lake` inherits them.

Each takes what it needs from the lake alone (its storage) and calls one function of this package.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from pico.lake.storage import Storage
from pico.upkeep import compact, copy, gc, migrate, remove, verify
from pico.upkeep.compact import Compacted
from pico.upkeep.copy import Copied
from pico.upkeep.gc import Collected
from pico.upkeep.migrate import Migration
from pico.upkeep.remove import Removal
from pico.upkeep.report import Report

Progress = Callable[[int, int], None]


class Upkeep:
    """What can be done to keep a lake in order."""

    storage: Storage

    def verify(
        self, run: str | None = None, deep: bool = False, on_progress: Progress | None = None
    ) -> Report:
        """Check every file against the log, the schemas and the runs' own plans.

        Nothing is changed, and damage is a finding, not an error: `report.is_sound` says whether
        any finding is one of severity `error`, `report.findings` lists all, `print(report)` shows
        a line for each.

        Args:
            run: one run; by default the whole lake.
            deep: also read every page and compare each tensor with its hash and its statistics.
            on_progress: called with the files checked and the files to check.

        Raises:
            NotALakeError: if there is no lake.
            RunNameError: if the lake has no such run.
        """
        return verify.verify(self.storage, run=run, deep=deep, progress=on_progress)

    def gc(
        self,
        older_than: float | str = "24h",
        dry_run: bool = False,
        on_progress: Progress | None = None,
    ) -> Collected:
        """Delete files that were taken away or that dead writers left, once they are old enough.

        Args:
            older_than: the grace age for readers that still read them: `24h`, `7d`, `30m` or a
                number of seconds.
            dry_run: only say what would be deleted.
            on_progress: called with the files deleted and the files to delete.

        Raises:
            NotALakeError: if there is no lake.
            CorruptError: if the log is damaged; then nothing is deleted.
            ConfigError: for an age that cannot be read.
        """
        seconds = gc.age(older_than)
        return gc.gc(self.storage, older_than=seconds, dry_run=dry_run, progress=on_progress)

    def compact(
        self,
        run: str | None = None,
        tables: Collection[str] | None = None,
        dry_run: bool = False,
        on_progress: Progress | None = None,
    ) -> Compacted:
        """Merge the small files of row tables, and complete the copies of the log.

        Rows stay what they are, resuming from any checkpoint too; the old files stay until `gc`.

        Args:
            run: one run; by default all.
            tables: row tables such as `scalars`; by default all.
            dry_run: only say what would be merged.
            on_progress: called with the files merged and the files to merge.

        Raises:
            NotALakeError: if there is no lake.
            RunNameError: if the lake has no such run.
            SchemaError: for a table that is no row table of runs.
            LeaseError: if another process looks after the run named.
        """
        return compact.compact(
            self.storage, run=run, tables=tables, dry_run=dry_run, progress=on_progress
        )

    def migrate(
        self, run: str | None = None, dry_run: bool = False, on_progress: Progress | None = None
    ) -> Migration:
        """Rewrite files of older schema versions as the current one, for plain readers.

        Args:
            run: one run; by default the whole lake, data sets included.
            dry_run: only say what would be rewritten.
            on_progress: called with the files done and the files to do.

        Raises:
            NotALakeError: if there is no lake.
            RunNameError: if the lake has no such run.
        """
        return migrate.migrate(self.storage, run=run, dry_run=dry_run, progress=on_progress)

    def remove(
        self, run: str, dry_run: bool = False, on_progress: Progress | None = None
    ) -> Removal:
        """Take a run away: it shows no more and its name is free; `gc` deletes its files later.

        Args:
            run: name of the run.
            dry_run: only say what would be removed.
            on_progress: called with the files taken away and the files to take away.

        Raises:
            NotALakeError: if there is no lake.
            RunNameError: if the lake has no such run.
            LeaseError: if the run is being trained, evaluated or looked after, naming by whom.
        """
        return remove.remove(self.storage, run, dry_run=dry_run, progress=on_progress)

    def copy(
        self,
        to: str,
        runs: str | Sequence[str] | None = None,
        as_name: str | None = None,
        datasets: bool = True,
        dry_run: bool = False,
        on_progress: Progress | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Copied:
        """Copy runs into another lake, with the data sets, vocabularies and probes that they use.

        A copy that was interrupted goes on when it is called again.

        Args:
            to: folder or URL of the other lake; made if there is none.
            runs: a run, or several; by default all, which merges this lake into the other.
            as_name: another name for the one run that is copied.
            datasets: whether data sets and vocabularies come along.
            dry_run: only check, and say what would be copied.
            on_progress: called with the bytes copied and the bytes to copy.
            storage_options: for the other store; never written anywhere.

        Raises:
            NotALakeError: if this is no lake, or `to` holds something else.
            RunNameError: for an unknown run, or names that other runs there have.
            DataError: for data sets of equal names that differ.
            LeaseError: if a run is being written there.
            CorruptError: if a file of this lake is missing or damaged.
        """
        return copy.copy(
            self.storage,
            Storage(os.fspath(to), storage_options),
            runs=[runs] if isinstance(runs, str) else runs,
            as_name=as_name,
            datasets=datasets,
            dry_run=dry_run,
            progress=on_progress,
        )
