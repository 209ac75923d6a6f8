"""Commands that draw: `pico plot`, `pico report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from pico.cli.app import LakeOption, PluginOption, app, load_plugins, note, open_lake
from pico.errors import QueryError


@app.command(
    epilog="Examples:  pico plot effective_rank_by_layer -p run=seed-0 -p component=o "
    "-o rank.svg --lake my-lake  |  pico plot induction_by_head -p run=seed-0 -o heads.png "
    '--lake my-lake  |  pico plot --sql "SELECT run, step, value FROM scalars WHERE name = '
    "'grad_norm'\" -o norms.html --lake my-lake",
)
def plot(
    lake: LakeOption,
    out: Annotated[Path, typer.Option("-o", "--out", help="A .png, .svg or .html file.")],
    query: Annotated[
        str | None, typer.Argument(metavar="[QUERY]", help="A shipped query; see pico query list.")
    ] = None,
    parameters: Annotated[
        list[str] | None, typer.Option("-p", metavar="KEY=VALUE", help="Of the query.")
    ] = None,
    sql: Annotated[str | None, typer.Option("--sql", help="SQL in place of a query.")] = None,
    kind: Annotated[
        Literal["line", "heatmap"] | None,
        typer.Option("--kind", help="By default what the columns suggest."),
    ] = None,
    x: Annotated[str | None, typer.Option("--x", help="Column across.")] = None,
    y: Annotated[str | None, typer.Option("--y", help="Column upwards, of a heat map.")] = None,
    color: Annotated[str | None, typer.Option("--color", help="Column of colours.")] = None,
    value: Annotated[
        str | None, typer.Option("--value", help="Column that is drawn; several with commas.")
    ] = None,
    label: Annotated[str | None, typer.Option("--label", help="What the value is called.")] = None,
    title: Annotated[str | None, typer.Option("--title", help="Over the figure.")] = None,
    plugin: PluginOption = None,
) -> None:
    """Draw the answer of a query: lines over steps, or a heat map."""
    load_plugins(plugin)
    if (query is None) == (sql is None):
        raise QueryError("give the name of a query, or --sql; pico query list shows the queries")
    pairs = [item.partition("=") for item in parameters or []]
    for key, equals, _ in pairs:
        if not equals:
            raise QueryError(f"parameters are KEY=VALUE, not {key!r}")
    open_lake(lake).plot(
        out,
        query,
        {key: text for key, _, text in pairs},
        sql=sql,
        kind=kind,
        x=x,
        y=y,
        color=color,
        value=None if value is None else [name.strip() for name in value.split(",")],
        label=label,
        title=title,
    )
    note(f"written to {out}")


@app.command(
    epilog="Examples:  pico report seed-0 seed-1 -o report.html --lake my-lake",
)
def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="One to six runs.")],
    lake: LakeOption,
    out: Annotated[Path, typer.Option("-o", "--out", help="The .html file.")] = Path("report.html"),
) -> None:
    """Write one page about runs: loss, norms, ranks, tokens, heads, similarity, samples, sizes."""
    from pico.progress import counting_bar

    with counting_bar("sections") as on_progress:
        open_lake(lake).report(runs, out, on_progress)
    note(f"written to {out}")
