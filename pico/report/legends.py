"""What figures say in words: which colour is which, what a line is compared with, what cells are.

`plots` calls it. Names come from a lake, so that dollars and carets in them are shown as they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pico.report import labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_LABELS = 16


def tell_reference(axes: Axes, value: float, name: str) -> None:
    """Draw a value across the figure, with its name above the line."""
    axes.axhline(value, color="0.45", lw=0.9, ls=(0, (4, 3)))
    where = axes.get_yaxis_transform()
    told = labels.plain(name, 40)
    axes.text(
        0.99, value, told, transform=where, ha="right", va="bottom", fontsize=8, color="0.35"
    ).set_parse_math(False)


def tell_colors(drawn: Figure, color: str | None, colors: Mapping[Any, Any]) -> None:
    """Say what colours mean: in a legend beside the panels, in the order of the keys."""
    from matplotlib.lines import Line2D

    if color is None or len(colors) < 2:
        return
    shown = list(colors)
    if len(shown) > _MAX_LABELS:
        shown = [shown[round(i * (len(shown) - 1) / (_MAX_LABELS - 1))] for i in range(_MAX_LABELS)]
    handles = [Line2D([], [], color=colors[k], lw=2, label=labels.plain(k)) for k in shown]
    legend = drawn.legend(
        handles=handles,
        title=labels.named(color),
        loc="outside right upper",
        frameon=False,
        fontsize=8,
        title_fontsize=8,
    )
    _no_math(legend)


def tell_styles(axes: Axes, styles: Mapping[str, str]) -> None:
    """Say which line style is which run's, inside the figure."""
    from matplotlib.lines import Line2D

    shown = list(styles.items())[:6]
    handles = [Line2D([], [], color="0.4", ls=s, label=labels.plain(r)) for r, s in shown]
    legend = axes.legend(handles=handles, loc="best", frameon=False, fontsize=8)
    _no_math(legend)


def _no_math(legend: Any) -> None:
    """Show dollars and carets in names as they are."""
    for text in legend.get_texts():
        text.set_parse_math(False)


def tell_title(drawn: Figure, places: Sequence[Axes], title: str) -> None:
    """Write a title over the figure: over all panels, or over the only one."""
    told = labels.plain(title, 72)
    looks: dict[str, Any] = {"fontsize": 11, "fontweight": "bold", "parse_math": False}
    if len(places) > 1:
        drawn.suptitle(told, x=0.01, ha="left", **looks)
    else:
        places[0].set_title(told, loc="left", **looks)


def tell_cells(axes: Axes, grid: Any, image: Any) -> None:
    """Write the number of each cell into it."""
    for (row, column), value in np.ndenumerate(grid):
        if math.isfinite(value):
            is_dark = image.norm(value) < 0.6
            ink = "w" if is_dark else "k"
            told = f"{value:.3g}"
            axes.text(column, row, told, ha="center", va="center", fontsize=8, color=ink)


def ticks(axis: Any, keys: Sequence[Any], most: int) -> None:
    """Name the cells along an axis, at most so many of them."""
    step = max(1, math.ceil(len(keys) / most))
    places = list(range(0, len(keys), step))
    axis.set_ticks(places, [labels.plain(keys[i]) for i in places], fontsize=8)
    for text in axis.get_ticklabels():
        text.set_parse_math(False)
