"""Gathers what a report shows: each section from a query of the lake, or why there is none.

`Lake.report` calls `write`. The page itself, in `pico.report`, knows only dataframes and texts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import polars as pl

from pico.errors import PicoError, QueryError
from pico.lake.snapshot import Snapshot
from pico.report import page, plots, tables
from pico.report.page import Picture, Section
from pico.sql import library, session, statements

_MAX_RUNS = 6
_SIZE = (4.8, 3.3)
"""Inches: letters are legible where a figure is as wide as a phone."""
_FIRST = {
    *("family", "n_params", "n_layers", "d_model", "n_heads", "vocab_size", "seq_len"),
    *("dataset", "max_steps", "optimizer.lr", "optimizer.schedule", "tokens_per_step"),
}
_MAX_CKA_STEPS = 24
_CKA = "linear CKA"
_ALIKE = (
    "CKA is 1 where one representation is the other, turned or scaled, and near 0 where they have "
    "nothing in common."
)
_TEXT_STREAM = "activations: [{probe: text, sites: [resid.post], schedule: pythia}]"


def write(
    snapshot: Snapshot,
    runs: Sequence[str],
    path: str | Path,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[str]:
    """Write a page about runs; returns the titles of its sections.

    Args:
        snapshot: of the lake.
        runs: up to six.
        path: of the `.html` file.
        on_progress: called with the sections done and to do.

    Raises:
        RunNameError: for a run that the lake does not have.
        QueryError: for no runs or too many, or a place that cannot be written.
        MissingExtraError: without matplotlib.
    """
    if not 1 <= len(set(runs)) <= _MAX_RUNS:
        raise QueryError(f"a report is about one to {_MAX_RUNS} runs, not {len(set(runs))}")
    for run in runs:
        snapshot.check_run(run)
    if Path(path).suffix.lower() != ".html":
        raise QueryError(f"a report is written as .html, not {Path(path).name!r}")
    story = _Story(snapshot, list(dict.fromkeys(runs)))
    sections = []
    for number, tell in enumerate(story.parts):
        if on_progress is not None:
            on_progress(number, len(story.parts))
        sections.append(tell())
    named = ", ".join(story.runs)
    text = page.render(f"How {named} learned", story.lead(), sections)
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise QueryError(f"cannot write {path}: {error.strerror}") from None
    if on_progress is not None:
        on_progress(len(story.parts), len(story.parts))
    return [section.title for section in sections]


class _Story:
    """The sections of one report."""

    def __init__(self, snapshot: Snapshot, runs: list[str]) -> None:
        self.runs, self._snapshot = runs, snapshot
        self._connection: duckdb.DuckDBPyConnection = session.connect(snapshot)
        self.parts: list[Callable[[], Section]] = [
            *(self.configs, self.losses, self.norms, self.ranks, self.sparsity, self.gradients),
            *(self.frequencies, self.heads, self.similarity, self.samples, self.sizes),
        ]

    def lead(self) -> str:
        """Say when and where the runs were made, in a sentence."""
        rows = self._sql("SELECT run, n_params, dataset FROM runs")
        rows = rows.filter(pl.col("run").is_in(self.runs))
        told = [f"{r['run']}: {r['n_params'] or 0:,} parameters" for r in rows.to_dicts()]
        data = sorted({d for d in rows["dataset"].to_list() if d})
        return "; ".join(told) + (f". Trained on {', '.join(data)}." if data else ".")

    def configs(self) -> Section:
        """Tell the settings, those that differ first."""
        rows = self._sql("SELECT * EXCLUDE (extra) FROM runs")
        of_runs = [row for row in rows.to_dicts() if row["run"] in self.runs]
        differing, same = tables.settings(of_runs)
        if len(of_runs) > 1:
            lead = f"What differs; {len(same)} settings are the same."
            return Section("Config", lead, table=differing, more=same)
        first = [row for row in same if row["setting"] in _FIRST]
        return Section("Config", table=first, more=[row for row in same if row not in first])

    def losses(self) -> Section:
        """Show training and held-out loss by tokens."""
        frame = self._query("loss_by_tokens")
        columns = {"loss": "training batch", "heldout_loss": "held-out text"}
        parts = [
            frame.select("run", "tokens", "step", loss=name, text=pl.lit(text)).drop_nulls("loss")
            for name, text in columns.items()
        ]
        known = self._sql(_UNIGRAM, [self.runs[0]]).item(0, 0)
        caption = "Loss by tokens seen: dots on held-out text, thin lines of each step's batch."
        lead = ""
        if known is not None:
            lead = (
                f"Knowing only how frequent each token is gives {known:.3f} nats per token; below "
                "that, context helps."
            )
        pictures = self._picture(
            pl.concat(parts),
            caption,
            value="loss",
            reference=None if known is None else (known, "token frequencies alone"),
        )
        return Section("Loss", lead, pictures, note="" if pictures else "No loss was recorded.")

    def norms(self) -> Section:
        """Show how norms of weights grow."""
        pictures = []
        for component in ("o", "down", "embed"):
            frame = self._query("norm_growth", component=component)
            caption = f"Frobenius norm of {component}, as a multiple of that of its first record."
            pictures += self._picture(frame, caption, value="growth", label="norm / first norm")
        return Section(
            "Norms of weights", "", pictures, note="" if pictures else _record("weights: pythia")
        )

    def ranks(self) -> Section:
        """Show effective rank by layer."""
        return self._of_weights(
            "Rank of weights",
            "effective_rank",
            "Effective rank of {}: how many directions carry it. Layers from dark to light.",
        )

    def sparsity(self) -> Section:
        """Show the Gini coefficient by layer."""
        return self._of_weights(
            "Sparsity of weights",
            "gini",
            "Gini coefficient of the entries of {}: 0 where all are equally large.",
        )

    def gradients(self) -> Section:
        """Show gradient norms by layer."""
        frame = self._sql(_GRADIENT_NORMS)
        frame = frame.filter(pl.col("run").is_in(self.runs))
        pictures = self._picture(
            frame, "Norm of the raw gradient of each layer, all its tensors together."
        )
        note = "" if pictures else _record("tensor_stats: {gradients: {every: 10}}")
        return Section("Gradients", "", pictures, note=note)

    def frequencies(self) -> Section:
        """Show loss by token frequency."""
        frame = self._query("loss_by_frequency")
        caption = "Loss on the probe text, by how often the target stands in the training data."
        pictures = self._by_run(frame, caption)
        lead = _frequent_first(frame) if pictures else ""
        note = "" if pictures else _record("probes: {text: {every: 50, record: [token_scores]}}")
        return Section("Which tokens are learned when", lead, pictures, note=note)

    def heads(self) -> Section:
        """Show induction scores by head."""
        pictures = []
        frames = {run: self._query("induction_by_head", run=run) for run in self.runs}
        scores = [score for frame in frames.values() for score in frame["score"].to_list()]
        most = max((score for score in scores if score is not None), default=1.0)
        for run, frame in frames.items():
            caption = f"Induction score of every head of {run}: 1 would be perfect copying."
            pictures += self._picture(
                frame,
                caption,
                kind="heatmap",
                x="step",
                y="head",
                limits=(0.0, most),
                label="induction score",
            )
        note = "" if pictures else _record("probes: {repeat: {every: 50, record: [attention]}}")
        return Section("Attention heads", "", pictures, note=note)

    def similarity(self) -> Section:
        """Show CKA of steps with each other, and of runs."""
        pictures = []
        for run in self.runs[:2]:
            frame = _thinned(self._query("cka_steps", run=run))
            caption = f"Linear CKA of the last layer of {run} with itself, step against step."
            pictures += self._picture(frame, caption, limits=(0.0, 1.0), label=_CKA)
        for other in self.runs[1:]:
            frame = self._query(
                "cka_between_runs", run=self.runs[0], other=other, site="resid.post"
            )
            caption = f"Linear CKA of {self.runs[0]} and {other} on the same text, by layer."
            pictures += self._picture(frame, caption, value="cka", label=_CKA)
        lead = _ALIKE if pictures else ""
        if len(self.runs) > 1:
            frame = self._query("cka_runs").filter(pl.col("other_run").is_in(self.runs))
            caption = "Linear CKA of the last layers of runs with each other, at the last step."
            pictures += self._picture(
                frame, caption, kind="heatmap", x="run", y="other_run", label=_CKA, limits=(0, 1)
            )
        note = "" if pictures else _record(_TEXT_STREAM)
        return Section("Similarity of representations", lead, pictures, note=note)

    def samples(self) -> Section:
        """Show what checkpoints write."""
        title = "What it writes"
        try:
            from pico.evaluate import load, samples
        except ModuleNotFoundError:
            return Section(title, note="Samples need torch: the extra train of pico-lake.")
        texts, missing = [], []
        n_steps = 5 if len(self.runs) < 3 else 3
        for run in self.runs:
            try:
                steps = load.weight_steps(self._snapshot, run)
                last = len(steps) - 1
                chosen = sorted({steps[round(i * last / (n_steps - 1))] for i in range(n_steps)})
                for row in samples.samples(self._snapshot, run, chosen, n_prompts=1):
                    heading = f"{run}, step {row['step']:,}"
                    texts.append((heading, f"{row['prompt']} ▸ {row['text']}"))
            except (PicoError, IndexError) as error:
                missing.append(f"No samples of {run}: {error}")
        lead = "From held-out text, the likeliest token each time; ▸ is where the model begins."
        return Section(title, lead if texts else "", texts=texts, note=" ".join(missing))

    def sizes(self) -> Section:
        """Tell megabytes per table."""
        table = tables.megabytes(self._query("bytes_per_table"), self.runs)
        return Section("Size", "Megabytes that the lake keeps of these runs.", table=table)

    def _of_weights(self, title: str, metric: str, caption: str) -> Section:
        pictures = []
        query = {"effective_rank": "effective_rank_by_layer", "gini": "sparsity_by_layer"}[metric]
        for component in ("o", "down"):
            frames = [
                self._query(query, run=run, component=component).with_columns(run=pl.lit(run))
                for run in self.runs
            ]
            pictures += self._picture(pl.concat(frames), caption.format(component), value=metric)
        return Section(title, "", pictures, note="" if pictures else _record("weights: pythia"))

    def _by_run(self, frame: pl.DataFrame, caption: str) -> list[Picture]:
        found = []
        for run in self.runs:
            of_run = frame.filter(pl.col("run") == run)
            found += self._picture(of_run, f"{run}. {caption}", value="loss")
        return found

    def _picture(self, frame: pl.DataFrame, caption: str, **options: Any) -> list[Picture]:
        if not frame.height:
            return []
        try:
            drawn = plots.figure(frame, size=_SIZE, **options)
        except QueryError:
            return []  # all values NULL or NaN: nothing to see
        return [
            Picture(plots.svg(drawn), caption, *tables.last_numbers(frame, options.get("value")))
        ]

    def _query(self, name: str, **given: Any) -> pl.DataFrame:
        texts = {key: str(value) for key, value in given.items()}
        found = library.run(self._connection, library.get_query(name), texts)
        frame = pl.DataFrame(pl.from_arrow(statements.fetch(found)))
        return frame.filter(pl.col("run").is_in(self.runs)) if "run" in frame.columns else frame

    def _sql(self, sql: str, given: Sequence[Any] = ()) -> pl.DataFrame:
        found = self._connection.sql(sql, params=list(given))
        return pl.DataFrame(pl.from_arrow(statements.fetch(found)))


def _frequent_first(frame: pl.DataFrame) -> str:
    """Say what frequency does to the loss at the end, if it does what people expect."""
    last = frame.filter(pl.col("step") == pl.col("step").max()).sort("count_from")
    if last["count_from"].n_unique() < 2 or last["loss"][-1] >= last["loss"][0]:
        return ""
    return (
        f"At the last step targets seen {last['count_from'][-1]:,} times or more cost "
        f"{last['loss'][-1]:.2f} nats, those of the rarest band {last['loss'][0]:.2f}."
    )


def _thinned(frame: pl.DataFrame) -> pl.DataFrame:
    """Keep so many steps that cells can be told apart."""
    steps = sorted(frame["step"].unique().to_list()) if frame.height else []
    kept = steps[:: -(-len(steps) // _MAX_CKA_STEPS)] if steps else []
    return frame.filter(pl.col("step").is_in(kept) & pl.col("other_step").is_in(kept))


def _record(what: str) -> str:
    return f"Nothing of it was recorded. In a config: record: {{{what}}}"


_UNIGRAM = """
WITH v AS (
    SELECT count / sum(count) OVER () AS p FROM vocab
    WHERE count > 0 AND tokenizer = (SELECT any_value(tokenizer) FROM runs WHERE run = ?)
)
SELECT -sum(p * ln(p)) FROM v
"""
_GRADIENT_NORMS = """
SELECT run, step, layer, sqrt(sum(frobenius_norm ** 2)) AS gradient_norm
FROM tensor_stats
WHERE table_name = 'gradients' AND coalesce(stage, 'raw') = 'raw' AND layer IS NOT NULL
GROUP BY ALL
ORDER BY run, layer, step
"""
