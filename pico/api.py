"""The facade: a `Lake` whose methods the commands of `pico` mirror one by one.

Reading needs the base dependencies alone; methods that train or load a model import torch when they
are called, and say which extra is missing. Every method that reads takes a fresh snapshot.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from pico import cluster
from pico import config as configs
from pico.compute import materialize
from pico.compute.summary import Summary
from pico.config import RunConfig
from pico.errors import MissingExtraError, RecordError
from pico.evaluate.facade import Evaluations
from pico.importers.facade import Importers
from pico.lake import overview
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from pico.metrics.plugins import load_plugin
from pico.sql import functions, library, session, statements, untrusted
from pico.sql.facade import Frames
from pico.sql.library import Query
from pico.upkeep.facade import Upkeep

if TYPE_CHECKING:
    import duckdb
    import numpy as np
    import pyarrow as pa
    from torch import nn

    from pico.train.forecast import Forecast
    from pico.train.trainer import Outcome, Progress


class Lake(Frames, Upkeep, Importers, Evaluations):
    """One lake: its runs, its tables, and what can be asked of them."""

    def __init__(self, url: str, storage_options: Mapping[str, Any] | None = None) -> None:
        """Name a lake without looking at it; `open` is the usual way in."""
        self.storage = Storage(os.fspath(url), storage_options)

    @classmethod
    def open(cls, url: str, storage_options: Mapping[str, Any] | None = None) -> Lake:
        """Open an existing lake for reading.

        Args:
            url: a folder, or a URL of any fsspec store (`s3://…`, `memory://…`).
            storage_options: for the store; never written anywhere.

        Raises:
            NotALakeError: if there is none.
        """
        lake = cls(url, storage_options)
        lake.snapshot()
        return lake

    def __repr__(self) -> str:
        """Show where the lake is."""
        return f"Lake({self.storage.url!r})"

    def snapshot(self) -> Snapshot:
        """Return the live files of this moment."""
        return Snapshot.take(self.storage)

    def connect(
        self,
        runs: str | Collection[str] | None = None,
        steps: int | Collection[int] | None = None,
        verify: bool = False,
    ) -> duckdb.DuckDBPyConnection:
        """Return a DuckDB connection with a view per table and the tensor functions.

        Args:
            runs: narrow the views to files of these runs.
            steps: narrow the views to files that can hold these steps.
            verify: compare all these files with the log first; DuckDB compares no checksums.

        Raises:
            CorruptError: with `verify`, naming a damaged file.
        """
        return session.connect(
            self.snapshot(), runs=_listed(runs), steps=_listed(steps), verify=verify
        )

    def sql(self, statement: str, verify: bool = False) -> duckdb.DuckDBPyRelation:
        """Run SQL; the answer has `.pl()`, `.df()`, `.fetchall()`, `.show()`.

        Args:
            statement: SQL of DuckDB.
            verify: compare all files of the lake with the log first; see `connect`.

        Raises:
            QueryError: if the statement does not run.
            CorruptError: with `verify`, naming a damaged file.
        """
        return statements.query(self.connect(verify=verify), statement)

    def sql_untrusted(
        self, statement: str, seconds: float = 60.0, memory_limit: str = "2GB"
    ) -> pa.Table:
        """Run SQL of somebody else in a child process that can only read this lake.

        Args:
            statement: one SELECT.
            seconds: time that it may take.
            memory_limit: memory that it may take, and size of the answer.

        Raises:
            QueryError: if it is no SELECT, asks for more than the lake, fails, or needs too much.
        """
        return untrusted.run(self.snapshot(), statement, seconds=seconds, memory_limit=memory_limit)

    def runs(self) -> list[dict[str, Any]]:
        """Return a row per run: sizes, seeds, data set, last step, checkpoints, bytes."""
        return overview.runs(self.snapshot())

    def queries(self) -> list[Query]:
        """Return the shipped queries."""
        return library.list_queries()

    def query(self, name: str, /, **parameters: Any) -> duckdb.DuckDBPyRelation:
        """Run a shipped query by name; a parameter that is None keeps its default.

        Raises:
            QueryError: for an unknown query, or a parameter that is missing or unknown.
            RunNameError: for a run that the lake does not have.
        """
        wanted = library.get_query(name)
        texts = {key: str(value) for key, value in parameters.items() if value is not None}
        snapshot = self.snapshot()
        for key in ("run", "other"):
            if key in texts:
                snapshot.check_run(texts[key])
        return library.run(session.connect(snapshot), wanted, texts)

    def functions(self) -> list[dict[str, str]]:
        """Return the tensor functions of SQL: name, signature, summary."""
        return functions.functions()

    def compute_metrics(
        self,
        metrics: str | Iterable[str] | None = None,
        run: str | None = None,
        table: str | Iterable[str] = "weights",
        on_progress: Callable[[int, int], None] | None = None,
        *,
        reference_step: int | str | None = None,
        reference_run: str | None = None,
        dry_run: bool = False,
        workers: int | None = None,
        ray: str | None = None,
        device: str = "cpu",
    ) -> Summary:
        """Compute what is missing in the `metrics` table, and keep it.

        Args:
            metrics: names from `pico.metrics.names()`, with arguments as `subspace_overlap(k=4)`;
                by default all of one tensor.
            run: one run; by default all.
            table: `weights`, `gradients`, `activations` or `optimizer`, or several of them.
            on_progress: called with the tensors done and the tensors to do.
            reference_step: the step, or `last`, that metrics of two tensors compare with.
            reference_run: the run that they compare with; by default each run with itself.
            dry_run: only say what is missing.
            workers: how many compute at once; by default one per core.
            ray: address of a Ray cluster that computes; `auto` finds one, or starts one here.
            device: `cpu`, or torch's name of a GPU.

        Raises:
            MetricError: for an unknown metric, or one of two tensors without a reference.
            ClusterError: for a cluster or a device that is not to be had.
        """
        asked = run, metrics, table, on_progress
        if dry_run:
            return materialize.compute(
                self.storage, *asked, None, reference_step, reference_run, dry_run
            )
        with cluster.engine(ray, workers, device) as engine:
            return materialize.compute(
                self.storage, *asked, None, reference_step, reference_run, engine=engine
            )

    def coverage(self, run: str) -> list[dict[str, Any]]:
        """Return what is recorded of a run: a row per table, and per site and probe."""
        return overview.coverage(self.snapshot(), run)

    def batch(self, run: str, step: int) -> np.ndarray[Any, Any]:
        """Return the token ids that a step saw: `(sequences, seq_len + 1)`, in order.

        Raises:
            RecordError: if the step recorded no batch.
        """
        from pico.data.loader import SequenceReader

        snapshot = self.snapshot()
        snapshot.check_run(run)
        rows = snapshot.read("batches", runs=[run], steps=[step])
        rows = rows.sort_by([(key, "ascending") for key in ("rank", "micro_step", "position")])
        datasets = set(rows["dataset"].to_pylist())
        if len(datasets) != 1 or None in datasets:
            raise RecordError(f"run {run!r} recorded no batch of one data set at step {step}")
        reader = SequenceReader(snapshot, datasets.pop())
        return reader.rows(rows["sequence_id"].to_pylist())

    @staticmethod
    def plan(
        config: str | Mapping[str, Any] | RunConfig, overrides: Iterable[str] = ()
    ) -> Forecast:
        """Return what training by a config will write, and the memory it takes; trains nothing.

        Args:
            config: a YAML file, a shipped name, a mapping or a resolved config.
            overrides: `key=value` with dotted keys.

        Raises:
            ConfigError: with every problem of the config.
            MissingExtraError: without the extra `train`.
        """
        resolved = config if isinstance(config, RunConfig) else configs.load(config, overrides)
        try:
            from pico.train import forecast
        except ModuleNotFoundError as error:
            raise MissingExtraError(str(error.name), "train") from None
        return forecast.forecast(resolved)

    def train(
        self,
        config: str | Mapping[str, Any] | RunConfig,
        run: str,
        overrides: Iterable[str] = (),
        resume: Literal["auto", "never"] | int = "auto",
        on_step: Callable[[Progress], None] = lambda progress: None,
        on_data: Callable[[str, int, int | None], None] | None = None,
    ) -> Outcome:
        """Train a run into this lake; the lake is made if there is none.

        Args:
            config: a YAML file, a shipped name, a mapping or a resolved config.
            run: name of the run.
            overrides: `key=value` with dotted keys, such as `seeds.init=7`.
            resume: `auto` goes on from the last checkpoint; `never` wants a new run; a number goes
                back to the checkpoint at that step and withdraws what came after.
            on_step: called after each step.
            on_data: called while the data set is made.

        Raises:
            ConfigError: with every problem of the config.
            RecordError: if there is no checkpoint at the step asked for; it lists them.
            MissingExtraError: without the extra `train`.
        """
        resolved = config if isinstance(config, RunConfig) else configs.load(config, overrides)
        try:
            from pico.train.trainer import Trainer
        except ModuleNotFoundError as error:
            raise MissingExtraError(str(error.name), "train") from None
        return Trainer(self.storage, run, resolved, on_step, on_data).fit(resume)


def connect(
    lake: str | Lake,
    runs: str | Collection[str] | None = None,
    steps: int | Collection[int] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    verify: bool = False,
    plugins: Iterable[str] = (),
) -> duckdb.DuckDBPyConnection:
    """Return a DuckDB connection to a lake, with views and tensor functions; see `Lake.connect`.

    The files of `plugins` are loaded first, as by `pico.load_plugin`.
    """
    for file in plugins:
        load_plugin(file)
    return _lake(lake, storage_options).connect(runs, steps, verify)


def load_model(
    lake: str | Lake,
    run: str,
    step: int | None = None,
    model: nn.Module | None = None,
    as_: Literal["pico", "hf"] = "pico",
) -> nn.Module:
    """Return a model with the weights of a run at a step; see `Lake.load_model`."""
    return _lake(lake, None).load_model(run, step, model, as_)


def _lake(lake: str | Lake, storage_options: Mapping[str, Any] | None) -> Lake:
    return lake if isinstance(lake, Lake) else Lake(lake, storage_options)


def _listed(given: Any) -> list[Any] | None:
    """Return one name or step, or several, as a list; None stays None."""
    if given is None:
        return None
    return [given] if isinstance(given, (str, int)) else list(given)
