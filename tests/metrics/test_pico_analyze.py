"""The variants against every number that pico-analyze has; what cannot be compared is named."""

import json
import math

import numpy as np
import pytest

import pico.metrics
from pico.errors import MetricError
from pico.metrics import (
    get,
    names,
    ov_activations,
    ov_gradient_pico,
    pico_analyze,
    vo_product,
)
from pico.metrics.pico_analyze import NAMES

VARIANTS = [name for name in names() if name.endswith("_pico")]
N_HEADS, N_KV_HEADS = 12, 4

RANK_DEFICIENT = {"lowrank_64x48_r5", "exactsingular_20x20"}
"""Their condition number is rounding noise of float32, and so are those of all gradients and
activations of circuits: rank 16 and rank 8 of 96."""
NOISY_PWCCA = 3e-4
"""pico-analyze adds unseeded noise to the activations of circuits, of rank 8 of 96."""
FAILURES = {
    ("zeros_8x8", "hoyer"): math.nan,
    ("single_1x1", "hoyer"): math.nan,
    ("wide_24x64", "pwcca"): math.nan,
    ("zeros_64x8", "pwcca"): math.nan,
    ("normal_64x48__bf16", "per"): 0.8682313,
    ("normal_64x48__bf16", "condition_number"): 12.451108,
    ("normal_64x48__bf16", "norm_nuclear"): 347.7821,
}
"""Where pico-analyze stops with an exception, and what the number is here."""


@pytest.fixture(scope="module")
def reference(shared):
    folder = shared / "reference"
    expected = json.loads((folder / "pico_analyze_expected.json").read_text(encoding="utf-8"))
    with np.load(folder / "pico_analyze_inputs.npz", allow_pickle=False) as inputs:
        return dict(inputs), expected


def number(theirs, *arrays):
    return getattr(pico.metrics, NAMES[theirs])(*arrays)


def bfloat16(array):
    """Round to bfloat16 the slow way: by the nearest multiple of the unit in the last place."""
    array = np.asarray(array, np.float64)
    unit = np.exp2(np.floor(np.log2(np.abs(array), where=array != 0, out=np.zeros_like(array))) - 7)
    return (np.rint(array / unit) * unit).astype(np.float32)


def test_every_number_of_a_single_tensor(reference):
    inputs, expected = reference
    compared = 0
    for tensor, values in expected["single"].items():
        array = inputs[f"mat__{tensor}"]
        array = bfloat16(array) if tensor.endswith("__bf16") else array
        for theirs, value in values.items():
            ours = number(theirs, array)
            if isinstance(value, dict):
                wanted, rel = FAILURES[tensor, theirs], 1e-2
            else:
                wanted, rel = float(value), 1e-4
            if theirs == "condition_number" and tensor in RANK_DEFICIENT:
                assert ours > 1e7
            else:
                assert ours == pytest.approx(wanted, rel=rel, nan_ok=True), (tensor, theirs)
            compared += 1
    assert compared == 9 * 7


def test_every_number_of_a_pair(reference):
    inputs, expected = reference
    compared = 0
    for name, values in expected["pair"].items():
        x, y = inputs[f"pair__{name}__src"], inputs[f"pair__{name}__tgt"]
        for theirs, value in values.items():
            wanted = FAILURES[name, theirs] if isinstance(value, dict) else float(value)
            ours = number(theirs, x, y)
            assert ours == pytest.approx(wanted, rel=1e-4, nan_ok=True), (name, theirs)
            compared += 1
    assert compared == 6 * 2


def circuit(inputs, kind, head, suffix=""):
    """Return pico-analyze's circuit of a head, from its inputs."""
    v, o = (inputs[f"ov__{part}_weight"] for part in "vo")
    if kind == "weights":
        return vo_product(v, o, N_HEADS, N_KV_HEADS, head)
    if kind == "gradients":
        v_grad, o_grad = inputs["ov__v_grad"], inputs["ov__o_grad"]
        return ov_gradient_pico(v, o, v_grad, o_grad, N_HEADS, N_KV_HEADS, head)
    values, o = inputs[f"ov__v_act{suffix}"], inputs[f"ov__o_weight{suffix}"]
    return ov_activations(values, o, N_HEADS, N_KV_HEADS, head)


@pytest.mark.parametrize("kind", ["weights", "gradients", "activations"])
def test_every_number_of_a_circuit(reference, kind):
    inputs, expected = reference
    assert len(expected["ov_circuit"][kind]) == 6
    for name, values in expected["ov_circuit"][kind].items():
        found = circuit(inputs, kind, int(name.rpartition(".")[2]))
        assert list(found.shape) == values.pop("shape")
        assert found[0, :3] == pytest.approx(values.pop("corner"), rel=1e-4, abs=1e-9)
        assert np.sum(found) == pytest.approx(values.pop("sum"), rel=1e-4)
        assert np.sum(np.square(found)) == pytest.approx(values.pop("sumsq"), rel=1e-4)
        found = found.astype(np.float32)
        for theirs, value in values.items():
            if theirs == "condition_number" and kind != "weights":
                assert value > 1e7 and number(theirs, found) > 1e6
                continue
            pair = theirs in ("cka", "pwcca")
            other = [circuit(inputs, kind, int(name.rpartition(".")[2]), "_tgt")] if pair else []
            rel = NOISY_PWCCA if theirs == "pwcca" else 1e-4
            assert number(theirs, found, *other) == pytest.approx(value, rel=rel), (name, theirs)


def test_names_lead_to_metrics_and_variants_wait_to_be_asked_for():
    assert all(get(name).version >= 1 for name in NAMES.values())
    assert set(VARIANTS) <= set(NAMES.values())
    waiting = [name for name in names() if get(name).on_request]
    assert waiting == sorted([*VARIANTS, "mean_cosine"])
    assert get("per_pico").needs_matrix and not get("gini_pico").needs_matrix


@pytest.mark.parametrize("n", [2, 77, 256, 3072, 20007])
def test_bfloat16_as_torch_calculates_it(n):
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(n, generator=generator).to(torch.bfloat16)
    magnitudes = torch.sort(x.abs())[0]
    index = torch.arange(1, n + 1, dtype=x.dtype)
    gini = ((2 * index - n - 1) * magnitudes).sum() / (n * magnitudes.sum())
    norms = torch.norm(x, 1).item(), torch.norm(x).item()
    last_bit = 0.0 if n < 10_000 else 2.0**-7  # the order of so long a sum can cost it
    assert pico.metrics.gini_pico(x) == pytest.approx(gini.item(), rel=last_bit, abs=0.0)
    assert pico.metrics.frobenius_norm_pico(x) == norms[1]
    hoyer = (math.sqrt(n) - norms[0] / norms[1]) / (math.sqrt(n) - 1)
    assert pico.metrics.hoyer_pico(x) == pytest.approx(hoyer, rel=1e-12)
    assert pico.metrics.gini_pico(x.float().numpy()) == pico.metrics.gini_pico(x)


@pytest.mark.parametrize("shape", [(64, 48), (200, 16), (1, 7)])
def test_other_types_get_the_usual_numbers(shape):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    for name in ("gini", "hoyer", "frobenius_norm"):
        assert getattr(pico.metrics, f"{name}_pico")(x) == getattr(pico.metrics, name)(x)
    for name in ("per", "condition_number"):
        usual = getattr(pico.metrics, name)(x)
        assert getattr(pico.metrics, f"{name}_pico")(x) == pytest.approx(usual, rel=1e-4)


def test_constants_are_float32():
    assert pico.metrics.gini_pico(np.ones(1001, np.float32)) == 0.0
    assert pico.metrics.frobenius_norm_pico(np.full(77, 2.5)) == pytest.approx(2.5 * math.sqrt(77))


def test_departures_by_hand():
    deficient = np.diag([3.0, 1.0, 0.0])
    assert math.isnan(pico.metrics.per_pico(deficient))
    assert pico.metrics.condition_number_pico(deficient) == math.inf
    assert pico.metrics.condition_number_pico(np.diag([1.0, 1e-9])) == pytest.approx(1e9, rel=1e-5)
    assert pico.metrics.per_pico(np.diag([1.0, 1.0, 1.0, 1.0])) == pytest.approx(1.0, rel=1e-6)
    rounded = bfloat16(56.5071371)
    assert rounded == 56.5 and pico_analyze._rounded(np.float32(56.5071371)) == rounded


def test_edges():
    for name in VARIANTS:
        metric = get(name)
        bad = [np.full((4, 3), math.nan), np.asarray([[1.0, math.inf], [0.0, 1.0]])]
        for x in bad:
            value = metric.function(x, x) if metric.kind == "pair" else metric.function(x)
            assert not math.isfinite(value), name
    assert pico.metrics.gini_pico([]) == 0.0
    assert math.isnan(pico.metrics.condition_number_pico(np.zeros((0, 3))))
    assert math.isnan(pico.metrics.pwcca_pico(np.ones((5, 2)), np.ones((5, 2))))
    tall = np.random.default_rng(0).standard_normal((30, 5))
    assert math.isnan(pico.metrics.pwcca_pico(tall, tall[:, :4]))  # theirs stops
    with pytest.raises(
        MetricError, match=r"per_pico needs a matrix, and this tensor has shape \(3"
    ):
        pico.metrics.per_pico([1.0, 2.0, 3.0])


def test_pwcca_of_lower_rank_is_repeatable():
    rng = np.random.default_rng(3)
    x = (rng.standard_normal((60, 3)) @ rng.standard_normal((3, 12))).astype(np.float32)
    y = (rng.standard_normal((60, 3)) @ rng.standard_normal((3, 12))).astype(np.float32)
    assert pico.metrics.pwcca_pico(x, y) == pico.metrics.pwcca_pico(x, y)
