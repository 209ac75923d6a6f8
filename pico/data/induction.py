"""The source `induction`: random tokens, said again and again, so that a model must copy.

`pico.data.corpus` calls it for `data.source: induction`. A sequence is a pure function of the
sizes, the seed and its number: a segment of random tokens, of a random length between a quarter and
half of the sequence, repeated until the sequence is full. Where the first repetition begins cannot
be known; every target after that can be found by looking back, and only these count in the loss.
The tokens are single characters, so that a sequence reads as a word: `k3Rk3Rk3`.
"""

from __future__ import annotations

import json
import string
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pico.config import INDUCTION, DataConfig

__all__ = ["MASK", "MASKED", "decisive", "mask_of", "sequence", "spans_of", "tokenizer_json"]

MASK: Final = "loss_spans"
"""Key of `sequences.extra`: `[[start, stop], …]`, which targets count; target t is token t + 1."""
MASKED: Final = "loss_mask"
"""Key of `datasets.extra`, true of a data set whose sequences have spans."""

_VERSION: Final = 1
_END: Final = "<|endoftext|>"
_CJK: Final = 0x4E00  # as many single characters as anybody wants, all printable


def sequence(
    seed: int, number: int, vocab_size: int, seq_len: int
) -> tuple[npt.NDArray[np.int32], tuple[int, int]]:
    """Return the tokens of a sequence, and the span of its targets that can be predicted.

    Args:
        seed: that of the data set.
        number: which sequence, from 0; nothing depends on the others.
        vocab_size: ids 1 to `vocab_size - 1` are drawn; 0 is the end of text, which never occurs.
        seq_len: targets of a sequence; it has one token more.

    Returns:
        `(seq_len + 1,)` int32, and (start, stop): targets `start <= t < stop` count, where target t
        is token t + 1.

    Example:
        >>> tokens, (start, stop) = sequence(seed=0, number=7, vocab_size=64, seq_len=16)
        >>> bool((tokens[start + 1 : stop + 1] == tokens[1 : stop - start + 1]).all())
        True
    """
    draw = np.random.default_rng([seed, number])
    length = int(draw.integers(max(seq_len // 4, 1), max(seq_len // 2, 1), endpoint=True))
    segment = draw.integers(1, vocab_size, length, dtype=np.int32)
    return np.resize(segment, seq_len + 1), (length, seq_len)


def decisive(config: DataConfig) -> list[Any]:
    """Return all that decides the sequences of a config."""
    made = config.induction
    sizes = [config.vocab_size, config.seq_len, config.heldout_fraction]
    return [INDUCTION, _VERSION, *sizes, made.n_sequences, made.seed]


def mask_of(span: tuple[int, int]) -> str:
    """Return what `sequences.extra` says of a span of targets that count."""
    return json.dumps({MASK: [list(span)]})


def spans_of(extra: str | None, n_targets: int) -> npt.NDArray[np.bool_]:
    """Return which targets of a sequence count, `(n_targets,)`, by its `extra`; without one, all.

    Example:
        >>> spans_of('{"loss_spans": [[1, 3]]}', 4).tolist(), bool(spans_of(None, 4).all())
        ([False, True, True, False], True)
    """
    spans = json.loads(extra).get(MASK) if extra else None
    if spans is None:
        return np.ones(n_targets, dtype=np.bool_)
    counted = np.zeros(n_targets, dtype=np.bool_)
    for start, stop in spans:
        counted[start:stop] = True
    return counted


def tokenizer_json(vocab_size: int) -> str:
    """Return a `tokenizer.json` of single characters: letters, digits, then Chinese characters."""
    plain = string.ascii_letters + string.digits
    characters = [*plain, *(chr(_CJK + i) for i in range(max(vocab_size - 1 - len(plain), 0)))]
    tokens = [_END, *characters[: vocab_size - 1]]
    added = {
        "id": 0,
        "content": _END,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    model = {"type": "BPE", "vocab": {token: i for i, token in enumerate(tokens)}, "merges": []}
    return json.dumps(
        {"version": "1.0", "added_tokens": [added], "decoder": {"type": "Fuse"}, "model": model}
    )
