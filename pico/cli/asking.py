"""Commands that ask: `pico runs`, `coverage`, `sql`, `query`, `functions`, `metrics`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from pico.cli.app import (
    FormatOption,
    LakeOption,
    OutOption,
    PluginOption,
    app,
    load_plugins,
    note,
    open_lake,
    write_relation,
    write_rows,
)
from pico.errors import QueryError

metrics_app = typer.Typer(help="Metrics of tensors, computed once and kept.", rich_markup_mode=None)
app.add_typer(metrics_app, name="metrics")


@app.command(epilog="Example:  pico runs --lake my-lake")
def runs(lake: LakeOption, format: FormatOption = "table", out: OutOption = None) -> None:
    """List the runs of a lake."""
    write_rows(open_lake(lake).runs(), format, out)


@app.command(epilog="Example:  pico coverage first --lake my-lake")
def coverage(
    run: Annotated[str, typer.Argument(help="Name of the run.")],
    lake: LakeOption,
    format: FormatOption = "table",
    out: OutOption = None,
) -> None:
    """Show what is recorded of a run: tables, steps, rows, bytes."""
    write_rows(open_lake(lake).coverage(run), format, out)


@app.command(
    epilog="Examples:  pico sql \"SELECT step, gini(tensor) FROM weights WHERE component = 'o'\" "
    "--lake my-lake  |  pico sql - --lake my-lake --format csv -o answer.csv < question.sql",
)
def sql(
    statement: Annotated[str, typer.Argument(help="SQL, or - to read it from standard input.")],
    lake: LakeOption,
    format: FormatOption = "table",
    out: OutOption = None,
    untrusted: Annotated[
        bool, typer.Option("--untrusted", help="Somebody else's SQL: it can only read the lake.")
    ] = False,
    time_limit: Annotated[
        float | None, typer.Option("--time-limit", help="Seconds for untrusted SQL; by default 60.")
    ] = None,
    memory_limit: Annotated[
        str | None, typer.Option("--memory-limit", help="Memory for it; by default 2GB.")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare all files with the log before answering.")
    ] = False,
    plugin: PluginOption = None,
) -> None:
    """Ask a lake in SQL (DuckDB), with a view per table and tensor functions."""
    if statement == "-" and sys.stdin is None:
        raise QueryError("standard input is closed; there is no SQL to read")
    text = sys.stdin.read() if statement == "-" else statement
    if untrusted and plugin:
        raise QueryError("--plugin is not for --untrusted SQL, which may not run your code")
    load_plugins(plugin)
    if untrusted and verify:
        raise QueryError("--verify is not for --untrusted SQL; see pico verify --deep")
    if untrusted:
        from pico.sql import output

        seconds = 60.0 if time_limit is None else time_limit
        rows = open_lake(lake).sql_untrusted(text, seconds, memory_limit or "2GB")
        output.write(rows, format, out)
    elif time_limit is not None or memory_limit is not None:
        option = "--time-limit" if time_limit is not None else "--memory-limit"
        raise QueryError(f"{option} is for --untrusted SQL")
    else:
        write_relation(open_lake(lake).sql(text, verify), format, out)


@app.command(
    epilog="Examples:  pico query list  |  pico query show loss  |  pico query loss --help  |  "
    "pico query loss -p run=first --lake my-lake",
    add_help_option=False,
)
def query(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="A query's name, or: list, show.")] = "list",
    shown: Annotated[str | None, typer.Argument(metavar="[NAME]", help="After show.")] = None,
    parameters: Annotated[
        list[str] | None, typer.Option("-p", "--param", metavar="KEY=VALUE", help="A parameter.")
    ] = None,
    lake: Annotated[
        str | None, typer.Option("--lake", envvar="PICO_LAKE", help="Folder or URL of the lake.")
    ] = None,
    format: FormatOption = "table",
    out: OutOption = None,
    plugin: PluginOption = None,
    help: Annotated[
        bool, typer.Option("--help", help="Show this message, or a query's parameters, and exit.")
    ] = False,
) -> None:
    """List the shipped queries, show one, or run one."""
    from pico.sql import library

    load_plugins(plugin)
    if help:
        general = name in ("list", "show")
        page = context.get_help() if general else library.describe(library.get_query(name))
        typer.echo(page)
        return
    if name == "list":
        write_rows(library.listing(), format, out)
        return
    if name == "show":
        if shown is None:
            raise QueryError("show which query? pico query show NAME; list them: pico query list")
        typer.echo(library.get_query(shown).text.rstrip())
        return
    wanted = library.get_query(name)  # an unknown query is told before an absent lake
    if shown is not None:
        raise QueryError(f"unexpected argument {shown!r}; parameters are given as -p key=value")
    if lake is None:
        raise QueryError("which lake? name it with --lake or PICO_LAKE")
    values = dict(_pair(item) for item in parameters or [])
    n_rows = write_relation(open_lake(lake).query(name, **values), format, out)
    if n_rows == 0 and wanted.needs:
        note(f"no rows; it needs {wanted.needs}")


@app.command(epilog="Example:  pico functions")
def functions(
    format: FormatOption = "table", out: OutOption = None, plugin: PluginOption = None
) -> None:
    """List the tensor functions that SQL has here."""
    from pico.sql import functions as tensor_functions

    load_plugins(plugin)
    write_rows([dict(f) for f in tensor_functions.functions()], format, out)


@metrics_app.command("list", epilog="Example:  pico metrics list")
def metrics_list(
    format: FormatOption = "table", out: OutOption = None, plugin: PluginOption = None
) -> None:
    """List the metrics."""
    from pico.metrics import registry

    load_plugins(plugin)
    found = [registry.get(name) for name in registry.names()]
    rows = [{"metric": m.name, "of": m.kind, "version": m.version, "is": m.summary} for m in found]
    write_rows(rows, format, out)


def _pair(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator:
        raise QueryError(f"parameter {text!r} is not of the form key=value")
    return key, value
