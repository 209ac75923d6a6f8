"""Decides which documents training never sees.

Called by the loader, between reading a source and training its tokenizer. A document is held out if
the hash of its text lies below a threshold, which promises two things: a document stays on its side
when others come or go, and copies of one text are never on both sides.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import xxhash

from pico.data.sources import Document
from pico.errors import ConfigError, DataError

__all__ = ["heldout_threshold", "is_heldout", "split"]

_HASHES: Final = 1 << 64


def heldout_threshold(documents: Iterable[Document], fraction: float) -> int:
    """Return the hash below which a document is held out, after one pass over all of them.

    The threshold is `fraction · 2^64`, moved just so far that both sides have a document.

    Args:
        documents: every document of the data set; no text is kept.
        fraction: share of the documents to hold out, 0 ≤ fraction < 1.

    Returns:
        An integer for `is_heldout`; 0 holds nothing out.

    Raises:
        ConfigError: the fraction is out of range.
        DataError: something is to be held out, but there are not two different texts.
    """
    if not 0.0 <= fraction < 1.0:
        raise ConfigError(f"heldout_fraction must lie in [0, 1), not {fraction}")
    if fraction == 0.0:
        return 0
    lowest, highest = _HASHES, -1
    for document in documents:
        value = _hash(document)
        lowest, highest = min(lowest, value), max(highest, value)
    if lowest >= highest:
        raise DataError(
            "nothing can be held out of a single document (or of copies of one); give more text, "
            "name the text file itself instead of its folder, or set heldout_fraction to 0"
        )
    return min(max(int(fraction * _HASHES), lowest + 1), highest)


def is_heldout(document: Document, threshold: int) -> bool:
    """Return whether a document belongs to the held-out part; see `heldout_threshold`."""
    return _hash(document) < threshold


def split(documents: Iterable[Document], fraction: float) -> tuple[list[Document], list[Document]]:
    """Return (training, held-out) documents, each in the given order; neither is empty.

    For texts that fit in memory; `heldout_threshold` and `is_heldout` do the same over two passes.
    With `fraction` 0 the held-out part is empty.

    Example:
        >>> texts = [Document(str(i), "example", f"text {i}") for i in range(100)]
        >>> [len(part) for part in split(texts, 0.1)]
        [91, 9]
    """
    kept = list(documents)
    threshold = heldout_threshold(kept, fraction)
    training = [document for document in kept if not is_heldout(document, threshold)]
    return training, [document for document in kept if is_heldout(document, threshold)]


def _hash(document: Document) -> int:
    return xxhash.xxh3_64_intdigest(document.text.encode())
