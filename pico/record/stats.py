"""Summary statistics of a tensor for the `tensor_stats` table, accumulated in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_CHUNK = 1 << 16


@dataclass(frozen=True)
class Stats:
    """The columns of `tensor_stats` that depend on the values; NULL for an empty tensor."""

    numel: int
    frobenius_norm: float | None
    mean: float | None
    std: float | None
    max_abs: float | None
    nonfinite: int


def summarize(values: npt.NDArray[np.floating]) -> Stats:
    """Return the statistics of real values of any shape.

    Chunks of float64 keep it in the cache: about one pass over the memory of a float32 tensor.
    NaN and infinity propagate into every statistic but `numel` and `nonfinite`.
    """
    flat = values.reshape(-1)
    n = flat.size
    if n == 0:
        return Stats(0, None, None, None, None, 0)
    total = squares = 0.0
    largest = 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, n, _CHUNK):
            chunk = flat[start : start + _CHUNK].astype(np.float64)
            total += float(chunk.sum())
            squares += float(chunk @ chunk)
            largest = float(np.fmax(largest, max(-float(chunk.min()), float(chunk.max()))))
    finite = math.isfinite(squares) and math.isfinite(total)
    nonfinite = 0 if finite else n - int(np.isfinite(flat).sum())
    if nonfinite and np.isnan(flat).any():
        largest = math.nan
    mean = total / n
    variance = squares / n - mean * mean
    std = math.sqrt(max(variance, 0.0)) if math.isfinite(variance) else math.nan
    return Stats(n, math.sqrt(squares) if squares >= 0 else math.nan, mean, std, largest, nonfinite)
