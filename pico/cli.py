"""The command line: each command is a thin twin of a method of `pico.Lake`.

Every error that `pico` raises on purpose, and every mistake in the arguments, ends as one line on
standard error and exit code 2. Results go to standard output, everything else to standard error.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import pyarrow as pa
import typer
from rich.console import Console
from typer.exceptions import Abort, Exit, TyperException

from pico.errors import PicoError, QueryError, one_line

app = typer.Typer(
    help="A learning-dynamics warehouse for language models.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
metrics_app = typer.Typer(help="Metrics of tensors, computed once and kept.", rich_markup_mode=None)
app.add_typer(metrics_app, name="metrics")

Format = Literal["table", "json", "csv", "parquet"]
LakeOption = Annotated[
    str, typer.Option("--lake", envvar="PICO_LAKE", help="Folder or URL of the lake.")
]
FormatOption = Annotated[Format, typer.Option("--format", help="How to write the answer.")]
OutOption = Annotated[
    Path | None, typer.Option("-o", "--out", help="Write to this file instead of the terminal.")
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


@app.command(
    epilog="Examples:  pico demo  |  pico demo --lake /tmp/lake --steps 100",
)
def demo(
    lake: Annotated[
        str, typer.Option("--lake", envvar="PICO_LAKE", help="Folder or URL of the lake.")
    ] = "./demo-lake",
    steps: Annotated[
        int, typer.Option("--steps", min=1, help="Optimizer steps of each run.")
    ] = 300,
) -> None:
    """Train two small models on real text and look at how they learned."""
    from pico import demo as show

    show.run(lake, steps)


@app.command(
    epilog="Examples:  pico train nano --lake my-lake --run first  |  "
    "pico train nano seeds.init=7 max_steps=500 --lake my-lake --run second",
)
def train(
    config: Annotated[str, typer.Argument(help="A YAML file, or a shipped config's name.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Overrides, dotted keys.")
    ] = None,
    *,
    lake: LakeOption,
    run: Annotated[str, typer.Option("--run", help="Name of the run.")],
    resume: Annotated[
        Literal["auto", "never"],
        typer.Option("--resume", help="auto: go on from the last checkpoint; never: a new run."),
    ] = "auto",
) -> None:
    """Train a run into a lake; Ctrl-C finishes the step, commits, and exits with code 130."""
    from pico import Lake
    from pico import config as configs
    from pico.progress import TrainingBar

    resolved = configs.load(config, overrides or [])
    with TrainingBar(run, resolved.max_steps) as bar:
        outcome = Lake(lake).train(resolved, run, (), resume, bar.on_step, bar.on_data)
    if outcome.resumed_from == outcome.steps:
        _note(f"run {run} already stands at step {outcome.steps}; nothing to do")
        return
    began = "" if outcome.resumed_from is None else f" (resumed from {outcome.resumed_from})"
    ended = "stopped" if outcome.interrupted else "finished"
    for remark in outcome.remarks:
        _note(f"note: {remark}")
    _note(
        f"run {run} {ended} at step {outcome.steps}{began}; ask it: "
        f"pico runs --lake {shlex.quote(lake)}"
    )
    if outcome.interrupted:
        raise Exit(130)


@app.command(epilog="Example:  pico runs --lake my-lake")
def runs(lake: LakeOption, format: FormatOption = "table", out: OutOption = None) -> None:
    """List the runs of a lake."""
    _write_rows(_open(lake).runs(), format, out)


@app.command(epilog="Example:  pico coverage first --lake my-lake")
def coverage(
    run: Annotated[str, typer.Argument(help="Name of the run.")],
    lake: LakeOption,
    format: FormatOption = "table",
    out: OutOption = None,
) -> None:
    """Show what is recorded of a run: tables, steps, rows, bytes."""
    _write_rows(_open(lake).coverage(run), format, out)


@app.command(
    epilog="Examples:  pico sql \"SELECT step, gini(tensor) FROM weights WHERE component = 'o'\" "
    "--lake my-lake  |  pico sql - --lake my-lake --format csv -o answer.csv < question.sql",
)
def sql(
    statement: Annotated[str, typer.Argument(help="SQL, or - to read it from standard input.")],
    lake: LakeOption,
    format: FormatOption = "table",
    out: OutOption = None,
) -> None:
    """Ask a lake in SQL (DuckDB), with a view per table and tensor functions."""
    if statement == "-" and sys.stdin is None:
        raise QueryError("standard input is closed; there is no SQL to read")
    text = sys.stdin.read() if statement == "-" else statement
    _write_relation(_open(lake).sql(text), format, out)


@app.command(
    epilog="Examples:  pico query list  |  pico query show loss  |  "
    "pico query loss -p run=first --lake my-lake",
)
def query(
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
) -> None:
    """List the shipped queries, show one, or run one."""
    from pico.sql import library

    if name == "list":
        rows = [{"query": q.name, "answers": q.summary} for q in library.list_queries()]
        _write_rows(rows, format, out)
        return
    if name == "show":
        if shown is None:
            raise QueryError("show which query? pico query show NAME; list them: pico query list")
        typer.echo(library.get_query(shown).text.rstrip())
        return
    library.get_query(name)  # an unknown query is told before an absent lake
    if shown is not None:
        raise QueryError(f"unexpected argument {shown!r}; parameters are given as -p key=value")
    if lake is None:
        raise QueryError("which lake? name it with --lake or PICO_LAKE")
    values = dict(_pair(item) for item in parameters or [])
    _write_relation(_open(lake).query(name, **values), format, out)


@app.command(epilog="Example:  pico functions")
def functions(format: FormatOption = "table", out: OutOption = None) -> None:
    """List the tensor functions that SQL has here."""
    from pico.sql import functions as tensor_functions

    _write_rows([dict(f) for f in tensor_functions.functions()], format, out)


@metrics_app.command("list", epilog="Example:  pico metrics list")
def metrics_list(format: FormatOption = "table", out: OutOption = None) -> None:
    """List the metrics."""
    from pico.metrics import registry

    found = [registry.get(name) for name in registry.names()]
    rows = [{"metric": m.name, "of": m.kind, "version": m.version, "is": m.summary} for m in found]
    _write_rows(rows, format, out)


@metrics_app.command(
    "compute",
    epilog="Example:  pico metrics compute --metric per --metric gini --lake my-lake",
)
def metrics_compute(
    lake: LakeOption,
    run: Annotated[str | None, typer.Option("--run", help="One run; by default all.")] = None,
    metric: Annotated[
        list[str] | None, typer.Option("--metric", help="A metric; by default all of one tensor.")
    ] = None,
    table: Annotated[
        Literal["weights", "gradients", "activations", "optimizer"],
        typer.Option("--table", help="Whose tensors."),
    ] = "weights",
) -> None:
    """Compute the metrics that are missing and keep them in the lake."""
    from pico.progress import counting_bar

    with counting_bar("tensors") as on_progress:
        done = _open(lake).compute_metrics(metric or None, run, table, on_progress)
    _note(str(done))


def main() -> None:
    """Run the command line; the entry point `pico`.

    An error that nobody expected is a bug, and still one line: PICO_TRACEBACK=1 shows where.
    """
    _ready_streams()
    try:
        code = run_command(sys.argv[1:])
    except Exception as error:
        if os.environ.get("PICO_TRACEBACK"):
            raise
        what = f"{type(error).__name__}: {one_line(error)}"
        code = _fail(f"unexpected {what:.500} (PICO_TRACEBACK=1 shows where)", 1)
    sys.exit(code)


def run_command(arguments: list[str]) -> int:
    """Run one command and return its exit code; every expected error becomes one line."""
    try:
        code = app(arguments or ["--help"], prog_name="pico", standalone_mode=False)
        sys.stdout.flush()
        return int(code or 0)
    except PicoError as error:
        return _fail(one_line(error))
    except TyperException as error:
        return _fail(_with_help(error))
    except Exit as error:
        return error.exit_code
    except (Abort, KeyboardInterrupt):
        return _fail("interrupted", 130)
    except (BrokenPipeError, SystemExit):  # the command's own framework exits at a closed pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except MemoryError:
        return _fail("out of memory; narrow the question, or give the machine more")
    except OSError as error:
        return _fail(one_line(error))


def _with_help(error: TyperException) -> str:
    """Return the message of a mistake in the arguments, with the way to the help."""
    context = getattr(error, "ctx", None)
    where = context.command_path if context is not None else "pico"
    return f"{' '.join(error.format_message().split())} See: {where} --help"


def _ready_streams() -> None:
    """Give closed streams a place to write to, and let every character through to the others."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 (for the process's life)
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _fail(message: str, code: int = 2) -> int:
    typer.echo(f"error: {message}", err=True)
    return code


def _note(message: str) -> None:
    Console(stderr=True, highlight=False).print(message, markup=False, soft_wrap=True)


def _open(lake: str) -> Any:
    from pico import Lake

    return Lake.open(lake)


def _pair(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator:
        raise QueryError(f"parameter {text!r} is not of the form key=value")
    return key, value


def _write_relation(relation: Any, format: str, out: Path | None) -> None:
    from pico.sql import output, statements

    output.write(statements.fetch(relation), format, out)


def _write_rows(rows: list[dict[str, Any]], format: str, out: Path | None) -> None:
    from pico.sql import output

    output.write(pa.Table.from_pylist(rows), format, out)
