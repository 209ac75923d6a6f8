"""Parts of tensors against slices, norms against numpy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pico.errors import MetricError
from pico.metrics import col_norms, cols, concat_tensors, head, row_norms, rows, transpose

MATRIX = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)


def test_heads_make_up_the_tensor():
    parts = [head(MATRIX, i, 2) for i in range(3)]
    joined = concat_tensors(concat_tensors(parts[0], parts[1]), parts[2])
    np.testing.assert_array_equal(joined, MATRIX)
    np.testing.assert_array_equal(head(MATRIX, 1, 2, axis=1), MATRIX[:, 2:4])
    np.testing.assert_array_equal(head(np.arange(6.0), 2, 2), [4.0, 5.0])


@given(st.integers(0, 6), st.integers(0, 6))
def test_rows_and_columns_are_slices(a, b):
    if a <= b:
        np.testing.assert_array_equal(rows(MATRIX, a, b), MATRIX[a:b])
        np.testing.assert_array_equal(cols(MATRIX.T, a, b), MATRIX.T[:, a:b])
        np.testing.assert_array_equal(transpose(rows(MATRIX, a, b)), cols(transpose(MATRIX), a, b))
    else:
        with pytest.raises(MetricError, match=f"{a} to {b} is no range within 6 rows"):
            rows(MATRIX, a, b)


def test_transposing_twice_changes_nothing():
    np.testing.assert_array_equal(transpose(transpose(MATRIX)), MATRIX)


@pytest.mark.parametrize("size", [1.0, 1e-170, 1e170])
def test_norms(size):
    matrix = MATRIX.astype(float) * size
    expected = np.linalg.norm(matrix / size, axis=1) * size
    np.testing.assert_allclose(row_norms(matrix), expected, rtol=1e-14)
    np.testing.assert_allclose(col_norms(matrix.T), expected, rtol=1e-14)


def test_norms_of_edges():
    assert row_norms(np.zeros((2, 0))).tolist() == [0.0, 0.0]
    assert col_norms(np.zeros((0, 2))).tolist() == [0.0, 0.0]
    found = row_norms([[np.nan, 1.0], [np.inf, 1.0], [3.0, 4.0]])
    assert np.isnan(found[0]) and found[1:].tolist() == [np.inf, 5.0]
    assert row_norms(np.ones((2, 3, 3))).tolist() == [3.0, 3.0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: head(MATRIX, 3, 2), "no head 3; heads are 0 to 2"),
        (lambda: head(MATRIX, 0, 4), "6 rows or columns do not divide into heads of 4"),
        (lambda: head(MATRIX, 0, 0), "do not divide into heads of 0"),
        (lambda: head(MATRIX, 0, 2, 2), "has no axis 2"),
        (lambda: head(np.float64(1.0), 0, 1), r"shape \(\) has no axis 0"),
        (lambda: rows(np.float64(1.0), 0, 1), "has no rows"),
        (lambda: cols(np.arange(3.0), 0, 1), "has no columns"),
        (lambda: cols(MATRIX, -1, 2), "-1 to 2 is no range within 4 columns"),
        (lambda: transpose(np.arange(3.0)), "transpose takes a matrix"),
        (lambda: transpose(np.zeros((1, 2, 3))), "transpose takes a matrix"),
        (lambda: row_norms([1.0]), "row_norms takes a matrix"),
        (lambda: col_norms([1.0]), "col_norms takes a matrix"),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises(MetricError, match=message):
        call()
