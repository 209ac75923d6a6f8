"""Figures of query answers: lines over steps, and heat maps.

`Lake.plot` and `page` call `figure`; `save` writes it. `choices` decides what is shown how. Steps
that grow by factors get a logarithmic axis; runs keep their colours and styles from one figure to
the next. Figures are made without pyplot, so that nothing is global and threads do not meet.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import polars.selectors as cs

from pico.errors import MissingExtraError, QueryError
from pico.report import choices, labels, legends
from pico.report.choices import Choice, Kind

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".html")
RUN_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Of Okabe and Ito: told apart by everybody."""
_FEW_CELLS = 36
"""So few of a heat map hold their numbers."""
_MANY_POINTS = 100
"""A line of more is thin, so that what moves less is seen through it."""
_PANEL_SIZE = (3.6, 2.7)


def figure(
    frame: pl.DataFrame,
    kind: Kind | None = None,
    x: str | None = None,
    y: str | None = None,
    color: str | None = None,
    value: str | Sequence[str] | None = None,
    title: str | None = None,
    size: tuple[float, float] = (7.0, 4.0),
    limits: tuple[float, float] | None = None,
    label: str | None = None,
    reference: tuple[float, str] | None = None,
    runs: Sequence[str] | None = None,
) -> Figure:
    """Draw a query's answer.

    Args:
        frame: a row per point, with key columns (run, step, layer, …) and numbers.
        kind: `line` or `heatmap`; by default what the columns suggest.
        x: column across; by default step or tokens.
        y: column upwards of a heat map, by default layer, head or the other step.
        color: column whose values have colours of their own, of lines.
        value: column that is drawn, or several; by default the last number that is no key.
        title: over the figure.
        size: inches, of a figure without panels.
        limits: of the colours of a heat map; by default its least and greatest value.
        label: what the value is called; by default its column, with the unit.
        reference: a value that lines are compared with, and its name.
        runs: in the order in which they have colours and styles; by default by name.

    Returns:
        A matplotlib figure, to be written by `save`.

    Raises:
        QueryError: for an answer without rows or numbers, or that is no series, or a column that it
            does not have.
        MissingExtraError: without matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise MissingExtraError("matplotlib", "plot") from None
    if not frame.height:
        raise QueryError("the answer has no rows, so there is nothing to draw")
    values = [value] if isinstance(value, str) else list(value or [choices.value_of(frame)])
    choices.check_columns(frame, [x, y, color, *values])
    for name in values:
        choices.check_numbers(frame, name)
    known, drawn_value = choices.together(frame.with_columns(cs.decimal().cast(pl.Float64)), values)
    if not known[drawn_value].cast(pl.Float64).is_finite().any():
        raise QueryError(f"no {drawn_value} of the answer is a number, so there is nothing to draw")
    choice = choices.choose(known, drawn_value, kind, x, y, color)
    panels = _parted(known, choice)
    drawn = Figure(figsize=size, layout="constrained")
    places = _places(drawn, len(panels))
    draw = _Lines(known, choice, runs) if choice.kind == "line" else _Map(known, choice, limits)
    for place, (name, part) in zip(places, panels, strict=True):
        draw.panel(place, part)
        if name:
            place.set_title(labels.plain(name, 40), loc="left", fontsize=9, parse_math=False)
        if reference is not None and choice.kind == "line":
            legends.tell_reference(place, *reference)
    draw.finish(drawn, places, label or labels.named(drawn_value))
    if title:
        legends.tell_title(drawn, places, title)
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


def _places(drawn: Figure, n_panels: int) -> list[Axes]:
    """Return axes for panels; with several of them the figure takes the size that they need."""
    n_across = min(n_panels, 2 if n_panels <= 4 else 3)
    n_down = math.ceil(n_panels / n_across)
    if n_panels > 1:
        drawn.set_size_inches(n_across * _PANEL_SIZE[0] + 0.6, n_down * _PANEL_SIZE[1] + 0.3)
    places = list(drawn.subplots(n_down, n_across, squeeze=False).ravel())
    for place in places[n_panels:]:
        place.set_axis_off()
    return places[:n_panels]


def _parted(frame: pl.DataFrame, choice: Choice) -> list[tuple[str, pl.DataFrame]]:
    """Return the name and the rows of each panel."""
    if not choice.panels:
        return [("", frame)]
    found = frame.drop_nulls([choice.x, choice.value])
    parts = found.partition_by(choice.panels, as_dict=True, maintain_order=True)

    def named(keys: tuple[Any, ...]) -> str:
        words = zip(choice.panels, keys, strict=True)
        return ", ".join(key if isinstance(key, str) else f"{name} {key}" for name, key in words)

    ordered = sorted(parts, key=lambda keys: [(k is None, isinstance(k, str), k) for k in keys])
    return [(named(keys), parts[keys]) for keys in ordered]


class _Lines:
    """Lines over steps or tokens, alike in all panels."""

    def __init__(self, frame: pl.DataFrame, choice: Choice, runs: Sequence[str] | None) -> None:
        self._choice = choice
        found = set(frame["run"].to_list()) if "run" in frame.columns else set()
        order = list(dict.fromkeys([*(runs or ()), *sorted(found, key=str)]))
        self._runs = [run for run in order if run in found]
        styles = dict(zip(order, itertools.cycle(["-", "--", ":", "-."]), strict=False))
        self._styles = {run: styles[run] for run in self._runs}
        self._colors = _colors(frame, choice.color, order)
        known = frame.drop_nulls([choice.x, choice.value])
        parts = known.partition_by("run") if self._runs else [known]
        self._is_log = all(is_log_spaced(part[choice.x].to_list()) for part in parts)

    def panel(self, axes: Axes, frame: pl.DataFrame) -> None:
        """Draw the lines of a panel."""
        x, value, color = self._choice.x, self._choice.value, self._choice.color
        drawn = frame.drop_nulls([x, value]).sort(x)
        keys = [k for k in (color, "run", "text") if k in drawn.columns]
        parts = drawn.partition_by(list(dict.fromkeys(keys)), maintain_order=True) if keys else None
        for part in parts or [drawn]:
            hue = self._colors[part[color][0]] if color else RUN_COLORS[0]
            style = "-" if color == "run" or not self._runs else self._styles[part["run"][0]]
            looks: dict[str, Any] = {"lw": 1.4, "ms": 4, "marker": "." if len(part) <= 40 else None}
            if part.height > _MANY_POINTS:
                looks |= {"lw": 0.8, "alpha": 0.55}
            axes.plot(part[x], part[value], style, color=hue, **looks)
        self._scale(axes, drawn[x].to_list())
        axes.grid(alpha=0.25, lw=0.6)
        axes.spines[["top", "right"]].set_visible(False)

    def finish(self, drawn: Figure, places: Sequence[Axes], label: str) -> None:
        """Name the axes and say what colours and styles mean."""
        for axes in places:
            axes.set_xlabel(labels.named(self._choice.x))
            axes.set_ylabel(label, parse_math=False)
        legends.tell_colors(drawn, self._choice.color, self._colors)
        if self._choice.color != "run" and len(self._runs) > 1:
            legends.tell_styles(places[0], self._styles)

    def _scale(self, axes: Axes, values: Sequence[float]) -> None:
        from matplotlib.ticker import MaxNLocator

        if self._is_log and any(v > 0 for v in values):
            least = min(v for v in values if v > 0)
            axes.set_xscale("symlog", linthresh=least, linscale=0.5)
            axes.set_xlim(left=0 if min(values) == 0 else least)
        elif all(float(v).is_integer() for v in values):
            axes.xaxis.set_major_locator(
                MaxNLocator(7, steps=[1, 2, 2.5, 5, 10], integer=True, min_n_ticks=1)
            )
        axes.xaxis.set_major_formatter(lambda value, _: labels.short(value))


class _Map:
    """Heat maps, whose colours mean the same in all panels."""

    def __init__(
        self, frame: pl.DataFrame, choice: Choice, limits: tuple[float, float] | None
    ) -> None:
        self._choice = choice
        values = frame[choice.value].cast(pl.Float64)
        known = values.filter(values.is_finite()).to_numpy()
        self._limits = limits or (float(known.min()), float(known.max()))
        self._by_layer = choice.y == "head" and "layer" in frame.columns
        self._image: Any = None

    def panel(self, axes: Axes, frame: pl.DataFrame) -> None:
        """Draw the cells of a panel; what is not there stays empty."""
        import numpy as np

        x, y, value = self._choice.x, str(self._choice.y), self._choice.value
        drawn = frame.drop_nulls([x])
        drawn = drawn.sort(*(["layer"] if self._by_layer else []), y, x)
        named = pl.format("{}.{}", "layer", y) if self._by_layer else pl.col(y).cast(pl.String)
        rows = drawn.select(named.alias("row"), x, pl.col(value).cast(pl.Float64))
        upwards = rows["row"].unique(maintain_order=True).to_list()
        across = sorted(drawn[x].unique().to_list())
        grid = np.full((len(upwards), len(across)), math.nan)
        at_row, at_column = ({k: i for i, k in enumerate(of)} for of in (upwards, across))
        for row, column, number in rows.iter_rows():
            grid[at_row[row], at_column[column]] = math.nan if number is None else number
        low, high = self._limits
        self._image = axes.imshow(
            grid,
            "viridis",
            vmin=low,
            vmax=high,
            aspect="auto",
            origin="lower",
            interpolation="none",
        )
        if grid.size <= _FEW_CELLS:
            legends.tell_cells(axes, grid, self._image)
        legends.ticks(axes.xaxis, across, 10)
        legends.ticks(axes.yaxis, upwards, 16)

    def finish(self, drawn: Figure, places: Sequence[Axes], label: str) -> None:
        """Name the axes and say what the colours mean."""
        for axes in places:
            axes.set_xlabel(labels.named(self._choice.x))
            axes.set_ylabel("layer.head" if self._by_layer else labels.named(str(self._choice.y)))
        bar = drawn.colorbar(self._image, ax=list(places), shrink=0.9)
        bar.ax.set_ylabel(label, fontsize=9, parse_math=False)


def _colors(frame: pl.DataFrame, color: str | None, runs: Sequence[str]) -> dict[Any, Any]:
    """Return the colour of each value, in the order in which a legend has them."""
    import matplotlib as mpl

    if color is None:
        return {}
    if color == "run" or not frame[color].dtype.is_numeric():
        found = frame[color].unique().to_list()
        known = runs if color == "run" else sorted(found, key=str)
        many = mpl.colormaps["turbo"].resampled(256)
        shades = [many(0.05 + 0.9 * i / max(1, len(known) - 1)) for i in range(len(known))]
        hues = RUN_COLORS if len(known) <= len(RUN_COLORS) else shades
        return {k: hue for k, hue in zip(known, hues, strict=False) if k in found}
    numbers = sorted(frame[color].drop_nulls().unique().to_list())
    ordered = mpl.colormaps["viridis"].resampled(256)
    by_number = {k: ordered(0.92 * i / max(1, len(numbers) - 1)) for i, k in enumerate(numbers)}
    return by_number | ({None: "0.6"} if frame[color].null_count() else {})
