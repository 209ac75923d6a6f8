"""Metrics of tensors: pure functions of arrays, the same in tests, SQL, Polars and training.

`pico.metrics.gini(array)` and its siblings take numpy arrays, torch tensors on any device, or
nested lists, accumulate in float64 and return a float. `compute` shares one spectrum among many of
them; `get` and `names` open the registry. They know neither lake nor SQL, and load no torch.
`own` and `plugins` take in metrics of a user's.
"""

from __future__ import annotations

# Importing a module registers the metrics that it defines, or has plugins loaded when needed.
from pico.metrics import plugins as _plugins  # noqa: F401
from pico.metrics.arithmetic import (
    fold_norm,
    matmul,
    t_add,
    t_div,
    t_mul,
    t_sqrt,
    t_sub,
    tensor_mean,
)
from pico.metrics.attention import (
    attention_entropy,
    attention_pattern,
    induction_score,
    previous_token_score,
)
from pico.metrics.canonical import pwcca, svcca
from pico.metrics.change import cosine_similarity, relative_change, subspace_overlap
from pico.metrics.circuit_spectra import ov_spectra, ov_spectrum, qk_spectra, qk_spectrum
from pico.metrics.circuits import (
    ov_activations,
    ov_circuit,
    ov_gradient_pico,
    qk_circuit,
    vo_product,
)
from pico.metrics.moments import (
    entry_mean,
    entry_median,
    entry_variance,
    mean_cosine,
    trace,
)
from pico.metrics.norms import frobenius_norm, inf_norm, l1_norm, max_abs
from pico.metrics.parts import col_norms, cols, head, row_norms, rows, transpose
from pico.metrics.pico_analyze import (
    condition_number_pico,
    frobenius_norm_pico,
    gini_pico,
    hoyer_pico,
    per_pico,
    pwcca_pico,
)
from pico.metrics.registry import compute, compute_many, get, names
from pico.metrics.shaping import concat_tensors, reshape, split_qkv
from pico.metrics.similarity import cka, cka_debiased, cka_rbf, procrustes, rsa
from pico.metrics.sparsity import excess_kurtosis, gini, hoyer, l1_l2_ratio, zero_fraction
from pico.metrics.spectral import (
    condition_number,
    effective_rank,
    nuclear_norm,
    per,
    spectral_norm,
    stable_rank,
)
from pico.metrics.spectrum import spectra, spectrum
from pico.metrics.spread import (
    alpha_hill,
    participation_ratio,
    singular_value_mean,
    singular_value_variance,
    spectral_entropy,
)

__all__ = [
    "alpha_hill",
    "attention_entropy",
    "attention_pattern",
    "cka",
    "cka_debiased",
    "cka_rbf",
    "col_norms",
    "cols",
    "compute",
    "compute_many",
    "concat_tensors",
    "condition_number",
    "condition_number_pico",
    "cosine_similarity",
    "effective_rank",
    "entry_mean",
    "entry_median",
    "entry_variance",
    "excess_kurtosis",
    "fold_norm",
    "frobenius_norm",
    "frobenius_norm_pico",
    "get",
    "gini",
    "gini_pico",
    "head",
    "hoyer",
    "hoyer_pico",
    "induction_score",
    "inf_norm",
    "l1_l2_ratio",
    "l1_norm",
    "matmul",
    "max_abs",
    "mean_cosine",
    "names",
    "nuclear_norm",
    "ov_activations",
    "ov_circuit",
    "ov_gradient_pico",
    "ov_spectra",
    "ov_spectrum",
    "participation_ratio",
    "per",
    "per_pico",
    "previous_token_score",
    "procrustes",
    "pwcca",
    "pwcca_pico",
    "qk_circuit",
    "qk_spectra",
    "qk_spectrum",
    "relative_change",
    "reshape",
    "row_norms",
    "rows",
    "rsa",
    "singular_value_mean",
    "singular_value_variance",
    "spectra",
    "spectral_entropy",
    "spectral_norm",
    "spectrum",
    "split_qkv",
    "stable_rank",
    "subspace_overlap",
    "svcca",
    "t_add",
    "t_div",
    "t_mul",
    "t_sqrt",
    "t_sub",
    "tensor_mean",
    "trace",
    "transpose",
    "vo_product",
    "zero_fraction",
]
