"""Measure how many bytes a weight takes in the lake: size of the weights files over parameters.

    python -m tests.benchmarks.bench_bytes

The models are `pico-small` (64.6 M parameters) and the one of `nano` (about 1 M), at initialisation
and after a few real AdamW steps on real text: the Python standard library's source, its words
hashed to token ids. Few, because one machine's two cores do not train 64 M parameters for long:
what training does to the distribution of exponents shows only in part. bfloat16 is the same state
rounded. Sizes do not vary from run to run, so nothing is repeated.
"""

from __future__ import annotations

import re
import sysconfig
import tempfile
import zlib
from pathlib import Path

import numpy as np
import torch

import pico
from pico import config as configs
from pico.config import ModelConfig
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from pico.models import build, language_model_loss
from tests.benchmarks import measure

TARGETS = {"pico-small": (3.45, 1.45), "nano": (3.6, 1.55)}
BATCH, SEQ_LEN = 4, 128


def run(
    pairs: int = 9,
    models: dict[str, ModelConfig] | None = None,
    steps: dict[str, int] | None = None,
) -> measure.Result:
    """Return bytes per weight, float32 and bfloat16; `pairs` is not needed here."""
    result = measure.Result("(c) Lake bytes per weight")
    for name, config in (models or shipped()).items():
        model = build(config, 50304 if config.vocab_size is None else None)
        n = (steps or {"pico-small": 10, "nano": 100})[name]
        _add(result, name, "at initialisation", model)
        loss = _train(model, n)
        _add(result, name, f"after {n} steps (loss {loss:.2f})", model)
    result.notes.append(
        "Steps are AdamW at 3e-4, 4 x 128 tokens of the standard library's source. A float32 file "
        "would take 4 bytes, a bfloat16 file 2; the lake stores both as FLOAT."
    )
    return result


def shipped() -> dict[str, ModelConfig]:
    """Return the models that the targets name, `nano` with its tokenizer's vocabulary."""
    found = {}
    for name in TARGETS:
        loaded = configs.load(name)
        vocab_size = loaded.model.vocab_size or loaded.data.vocab_size
        found[name] = configs.load(name, [f"model.vocab_size={vocab_size}"]).model
    return found


def _add(result: measure.Result, name: str, state: str, model: torch.nn.Module) -> None:
    n = sum(parameter.numel() for parameter in model.parameters())
    before = {key: value.clone() for key, value in model.state_dict().items()}
    limits = dict(zip((torch.float32, torch.bfloat16), TARGETS.get(name, (4.5, 4.5)), strict=True))
    for dtype, limit in limits.items():
        model.to(dtype)
        size = _lake_bytes(model) / n
        what = f"{name}, {n / 1e6:.1f} M, {str(dtype).removeprefix('torch.')}, {state}"
        result.add_size(what, size, "bytes/weight", limit)
    model.to(torch.float32)
    model.load_state_dict(before)


def _lake_bytes(model: torch.nn.Module) -> int:
    """Record a model's weights once; return the bytes of the files that hold them."""
    with tempfile.TemporaryDirectory(prefix="pico-bench-") as folder:
        recorder = pico.Recorder(folder, "bytes", model, record={"weights": [0]})
        recorder.flush()
        recorder.abort()
        return sum(entry.bytes for entry in Snapshot.take(Storage(folder)).files("weights"))


def _train(model: torch.nn.Module, n_steps: int) -> float:
    """Train a few steps on real text; returns the last loss."""
    vocab_size = next(iter(model.parameters())).shape[0]
    ids = _standard_library(vocab_size, n_steps * BATCH * (SEQ_LEN + 1))
    batches = torch.from_numpy(ids).reshape(n_steps, BATCH, SEQ_LEN + 1)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
    )
    model.train()
    loss = torch.tensor(float("nan"))
    for tokens in batches:
        loss, _ = language_model_loss(
            model, tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return loss.item()


def _standard_library(vocab_size: int, n_tokens: int) -> np.ndarray:
    """Return token ids of the standard library's source: each word hashed."""
    ids: list[int] = []
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        words = re.findall(r"\w+|[^\w\s]", path.read_text(encoding="utf-8"))
        ids += [zlib.crc32(word.encode()) % vocab_size for word in words]
        if len(ids) >= n_tokens:
            return np.array(ids[:n_tokens])
    return np.resize(np.array(ids), n_tokens)


def main() -> None:
    """Run and print."""
    measure.show(run())


if __name__ == "__main__":
    main()
