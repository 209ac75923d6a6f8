"""The methods of `pico.Lake` that answer in Polars; `Lake` inherits them.

Each takes a fresh snapshot of the lake and calls one function of this package. Polars, which takes
half a second to import, is imported by the first one that is called.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from pico.compute import materialize
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from pico.sql import session

if TYPE_CHECKING:
    import polars as pl


class Frames:
    """What a lake answers as Polars frames."""

    storage: Storage

    def scan(
        self,
        table: str,
        run: str | Collection[str] | None = None,
        steps: int | Collection[int] | None = None,
        layers: int | Collection[int | None] | None = None,
        components: str | Collection[str | None] | None = None,
    ) -> pl.LazyFrame:
        """Return a table as a Polars LazyFrame, with what was not asked for left unread.

        Files of other runs and steps are not opened; of the others only the row groups that can
        hold the layers and components are read, and only the columns that the query needs.

        Args:
            table: name of a table.
            run: one run, or several; by default all.
            steps: one step, or several.
            layers: one block, or several; None among them for what lies outside blocks.
            components: one role, or several; None among them for what has none.

        Raises:
            SchemaError: if the lake has no such table, or the table no layers or components.
            RunNameError: for a run that the lake does not have.
        """
        from pico.sql import frames

        snapshot, runs = Snapshot.take(self.storage), _listed(run)
        for name in runs or ():
            snapshot.check_run(name)
        return frames.scan(
            snapshot, table, runs, _listed(steps), _listed(layers), _listed(components)
        )

    def detokenize(self, tokens: Collection[int], tokenizer: str) -> str | None:
        """Return the text of token ids, as the SQL function of that name gives it.

        Args:
            tokens: ids; one that the tokenizer lacks becomes U+FFFD.
            tokenizer: its name, as in `datasets.tokenizer`; None comes back if the lake lacks it.
        """
        connection = session.connect(Snapshot.take(self.storage))
        given = [[int(token) for token in tokens], tokenizer]
        rows = connection.execute("SELECT detokenize(?::INTEGER[], ?)", given).fetchall()
        found: str | None = rows[0][0]
        return found

    def metrics(
        self,
        names: str | Collection[str] | None = None,
        run: str | Collection[str] | None = None,
        steps: int | Collection[int] | None = None,
        components: str | Collection[str | None] | None = None,
        layers: int | Collection[int | None] | None = None,
        table: str | None = None,
        *,
        wide: bool = False,
        compute: bool = False,
    ) -> pl.DataFrame:
        """Return the kept metrics as a tidy frame to plot from: a row per value.

        Args:
            names: one metric, or several; by default all that are kept.
            run: one run, or several; by default all.
            steps: one step, or several.
            components: one role (`o`, `ov_circuit`), or several.
            layers: one block, or several; None among them for what lies outside blocks.
            table: `weights`, `gradients`, `activations` or `optimizer`; by default all.
            wide: one row per tensor (head, reference) and step, with a column per metric.
            compute: first compute what is missing, of all steps of these runs, and keep it
                (of weights, unless `table` says otherwise).

        Returns:
            `run, step, tokens, table_name, name, layer, component, param, head, site, state,
            stage, probe, ref_run, ref_step, ref_name, metric, args, value`, sorted by run, step
            and place; `tokens` is what the run had seen before that state. Wide, the last three
            are one column per metric, NULL where a tensor has no such value. Only the latest
            version of each metric. Steps, layers or components without values are no error.

        Raises:
            MetricError: for an unknown metric, or one that is not kept of what was asked.
            RunNameError: for a run that the lake does not have.
            SchemaError: for a table that holds no tensors.
        """
        from pico.sql import tidy

        asked, runs = _listed(names), _listed(run)
        if compute:
            for name in [None] if runs is None else runs:
                materialize.compute(self.storage, name, asked, table or "weights")
        snapshot = Snapshot.take(self.storage)
        chosen = _listed(steps), _listed(components), _listed(layers)
        return tidy.metrics(snapshot, asked, runs, *chosen, table, wide)


def _listed(given: Any) -> list[Any] | None:
    """Return one name or step, or several, as a list; None stays None."""
    if given is None:
        return None
    return [given] if isinstance(given, (str, int)) else list(given)
