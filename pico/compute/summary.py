"""What a call of `pico metrics compute` found and did, as numbers and in a line."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Lack:
    """What one run lacks in one table."""

    run: str
    table: str
    tensors: int
    """Different tensors, or pairs, that have to be read."""
    values: int
    """Missing values."""
    to_compute: int
    """Those of them that no identical tensor tells."""
    n_bytes: int
    """Stored bytes of the row groups to read."""


@dataclass(frozen=True)
class Summary:
    """What a call of `compute` found and did, in metric values."""

    computed: int = 0
    """Computed from a tensor."""
    reused: int = 0
    """Taken from an identical tensor of another step, run or name."""
    present: int = 0
    """There already."""
    skipped: int = 0
    """Not defined: matrices' metrics of a vector, complex numbers, nothing to compare with."""
    lacks: tuple[Lack, ...] = ()
    """Of a dry run: what is missing, by run and table."""

    def __str__(self) -> str:
        """Say it in a line, for people."""
        if self.lacks:
            n_bytes = sum(lack.n_bytes for lack in self.lacks)
            return (
                f"{sum(lack.values for lack in self.lacks)} values are missing, "
                f"{sum(lack.to_compute for lack in self.lacks)} to be computed from "
                f"{sum(lack.tensors for lack in self.lacks)} tensors ({n_bytes / 1e6:,.1f} MB to "
                f"read), {self.present} there already, {self.skipped} not defined for their tensor"
            )
        return (
            f"{self.computed} values computed, {self.reused} taken from identical tensors, "
            f"{self.present} there already, {self.skipped} not defined for their tensor"
        )

    def __add__(self, other: Summary) -> Summary:
        """Add up what two runs, or two calls, found and did."""
        return Summary(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Summary)))

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each run and table that lacks something."""
        return [
            {
                "run": lack.run,
                "table": lack.table,
                "tensors": lack.tensors,
                "values": lack.values,
                "to_compute": lack.to_compute,
                "bytes": lack.n_bytes,
            }
            for lack in self.lacks
        ]
