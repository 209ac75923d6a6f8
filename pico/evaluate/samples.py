"""What checkpoints write: continuations of a few prompts, the likeliest token each time."""

from __future__ import annotations

from typing import Any

import pyarrow.compute as pc
import torch

from pico.data import corpus
from pico.evaluate import load
from pico.lake.snapshot import Snapshot


def samples(
    snapshot: Snapshot, run: str, steps: list[int], n_prompts: int = 2, n_tokens: int = 40
) -> list[dict[str, Any]]:
    """Return prompts from held-out text and how checkpoints of a run continue them.

    Args:
        snapshot: of the lake.
        run: name of the run; a pico-decoder.
        steps: at which weights are stored.
        n_prompts: how many sequences to begin.
        n_tokens: how many tokens to add, as far as the model's context reaches.

    Returns:
        A row for each prompt and step: `step`, `prompt`, `text`.

    Raises:
        PicoError: if the run has no such model, tokenizer or held-out text.
    """
    row = load.run_row(snapshot, run)
    tokenizer = corpus.tokenizer_of(snapshot, row["dataset"])
    heldout = f"{row['dataset']}.heldout"
    of_prompts = pc.field("sequence_id") < n_prompts
    stored = snapshot.read(
        "sequences",
        ["dataset_id", "sequence_id", "tokens"],
        filter=of_prompts & (pc.field("dataset_id") == heldout),
    ).sort_by("sequence_id")
    length = min(16, (row["seq_len"] or 32) // 2)
    prompts = [tokens[:length] for tokens in stored["tokens"].to_pylist()]
    rows = []
    for step in steps:
        model: Any = load.load_model(snapshot, run, step)
        n = max(0, min(n_tokens, model.config.context - length))
        for prompt in prompts:
            ids = model.generate(torch.tensor([prompt]), n, temperature=0.0)[0].tolist()
            written = tokenizer.decode(ids[len(prompt) :])
            rows.append({"step": step, "prompt": tokenizer.decode(prompt), "text": written})
    return rows
