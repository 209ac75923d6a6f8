"""A run so small that a test can train it in a second, and what tests ask of its lake."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from pico import schema
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage

ROOT = Path(__file__).resolve().parents[2]
SITES = (
    "resid.pre",
    "resid.mid",
    "resid.post",
    "attn.out",
    "mlp.out",
    "z",
    "mlp.hidden",
    "q",
    "k",
    "v",
)


def write_text(path: Path, n_paragraphs: int = 120, seed: int = 0) -> Path:
    """Write varied text of blank-line-separated paragraphs, always the same for a seed."""
    draw = random.Random(seed)
    syllables = ["ka", "lo", "mi", "ra", "te", "sun", "ver", "do", "pe", "li", "or", "an", "qui"]
    words = ["".join(draw.choices(syllables, k=draw.randint(1, 4))) for _ in range(300)]
    paragraphs = []
    for number in range(n_paragraphs):
        sentences = [" ".join(draw.choices(words, k=draw.randint(4, 12))) for _ in range(6)]
        paragraphs.append(f"{number}. " + ". ".join(s.capitalize() for s in sentences) + ".\n")
    path.write_text("\n".join(paragraphs), encoding="utf-8")
    return path


def config(source: Path, **changes: Any) -> dict[str, Any]:
    """Return a config as a mapping; `changes` replace sections, or update them if mappings."""
    made: dict[str, Any] = {
        "seeds": {"init": 3, "data": 5, "dropout": 7},
        "max_steps": 6,
        "data": {"source": str(source), "vocab_size": 280, "seq_len": 16, "heldout_fraction": 0.1},
        "model": {"d_model": 24, "n_layers": 2, "n_heads": 2, "n_kv_heads": 1, "context": 32},
        "optimizer": {"lr": 1e-2, "warmup_steps": 2, "schedule": "cosine"},
        "batch": {"size": 8},
        "evaluate": {"every": 2, "n_sequences": 8},
        "accelerator": "cpu",
        "record": {"checkpoints": {"every": 3}, "weights": True, "gradients": True},
    }
    for section, change in changes.items():
        both = isinstance(change, Mapping) and section != "record"
        made[section] = {**made[section], **change} if both else change
    return made


def write_config(path: Path, mapping: Mapping[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(dict(mapping)), encoding="utf-8")
    return path


def snapshot(lake: Path | str) -> Snapshot:
    return Snapshot.take(Storage(str(lake)))


def tensors(lake: Path | str, table: str, run: str, step: int, **keys: Any) -> dict[Any, Any]:
    """Return the tensors of a step by name (and site, state): `{name: numpy array}`."""
    found = {}
    for row in snapshot(lake).tensors(table, run, step):
        if all(row.keys.get(key) == value for key, value in keys.items()):
            extra = [row.keys[k] for k in ("site", "state") if row.keys.get(k) and k not in keys]
            key = (row.keys["name"], *extra) if extra else row.keys["name"]
            assert key not in found
            found[key] = row.tensor.to_numpy()
    return found


def rows(lake: Path | str, table: str, run: str | None = None) -> list[dict[str, Any]]:
    """Return a row table's rows, sorted by primary key, without wall-clock values."""
    spec = schema.table(table)
    found = snapshot(lake).read(table, runs=None if run is None else [run]).to_pylist()
    kept = [r for r in found if not (table == "scalars" and r["name"] == "seconds")]
    return sorted(kept, key=lambda r: [repr(r[key]) for key in spec.primary_key])


def content(lake: Path | str, table: str, run: str) -> dict[tuple[Any, ...], str]:
    """Return the content hash of every row of a tensor table by primary key, checking keys."""
    spec = schema.table(table)
    wanted = [*spec.primary_key, "content_hash"]
    found = snapshot(lake).read(table, columns=wanted, runs=[run]).to_pylist()
    hashes = {tuple(r[k] for k in spec.primary_key if k != "run_id"): r for r in found}
    assert len(hashes) == len(found), f"{table}: a key twice"
    return {key: row["content_hash"] for key, row in hashes.items()}


def assert_same_run(
    first: Path | str,
    second: Path | str,
    run: str,
    other: str | None = None,
    planned: bool = True,
) -> None:
    """Compare every table of a run in two lakes, bit for bit, and see that no step is twice."""
    other = other or run
    for table in ("weights", "gradients", "optimizer", "activations"):
        assert content(first, table, run) == content(second, table, other), table
    for table in ("scalars", "batches", "param_groups", "tensor_stats", "checkpoints"):
        spec = schema.table(table)
        mine, yours = (
            [{k: v for k, v in row.items() if k != "run_id"} for row in rows(lake, table, name)]
            for lake, name in ((first, run), (second, other))
        )
        if table == "checkpoints" and not planned:  # an interruption adds one
            steps = {row["global_step"] for row in mine}
            yours = [row for row in yours if row["global_step"] in steps]
        keys = [k for k in spec.primary_key if k != "run_id"]
        assert len({tuple(row[k] for k in keys) for row in yours}) == len(yours), f"{table}: twice"
        assert repr(mine) == repr(yours), table


def environment(**variables: str) -> dict[str, str]:
    """Return the environment of a child process: one thread, this checkout, no default lake."""
    kept = {name: value for name, value in os.environ.items() if name != "PICO_LAKE"}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **variables}


def start(*arguments: str, **env: str) -> subprocess.Popen[str]:
    """Start `pico …` in a process of its own; `env` adds to its environment."""
    return subprocess.Popen(
        [sys.executable, "-c", "from pico.cli import main; main()", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**env),
    )


def wait_for(condition: Callable[[], Any], process: subprocess.Popen[str], seconds: float = 60):
    """Wait until a condition holds while a process runs."""
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, f"the process ended: {process.communicate()[1]}"
        assert time.monotonic() < end, "the condition never held"
        time.sleep(0.02)


def equal_bits(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    """Say whether two arrays have the same type, shape and bytes."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def two_runs(folder: Path, lake: str | None = None) -> str:
    """Train `first` and `second`, of two initialisations and one data order; return the lake."""
    from pico.api import Lake

    lake = lake or str(folder / "lake")
    record = {
        "checkpoints": {"every": 3},
        "weights": True,
        "gradients": True,
        "activations": [{"probe": "text", "schedule": True, "positions": "all",
                         "sites": ["resid.post", "attn.out", "mlp.hidden"]}],
        "probes": {"text": {"n_sequences": 4, "every": 3, "record": ["token_scores"]},
                   "repeat": {"n_sequences": 2, "every": 3,
                              "record": ["token_scores", "attention"]}},
    }  # fmt: skip
    source = write_text(folder / "text.txt")
    for run, seed in (("first", 3), ("second", 4)):
        Lake(lake).train(config(source, max_steps=6, record=record, seeds={"init": seed}), run)
    return lake
