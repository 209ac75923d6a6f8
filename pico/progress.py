"""Progress bars for long work, on standard error.

Used by the command line and the demo; nothing below them prints. On a terminal the bars move; in a
log file a line is written now and then, so that somebody who looks later can see where the time
went.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from pico.train.trainer import Progress as TrainingProgress

_LINE_SECONDS = 10.0


class TrainingBar:
    """The bar of a training run: step, loss, held-out loss, tokens per second, time left."""

    def __init__(self, run: str, max_steps: int) -> None:
        """Prepare the bar of a run."""
        self._run, self._max_steps = run, max_steps
        self._is_terminal = sys.stderr.isatty()
        self._last_line = time.monotonic()
        self._heldout = ""
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not self._is_terminal,
        )
        self._task = self._bar.add_task(run, total=max_steps, numbers="")

    def __enter__(self) -> TrainingBar:
        """Show the bar."""
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """Leave the bar as it stands."""
        self._bar.stop()

    def on_step(self, progress: TrainingProgress) -> None:
        """Show where the run stands after a step."""
        if progress.heldout_loss is not None:
            self._heldout = f"  held-out {progress.heldout_loss:.3f}"
        speed = f"{progress.tokens_per_second:,.0f} tokens/s"
        numbers = f"loss {progress.loss:.3f}{self._heldout}  {speed}"
        self._bar.update(self._task, completed=progress.step, numbers=numbers)
        self._line(f"{self._run}: step {progress.step} of {progress.max_steps}  {numbers}")

    def on_data(self, message: str, done: int, total: int | None) -> None:
        """Show what the preparation of the data set is doing."""
        amount = f"{done:,} sequences" if done else ""
        self._bar.update(self._task, numbers=f"{message}  {amount}")
        self._line(f"{self._run}: {message}  {amount}")

    def _line(self, text: str) -> None:
        now = time.monotonic()
        if not self._is_terminal and now - self._last_line >= _LINE_SECONDS:
            self._last_line = now
            print(text, file=sys.stderr, flush=True)


@contextmanager
def counting_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar of things done and to do, and the time left; yields the function that moves it."""
    told = time.monotonic()
    first: tuple[float, int] | None = None
    is_terminal = sys.stderr.isatty()
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not is_terminal,
    ) as bar:
        task = bar.add_task(what, total=None)

        def move(done: int, total: int) -> None:
            nonlocal told, first
            bar.update(task, completed=done, total=total)
            now = time.monotonic()
            if first is None and done:
                first = now, done  # what came before was preparation
            if not is_terminal and now - told >= _LINE_SECONDS:
                told = now
                text = f"{what}: {done:,} of {total:,}"
                if first is not None and done > first[1]:
                    left = (now - first[0]) / (done - first[1]) * (total - done)
                    text += f", about {duration(left)} left"
                print(text, file=sys.stderr, flush=True)

        yield move


def duration(seconds: float) -> str:
    """Write a time as people say it.

    >>> duration(59.6), duration(3599), duration(7260)
    ('1 min', '1 h', '2 h 1 min')
    """
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{max(seconds, 0.0):.0f} s"
    if minutes < 60:
        return f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest} min" if rest else f"{hours} h"
