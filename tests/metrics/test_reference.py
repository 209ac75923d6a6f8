"""The values that pico-analyze computes, on its own inputs; where ours differ, each is named."""

import json
import math

import numpy as np
import pytest

import pico.metrics
from pico.metrics import cka

OURS = {"norm_frobenius": "frobenius_norm", "norm_nuclear": "nuclear_norm", "norm_inf": "max_abs"}
ROUNDING_NOISE = "float32 rounding noise of a rank-deficient matrix"
# Where theirs is rounding noise, an error, or bfloat16 arithmetic: the value that ours has instead.
EXCEPTED = {
    ("lowrank_64x48_r5", "condition_number"): (math.inf, ROUNDING_NOISE),
    ("exactsingular_20x20", "condition_number"): (math.inf, ROUNDING_NOISE),
    ("lowrank_64x48_r5", "per"): (0.1024722, "43 of 48 singular values are float32 noise"),
    ("constant_8x8", "per"): (0.125, "NaN as soon as one singular value is 0"),
    ("zeros_8x8", "hoyer"): (math.nan, "division by zero"),
    ("single_1x1", "hoyer"): (math.nan, "division by zero"),
    ("normal_64x48__bf16", "gini"): (0.4112984, "the index is rounded to bfloat16"),
    ("normal_64x48__bf16", "hoyer"): (0.2009458, "sums are rounded to bfloat16"),
    ("normal_64x48__bf16", "norm_frobenius"): (56.507138, "the result is rounded to bfloat16"),
    ("normal_64x48__bf16", "norm_inf"): (3.560638904571533, "the input is rounded to bfloat16"),
    ("normal_64x48__bf16", "per"): (0.8682313, "no SVD of bfloat16"),
    ("normal_64x48__bf16", "condition_number"): (12.451108, "no SVD of bfloat16"),
    ("normal_64x48__bf16", "norm_nuclear"): (347.78225, "no SVD of bfloat16"),
}


@pytest.fixture(scope="module")
def reference(shared):
    folder = shared / "reference"
    expected = json.loads((folder / "pico_analyze_expected.json").read_text(encoding="utf-8"))
    with np.load(folder / "pico_analyze_inputs.npz", allow_pickle=False) as inputs:
        return dict(inputs), expected


def test_single_tensors(reference):
    inputs, expected = reference
    met = set()
    for tensor, values in expected["single"].items():
        for theirs, value in values.items():
            key = (tensor, theirs)
            wanted, reason = EXCEPTED.get(key, (value, ""))
            met.add(key)
            ours = getattr(pico.metrics, OURS.get(theirs, theirs))(inputs[f"mat__{tensor}"])
            assert ours == pytest.approx(float(wanted), rel=1e-5, abs=1e-7, nan_ok=True), key
            assert not reason or value != pytest.approx(wanted, rel=1e-6), f"no exception: {key}"
    assert set(EXCEPTED) <= met


def test_pairs(reference):
    inputs, expected = reference
    assert len(expected["pair"]) == 6
    for name, values in expected["pair"].items():
        x, y = inputs[f"pair__{name}__src"], inputs[f"pair__{name}__tgt"]
        assert cka(x, y) == pytest.approx(float(values["cka"]), rel=1e-5, nan_ok=True), name


def test_products_of_value_and_output_heads(reference):
    """Six more matrices, from their `V_h O_h` (12 heads, 4 of them keys and values, d_head 8)."""
    inputs, expected = reference
    value, output = inputs["ov__v_weight"], inputs["ov__o_weight"]
    for head in range(6):
        group = head // 3
        product = value[8 * group : 8 * group + 8] @ output[:, 8 * head : 8 * head + 8]
        theirs = expected["ov_circuit"]["weights"][f"layers.0.ov_circuit.weights.heads.{head}"]
        for name in ("gini", "hoyer", "per", "condition_number", *OURS):
            ours = getattr(pico.metrics, OURS.get(name, name))(product)
            assert ours == pytest.approx(theirs[name], rel=1e-4), (head, name)
