"""Circuits of attention heads against products written out, HF's attention and pico-analyze."""

import json
import math

import numpy as np
import pytest

from pico import metrics
from pico.errors import MetricError
from pico.metrics import (
    ov_activations,
    ov_circuit,
    ov_gradient_pico,
    ov_spectrum,
    qk_circuit,
    vo_product,
)

SIZES = [(4, 4, 8, 32), (12, 4, 8, 96), (6, 1, 5, 20), (2, 2, 16, 10)]


def weights(n_heads, n_kv_heads, d_head, d_model, seed=0):
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((n_heads * d_head, d_model)).astype(np.float32)
    k = rng.standard_normal((n_kv_heads * d_head, d_model)).astype(np.float32)
    v = rng.standard_normal((n_kv_heads * d_head, d_model)).astype(np.float32)
    o = rng.standard_normal((d_model, n_heads * d_head)).astype(np.float32)
    return q, k, v, o


@pytest.mark.parametrize("sizes", SIZES)
def test_circuits_add_up_to_the_attention_of_all_heads(sizes):
    """With uniform attention, the heads' circuits sum to o applied to repeated values."""
    n_heads, n_kv_heads, d_head, d_model = sizes
    q, k, v, o = (w.astype(np.float64) for w in weights(*sizes))
    x, y = np.random.default_rng(1).standard_normal((2, d_model))
    values = np.repeat((v @ x).reshape(n_kv_heads, d_head), n_heads // n_kv_heads, axis=0)
    together = sum(ov_circuit(v, o, n_heads, n_kv_heads, head) @ x for head in range(n_heads))
    np.testing.assert_allclose(together, o @ values.ravel(), rtol=1e-10, atol=1e-10)
    keys = np.repeat((k @ y).reshape(n_kv_heads, d_head), n_heads // n_kv_heads, axis=0)
    scores = np.einsum("hd,hd->h", (q @ x).reshape(n_heads, d_head), keys)
    for head in range(n_heads):
        circuit = qk_circuit(q, k, n_heads, n_kv_heads, head)
        assert x @ circuit @ y == pytest.approx(scores[head], rel=1e-10)


def test_the_reference_values_of_pico_analyze(shared):
    """Its OV "weights" are V_h O_h, not the circuit; the circuit's own numbers differ from them."""
    folder = shared / "reference"
    expected = json.loads((folder / "pico_analyze_expected.json").read_text(encoding="utf-8"))
    with np.load(folder / "pico_analyze_inputs.npz", allow_pickle=False) as inputs:
        v, o = inputs["ov__v_weight"], inputs["ov__o_weight"]
    theirs = expected["ov_circuit"]["weights"]["layers.0.ov_circuit.weights.heads.0"]
    assert theirs["norm_frobenius"] == pytest.approx(0.8169, rel=1e-3)
    circuit = ov_circuit(v, o, 12, 4, 0)
    assert metrics.frobenius_norm(circuit) == pytest.approx(2.706, rel=1e-3)
    s = ov_spectrum(v, o, 12, 4, 0)
    assert math.sqrt(float(np.sum(s**2))) == pytest.approx(2.706, rel=1e-3)
    assert s[0] / s[-1] == pytest.approx(1.72, rel=5e-3)


def test_refusals():
    q, k, v, o = weights(12, 4, 8, 96)
    with pytest.raises(MetricError, match="no head 12; heads are 0 to 11"):
        ov_circuit(v, o, 12, 4, 12)
    with pytest.raises(MetricError, match="12 heads do not divide among 5"):
        ov_spectrum(v, o, 12, 5, 0)
    with pytest.raises(MetricError, match=r"o has shape \(96, 95\), and the other weight needs 96"):
        ov_circuit(v, o[:, :-1], 12, 4, 0)
    with pytest.raises(MetricError, match=r"q has shape \(88, 96\), and the other weight needs 96"):
        qk_circuit(q[:-8], k, 12, 4, 0)
    with pytest.raises(MetricError, match=r"v of shape \(31, 96\) does not divide into 4 heads"):
        ov_circuit(v[:-1], o, 12, 4, 0)
    with pytest.raises(MetricError, match="v of shape"):
        ov_circuit(v[0], o, 12, 4, 0)


def test_torch_gives_the_same_and_its_own_kind():
    torch = pytest.importorskip("torch")
    q, k, v, o = (torch.from_numpy(w) for w in weights(4, 2, 8, 32))
    assert isinstance(ov_circuit(v, o, 4, 2, 1), torch.Tensor)
    np.testing.assert_array_equal(
        qk_circuit(q, k, 4, 2, 1).numpy(), qk_circuit(q.numpy(), k.numpy(), 4, 2, 1)
    )


@pytest.mark.parametrize("sizes", SIZES)
def test_products_of_pico_analyze_are_written_out(sizes):
    """One head by itself: V O, and the derivative of O V along both gradients."""
    n_heads, n_kv_heads, d_head, _ = sizes
    _, _, v, o = weights(*sizes)
    _, _, v_grad, o_grad = weights(*sizes, seed=1)
    for head in range(n_heads):
        group = head // (n_heads // n_kv_heads)
        rows, columns = slice(group * d_head, (group + 1) * d_head), slice(head * d_head, None)
        left, right = o[:, columns][:, :d_head].astype(float), v[rows].astype(float)
        product = vo_product(v, o, n_heads, n_kv_heads, head)
        np.testing.assert_allclose(product, np.einsum("im,mj->ij", right, left), rtol=1e-10)
        assert np.trace(product) == pytest.approx(
            np.trace(ov_circuit(v, o, n_heads, n_kv_heads, head))
        )
        to_left, to_right = o_grad[:, columns][:, :d_head].astype(float), v_grad[rows]
        # half the central difference over a step of 1 is exact for a product of two factors
        wanted = (left + to_left) @ (right + to_right) - (left - to_left) @ (right - to_right)
        gradient = ov_gradient_pico(v, o, v_grad, o_grad, n_heads, n_kv_heads, head)
        np.testing.assert_allclose(gradient, wanted / 2, rtol=1e-9, atol=1e-12)
    with pytest.raises(MetricError, match="o has shape"):
        ov_gradient_pico(v, o, v_grad, o_grad[:, :-1], n_heads, n_kv_heads, 0)


def test_activations_of_all_heads_add_up_to_the_output_projection():
    """For one position, attending to itself alone."""
    _, _, _, o = weights(6, 2, 4, 20)
    values = np.random.default_rng(2).standard_normal((3, 5, 8))
    heads = [ov_activations(values, o, 6, 2, head) for head in range(6)]
    repeated = np.repeat(values.reshape(15, 2, 4), 3, axis=1).reshape(15, 24)
    np.testing.assert_allclose(sum(heads), repeated @ o.T, rtol=1e-9, atol=1e-12)
    v = np.random.default_rng(3).standard_normal((8, 20))
    x = np.random.default_rng(4).standard_normal((7, 20))
    wanted = x @ ov_circuit(v, o, 6, 2, 4).T
    np.testing.assert_allclose(ov_activations(x @ v.T, o, 6, 2, 4), wanted, rtol=1e-9, atol=1e-12)
    with pytest.raises(MetricError, match=r"the transpose of values of shape \(7, 15\) does not"):
        ov_activations(values.reshape(-1)[:105].reshape(15, 7), o, 6, 2, 0)
    with pytest.raises(MetricError, match=r"o has shape \(20, 23\), and the other .* 20 x 24"):
        ov_activations(values, o[:, :-1], 6, 2, 0)
    with pytest.raises(MetricError, match="values and o need two dimensions"):
        ov_activations(values[0, 0], o, 6, 2, 0)
