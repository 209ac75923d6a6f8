"""What a report says in sentences, from rows of answers: only what they bear out.

`pico.evaluate.story` calls it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

FEW_TARGETS = 20
"""A mean over fewer is left out."""
WORDS = {"o": "attention output (o)", "down": "MLP output (down)", "embed": "embedding"}
"""Components in words."""


def about(runs: Sequence[Mapping[str, Any]]) -> str:
    """Say what runs are: sizes, what they were made of, data.

    Args:
        runs: rows of the table `runs`.
    """
    told = [f"{run['run']}: {run['n_params'] or 0:,} parameters{_made(run)}" for run in runs]
    data = sorted({run["dataset"] for run in runs if run["dataset"]})
    return "; ".join(told) + (f". Trained on {', '.join(data)}." if data else ".")


def _made(run: Mapping[str, Any]) -> str:
    """Say what a derived run was made of."""
    extra = json.loads(run["extra"] or "{}")
    if "average_of" in extra:
        steps = ", ".join(map(str, extra["average_of"]["steps"]))
        return f", the mean of {extra['average_of']['run']} at steps {steps}"
    if "interpolation" in extra:
        (a, at_a), (b, at_b), t = (extra["interpolation"][key] for key in ("a", "b", "t"))
        return f", between {a} at step {at_a} and {b} at step {at_b}, t = {t:g}"
    return ""


def frequent_first(frame: pl.DataFrame) -> str:
    """Say of each run what frequency does to the loss at its end, if it does what people expect.

    Args:
        frame: columns `run`, `step`, `count_from`, `loss`, without bands of few targets.
    """
    told = []
    for (run,), part in frame.group_by("run", maintain_order=True):
        last = part.filter(pl.col("step") == pl.col("step").max()).sort("count_from")
        if last["count_from"].n_unique() < 2 or last["loss"][-1] >= last["loss"][0]:
            continue
        told.append(
            f"{run} at step {last['step'][0]:,}: targets that stand {last['count_from'][-1]:,} "
            f"times or more in the corpus cost {last['loss'][-1]:.2f} nats, those of the rarest "
            f"band {last['loss'][0]:.2f}."
        )
    return " ".join(told)


def chance(n_tokens: int | None) -> float | None:
    """Return the induction score of a head that looks everywhere alike.

    >>> round(chance(4), 4)  # position 2 sees 3 places, position 3 sees 4
    0.2917
    """
    half = (n_tokens or 0) // 2
    if not half:
        return None
    return sum(1 / (position + 1) for position in range(half, 2 * half)) / half


def recorded(what: str, probe: str = "") -> str:
    """Say how what is missing gets into the lake: while training, and afterwards."""
    later = f" For checkpoints that are stored: pico probe RUN {probe}" if probe else ""
    return f"Nothing of it was recorded. In a config: record: {{{what}}}.{later}"
