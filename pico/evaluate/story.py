"""Gathers what a report shows: each section from a query of the lake, or why there is none.

`Lake.report` calls `write`. The page itself, in `pico.report`, knows only dataframes and texts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import polars as pl

from pico.errors import PicoError, QueryError
from pico.lake.snapshot import Snapshot
from pico.report import choices, page, plots, sentences, tables
from pico.report.page import Picture, Section
from pico.sql import library, session, statements

_MAX_RUNS = 6
_SIZE = (4.8, 3.3)
"""Inches: letters are legible where a figure is as wide as a phone."""
_FIRST = {
    *("family", "n_params", "n_layers", "d_model", "n_heads", "vocab_size", "seq_len"),
    *("dataset", "max_steps", "optimizer.lr", "optimizer.schedule", "tokens_per_step"),
}
_MOST_STEPS = 24
"""So many steps against each other can be told apart."""
_CKA = "linear CKA"
_ALIKE = (
    "CKA is 1 where one representation is the other, turned or scaled, and near 0 where they have "
    "nothing in common."
)
_TEXT_STREAM = "activations: [{probe: text, sites: [resid.post], schedule: pythia}]"
_TEXT_STREAM_LATER = "--probe text --record activations:resid.post"


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
        """Say what the runs are, in a sentence."""
        return sentences.about(self._rows())

    def configs(self) -> Section:
        """Tell the settings, those that differ first."""
        rows = [{k: v for k, v in row.items() if k != "extra"} for row in self._rows()]
        differing, same = tables.settings(rows)
        if len(rows) > 1:
            lead = f"What differs; {len(same)} settings are the same."
            return Section("Config", lead, table=differing, more=same)
        first = [row for row in same if row["setting"] in _FIRST]
        return Section("Config", table=first, more=[row for row in same if row not in first])

    def losses(self) -> Section:
        """Show training and held-out loss by tokens."""
        named = {"loss": "training batch", "heldout_loss": "held-out text"}
        frame = self._query("loss_by_tokens").rename(named)
        frame, first = choices.together(frame, list(named.values()))
        known = self._sql(_UNIGRAM, [self.runs[0]]).item(0, 0)
        caption = "Loss by tokens seen: dots on held-out text, thin lines of each step's batch."
        pictures = self._picture(
            frame.rename({first: "loss"}),
            caption,
            value="loss",
            reference=None if known is None else (known, "token frequencies alone"),
        )
        lead = ""
        if known is not None and pictures:
            lead = (
                f"Knowing only how frequent each token is gives {known:.3f} nats per token; below "
                "that, context helps."
            )
        return Section("Loss", lead, pictures, note="" if pictures else "No loss was recorded.")

    def norms(self) -> Section:
        """Show how norms of weights grow."""
        frames = {c: self._query("norm_growth", component=c) for c in ("o", "down", "embed")}
        value = "frobenius_norm"
        if any(frame["step"].n_unique() > 1 for frame in frames.values()):
            value = "growth"
            moving = pl.col("step").n_unique().over("run") > 1  # one step has grown by nothing
            frames = {component: frame.filter(moving) for component, frame in frames.items()}
        caption = "Frobenius norm of the {}, as a multiple of that of its first record."
        title, label = "Norms of weights", "norm / first norm"
        return self._of_weights(title, "norm_growth", frames, value, caption, label)

    def ranks(self) -> Section:
        """Show effective rank by layer."""
        caption = "Effective rank of the {}: how many directions carry it. Dark: the first layers."
        frames = self._by_component("effective_rank_by_layer")
        title = "Rank of weights"
        return self._of_weights(title, "effective_rank_by_layer", frames, "effective_rank", caption)

    def sparsity(self) -> Section:
        """Show the Gini coefficient by layer."""
        caption = "Gini coefficient of the entries of the {}: 0 where all are equally large."
        frames = self._by_component("sparsity_by_layer")
        return self._of_weights("Sparsity of weights", "sparsity_by_layer", frames, "gini", caption)

    def gradients(self) -> Section:
        """Show gradient norms by layer."""
        frame = self._sql(_GRADIENT_NORMS)
        frame = frame.filter(pl.col("run").is_in(self.runs))
        pictures = self._picture(
            frame, "Norm of the raw gradient of each layer, all its tensors together."
        )
        note = "" if pictures else sentences.recorded("tensor_stats: {gradients: {every: 10}}")
        return Section("Gradients", "", pictures, note=note)

    def frequencies(self) -> Section:
        """Show loss by token frequency."""
        frame = self._query("loss_by_frequency")
        frame = frame.filter(pl.col("n_targets") >= sentences.FEW_TARGETS)
        pictures = []
        for run in self.runs:
            caption = (
                f"{run}. Loss on the probe text, by how often the target stands in the corpus; "
                f"bands of {sentences.FEW_TARGETS} targets or more."
            )
            pictures += self._picture(frame.filter(pl.col("run") == run), caption, value="loss")
        lead = sentences.frequent_first(frame) if pictures else ""
        hint = "probes: {text: {every: 50, record: [token_scores]}}"
        note = "" if pictures else sentences.recorded(hint, "--probe text --record token_scores")
        return Section("Which tokens are learned when", lead, pictures, note=note)

    def heads(self) -> Section:
        """Show induction scores by head."""
        pictures, lead = [], ""
        frames = {run: self._query("induction_by_head", run=run) for run in self.runs}
        scores = [score for frame in frames.values() for score in frame["score"].to_list()]
        most = max((score for score in scores if score is not None), default=1.0)
        n_tokens = self._sql("SELECT min(len(tokens)) FROM probes WHERE probe = 'repeat'").item()
        chance = sentences.chance(n_tokens)
        for run, frame in frames.items():
            caption = f"Induction score of every head of {run}."
            pictures += self._picture(
                frame,
                caption,
                kind="heatmap",
                x="step",
                y="head",
                limits=(0.0, max(most, 10 * (chance or 0.0))),
                label="induction score",
            )
        if pictures and chance is not None:
            lead = f"1 is perfect copying; a head that looks everywhere alike has {chance:.3f}."
        hint = "probes: {repeat: {every: 50, record: [attention]}}"
        note = "" if pictures else sentences.recorded(hint, "--probe repeat --record attention")
        return Section("Attention heads", lead, pictures, note=note)

    def similarity(self) -> Section:
        """Show CKA of steps with each other, and of runs."""
        pictures = []
        for run in self.runs[:2]:
            frame = self._query("cka_steps", run=run, most=_MOST_STEPS)
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
        note = "" if pictures else sentences.recorded(_TEXT_STREAM, _TEXT_STREAM_LATER)
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

    def _by_component(self, query: str) -> dict[str, pl.DataFrame]:
        found = {}
        for component in ("o", "down"):
            frames = [
                self._query(query, run=run, component=component).with_columns(run=pl.lit(run))
                for run in self.runs
            ]
            found[component] = pl.concat(frames)
        return found

    def _of_weights(
        self,
        title: str,
        query: str,
        frames: Mapping[str, pl.DataFrame],
        value: str,
        caption: str,
        label: str | None = None,
    ) -> Section:
        """Show a value of some components; as a table where only one step is stored."""
        known = {c: frame for c, frame in frames.items() if frame.height}
        if not known:
            return self._of_all_weights(title, query, value, caption, label)
        if all(frame["step"].n_unique() == 1 for frame in known.values()):
            columns = ["run", "layer"] if len(self.runs) > 1 else ["layer"]
            rows = [
                {"component": component, **row}
                for component, frame in known.items()
                for row in frame.sort("run", "layer").select(*columns, value).to_dicts()
            ]
            return Section(title, "One step is stored.", table=rows)
        pictures = []
        for component, frame in known.items():
            told = caption.format(sentences.WORDS[component])
            pictures += self._picture(frame, told, value=value, label=label)
        return Section(title, "", pictures)

    def _of_all_weights(
        self, title: str, query: str, value: str, caption: str, label: str | None
    ) -> Section:
        """Show a value of every tensor of runs whose components nobody knows."""
        frames = [
            self._query(query, run=run).with_columns(run=pl.lit(run)).drop("layer", "component")
            for run in self.runs
        ]
        both = pl.concat(frames)
        if not both.height:
            return Section(title, note=sentences.recorded("weights: pythia"))
        pictures = self._picture(both, caption.format("weights"), value=value, label=label)
        note = "" if pictures else f"Too many tensors for a figure; pico query {query} lists them."
        return Section(title, "", pictures, note=note)

    def _picture(self, frame: pl.DataFrame, caption: str, **options: Any) -> list[Picture]:
        if not frame.height:
            return []
        try:
            drawn = plots.figure(frame, size=_SIZE, runs=self.runs, **options)
        except QueryError:
            return []  # all values NULL or NaN: nothing to see
        return [
            Picture(plots.svg(drawn), caption, *tables.last_numbers(frame, options.get("value")))
        ]

    def _rows(self) -> list[dict[str, Any]]:
        """Return the rows of the runs, in the order in which they were asked for."""
        rows = self._sql("SELECT * FROM runs").to_dicts()
        of_run = {row["run"]: row for row in rows if row["run"] in self.runs}
        return [of_run[run] for run in self.runs if run in of_run]

    def _query(self, name: str, **given: Any) -> pl.DataFrame:
        texts = {key: str(value) for key, value in given.items()}
        found = library.run(self._connection, library.get_query(name), texts)
        frame = pl.DataFrame(pl.from_arrow(statements.fetch(found)))
        return frame.filter(pl.col("run").is_in(self.runs)) if "run" in frame.columns else frame

    def _sql(self, sql: str, given: Sequence[Any] = ()) -> pl.DataFrame:
        found = self._connection.sql(sql, params=list(given))
        return pl.DataFrame(pl.from_arrow(statements.fetch(found)))


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
