"""Shaping of tensors: against numpy, and the fused projection against transformers."""

import numpy as np
import pytest

from pico.errors import MetricError
from pico.metrics import concat_tensors, reshape, split_qkv
from pico.metrics.shaping import joined


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


@pytest.mark.parametrize("shape", [(24,), (2, -1), (-1, 3, 4), (4, 6), (2, 3, 4), (1, 24, 1)])
def test_reshape_keeps_the_order(shape):
    x = np.random.default_rng(0).standard_normal((4, 3, 2)).astype(np.float32)
    np.testing.assert_array_equal(reshape(x, shape), x.reshape(shape))
    torch = pytest.importorskip("torch")
    assert tuple(reshape(torch.from_numpy(x), shape).shape) == x.reshape(shape).shape


def test_reshape_of_few_entries():
    assert reshape([5.0], []).shape == ()
    assert reshape(np.zeros((0, 3)), [3, 0]).shape == (3, 0)


@pytest.mark.parametrize("shape", [(5,), (-1, 5), (-1, -1), (-2, -12), (0, -1), (24, 0), ()])
def test_reshape_refuses(shape):
    with pytest.raises(MetricError, match=r"24 entries of shape \(4, 6\) do not fill shape"):
        reshape(np.zeros((4, 6)), shape)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
def test_concat_tensors(axis):
    rng = np.random.default_rng(0)
    shape = [2, 3, 4]
    parts = []
    for length in (1, 5, 0):
        shape[axis] = length
        parts.append(rng.standard_normal(shape))
    wanted = np.concatenate(parts, axis)
    np.testing.assert_array_equal(joined(parts, axis), wanted)
    two = concat_tensors(*parts[:2], axis)
    np.testing.assert_array_equal(two, np.concatenate(parts[:2], axis))


def test_concat_tensors_refuses():
    with pytest.raises(
        MetricError, match=r"shapes \(2, 3\) and \(2, 4\) cannot be joined along ax"
    ):
        concat_tensors(np.zeros((2, 3)), np.zeros((2, 4)), 0)
    with pytest.raises(MetricError, match="cannot be joined"):
        concat_tensors(np.zeros((2, 3)), np.zeros((2, 3, 1)), 0)
    for axis in (2, -3):
        with pytest.raises(MetricError, match=rf"has no axis {axis}"):
            concat_tensors(np.zeros((2, 3)), np.zeros((2, 3)), axis)
    with pytest.raises(MetricError, match="has no axis 0"):
        concat_tensors(np.asarray(1.0), np.asarray(1.0))
    with pytest.raises(MetricError, match="give at least one"):
        joined([])
