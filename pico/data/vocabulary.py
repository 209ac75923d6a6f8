"""The table `vocab`: what each token id stands for, and how often training sees it.

`pico.data.corpus` calls `write` in the transaction that stores a data set.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pico import schema
from pico.data.tokenize import Tokenizer
from pico.lake.commit import Transaction
from pico.lake.snapshot import Snapshot
from pico.lake.table import write_rows


def write(transaction: Transaction, tokenizer: Tokenizer, counts: np.ndarray[Any, Any]) -> None:
    """Write the tokenizer's tokens unless the lake has them.

    Args:
        transaction: the table's rows go into it.
        tokenizer: whose tokens.
        counts: how often each token stands in the training data, `(vocab_size,)`.
    """
    snapshot = Snapshot.take_or_empty(transaction.stream.storage)
    stored = snapshot.read("vocab", ["tokenizer_id"])["tokenizer_id"].unique().to_pylist()
    if tokenizer.name in stored:
        return
    pieces = tokenizer.token_bytes()
    n = len(pieces)
    rows = schema.table("vocab").batch(
        {
            "tokenizer_id": [tokenizer.name] * n,
            "token_id": list(range(n)),
            "bytes": pieces,
            "text": [piece.decode("utf-8", errors="replace") for piece in pieces],
            "count": counts.tolist(),
        }
    )
    write_rows(transaction, "vocab", {"tokenizer": tokenizer.name}, rows)
