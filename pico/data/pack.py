"""Packs documents' token ids into rows of equal length: the sequences of a data set.

Called by the loader. The documents are laid end to end, each closed by one end-of-text token, and
the stream is cut into rows of `seq_len + 1` ids. A row gives a model `seq_len` inputs (all ids but
the last) and `seq_len` targets (all but the first). Rows do not overlap, as in pico-train's data: a
token is stored once, and the one prediction given up per row is that of its first token.

    documents   a a a · b b · c c c c c c      (· end of text; the last document is closed too)
    row 0       a a a · b      doc_ids 0, 1    doc_starts 0, 4
    row 1       b · c c c      doc_ids 1, 2    doc_starts 0, 2
    left over   c c c ·        `n_dropped` is 4: shorter than a row, and counted

An end-of-text token belongs to the document that it closes. Nothing is lost but the rest at the
end: `n_tokens` equals the tokens of all rows plus `n_dropped`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pico.errors import ConfigError, DataError

__all__ = ["Packed", "Sequence", "pack"]


@dataclass(frozen=True, eq=False)
class Sequence:
    """One row of a data set, and the documents it is made of."""

    tokens: NDArray[np.int32]
    """Token ids, shape (seq_len + 1,)."""
    doc_ids: list[int]
    """The documents in the row, in order, as numbers of the input from 0."""
    doc_starts: list[int]
    """Where each of these documents' pieces starts in the row; the first is 0."""


class Packed(Iterator[Sequence]):
    """The rows of packed documents, made as they are asked for; counts grow as they pass."""

    n_sequences: int
    """Rows returned."""
    n_tokens: int
    """Tokens read so far, end-of-text tokens included."""
    n_dropped: int
    """Tokens at the end that filled no row; 0 until the rows are exhausted."""
    document_lengths: array[int]
    """Tokens of each document read, without its end-of-text token."""

    def __init__(self, token_lists: Iterable[list[int]], seq_len: int, end_of_text: int) -> None:
        """Prepare to pack; `pack` says how."""
        if seq_len < 1:
            raise ConfigError(f"seq_len must be at least 1, not {seq_len}")
        self.n_sequences = self.n_tokens = self.n_dropped = 0
        self.document_lengths = array("q")
        self._counts = np.zeros(0, dtype=np.int64)
        self._rows = self._pack(token_lists, seq_len, end_of_text)

    def __next__(self) -> Sequence:
        """Return the next row."""
        return next(self._rows)

    def token_counts(self, vocab_size: int) -> NDArray[np.int64]:
        """Return how often each token stands in the rows returned so far, shape (vocab_size,).

        Raises:
            DataError: a token's id is not below `vocab_size`.
        """
        if len(self._counts) > vocab_size:
            raise DataError(
                f"token id {len(self._counts) - 1} is outside a vocabulary of {vocab_size}; "
                "the tokens were made by another tokenizer"
            )
        return np.pad(self._counts, (0, vocab_size - len(self._counts)))

    def _pack(
        self, token_lists: Iterable[list[int]], seq_len: int, end_of_text: int
    ) -> Iterator[Sequence]:
        row = seq_len + 1
        rest = np.zeros(0, dtype=np.int32)  # tokens that wait for their row to fill
        doc_ids: list[int] = []  # the documents in it, and where they start in it
        doc_starts: list[int] = []
        for doc_id, tokens in enumerate(token_lists):
            self.document_lengths.append(len(tokens))
            self.n_tokens += len(tokens) + 1
            doc_ids.append(doc_id)
            doc_starts.append(len(rest))
            stream = np.concatenate([rest, np.array([*tokens, end_of_text], dtype=np.int32)])
            n_rows = len(stream) // row
            for start in range(0, n_rows * row, row):
                yield self._count(Sequence(stream[start : start + row].copy(), doc_ids, doc_starts))
                doc_ids, doc_starts = [doc_id], [0]
            rest = stream[n_rows * row :]
            if n_rows and not len(rest):
                doc_ids, doc_starts = [], []
        self.n_dropped = len(rest)
        if not self.n_sequences:
            raise DataError(
                f"seq_len {seq_len} needs rows of {row} tokens, but there are only {self.n_tokens} "
                f"tokens in {len(self.document_lengths)} documents; lower data.seq_len or give "
                "more text"
            )

    def _count(self, sequence: Sequence) -> Sequence:
        largest = int(sequence.tokens.max())
        if largest >= len(self._counts):
            self._counts = np.pad(self._counts, (0, largest + 1 - len(self._counts)))
        np.add.at(self._counts, sequence.tokens, 1)
        self.n_sequences += 1
        return sequence


def pack(token_lists: Iterable[list[int]], seq_len: int, end_of_text: int) -> Packed:
    """Pack documents into rows of `seq_len + 1` tokens that do not overlap.

    Args:
        token_lists: the token ids of each document, none of them `end_of_text`; read once.
        seq_len: tokens a model sees at once, 1 or more.
        end_of_text: id put behind every document, also behind an empty one.

    Returns:
        An iterator of `Sequence` with the counts that the tables `documents` and `vocab` need.

    Raises:
        ConfigError: `seq_len` is below 1.
        DataError: (while iterating) all documents together do not fill one row.

    Example:
        >>> rows = pack([[5, 6, 7], [8, 9]], seq_len=2, end_of_text=0)
        >>> [(row.tokens.tolist(), row.doc_ids, row.doc_starts) for row in rows]
        [([5, 6, 7], [0], [0]), ([0, 8, 9], [0, 1], [0, 1])]
        >>> rows.n_dropped, rows.token_counts(10).tolist()
        (1, [1, 0, 0, 0, 0, 1, 1, 1, 1, 1])
    """
    return Packed(token_lists, seq_len, end_of_text)
