"""Scores probes while a run trains: which are due at a step, and their rows.

`Recorder` asks it for the state at each step. What is wrong with the plan is said before the first
step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from torch import nn

from pico.errors import ConfigError
from pico.record import heads, scores
from pico.record.plan import RecordPlan
from pico.record.probes import Probe


class Scorer:
    """Makes the rows of `token_scores` and of heads that a plan asks for."""

    def __init__(self, plan: RecordPlan, model: nn.Module, probes: Sequence[Probe]) -> None:
        """Look up the probes.

        Raises:
            ConfigError: for a probe that the caller did not give.
            RecordError: for scores that the model cannot give.
        """
        self._model, self._taken_at = model, -1
        known = {probe.name: probe for probe in probes}
        asked = {name: item for name, item in plan.probes.items() if item.scores}
        for name in asked:
            if name not in known:
                raise ConfigError(
                    f"record.probes: no probe {name!r}; there are: {', '.join(known) or 'none'}"
                )
        self._asked = [(known[name], item) for name, item in asked.items()]
        for _, item in self._asked:
            scores.check(model, "attention" in item.scores, item.layer_scores)

    def take(
        self, run: str, step: int, is_last: bool
    ) -> tuple[list[pa.Table], list[dict[str, Any]]]:
        """Return what is due of the state at `step` and was not taken yet.

        Returns:
            Rows of `token_scores`, and rows of `metrics` without run and step.
        """
        due = [(p, item) for p, item in self._asked if item.schedule.wants(step, is_last)]
        tokens: list[pa.Table] = []
        of_heads: list[dict[str, Any]] = []
        if not due or step == self._taken_at:
            return tokens, of_heads
        self._taken_at = step
        for probe, item in due:
            if "token_scores" in item.scores:
                tokens += scores.token_scores(self._model, probe, run, step, item.layer_scores)
            if "attention" in item.scores:
                of_heads += heads.head_scores(self._model, probe)
        return tokens, of_heads
