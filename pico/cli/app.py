"""What the commands share: the application, their common options, and how they answer.

The modules of commands import this; `entry` runs the application that they have filled.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import pyarrow as pa
import typer
from rich.console import Console
from typer.exceptions import Exit

from pico.errors import printable

app = typer.Typer(
    help="A learning-dynamics warehouse for language models.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Format = Literal["table", "json", "csv", "parquet"]
LakeOption = Annotated[
    str, typer.Option("--lake", envvar="PICO_LAKE", help="Folder or URL of the lake.")
]
FormatOption = Annotated[Format, typer.Option("--format", help="How to write the answer.")]
OutOption = Annotated[
    Path | None, typer.Option("-o", "--out", help="Write to this file instead of the terminal.")
]

PluginOption = Annotated[
    list[str] | None,
    typer.Option("--plugin", metavar="FILE.py", help="Load metrics of your own; may be repeated."),
]


@app.callback(invoke_without_command=True)
def pico(
    version: Annotated[bool, typer.Option("--version", help="Show the version and stop.")] = False,
) -> None:
    """Answer `pico --version`."""
    if version:
        from pico import __version__

        typer.echo(f"pico {__version__}")
        raise Exit(0)


def note(message: str) -> None:
    """Say something on standard error, whatever markup it holds."""
    lines = [printable(line) for line in message.split("\n")]
    console = Console(stderr=True, highlight=False)
    console.print("\n".join(lines), markup=False, soft_wrap=True)


def open_lake(lake: str) -> Any:
    """Return the existing lake at a URL."""
    from pico import Lake

    return Lake.open(lake)


def load_plugins(files: list[str] | None) -> None:
    """Load the files of `--plugin`."""
    from pico import load_plugin

    for file in files or ():
        load_plugin(file)


def write_relation(relation: Any, format: str, out: Path | None) -> int:
    """Write the answer of a DuckDB relation as asked for; returns its number of rows."""
    from pico.sql import output, statements

    answer: pa.Table = statements.fetch(relation)
    output.write(answer, format, out)
    return len(answer)


def write_rows(rows: list[dict[str, Any]], format: str, out: Path | None) -> None:
    """Write rows as asked for."""
    from pico.sql import output

    output.write(pa.Table.from_pylist(rows), format, out)
