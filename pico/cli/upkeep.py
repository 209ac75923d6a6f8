"""Commands that keep a lake healthy: `pico verify`, `gc`, `compact`, `migrate`, `rm`, `copy`."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.exceptions import Exit

from pico.cli.app import FormatOption, LakeOption, OutOption, app, note, open_lake, write_rows

DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Only say what would be done; change nothing.")
]
RunOption = Annotated[str | None, typer.Option("--run", help="One run; by default all.")]


@app.command(
    epilog="Examples:  pico verify --lake my-lake  |  pico verify --run first --deep --lake my-lake"
    "  |  pico verify --lake my-lake --format json",
)
def verify(
    lake: LakeOption,
    run: RunOption = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also compare each tensor with its hash and statistics.")
    ] = False,
    format: FormatOption = "table",
    out: OutOption = None,
) -> None:
    """Check every file against the log; exit code 1 if something is damaged or lacking.

    Warnings alone (what pico gc or pico compact can clear up) leave the exit code at 0.
    """
    from pico import Lake
    from pico.progress import counting_bar

    with counting_bar("files") as on_progress:
        report = Lake(lake).verify(run, deep, on_progress)  # opening would refuse a damaged log
    if format == "table" and out is None:
        if report.findings:
            write_rows(report.kinds(), format, out)
        for finding in report.findings:
            typer.echo(str(finding))
    else:
        write_rows(report.rows(), format, out)
    note(report.summary())
    if not report.is_sound:
        raise Exit(1)


@app.command(
    epilog="Examples:  pico gc --dry-run --lake my-lake  |  pico gc --older-than 7d --lake my-lake",
)
def gc(
    lake: LakeOption,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help="Grace for readers: 24h, 7d, 30m.")
    ] = "24h",
    dry_run: DryRunOption = False,
    format: FormatOption = "table",
    out: OutOption = None,
) -> None:
    """Delete files that were taken away, or that dead writers left, and are old enough."""
    from pico.progress import counting_bar

    with counting_bar("files") as on_progress:
        done = open_lake(lake).gc(older_than, dry_run, on_progress)
    _answer(done.rows(), str(done), format, out)


@app.command(
    epilog="Examples:  pico compact --lake my-lake  |  "
    "pico compact --run first --table scalars --dry-run --lake my-lake",
)
def compact(
    lake: LakeOption,
    run: RunOption = None,
    table: Annotated[
        list[str] | None, typer.Option("--table", help="A row table; by default all.")
    ] = None,
    dry_run: DryRunOption = False,
    format: FormatOption = "table",
    out: OutOption = None,
) -> None:
    """Merge the many small files of row tables into few; queries then open fewer files."""
    from pico.progress import counting_bar

    with counting_bar("files") as on_progress:
        done = open_lake(lake).compact(run, table or None, dry_run, on_progress)
    _answer(done.rows(), str(done), format, out)


@app.command(
    epilog="Example:  pico migrate --dry-run --lake my-lake",
)
def migrate(lake: LakeOption, run: RunOption = None, dry_run: DryRunOption = False) -> None:
    """Rewrite files of older schema versions; only plain readers need it."""
    from pico.progress import counting_bar

    with counting_bar("files") as on_progress:
        done = open_lake(lake).migrate(run, dry_run, on_progress)
    note(str(done))


@app.command(
    epilog="Examples:  pico rm first --dry-run --lake my-lake  |  pico rm first --lake my-lake"
)
def rm(
    run: Annotated[str, typer.Argument(help="Name of the run.")],
    lake: LakeOption,
    dry_run: DryRunOption = False,
) -> None:
    """Remove a run from the lake; pico gc deletes its files once they are old enough."""
    from pico.progress import counting_bar

    with counting_bar("files") as on_progress:
        done = open_lake(lake).remove(run, dry_run, on_progress)
    note(str(done))


@app.command(
    epilog="Examples:  pico copy s3://bucket/lake --lake my-lake  |  "
    "pico copy other-lake --run first --as first-again --lake my-lake",
)
def copy(
    to: Annotated[str, typer.Argument(help="Folder or URL of the lake to copy into.")],
    lake: LakeOption,
    run: Annotated[
        list[str] | None, typer.Option("--run", help="A run; by default all, which merges lakes.")
    ] = None,
    as_name: Annotated[
        str | None, typer.Option("--as", metavar="NAME", help="Another name for the one run.")
    ] = None,
    datasets: Annotated[
        bool, typer.Option("--datasets/--no-datasets", help="Whether data sets come along.")
    ] = True,
    dry_run: DryRunOption = False,
) -> None:
    """Copy runs, with the data that they use, into another lake."""
    from pico.progress import counting_bar

    with counting_bar("bytes") as on_progress:
        done = open_lake(lake).copy(to, run or None, as_name, datasets, dry_run, on_progress)
    note(str(done))


def _answer(rows: list[dict[str, Any]], summary: str, format: Any, out: Any) -> None:
    """Write rows, where there are any or a program reads them, and the summary for people."""
    if rows or format != "table":
        write_rows(rows, format, out)
    note(summary)
