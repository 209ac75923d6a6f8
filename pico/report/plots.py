"""Figures of query answers: lines over steps, and heat maps.

`Lake.plot` and `page` call `figure`; `save` writes it. What is shown how follows from the columns:
two kinds of layers, heads or steps against each other make a heat map, anything else lines over
steps or tokens. Steps that grow by factors get a logarithmic axis. Figures are made without
pyplot, so that nothing is global and threads do not meet.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from pico.errors import MissingExtraError, QueryError, did_you_mean
from pico.report import labels, legends

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Kind = Literal["line", "heatmap"]
RUN_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Of Okabe and Ito: told apart by everybody."""
SUFFIXES = (".png", ".svg", ".html")
_AXES = ("step", "tokens")
KEYS = (
    *("run", "other_run", "step", "tokens", "next_step", "other_step", "last_step"),
    *("layer", "other_layer"),
    *("head", "component", "name", "site", "probe", "state", "stage", "count_from"),
    *("surprisal_from", "rank", "micro_step", "position", "n_targets", "n_units", "n_dead"),
    "text",
)
"""Columns that say what a value is about, in the order in which a table has them."""
_COLORS = ("layer", "count_from", "surprisal_from", "head", "run")
_SQUARES = (("run", "other_run"), ("step", "other_step"), ("layer", "other_layer"))
_FEW_CELLS = 36
"""So few of a heat map hold their numbers."""
_MANY_POINTS = 100
"""A line of more is thin, so that what moves less is seen through it."""


def figure(
    frame: pl.DataFrame,
    kind: Kind | None = None,
    x: str | None = None,
    y: str | None = None,
    color: str | None = None,
    value: str | None = None,
    title: str | None = None,
    size: tuple[float, float] = (7.0, 4.0),
    limits: tuple[float, float] | None = None,
    label: str | None = None,
    reference: tuple[float, str] | None = None,
) -> Figure:
    """Draw a query's answer.

    Args:
        frame: a row per point, with key columns (run, step, layer, …) and numbers.
        kind: `line` or `heatmap`; by default what the columns suggest.
        x: column across; by default step or tokens.
        y: column upwards of a heat map, by default layer, head or the other step.
        color: column whose values have colours of their own, of lines.
        value: column that is drawn; by default the last number that is no key.
        title: over the figure.
        size: inches.
        limits: of the colours of a heat map; by default its least and greatest value.
        label: what the value is called; by default its column, with the unit.
        reference: a value that lines are compared with, and its name.

    Returns:
        A matplotlib figure, to be written by `save`.

    Raises:
        QueryError: for an answer without rows or numbers, or a column that it does not have.
        MissingExtraError: without matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise MissingExtraError("matplotlib", "plot") from None
    if not frame.height:
        raise QueryError("the answer has no rows, so there is nothing to draw")
    for name in (x, y, color, value):
        if name is not None and name not in frame.columns:
            raise QueryError(
                f"the answer has no column {name!r}.{did_you_mean(name, frame.columns)} "
                f"It has: {', '.join(frame.columns)}"
            )
    value = value or value_of(frame)
    square = next((s for s in _SQUARES if set(s) <= set(frame.columns)), None)
    if kind is None:
        kind = "heatmap" if square or {"head", "step"} <= set(frame.columns) or y else "line"
    drawn = Figure(figsize=size, layout="constrained")
    axes = drawn.add_subplot()
    if kind == "heatmap":
        if square is None:
            square = ("step", "head" if "head" in frame.columns else "layer")
        _heatmap(axes, frame, x or square[0], y or square[1], value, limits)
    else:
        _lines(axes, frame, x or _axis_of(frame), color or _color_of(frame), value)
        if reference is not None:
            legends.tell_reference(axes, *reference)
    if label is not None:
        (drawn.axes[-1] if kind == "heatmap" else axes).set_ylabel(label, parse_math=False)
    if title:
        axes.set_title(
            labels.plain(title, 72), loc="left", fontsize=11, fontweight="bold", parse_math=False
        )
    return drawn


def save(drawn: Figure, path: str | Path, title: str = "") -> None:
    """Write a figure as `.png`, `.svg` or `.html`; the directory must be there.

    Raises:
        QueryError: for another suffix, or a place that cannot be written.
    """
    target = Path(path)
    if target.suffix.lower() not in SUFFIXES:
        raise QueryError(f"a figure is written as {', '.join(SUFFIXES)}, not {target.name!r}")
    try:
        if target.suffix.lower() == ".html":
            from pico.report import page

            target.write_text(page.single(title, svg(drawn)), encoding="utf-8")
        else:
            with labels.any_letters():
                drawn.savefig(target, dpi=160)
    except OSError as error:
        raise QueryError(f"cannot write {target}: {error.strerror}") from None


def svg(drawn: Figure) -> str:
    """Return a figure as an SVG element that scales with its place; letters are outlines."""
    import io

    import matplotlib as mpl

    buffer = io.StringIO()
    with labels.any_letters(), mpl.rc_context({"svg.fonttype": "path", "svg.hashsalt": "pico"}):
        drawn.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def is_log_spaced(values: Sequence[float]) -> bool:
    """Say whether numbers grow by factors rather than by steps.

    >>> is_log_spaced([0, 1, 2, 4, 8, 16, 32, 64]), is_log_spaced(range(0, 300, 10))
    (True, False)
    """
    known = sorted({float(v) for v in values if v > 0})
    if len(known) < 5 or known[-1] / known[0] < 16:
        return False
    ratios = [b / a for a, b in itertools.pairwise(known)]
    return sorted(ratios)[len(ratios) // 2] >= 1.3


def _lines(axes: Axes, frame: pl.DataFrame, x: str, color: str | None, value: str) -> None:
    drawn = frame.drop_nulls([x, value]).sort(x)
    if not drawn[value].cast(pl.Float64).is_finite().any():
        raise QueryError(f"no {value} of the answer is a number, so there is nothing to draw")
    keys = [k for k in KEYS if k in drawn.columns and k not in (x, *_AXES, "next_step")]
    groups = [k for k in keys if drawn[k].n_unique() > 1 and drawn[k].dtype != pl.Float64]
    if color is not None and color not in groups and drawn[color].n_unique() > 1:
        groups.append(color)
    colors = _colors(drawn, color)
    runs = drawn["run"].unique(maintain_order=True).to_list() if "run" in drawn.columns else []
    styles = dict(zip(runs, ["-", "--", ":", "-."] * len(runs), strict=False))
    ends = []
    parts = drawn.partition_by(groups, maintain_order=True) if groups else [drawn]
    for part in parts:
        key = part[color][0] if color else None
        style = "-" if color == "run" or not runs else styles[part["run"][0]]
        looks: dict[str, Any] = {"marker": "." if part.height <= 40 else None, "ms": 4, "lw": 1.4}
        if part.height > _MANY_POINTS:
            looks |= {"lw": 0.8, "alpha": 0.55}
        hue = colors.get(key, RUN_COLORS[0])
        axes.plot(part[x], part[value], style, color=hue, **looks)
        ends.append((part[x][-1], part[value][-1], key, hue))
    _scale(axes, drawn[x].to_list())
    axes.set_xlabel(labels.named(x))
    axes.set_ylabel(labels.named(value))
    axes.grid(alpha=0.25, lw=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    legends.tell_colors(axes, color, colors, ends)
    if color != "run" and len(runs) > 1:
        legends.tell_styles(axes, styles)


def _heatmap(
    axes: Axes,
    frame: pl.DataFrame,
    x: str,
    y: str,
    value: str,
    limits: tuple[float, float] | None,
) -> None:
    import numpy as np

    drawn = frame.drop_nulls([x])
    label = pl.col(y).cast(pl.String)
    if y == "head" and "layer" in drawn.columns:
        label = pl.format("{}.{}", "layer", "head")
        drawn = drawn.sort("layer", "head", x)
    elif "run" in drawn.columns and x != "run" and drawn["run"].n_unique() > 1:
        label = pl.format("{} {}", "run", y)
        drawn = drawn.sort("run", y, x)
    else:
        drawn = drawn.sort(y, x)
    drawn = drawn.with_columns(label.alias("_row"))
    rows = drawn["_row"].unique(maintain_order=True).to_list()
    columns = sorted(drawn[x].unique().to_list())
    cells = drawn.group_by("_row", x).agg(pl.col(value).mean())
    grid = np.full((len(rows), len(columns)), math.nan)
    at_row, at_column = ({k: i for i, k in enumerate(of)} for of in (rows, columns))
    for row, column, number in cells.iter_rows():
        if number is not None:
            grid[at_row[row], at_column[column]] = number
    if not np.isfinite(grid).any():
        raise QueryError(f"no {value} of the answer is a number, so there is nothing to draw")
    low, high = limits or (None, None)
    image = axes.imshow(
        grid, "viridis", vmin=low, vmax=high, aspect="auto", origin="lower", interpolation="none"
    )
    if grid.size <= _FEW_CELLS:
        legends.tell_cells(axes, grid, image)
    legends.ticks(axes.xaxis, columns, 10)
    legends.ticks(axes.yaxis, rows, 16)
    axes.set_xlabel(labels.named(x))
    axes.set_ylabel("layer.head" if y == "head" and "layer" in drawn.columns else labels.named(y))
    bar = axes.figure.colorbar(image, ax=axes, shrink=0.9)
    bar.set_label(labels.named(value), fontsize=9)


def _scale(axes: Axes, values: Sequence[float]) -> None:
    if is_log_spaced(values):
        least = min(v for v in values if v > 0)
        axes.set_xscale("symlog", linthresh=least, linscale=0.5)
        axes.set_xlim(left=0 if min(values) == 0 else least)
    axes.xaxis.set_major_formatter(lambda value, _: labels.short(value))


def _colors(frame: pl.DataFrame, color: str | None) -> dict[Any, Any]:
    import matplotlib as mpl

    if color is None:
        return {}
    keys = frame[color].unique(maintain_order=True).to_list()
    if color == "run" or not frame[color].dtype.is_numeric():
        return {k: RUN_COLORS[i % len(RUN_COLORS)] for i, k in enumerate(keys)}
    known = sorted(k for k in keys if k is not None)
    shades = mpl.colormaps["viridis"].resampled(256)
    found = {k: shades(0.92 * i / max(1, len(known) - 1)) for i, k in enumerate(known)}
    return found | ({None: "0.6"} if len(known) < len(keys) else {})


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


def _axis_of(frame: pl.DataFrame) -> str:
    if "tokens" in frame.columns and frame["tokens"].null_count() == 0:
        return "tokens"
    found = next((name for name in _AXES if name in frame.columns), None)
    if found is None:
        raise QueryError(
            f"the answer has neither step nor tokens; say what goes across: --x, one of "
            f"{', '.join(frame.columns)}"
        )
    return found


def _color_of(frame: pl.DataFrame) -> str | None:
    varied = [c for c in _COLORS if c in frame.columns and frame[c].n_unique() > 1]
    return varied[0] if varied else None
