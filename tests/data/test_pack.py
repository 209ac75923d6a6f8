"""Packing: the rows are the stream, every piece is attributed, the rest is counted."""

import doctest

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pico.data import pack as pack_module
from pico.data.pack import pack
from pico.errors import ConfigError, DataError

EOT = 0
DOCUMENTS = st.lists(st.lists(st.integers(1, 50), max_size=20), max_size=20)


@given(documents=DOCUMENTS, seq_len=st.integers(1, 12))
def test_rows_are_the_stream(documents, seq_len):
    stream = [token for document in documents for token in (*document, EOT)]
    owner = [i for i, document in enumerate(documents) for _ in (*document, EOT)]
    row = seq_len + 1
    packed = pack(iter(documents), seq_len, EOT)
    if len(stream) < row:
        with pytest.raises(DataError, match=r"lower data\.seq_len or give more text"):
            list(packed)
        return
    rows = list(packed)

    kept = len(stream) // row * row
    assert [int(token) for one in rows for token in one.tokens] == stream[:kept]
    assert all(one.tokens.shape == (row,) and one.tokens.dtype == np.int32 for one in rows)

    for i, one in enumerate(rows):
        owners = owner[i * row : (i + 1) * row]
        starts = [j for j in range(row) if j == 0 or owners[j] != owners[j - 1]]
        assert one.doc_starts == starts
        assert one.doc_ids == [owners[j] for j in starts]

    assert packed.n_sequences == len(rows)
    assert packed.n_tokens == len(stream)
    assert packed.n_dropped == len(stream) - kept
    assert list(packed.document_lengths) == [len(document) for document in documents]
    expected = np.bincount(stream[:kept], minlength=60)
    assert packed.token_counts(60).tolist() == expected.tolist()


def test_the_example_of_the_module():
    a, b, c = [1] * 3, [2] * 2, [3] * 6
    packed = pack([a, b, c], 4, EOT)
    rows = [(one.tokens.tolist(), one.doc_ids, one.doc_starts) for one in packed]
    assert rows == [
        ([1, 1, 1, 0, 2], [0, 1], [0, 4]),
        ([2, 0, 3, 3, 3], [1, 2], [0, 2]),
    ]
    assert packed.n_dropped == 4


def test_a_document_of_many_rows():
    rows = list(pack([list(range(1, 1000))], 9, EOT))
    assert len(rows) == 100
    assert all((one.doc_ids, one.doc_starts) == ([0], [0]) for one in rows)
    assert rows[-1].tokens[-1] == EOT


def test_rows_come_before_the_input_ends():
    def endless():
        while True:
            yield [1, 2, 3]

    packed = pack(endless(), 7, EOT)
    assert [next(packed).tokens.tolist() for _ in range(2)] == [[1, 2, 3, 0] * 2] * 2
    assert packed.n_sequences == 2
    assert packed.token_counts(4).tolist() == [4, 4, 4, 4]


def test_rows_own_their_memory():
    first, second = pack([[1] * 5], 2, EOT)
    first.tokens[:] = 9
    assert second.tokens.tolist() == [1, 1, 0]
    assert first.tokens.base is None


def test_seq_len_longer_than_the_data():
    with pytest.raises(
        DataError, match="seq_len 64 needs rows of 65 tokens, but there are only 5 tokens in 2"
    ):
        list(pack([[1, 2], [3]], 64, EOT))


@pytest.mark.parametrize("documents", [[], [[]]])
def test_no_tokens(documents):
    with pytest.raises(DataError, match="seq_len 4 needs rows of 5 tokens"):
        list(pack(documents, 4, EOT))


@pytest.mark.parametrize("seq_len", [0, -1])
def test_bad_seq_len(seq_len):
    with pytest.raises(ConfigError, match=f"seq_len must be at least 1, not {seq_len}"):
        pack([[1, 2, 3]], seq_len, EOT)


def test_counts_refuse_a_vocabulary_that_is_too_small():
    packed = pack([[5, 6, 7]], 1, EOT)
    list(packed)
    with pytest.raises(DataError, match="token id 7 is outside a vocabulary of 7"):
        packed.token_counts(7)


def test_examples_in_the_docstrings():
    assert doctest.testmod(pack_module).failed == 0
