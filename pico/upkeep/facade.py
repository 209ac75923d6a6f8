"""The methods of `pico.Lake` that keep a lake healthy; `Lake` inherits them.

Each takes what it needs from the lake alone (its storage) and calls one function of this package.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from pico.lake.storage import Storage
from pico.upkeep import compact, gc, migrate, verify
from pico.upkeep.compact import Compacted
from pico.upkeep.gc import Collected
from pico.upkeep.migrate import Migration
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
