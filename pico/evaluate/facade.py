"""The methods of `pico.Lake` that make live models of checkpoints; `Lake` inherits them.

Each calls one function of this package, which needs torch, and so imports it when it is called.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pico.errors import MissingExtraError, QueryError, RecordError
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage

if TYPE_CHECKING:
    from torch import nn

    from pico.evaluate.probe import Probed

SCORES = ("token_scores", "attention")


class Evaluations:
    """What can be asked of a checkpoint as a live model."""

    storage: Storage

    def load_model(
        self,
        run: str,
        step: int | None = None,
        model: nn.Module | None = None,
        as_: Literal["pico", "hf"] = "pico",
    ) -> nn.Module:
        """Return a model with the weights of a run at a step.

        Args:
            run: name of the run.
            step: by default the last stored.
            model: a module of the right shape, for runs of a foreign training loop.
            as_: `hf` gives a `transformers.LlamaForCausalLM` that computes the same logits, for
                everything that takes Hugging Face's models.

        Raises:
            RunNameError: if the lake has no such run.
            RecordError: if the step has no weights, or `hf` is asked for of another model.
            MissingExtraError: without the extra `train`, or `hf` for `hf`.
        """
        if as_ not in ("pico", "hf"):
            raise RecordError(f"a model comes as 'pico' or as 'hf', not {as_!r}")
        found = _module("load").load_model(Snapshot.take(self.storage), run, step, model)
        if as_ == "pico" or model is not None:
            return found  # type: ignore[no-any-return]
        from pico.models.hf import to_hf

        return to_hf(found)  # type: ignore[no-any-return]

    def probe(
        self,
        target: str | os.PathLike[str],
        probes: str | Sequence[str] = "text",
        record: str | Sequence[str] = "token_scores",
        steps: str | int | Sequence[int] = "all",
        *,
        layer_scores: bool = False,
        positions: Literal["last", "all"] = "all",
        run: str | None = None,
        step: int = 0,
        seq_len: int | None = None,
        model: nn.Module | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> Probed:
        """Score probes with stored checkpoints; what is there already is not computed again.

        Args:
            target: a run, or a folder of a model that transformers saved.
            probes: `text`, `repeat`, a probe that the lake has, or a `.txt` or `.jsonl` file, which
                becomes a probe of the file's name, or with `NAME=FILE` of another.
            record: `token_scores`, `attention`, `activations:SITE` (several as `SITE+SITE`).
            steps: of a run: `all`, `last`, numbers, ranges as `0:300`.
            layer_scores: score tokens after each block too (logit lens).
            positions: of activations.
            run: of a folder: what its model is called in the lake; by default the folder's name.
            step: of a folder: the step that its model stands for.
            seq_len: tokens of a sequence, where the probe is made now.
            model: a module of the right shape, for a run of a foreign training loop.
            on_progress: called with the steps done and to do.

        Raises:
            RunNameError: if the lake has no such run, and there is no such folder.
            RecordError: for a step, a probe or a site that there is not.
            DataError: for a file or a folder that cannot be read.
            LeaseError: if another process probes the run.
            MissingExtraError: without the extra `train`.
        """
        probe, inputs, folder, load = map(_module, ("probe", "inputs", "folder", "load"))
        wants = probe.Wants(**_wanted(record, layer_scores), positions=positions)
        path, words = Path(os.fspath(target)), _listed(probes)
        snapshot = Snapshot.take_or_empty(self.storage)
        if os.fspath(target) in snapshot.runs() or not path.is_dir():
            name = snapshot.check_run(os.fspath(target))
            models = model and (lambda seen, at: load.load_model(seen, name, at, model))
            given = steps if isinstance(steps, str) else ",".join(map(str, _listed(steps)))
            chosen = probe.choose_steps(load.weight_steps(snapshot, name), given)
            row = load.run_row(snapshot, name)
            asked = [inputs.find(snapshot, each, row, None, seq_len) for each in words]
        else:
            name, loaded = run or _name_of(path), folder.load(path)
            row, tokenizer = folder.run_row(name, loaded, path), path / "tokenizer.json"
            asked = [inputs.find(snapshot, each, row, tokenizer, seq_len) for each in words]
            probe.check(loaded, wants)
            folder.describe(self.storage, name, step, loaded, path)
            chosen, models = [step], lambda _, __: loaded
        return probe.run(self.storage, name, chosen, asked, wants, models, on_progress)  # type: ignore[no-any-return]

    def average(self, run: str, steps: Sequence[int], as_run: str) -> int:
        """Write the mean of a run's checkpoints as a run of its own; returns its step.

        Raises:
            RecordError: for fewer than two steps, or a step without weights.
            RunNameError: if the name is malformed or taken.
            MissingExtraError: without the extra `train`.
        """
        made: int = _module("derive").average(self.storage, run, steps, as_run)
        return made

    def interpolate(self, a: tuple[str, int], b: tuple[str, int], t: float, as_run: str) -> int:
        """Write the checkpoint `(1 - t) a + t b` as a run of its own; returns its step.

        Args:
            a: run and step where `t` is 0.
            b: run and step where `t` is 1.
            t: where between the two, or beyond.
            as_run: name of the new run.

        Raises:
            RecordError: for a step without weights, or models of different shapes.
            RunNameError: if the name is malformed or taken.
            MissingExtraError: without the extra `train`.
        """
        made: int = _module("derive").interpolate(self.storage, a, b, t, as_run)
        return made

    def plot(
        self,
        path: str | os.PathLike[str],
        query: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        *,
        sql: str | None = None,
        **options: Any,
    ) -> None:
        """Draw the answer of a query into a `.png`, `.svg` or `.html` file.

        Args:
            path: the file.
            query: name of a shipped query.
            parameters: of the query.
            sql: SQL in place of a query.
            options: what `pico.report.plots.figure` takes: `kind`, `x`, `y`, `value`, ….

        Raises:
            QueryError: for a query that does not run, or an answer that cannot be drawn.
            MissingExtraError: without the extra `plot`.
        """
        import polars as pl

        from pico.report import plots
        from pico.sql import library, statements

        lake: Any = self
        wanted = None if sql is not None else library.get_query(query or "")
        if wanted is not None and not options.get("value"):
            if wanted.draws == ():
                raise QueryError(
                    f"query {wanted.name} gives rows to read, not a series to draw: pico query "
                    f"{wanted.name}; or say which column to draw: --value, of "
                    f"{', '.join(wanted.returns)}"
                )
            options["value"] = wanted.draws
        relation = lake.sql(sql) if wanted is None else lake.query(query, **(parameters or {}))
        frame = pl.DataFrame(pl.from_arrow(statements.fetch(relation)))
        if wanted is not None and not frame.height and wanted.needs:
            raise QueryError(
                f"the answer has no rows, so there is nothing to draw; it needs {wanted.needs}"
            )
        title = options.pop("title", None) or (query or "").replace("_", " ")
        plots.save(plots.figure(frame, title=title, **options), os.fspath(path), title)

    def report(
        self,
        runs: str | Sequence[str],
        path: str | os.PathLike[str] = "report.html",
        on_progress: Callable[[int, int], None] | None = None,
    ) -> list[str]:
        """Write one page about runs, with everything inside; returns the titles of its sections.

        Args:
            runs: one to six.
            path: the `.html` file.
            on_progress: called with the sections done and to do.

        Raises:
            RunNameError: for a run that the lake does not have.
            QueryError: for too many runs, or a place that cannot be written.
            MissingExtraError: without the extra `plot`.
        """
        from pico.evaluate import story

        return story.write(Snapshot.take(self.storage), _listed(runs), os.fspath(path), on_progress)


def _module(name: str) -> Any:
    """Import a module that needs torch."""
    try:
        return importlib.import_module(f"pico.evaluate.{name}")
    except ModuleNotFoundError as error:
        if str(error.name).startswith("pico"):
            raise
        raise MissingExtraError(str(error.name), "train") from None


def _listed(given: Any) -> list[Any]:
    return [given] if isinstance(given, (str, int)) else list(given)


def _wanted(record: str | Sequence[str], layer_scores: bool) -> dict[str, Any]:
    """Return what `Wants` is told of a list as `token_scores,activations:z+resid.post`."""
    words = [word.strip() for text in _listed(record) for word in text.split(",")]
    sites: list[str] = []
    for word in words:
        kind, _, named = word.partition(":")
        if kind == "activations" and named:
            sites += named.split("+")
        elif word not in SCORES:
            raise RecordError(
                f"record takes {', '.join(SCORES)} and activations:SITE+SITE, not {word!r}"
            )
    if layer_scores and "token_scores" not in words:
        raise RecordError("layer scores are rows of token_scores; add it: record token_scores, …")
    named = {score: score in words for score in SCORES}
    return {**named, "layer_scores": layer_scores, "sites": tuple(dict.fromkeys(sites))}


def _name_of(path: Path) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", path.resolve().name).lstrip("-._0123456789") or "model"
