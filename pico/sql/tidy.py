"""The kept metrics as the tidy frame that people plot from: `Lake.metrics`.

One row a value, or one row a tensor with a column per metric. Of each metric only the latest
version is shown, so that no curve mixes two definitions. What was asked for by name and is not kept
at all is an error that says how to compute it, not an empty plot.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

import polars as pl

from pico.errors import MetricError, QueryError, SchemaError, did_you_mean
from pico.lake.snapshot import Snapshot
from pico.metrics import registry
from pico.sql import frames

TENSOR_TABLES = ("weights", "gradients", "activations", "optimizer")
_WHERE = ("table_name", "name", "layer", "component", "param", "head", "site", "state", "stage")
_REFERENCE = ("probe", "ref_run", "ref_step", "ref_name")
KEYS = ("run", "step", "tokens", *_WHERE, *_REFERENCE)
"""The columns that say what a value is of, in the order of the frame."""
_OF_VALUE = ("run", "step", *_WHERE, *_REFERENCE, "metric", "args")
"""What tells one value from all others, but the tensor's content."""


def metrics(
    snapshot: Snapshot,
    names: Sequence[str] | None = None,
    runs: Sequence[str] | None = None,
    steps: Collection[int] | None = None,
    components: Collection[str | None] | None = None,
    layers: Collection[int | None] | None = None,
    table: str | None = None,
    wide: bool = False,
) -> pl.DataFrame:
    """Return kept metrics, a row per value; `Lake.metrics` tells the rest.

    Args:
        snapshot: which files count.
        names: only these metrics.
        runs: only these runs.
        steps: only these steps.
        components: only these roles; None among them for what has none.
        layers: only these blocks; None among them for what lies outside.
        table: only metrics of this table's tensors.
        wide: a row per tensor (and head, and reference), a column per metric.

    Raises:
        MetricError: for an unknown metric, for one that is not kept of what was asked, and for
            components of which nothing is kept.
        RunNameError: for a run that the lake does not have.
        SchemaError: for a table that holds no tensors.
        QueryError: if two different values stand for one, left by a computation that was killed.
    """
    for run in runs or ():
        snapshot.check_run(run)
    if table is not None and table not in TENSOR_TABLES:
        hint = did_you_mean(table, TENSOR_TABLES)
        raise SchemaError(f"no tensor table {table!r}.{hint} Tables: {', '.join(TENSOR_TABLES)}")
    kept = frames.scan(snapshot, "metrics", runs, steps, layers, components)
    rows = _latest(_narrowed(kept, names, table).collect())
    if not _is_complete(rows, names, runs):
        every = _narrowed(frames.scan(snapshot, "metrics", runs), None, table)
        _check(snapshot, every.select("run", "metric").unique().collect(), names, runs, table)
        _check_components(every, components, names)
    long = _with_tokens(snapshot, rows).select(*KEYS, "metric", "args", "value")
    long = long.sort(*_ORDER, nulls_last=True)
    return _wide(long, names) if wide else long


_ORDER = (
    "run",
    "step",
    "table_name",
    "layer",
    "name",
    *(k for k in _OF_VALUE if k not in KEYS[:5]),
)


def _narrowed(kept: pl.LazyFrame, names: Sequence[str] | None, table: str | None) -> pl.LazyFrame:
    if names is not None:
        kept = kept.filter(pl.col("metric").is_in(list(names)))
    return kept if table is None else kept.filter(pl.col("table_name") == table)


def _latest(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of each metric's latest version, each value once."""
    newest = pl.col("metric_version") == pl.col("metric_version").max().over("metric")
    rows = rows.filter(newest).unique([*_OF_VALUE, "tensor_hash"], maintain_order=True)
    twice = rows.filter(pl.struct(_OF_VALUE).is_duplicated())
    if twice.height:
        first = twice.row(0, named=True)
        raise QueryError(
            f"{first['metric']} of {first['name']!r} at step {first['step']} of run "
            f"{first['run']!r} stands twice, of two different tensors: a computation was killed "
            "while the run went back; mend it: pico metrics compute "
            f"--run {first['run']} --table {first['table_name']}"
        )
    return rows


def _is_complete(
    rows: pl.DataFrame, names: Sequence[str] | None, runs: Sequence[str] | None
) -> bool:
    """Say whether there is something of every metric and run that was named."""
    found = set(rows.select("run", "metric").unique().iter_rows())
    of_runs = {run for run, _ in found}
    if names is None:
        return bool(found) and set(runs or ()) <= of_runs
    return bool(found) and {(r, n) for r in runs or of_runs for n in names} <= found


def _check(
    snapshot: Snapshot,
    kept: pl.DataFrame,
    names: Sequence[str] | None,
    runs: Sequence[str] | None,
    table: str | None,
) -> None:
    """Refuse what is not kept at all, whatever the steps, layers and components."""
    found = set(kept.select("run", "metric").iter_rows())
    known = {metric for _, metric in found}
    for name in names or ():
        if name not in known:
            registry.get(name)
    asked: Sequence[str | None] = runs or [None]
    for run in asked:
        of_run = {metric for of, metric in found if run in (None, of)}
        lacking = [name for name in names or () if name not in of_run]
        if lacking or not of_run:
            raise MetricError(_how_to_have(snapshot, lacking, run, table))


def _how_to_have(
    snapshot: Snapshot, names: Sequence[str], run: str | None, table: str | None
) -> str:
    """Return the sentence that says what is not kept, and how it comes to be."""
    what = ", ".join(names) or "metrics"
    of = f"{f' of {table}' if table else ''}{f' of run {run!r}' if run else ''}"
    tables = [table] if table else TENSOR_TABLES
    if not any(snapshot.files(kind, [run] if run else None) for kind in tables):
        return (
            f"the lake keeps no {what}{of}, and no tensors to compute them from; "
            "ask for them in record.metrics when training"
        )
    options = f" --run {run}" if run else ""
    options += f" --table {table}" if table and table != "weights" else ""
    options += f" --metrics {','.join(names)}" if names else ""
    if any(registry.get(name).kind == "pair" for name in names):
        options += " --reference-step last"
    return f"the lake keeps no {what}{of}; compute them: pico metrics compute{options}"


def _check_components(
    every: pl.LazyFrame, components: Collection[str | None] | None, names: Sequence[str] | None
) -> None:
    """Refuse components of which nothing is kept."""
    found = _narrowed(every, names, None).select("component").unique().collect()["component"]
    known = sorted(item for item in found if item is not None)
    for component in components or ():
        if component is not None and component not in known:
            hint = did_you_mean(component, known)
            raise MetricError(
                f"no metrics of component {component!r} are kept.{hint} "
                f"There are: {', '.join(known) or 'none'}"
            )


def _with_tokens(snapshot: Snapshot, rows: pl.DataFrame) -> pl.DataFrame:
    """Add how many tokens a run had seen before the state at a step; NULL where nothing tells."""
    runs = rows["run"].unique().to_list()
    told = frames.scan(snapshot, "checkpoints", runs).select("run", "step", "tokens").collect()
    told = told.drop_nulls("tokens").unique(["run", "step"])
    rates = frames.scan(snapshot, "runs", runs).select("run", "tokens_per_step").collect()
    joined = rows.join(told, on=["run", "step"], how="left").join(rates, on="run", how="left")
    by_rate = pl.col("tokens_per_step") * pl.col("step")
    return joined.with_columns(tokens=pl.coalesce("tokens", by_rate).cast(pl.Int64))


def _wide(long: pl.DataFrame, names: Sequence[str] | None) -> pl.DataFrame:
    """Return a row per tensor, a column per metric: those named in their order, or all sorted."""
    labels = pl.concat_str("metric", pl.col("args").map_elements(_call, pl.String).fill_null(""))
    long = long.with_columns(metric_with_args=labels)
    found = sorted(long["metric_with_args"].unique())
    if names is not None:
        of_name = {name: [c for c in found if c.partition("(")[0] == name] for name in names}
        found = [column for name in of_name for column in of_name[name] or [name]]
    return long.pivot("metric_with_args", found, index=KEYS, values="value")


def _call(args: str) -> str:
    """Return a metric's arguments as one writes them.

    >>> _call('{"k": 4}')
    '(k=4)'
    """
    return f"({', '.join(f'{key}={value}' for key, value in json.loads(args).items())})"
