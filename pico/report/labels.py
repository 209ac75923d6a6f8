"""Words of figures: columns with their units, keys short enough, numbers as axes write them."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

_UNITS = {"loss": "nats per token", "surprisal": "nats", "tokens": "tokens", "step": "step"}


def named(column: str) -> str:
    """Write a column's name as a label, with its unit."""
    unit = _UNITS.get(column) or ("nats per token" if column.endswith("loss") else "")
    words = column.replace("_", " ")
    return f"{words} ({unit})" if unit and unit != words else words


def plain(value: Any, longest: int = 24) -> str:
    """Write a key as a label: short, in the middle if need be, and without control characters."""
    if value is None:
        return "none"
    if isinstance(value, float) or (isinstance(value, int) and value >= 1000):
        return short(value)
    text = "".join(c if c.isprintable() else "\ufffd" for c in str(value))
    half = (longest - 1) // 2
    return text if len(text) <= longest else f"{text[:half]}…{text[-half:]}"


def short(number: float) -> str:
    """Write a number as axes do: 300, 1k, 2.5M.

    >>> [short(number) for number in (0.5, 300, 1000, 2_500_000, 3e9)]
    ['0.5', '300', '1k', '2.5M', '3B']
    """
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:g}{letter}"
    return f"{number:g}"


@contextlib.contextmanager
def any_letters() -> Iterator[None]:
    """Leave a box for a letter that the font lacks, without a warning for each."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield
