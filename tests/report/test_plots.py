"""Figures, asked through matplotlib's own objects: what is drawn are the numbers of the answer."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from pico.errors import QueryError
from pico.report import plots

pytest.importorskip("matplotlib")
POWERS = [0, 1, 2, 4, 8, 16, 32, 64, 128]


def by_layer(steps: list[int], n_layers: int = 3, **more: Any) -> pl.DataFrame:
    rows = [
        {"step": s, "layer": layer, "name": f"layers.{layer}.o", "per": layer + 1 / (1 + s), **more}
        for s in steps
        for layer in range(n_layers)
    ]
    return pl.DataFrame(rows).sample(fraction=1.0, shuffle=True, seed=0)


def test_a_line_per_layer_with_the_values_of_the_answer() -> None:
    drawn = plots.figure(by_layer(POWERS), title="rank")
    [axes] = drawn.axes
    assert len(axes.lines) == 3
    for line in axes.lines:
        x, y = line.get_data()
        assert list(x) == POWERS
        layer = round(float(y[-1]) - 1 / 129)
        np.testing.assert_allclose(y, [layer + 1 / (1 + s) for s in POWERS])
    assert len({line.get_color() for line in axes.lines}) == 3
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("step", "per")
    assert axes.get_title(loc="left") == "rank"
    [legend] = drawn.legends
    assert {text.get_text() for text in legend.get_texts()} == {"0", "1", "2"}


def test_steps_that_grow_by_factors_get_a_logarithmic_axis() -> None:
    assert plots.figure(by_layer(POWERS)).axes[0].get_xscale() == "symlog"
    assert plots.figure(by_layer(list(range(0, 200, 10)))).axes[0].get_xscale() == "linear"
    pythia = [*POWERS, 256, 512, *range(1000, 20001, 1000)]
    assert not plots.is_log_spaced(pythia)
    assert plots.is_log_spaced([*POWERS, 256, 512, 1000])


def test_runs_have_styles_where_layers_have_colours() -> None:
    both = pl.concat([by_layer(POWERS, run="a"), by_layer(POWERS, run="b")])
    [axes] = plots.figure(both).axes
    assert len(axes.lines) == 6
    assert {line.get_linestyle() for line in axes.lines} == {"-", "--"}
    assert len({tuple(line.get_color()) for line in axes.lines}) == 3
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["a", "b"]
    alone = both.filter(pl.col("layer") == 0).drop("layer", "name")
    colors = {line.get_color() for line in plots.figure(alone).axes[0].lines}
    assert colors == set(plots.RUN_COLORS[:2])


def test_tensors_of_one_layer_are_lines_of_their_own() -> None:
    rows = [
        {"step": s, "layer": 0, "component": c, "name": c, "gini": 0.1 * i + s}
        for s in (0, 1)
        for i, c in enumerate(("q", "k"))
    ]
    assert len(plots.figure(pl.DataFrame(rows)).axes[0].lines) == 2


def test_what_varies_besides_has_panels() -> None:
    """A line is one series; the name, which layer and component decide, parts nothing."""
    parts = [
        by_layer(POWERS, run=run, component=c).with_columns(name=pl.format(c + ".{}", "layer"))
        for run in "ab"
        for c in ("q", "k")
    ]
    drawn = plots.figure(pl.concat(parts), title="rank")
    assert [axes.get_title(loc="left") for axes in drawn.axes] == ["k", "q"]
    assert [len(axes.lines) for axes in drawn.axes] == [6, 6]
    for axes in drawn.axes:
        for line in axes.lines:
            assert list(line.get_xdata()) == POWERS
    many = [by_layer(POWERS, component=f"c{i:02}") for i in range(13)]
    with pytest.raises(QueryError, match="13 values of component, too many for a panel each"):
        plots.figure(pl.concat(many))


def test_what_is_no_series_is_refused() -> None:
    frame = pl.DataFrame({"step": [1, 1], "dataset": ["a", "b"], "loss": [1.0, 2.0]})
    with pytest.raises(QueryError, match="several values of loss for one step, so that it is no"):
        plots.figure(frame)
    heads = pl.DataFrame({"step": [0, 0], "head": [1, 1], "score": [0.0, 1.0]})
    with pytest.raises(QueryError, match="several values of score for one step and head"):
        plots.figure(heads)


def test_maps_of_runs_are_panels_of_one_scale() -> None:
    """No cell is a mean of two runs."""
    rows = [
        {"run": run, "step": s, "layer": 0, "head": h, "score": h + 10.0 * (run == "b")}
        for run in "ab"
        for s in (0, 1)
        for h in (0, 1)
    ]
    first, second, bar = plots.figure(pl.DataFrame(rows)).axes
    assert [a.get_title(loc="left") for a in (first, second)] == ["a", "b"]
    assert np.asarray(second.images[0].get_array()).tolist() == [[10, 10], [11, 11]]
    assert first.images[0].get_clim() == second.images[0].get_clim() == (0, 11)
    assert bar.get_ylabel() == "score"


def test_runs_keep_their_looks() -> None:
    """Whatever their values are, and in the order that is asked for."""
    frame = pl.concat([by_layer(POWERS, run=run) for run in ("b", "a")])
    styles = {t.get_text(): h.get_linestyle() for t, h in _entries(plots.figure(frame))}
    assert styles == {"a": "-", "b": "--"}
    styles = {t.get_text(): h.get_linestyle() for t, h in _entries(plots.figure(frame, runs=["b"]))}
    assert styles == {"b": "-", "a": "--"}
    some = plots.figure(frame.filter(pl.col("run") == "a"), runs=["b", "a"])
    assert {line.get_linestyle() for line in some.axes[0].lines} == {"--"}


def _entries(drawn: Any) -> list[tuple[Any, Any]]:
    legend = drawn.axes[0].get_legend()
    return list(zip(legend.get_texts(), legend.legend_handles, strict=True))


def test_several_values_are_lines_of_one_colour() -> None:
    frame = pl.DataFrame(
        {"run": ["a"] * 3, "step": [0, 1, 2], "loss": [3.0, 2.0, None], "held": [3.5, None, 1.5]}
    )
    axes = plots.figure(frame, value=["loss", "held"]).axes[0]
    assert sorted(list(line.get_ydata()) for line in axes.lines) == [[3.0, 2.0], [3.5, 1.5]]
    assert len({line.get_color() for line in axes.lines}) == 1
    assert axes.get_ylabel() == "loss (nats per token)"


def test_layers_outside_blocks_come_last_in_a_legend() -> None:
    frame = by_layer([0, 1]).with_columns(layer=pl.when(pl.col("layer") > 0).then("layer"))
    [legend] = plots.figure(frame).legends
    assert [text.get_text() for text in legend.get_texts()] == ["1", "2", "none"]


def test_runs_of_other_steps_do_not_make_an_axis_logarithmic() -> None:
    runs = {"a": range(0, 301, 20), "b": range(0, 13, 3)}
    rows = [{"run": run, "step": s, "loss": 1.0} for run, steps in runs.items() for s in steps]
    assert plots.figure(pl.DataFrame(rows)).axes[0].get_xscale() == "linear"


def test_tokens_come_before_steps_and_gaps_are_left_out() -> None:
    frame = pl.DataFrame(
        {
            "run": ["a"] * 4,
            "tokens": [0, 10, 20, 30],
            "step": [0, 1, 2, 3],
            "loss": [3.0, None, math.nan, 1.0],
        }
    )
    [axes] = plots.figure(frame).axes
    x, y = axes.lines[0].get_data()
    assert list(x) == [0, 20, 30] and y[0] == 3.0 and math.isnan(y[1]) and y[2] == 1.0
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("tokens", "loss (nats per token)")


def test_steps_against_steps_are_a_square() -> None:
    steps = [0, 2, 4]
    frame = pl.DataFrame(
        [
            {"step": a, "other_step": b, "layer": 3, "cka": a + 10.0 * b}
            for a in steps
            for b in steps
        ]
    )
    axes = plots.figure(frame).axes[0]
    grid = np.asarray(axes.images[0].get_array())
    assert grid.tolist() == [[a + 10.0 * b for a in steps] for b in steps]
    assert [t.get_text() for t in axes.get_xticklabels()] == ["0", "2", "4"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("step", "other step")


def test_heads_against_steps() -> None:
    frame = pl.DataFrame(
        [
            {"run": "r", "step": s, "layer": layer, "head": h, "score": layer + h / 10 + s / 100}
            for s in (0, 5)
            for layer in (0, 1)
            for h in (0, 1)
        ]
    )
    axes = plots.figure(frame.sample(fraction=1.0, shuffle=True, seed=1)).axes[0]
    grid = np.asarray(axes.images[0].get_array())
    np.testing.assert_allclose(grid, [[0, 0.05], [0.1, 0.15], [1, 1.05], [1.1, 1.15]])
    assert [t.get_text() for t in axes.get_yticklabels()] == ["0.0", "0.1", "1.0", "1.1"]
    lines = plots.figure(frame, kind="line", color="head")
    assert [len(axes.lines) for axes in lines.axes] == [2, 2]
    assert [axes.get_title(loc="left") for axes in lines.axes] == ["layer 0", "layer 1"]


def test_layers_against_steps_when_asked() -> None:
    axes = plots.figure(by_layer([0, 1, 2]), kind="heatmap").axes[0]
    assert np.asarray(axes.images[0].get_array()).shape == (3, 3)


@pytest.mark.parametrize(
    ("frame", "options", "message"),
    [
        (by_layer([0]).clear(), {}, "has no rows"),
        (pl.DataFrame({"step": [1], "name": ["a"]}), {}, "no column of numbers to draw; it has st"),
        (by_layer([0]), {"value": "perr"}, "no column 'perr'. Did you mean 'per'"),
        (pl.DataFrame({"name": ["a"], "gini": [1.0]}), {}, "neither step nor tokens"),
        (
            pl.DataFrame({"step": [1], "gini": [None]}, schema_overrides={"gini": pl.Float64}),
            {},
            "no gini of the answer is a number",
        ),
        (pl.DataFrame({"step": [1, 2], "gini": [math.nan] * 2}), {}, "no gini of the answer is a"),
        (
            pl.DataFrame({"step": [1], "head": [0], "gini": [math.nan]}),
            {},
            "no gini of the answer is a number",
        ),
    ],
)
def test_what_cannot_be_drawn_is_said(
    frame: pl.DataFrame, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(QueryError, match=message):
        plots.figure(frame, **options)


@pytest.mark.parametrize("suffix", plots.SUFFIXES)
def test_files(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"figure{suffix}"
    plots.save(plots.figure(by_layer(POWERS)), path, "per <by> layer")
    data = path.read_bytes()
    start = {".png": b"\x89PNG", ".svg": b"<?xml", ".html": b"<!doctype html>"}[suffix]
    assert data.startswith(start) and len(data) > 5000
    if suffix == ".html":
        assert b"per &lt;by&gt; layer" in data and b"<by>" not in data


def test_other_places_and_suffixes(tmp_path: Path) -> None:
    drawn = plots.figure(by_layer([0, 1]))
    with pytest.raises(QueryError, match=r"written as .png, .svg, .html, not 'a.gif'"):
        plots.save(drawn, tmp_path / "a.gif")
    with pytest.raises(QueryError, match=r"cannot write .*: No such file"):
        plots.save(drawn, tmp_path / "no" / "a.png")


def test_long_names_leave_room_for_the_lines() -> None:
    frames = [by_layer(POWERS, run=f"{letter * 60}-{letter}") for letter in "ab"]
    frame = pl.concat(frames).filter(pl.col("layer") == 0).drop("layer", "name")
    drawn = plots.figure(frame, title="t" * 200)
    labels = [text.get_text() for text in drawn.legends[0].get_texts()]
    assert all(len(label) <= 24 and "…" in label for label in labels)
    drawn.draw_without_rendering()
    box = drawn.axes[0].get_position()
    assert box.width > 0.5
    assert len(drawn.axes[0].get_title(loc="left")) <= 72


def test_letters_that_no_font_has_are_no_warning(tmp_path: Path) -> None:
    frame = pl.concat([by_layer(POWERS, run="a\x01\u4e00"), by_layer(POWERS, run="b")])
    drawn = plots.figure(frame.filter(pl.col("layer") == 0).drop("layer", "name"), title="\u4e01")
    plots.save(drawn, tmp_path / "a.png")
    assert plots.svg(drawn).startswith("<svg")


def test_heat_maps_can_share_their_colours() -> None:
    image = plots.figure(by_layer([0, 1]), kind="heatmap", limits=(0.0, 9.0)).axes[0].images[0]
    assert image.get_clim() == (0.0, 9.0)


def test_small_maps_tell_their_numbers() -> None:
    """Of runs against each other too, which are not taken for lines of a run each."""
    pairs = [(a, b, 1.0 if a == b else 0.25) for a in "xy" for b in "xy"]
    frame = pl.DataFrame(pairs, schema=["run", "other_run", "cka"], orient="row")
    axes = plots.figure(frame).axes[0]
    assert axes.images[0].get_array().shape == (2, 2)
    assert sorted(text.get_text() for text in axes.texts) == ["0.25", "0.25", "1", "1"]
    assert not plots.figure(by_layer(POWERS, 9), kind="heatmap").axes[0].texts


def test_what_lines_are_called_and_compared_with() -> None:
    axes = plots.figure(by_layer([0, 1]), label="$ of it", reference=(2.5, "chance $")).axes[0]
    assert axes.get_ylabel() == "$ of it"
    assert [text.get_text() for text in axes.texts] == ["chance $"]
    assert [line.get_ydata() for line in axes.lines if len(set(line.get_ydata())) == 1][-1] == [
        2.5,
        2.5,
    ]
    bar = plots.figure(by_layer([0, 1]), kind="heatmap", label="it").axes[-1]
    assert bar.get_ylabel() == "it"


def test_long_lines_are_thin() -> None:
    axes = plots.figure(by_layer(list(range(150)), 1)).axes[0]
    assert axes.lines[0].get_linewidth() < 1 and axes.lines[0].get_alpha() < 1


def test_names_are_shown_as_they_are() -> None:
    """A name with dollars is no formula, one with a bracket no element."""
    odd = "a$x_1$<b>&"
    frame = pl.concat([by_layer(POWERS, run=odd), by_layer(POWERS, run="b")]).drop("layer", "name")
    text = plots.svg(plots.figure(frame.unique(["run", "step"]), title=odd))
    assert "<b>" not in text and text.startswith("<svg")
