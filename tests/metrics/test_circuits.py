"""Circuits of attention heads against products written out, HF's attention and pico-analyze."""

import json
import math

import numpy as np
import pytest

from pico import metrics
from pico.errors import MetricError
from pico.metrics import ov_circuit, ov_spectrum, qk_circuit, qk_spectrum, split_qkv

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


@pytest.mark.parametrize("sizes", SIZES)
def test_spectra_are_those_of_the_products(sizes):
    q, k, v, o = weights(*sizes)
    n = min(sizes[2:])
    for head in range(sizes[0]):
        for thin, full in (
            (ov_spectrum(v, o, *sizes[:2], head), ov_circuit(v, o, *sizes[:2], head)),
            (qk_spectrum(q, k, *sizes[:2], head), qk_circuit(q, k, *sizes[:2], head)),
        ):
            wanted = np.linalg.svd(full, compute_uv=False)
            assert thin.shape == (n,)
            np.testing.assert_allclose(thin, wanted[:n], rtol=1e-9)
            assert np.all(wanted[n:] < 1e-12 * wanted[0])


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


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_damaged_entries(bad):
    q, k, v, o = weights(4, 2, 8, 32)
    v[3, 5] = k[3, 5] = bad
    assert np.isnan(ov_spectrum(v, o, 4, 2, 0)).all() and np.isnan(qk_spectrum(q, k, 4, 2, 1)).all()
    assert np.isfinite(ov_spectrum(v, o, 4, 2, 3)).all()


def test_zeros_have_zero_spectra():
    assert ov_spectrum(np.zeros((8, 32)), np.zeros((32, 8)), 1, 1, 0).tolist() == [0.0] * 8


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


def test_split_qkv_equals_the_layout_of_transformers():
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXAttention

    config = transformers.GPTNeoXConfig(hidden_size=24, num_attention_heads=3)
    fused = GPTNeoXAttention(config, layer_idx=0).query_key_value
    x = torch.randn(24, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        by_head = fused(x).view(3, 3 * 8)  # as its forward does, then chunked in three
        for index, which in enumerate("qkv"):
            weight = split_qkv(fused.weight, 3, which).float()
            bias = split_qkv(fused.bias, 3, which).float()
            wanted = by_head[:, 8 * index : 8 * index + 8].reshape(-1)
            torch.testing.assert_close(weight @ x + bias, wanted)


def test_split_qkv_refuses():
    with pytest.raises(MetricError, match="7 rows do not divide into q, k and v of 2 heads"):
        split_qkv(np.zeros((7, 3)), 2, "q")
    with pytest.raises(MetricError, match="not 'o'"):
        split_qkv(np.zeros((6, 3)), 2, "o")


def test_torch_gives_the_same_and_its_own_kind():
    torch = pytest.importorskip("torch")
    q, k, v, o = (torch.from_numpy(w) for w in weights(4, 2, 8, 32))
    assert isinstance(ov_circuit(v, o, 4, 2, 1), torch.Tensor)
    np.testing.assert_array_equal(
        ov_spectrum(v, o, 4, 2, 1).numpy(), ov_spectrum(v.numpy(), o.numpy(), 4, 2, 1)
    )
    np.testing.assert_array_equal(
        qk_circuit(q, k, 4, 2, 1).numpy(), qk_circuit(q.numpy(), k.numpy(), 4, 2, 1)
    )
