"""Metrics of tensors: pure functions of arrays, the same in tests, SQL, Polars and training.

`pico.metrics.gini(array)` and its siblings take numpy arrays, torch tensors on any device, or
nested lists, accumulate in float64 and return a float. `compute` shares one spectrum among many of
them; `get` and `names` open the registry. They know neither lake nor SQL, and load no torch.
"""

from __future__ import annotations

# Importing a module registers the metrics that it defines.
from pico.metrics.norms import frobenius_norm, l1_norm, max_abs
from pico.metrics.registry import compute, get, names
from pico.metrics.similarity import cka
from pico.metrics.sparsity import gini, hoyer
from pico.metrics.spectral import (
    condition_number,
    effective_rank,
    nuclear_norm,
    per,
    spectral_norm,
    stable_rank,
)
from pico.metrics.spectrum import spectrum

__all__ = [
    "cka",
    "compute",
    "condition_number",
    "effective_rank",
    "frobenius_norm",
    "get",
    "gini",
    "hoyer",
    "l1_norm",
    "max_abs",
    "names",
    "nuclear_norm",
    "per",
    "spectral_norm",
    "spectrum",
    "stable_rank",
]
