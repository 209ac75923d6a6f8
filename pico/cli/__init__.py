"""The command line: each command is a thin twin of a method of `pico.Lake`.

Every error that `pico` raises on purpose, and every mistake in the arguments, ends as one line on
standard error and exit code 2. Results go to standard output, everything else to standard error.
"""

from pico import processor

processor.prefer_fast_sorts()  # numpy, which the commands import, reads it only then

from pico.cli.entry import app, main, run_command  # noqa: E402

__all__ = ["app", "main", "run_command"]
