"""The entry point `pico`: runs a command and turns every error into one line and an exit code."""

from __future__ import annotations

import os
import sys

import typer
from typer.exceptions import Abort, Exit, TyperException

from pico.cli import training  # commands stand in the help in the order of these imports

# isort: split
from pico.cli import asking, picturing

# isort: split
from pico.cli import computing

# isort: split
from pico.cli import importing, probing

# isort: split
from pico.cli import upkeep

# isort: split
from pico.cli.app import app
from pico.errors import PicoError, one_line

__all__ = [
    "app",
    "asking",
    "computing",
    "importing",
    "main",
    "picturing",
    "probing",
    "run_command",
    "training",
    "upkeep",
]


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
    message = " ".join(error.format_message().split()).replace("Value error, ", "")
    return f"{message} See: {where} --help"


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
