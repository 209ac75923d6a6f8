"""How the benchmarks measure and what they report: alternating pairs, medians, one line a target.

Every `bench_*.py` has `run(pairs=9) -> Result` and `main`; `run_all` collects the results. Times
are wall-clock seconds of one process. Rivals take turns within a pair and change places from pair
to pair, so that a machine that slows down slows both; a ratio is the median of the pairs' ratios.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Line:
    """One figure with what it is compared with and what it should be."""

    what: str
    measured: str = ""
    """The median with the least and the greatest value."""
    peer: str = ""
    peer_measured: str = ""
    figure: str = ""
    """Ratio, overhead or size: what the target is about."""
    target: str = ""
    met: bool | None = None
    """None for what is told for information."""


@dataclass
class Result:
    """What a benchmark found."""

    title: str
    lines: list[Line] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add_ratio(
        self,
        what: str,
        ours: Sequence[float],
        peer: str,
        theirs: Sequence[float],
        at_least: float | None = None,
    ) -> float:
        """Add a line with how many times faster than its peer `what` is; returns that ratio."""
        ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
        ratio = statistics.median(ratios)
        figure = f"{ratio:.2f}x ({min(ratios):.2f}-{max(ratios):.2f})"
        target = "" if at_least is None else f">= {at_least:g}x"
        met = None if at_least is None else ratio >= at_least
        self.lines.append(Line(what, seconds(ours), peer, seconds(theirs), figure, target, met))
        return ratio

    def add_size(self, what: str, size: float, unit: str, at_most: float) -> None:
        """Add a line with a size that should be small."""
        figure = f"{size:.3f} {unit}"
        self.lines.append(Line(what, figure=figure, target=f"<= {at_most:g}", met=size <= at_most))


def alternate(
    rivals: Mapping[str, Callable[[], Any]], pairs: int, warm_up: bool = True
) -> dict[str, list[Any]]:
    """Call every rival once a pair, in an order that turns round, and collect what they return."""
    found: dict[str, list[Any]] = {name: [] for name in rivals}
    names = list(rivals)
    if warm_up:
        for name in names:
            rivals[name]()
    for pair in range(pairs):
        for name in names if pair % 2 else reversed(names):
            found[name].append(rivals[name]())
    return found


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    """Return how many seconds an action took, and its answer."""
    start = time.perf_counter()
    answer = action()
    return time.perf_counter() - start, answer


def seconds(values: Sequence[float]) -> str:
    """Write durations as median and extremes, in a unit that suits them.

    >>> seconds([0.0123, 0.0111, 0.0149])
    '12.3 ms (11.1-14.9)'
    """
    middle = statistics.median(values)
    scale, unit = (1.0, "s") if middle >= 1 else (1e3, "ms")
    digits = 2 if middle >= 1 else 1
    low, high = min(values) * scale, max(values) * scale
    return f"{middle * scale:.{digits}f} {unit} ({low:.{digits}f}-{high:.{digits}f})"


def show(result: Result) -> None:
    """Print a result, a line per figure."""
    print(f"\n{result.title}")
    for line in result.lines:
        against = f" | {line.peer} {line.peer_measured}".rstrip() if line.peer else ""
        verdict = {True: "met", False: "NOT MET", None: ""}[line.met]
        aim = f" | target {line.target}: {verdict}" if line.target else ""
        found = " | ".join(text for text in (line.measured, line.figure) if text)
        print(f"  {line.what}: {found}{against}{aim}")
    for note in result.notes:
        print(f"  - {note}")
    sys.stdout.flush()


def pairs_asked() -> int:
    """Return the number of pairs that the command line asks for: `bench_x.py [PAIRS]`."""
    numbers = [word for word in sys.argv[1:] if word.isdigit()]
    return int(numbers[0]) if numbers else 9
