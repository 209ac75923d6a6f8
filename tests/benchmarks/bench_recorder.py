"""Time what recording costs a training loop: all weights, gradients and probe activations.

    python -m tests.benchmarks.bench_recorder [PAIRS] [--straight]

Training is the shape of `pico-tiny` (8 x 512 tokens) with AdamW and clipping. Recording is every 50
steps, so waiting for whole periods would take minutes per pair. Instead two equal models take turns
over windows of three steps: one without a recorder, one whose window holds exactly one capture and
ends only when the writer has everything in the lake (`flush`). In the window's first step the
recorder takes the state (weights, probe activations), in its second the gradients; the writer works
beside the second and third, as it does in training. Then

    overhead = (recorded window - plain window + 47 · the recorder's own time in an idle step)
               / (50 · plain step)

The recorder's time in an idle step is taken inside its calls: as a difference of windows it would
drown in noise. `--straight` (some ten minutes more, so not part of `make bench`) also trains 100
steps with and 100 without, in blocks of 10 by turns, captures at steps 0, 50 and 100 included.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import pico
from pico.config import ModelConfig
from pico.models import build, language_model_loss
from pico.record import probes
from tests.benchmarks import measure

PICO_TINY = ModelConfig(d_model=96)
BATCH, SEQ_LEN = 8, 512
PERIOD = 50
WINDOW = 3
SITES = ["attn.out", "mlp.out", "resid.post"]
"""What the shipped configs record of a probe."""


class Loop:
    """A training loop over random tokens, with or without a recorder."""

    def __init__(self, config: ModelConfig, batch: int, seq_len: int) -> None:
        self.model = build(config)
        self.model.train()
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
        )
        self.recorder: Any = None
        self.recorder_seconds: list[float] = []
        self._shape = (batch, seq_len + 1)
        self._vocab_size = config.vocab_size or 50304
        self._draws = torch.Generator().manual_seed(0)

    def record(self, lake: str, every: dict[str, int]) -> None:
        """Attach a recorder; `every` is the schedule of all that it takes."""
        n, length = self._shape[0], self._shape[1] - 1
        tokens = np.random.default_rng(0).integers(0, self._vocab_size, (n, length))
        record = {
            "weights": every,
            "gradients": every,
            "activations": [{"probe": "text", "sites": SITES, "positions": "last", **every}],
        }
        self.recorder = pico.Recorder(
            lake,
            "bench",
            self.model,
            self.optimizer,
            record,
            probes=[probes.make("text", tokens, "random")],
        )
        self.recorder.flush()

    def step(self) -> None:
        """Train one step."""
        tokens = torch.randint(self._vocab_size, self._shape, generator=self._draws)
        loss, sequence_losses = language_model_loss(
            self.model, tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        )
        loss.backward()
        spent = 0.0
        if self.recorder is not None:
            ids = list(range(self._shape[0]))
            spent += self._timed(
                lambda: self.recorder.batch(ids, "random", sequence_losses.tolist())
            )
            spent += self._timed(self.recorder.before_optimizer_step)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        value = loss.item()
        if self.recorder is not None:
            spent += self._timed(lambda: self.recorder.step(loss=value))
        self.recorder_seconds.append(spent)

    @staticmethod
    def _timed(call: Callable[[], Any]) -> float:
        return measure.timed(call)[0]

    def window(self, n_steps: int) -> float:
        """Train some steps, wait until they are in the lake, return the seconds."""
        start = time.perf_counter()
        for _ in range(n_steps):
            self.step()
        if self.recorder is not None:
            self.recorder.flush()
        return time.perf_counter() - start


def run(
    pairs: int = 9,
    config: ModelConfig = PICO_TINY,
    batch: int = BATCH,
    seq_len: int = SEQ_LEN,
    straight: bool = False,
) -> measure.Result:
    """Return the recorder's share of training time."""
    plain, recorded = (Loop(config, batch, seq_len) for _ in range(2))
    with tempfile.TemporaryDirectory(prefix="pico-bench-") as folder:
        plain.window(1)
        recorded.window(1)
        recorded.record(f"{folder}/lake", {"every": WINDOW, "from": 1})
        found = measure.alternate(
            {"plain": lambda: plain.window(WINDOW), "recorded": lambda: recorded.window(WINDOW)},
            pairs,
        )
        recorded.recorder.abort()
    # Of a window's steps the first ends with a capture, the second holds one, the third is idle.
    idle = statistics.median(recorded.recorder_seconds[1 + WINDOW :][WINDOW - 1 :: WINDOW])
    result = _report(found["plain"], found["recorded"], idle)
    if straight:
        _straight(result, config, batch, seq_len)
    return result


def _report(plain: list[float], recorded: list[float], idle: float) -> measure.Result:
    result = measure.Result("(b) Training with the recorder against without, pico-tiny, 8 x 512")
    step = statistics.median(plain) / WINDOW
    extras = [b - a for a, b in zip(plain, recorded, strict=True)]
    shares = [(extra + (PERIOD - WINDOW) * idle) / (PERIOD * step) for extra in extras]
    share = statistics.median(shares)
    result.lines += [
        measure.Line(
            "overhead, a capture every 50 steps",
            f"one capture costs {measure.seconds(extras)}",
            "plain step",
            measure.seconds([seconds / WINDOW for seconds in plain]),
            f"{share:.1%} ({min(shares):.1%} to {max(shares):.1%})",
            "<= 5 %, wanted 2 %",
            share <= 0.05,
        )
    ]
    result.notes.append(
        f"The recorder's own time in a step without a capture: {idle * 1e3:.2f} ms. "
        f"{torch.get_num_threads()} torch threads; the writer's thread competes with them."
    )
    return result


def _straight(result: measure.Result, config: ModelConfig, batch: int, seq_len: int) -> None:
    """Add 100 steps with a recorder against 100 without, measured as they are."""
    plain, recorded = (Loop(config, batch, seq_len) for _ in range(2))
    plain.window(1)
    recorded.window(1)
    block, totals = 10, {"plain": 0.0, "recorded": 0.0}
    with tempfile.TemporaryDirectory(prefix="pico-bench-") as folder:
        start = time.perf_counter()
        recorded.record(f"{folder}/lake", {"every": PERIOD})
        totals["recorded"] += time.perf_counter() - start
        for turn in range(2 * PERIOD // block):
            order = ("plain", "recorded") if turn % 2 else ("recorded", "plain")
            for name in order:
                totals[name] += (plain if name == "plain" else recorded).window(block)
        recorded.recorder.abort()
    share = totals["recorded"] / totals["plain"] - 1
    result.lines.append(
        measure.Line(
            f"straight: {2 * PERIOD} steps, states at 0, 50 and 100, gradients at 0 and 50",
            f"{totals['recorded']:.1f} s",
            "without",
            f"{totals['plain']:.1f} s",
            f"{share:.1%}",
        )
    )


def main() -> None:
    """Run and print."""
    measure.show(run(measure.pairs_asked(), straight="--straight" in sys.argv))


if __name__ == "__main__":
    main()
