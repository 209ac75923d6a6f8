"""What of an answer is drawn, and how: decided from its columns where nobody says.

`plots.figure` calls `choose`. Two kinds of runs, steps or layers against each other, and heads
against steps, make a heat map, anything else lines over steps or tokens. Colours are for layers,
bands, heads or runs. What else varies has a panel for each of its values, so that a line is a
series and a cell is one number; an answer that cannot be parted so is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import polars as pl

from pico.errors import QueryError, did_you_mean

Kind = Literal["line", "heatmap"]
KEYS = (
    *("run", "other_run", "step", "tokens", "next_step", "other_step", "last_step"),
    *("layer", "other_layer", "head", "component", "site", "probe", "stage", "state"),
    *("table_name", "metric", "name", "count_from", "surprisal_from", "rank", "micro_step"),
    *("position", "n_targets", "n_units", "n_dead", "text"),
)
"""Columns that say what a value is about, in the order in which a table has them."""
_AXES = ("step", "tokens")
_COLORS = ("layer", "count_from", "surprisal_from", "head", "run")
_SQUARES = (("run", "other_run"), ("step", "other_step"), ("layer", "other_layer"))
_PARTING = (
    *("component", "site", "probe", "stage", "state", "table_name", "metric", "run", "name"),
    *("layer", "head", "other_layer", "count_from", "surprisal_from"),
)
"""Columns that panels are made of, in this order."""
_MOST_COLORS = 10
_MOST_PANELS = 12


@dataclass(frozen=True)
class Choice:
    """What is drawn how."""

    kind: Kind
    x: str
    y: str | None
    """Upwards, of a heat map."""
    color: str | None
    """Of lines."""
    value: str
    panels: tuple[str, ...] = ()
    """Columns of whose values each has a panel of its own."""


def choose(
    frame: pl.DataFrame,
    value: str,
    kind: Kind | None = None,
    x: str | None = None,
    y: str | None = None,
    color: str | None = None,
) -> Choice:
    """Return how a column of an answer is drawn.

    Raises:
        QueryError: for an answer that is no series, or columns that cannot be what they are asked
            to be.
    """
    square = next((s for s in _SQUARES if set(s) <= set(frame.columns)), None)
    if kind is None:
        kind = "heatmap" if square or {"head", "step"} <= set(frame.columns) or y else "line"
    if kind == "heatmap":
        across, upwards = square or ("step", "head" if "head" in frame.columns else "layer")
        x, y = x or across, y or upwards
        for name, option in ((x, "--x"), (y, "--y")):
            if name not in frame.columns:
                raise QueryError(
                    f"a heat map needs a column {option}; the answer has no {name}, but "
                    f"{', '.join(frame.columns)}"
                )
        known = frame.drop_nulls([x, value])
        taken = [x, y, *(["layer"] if y == "head" and "layer" in frame.columns else [])]
        return Choice(kind, x, y, None, value, _panels(known, taken, value))
    x = x or _axis_of(frame)
    check_numbers(frame, x)
    known = frame.drop_nulls([x, value])
    varied = [c for c in _COLORS if c in known.columns and known[c].n_unique() > 1]
    chosen = color or (varied[0] if varied else None)
    taken = [x, *(c for c in (chosen, "run", "text") if c in known.columns)]
    panels = _panels(known, list(dict.fromkeys(taken)), value)
    if chosen is None and panels and known[panels[0]].n_unique() <= _MOST_COLORS:
        chosen, panels = panels[0], panels[1:]
    return Choice(kind, x, None, chosen, value, panels)


def value_of(frame: pl.DataFrame) -> str:
    """Return the column of an answer that is drawn unless somebody says which.

    Raises:
        QueryError: if it has no numbers.
    """
    numbers = [n for n, t in frame.schema.items() if t.is_float() and n not in KEYS]
    numbers = numbers or [n for n, t in frame.schema.items() if t.is_numeric() and n not in KEYS]
    if not numbers:
        raise QueryError(
            f"the answer has no column of numbers to draw; it has {', '.join(frame.columns)}"
        )
    full = [n for n in numbers if frame[n].null_count() < frame.height / 2]
    return (full or numbers)[-1]


def together(frame: pl.DataFrame, values: Sequence[str]) -> tuple[pl.DataFrame, str]:
    """Return several columns of numbers as one, named as the first, and told apart by `text`."""
    first = values[0]
    if len(values) == 1:
        return frame, first
    rest = [name for name in frame.columns if name not in values]
    parts = [
        frame.select(*rest, pl.col(name).cast(pl.Float64).alias(first), text=pl.lit(name))
        for name in values
    ]
    return pl.concat(parts).drop_nulls(first), first


def check_columns(frame: pl.DataFrame, names: Sequence[str | None]) -> None:
    """Refuse columns that an answer does not have.

    Raises:
        QueryError: naming the nearest.
    """
    for name in names:
        if name is not None and name not in frame.columns:
            raise QueryError(
                f"the answer has no column {name!r}.{did_you_mean(name, frame.columns)} "
                f"It has: {', '.join(frame.columns)}"
            )


def check_numbers(frame: pl.DataFrame, name: str) -> None:
    """Refuse a column that holds no numbers.

    Raises:
        QueryError: naming those that do.
    """
    if not (frame.schema[name].is_numeric() or frame.schema[name] == pl.Null):
        known = [n for n, kind in frame.schema.items() if kind.is_numeric()]
        raise QueryError(
            f"column {name!r} holds {frame.schema[name]}, no numbers that can be drawn; "
            f"these do: {', '.join(known) or 'none'}"
        )


def _panels(frame: pl.DataFrame, taken: Sequence[str], value: str) -> tuple[str, ...]:
    """Return the columns that part an answer until each place has one value."""
    keys, panels = list(dict.fromkeys(taken)), []
    n_places = frame.select(keys).n_unique()
    for name in _PARTING:
        if n_places == frame.height:
            break
        if name in frame.columns and name not in keys:
            n_parted = frame.select(*keys, name).n_unique()
            if n_parted > n_places:
                panels.append(name)
                keys.append(name)
                n_places = n_parted
    if n_places < frame.height:
        raise QueryError(
            f"the answer has several values of {value} for one {' and '.join(taken)}, so that it "
            "is no series to draw; narrow it, or choose other columns with --x, --y, --color"
        )
    n_panels = frame.select(panels).n_unique() if panels else 1
    if n_panels > _MOST_PANELS:
        raise QueryError(
            f"the answer has {n_panels} values of {', '.join(panels)}, too many for a panel each; "
            f"narrow it, such as with -p component=o"
        )
    return tuple(panels)


def _axis_of(frame: pl.DataFrame) -> str:
    if "tokens" in frame.columns and frame["tokens"].null_count() == 0:
        return "tokens"
    found = next((name for name in _AXES if name in frame.columns), None)
    if found is None:
        known = [n for n, kind in frame.schema.items() if kind.is_numeric()]
        raise QueryError(
            f"the answer has neither step nor tokens; say what goes across: --x, one of "
            f"{', '.join(known) or 'none: it has no numbers'}"
        )
    return found
