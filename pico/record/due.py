"""What is wanted of a tensor at a step: to be stored, to be counted, to be measured.

`Capture` asks before it copies anything. `Due` applies the plan to one table at one step; the
`Ledger` takes off what was taken at the step before, so that `checkpoint` and `close` may ask again
and only the rest is taken.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from pico.record.plan import NOTHING, ActivationPlan, MetricsPlan, RecordPlan, TensorPlan


@dataclass(frozen=True)
class Wanted:
    """What is wanted of one tensor."""

    stored: bool = False
    """A row in its own table."""
    counted: bool = False
    """A row in `tensor_stats`."""
    metrics: frozenset[str] = frozenset()
    """Rows in `metrics`."""

    def __bool__(self) -> bool:
        """Whether anything is."""
        return self.stored or self.counted or bool(self.metrics)

    def without(self, other: Wanted) -> Wanted:
        """Return what is wanted here and not there."""
        return Wanted(
            self.stored and not other.stored,
            self.counted and not other.counted,
            self.metrics - other.metrics,
        )

    def __or__(self, other: Wanted) -> Wanted:
        """Return what is wanted here or there."""
        return Wanted(
            self.stored or other.stored,
            self.counted or other.counted,
            self.metrics | other.metrics,
        )


class Due:
    """What a plan wants of a table's tensors at one step."""

    def __init__(
        self,
        stored: TensorPlan | None,
        counted: TensorPlan | None,
        measured: list[MetricsPlan],
    ) -> None:
        """Hold the parts of a plan that are due; `of_table` and `of_sites` choose them."""
        self._stored, self._counted, self._measured = stored, counted, measured

    @classmethod
    def of_table(
        cls,
        plan: RecordPlan,
        table: str,
        step: int,
        is_last: bool,
        stage: str | None = None,
        whole: bool = False,
    ) -> Due:
        """Choose what is due of `weights`, `gradients` (of one stage) or `optimizer`.

        Args:
            plan: the plan.
            table: name of the table.
            step: the step.
            is_last: whether it is the run's last.
            stage: of gradients.
            whole: every tensor is to be stored, for a checkpoint.
        """
        wants: TensorPlan = getattr(plan, table)
        is_due = wants.schedule.wants(step, is_last)
        if table == "weights" and plan.pairs and step > 0:
            is_due = is_due or wants.schedule.wants(step - 1)
        if stage is not None:
            is_due = is_due and stage in wants.stages
        counts = plan.tensor_stats.get(table, NOTHING)
        is_counted = counts.schedule.wants(step, is_last) and stage in (None, "raw")
        return cls(
            TensorPlan() if whole else wants if is_due else None,
            counts if is_counted else None,
            _measured(plan, table, step, is_last, stage),
        )

    @classmethod
    def of_sites(cls, plan: RecordPlan, item: ActivationPlan, step: int, is_last: bool) -> Due:
        """Choose what is due of the activations that one item of a plan lists."""
        is_due = item.schedule.wants(step, is_last)
        measured = _measured(plan, "activations", step, is_last, None)
        return cls(TensorPlan() if is_due else None, None, measured)

    def __bool__(self) -> bool:
        """Whether any tensor may be wanted."""
        return bool(self._stored or self._counted or self._measured)

    @property
    def is_stored_or_measured(self) -> bool:
        """Whether any tensor may be wanted for more than its statistics."""
        return bool(self._stored or self._measured)

    def of(self, name: str) -> Wanted:
        """Say what is wanted of the tensor of that name; what is stored is counted too."""
        stored = self._stored is not None and self._stored.matches(name)
        counted = self._counted is not None and self._counted.matches(name)
        measured = [item.names for item in self._measured if item.wants.matches(name)]
        return Wanted(stored, stored or counted, frozenset[str]().union(*measured))


class Ledger:
    """What was taken at the current step, by whatever tells tensors apart."""

    def __init__(self) -> None:
        """Start with nothing."""
        self._step = -1
        self._taken: dict[Hashable, Wanted] = {}

    def remaining(self, step: int, key: Hashable, wanted: Wanted) -> Wanted:
        """Return what of `wanted` was not taken at `step` yet, and note that it is taken now."""
        if step != self._step:
            self._step, self._taken = step, {}
        before = self._taken.get(key, Wanted())
        if wanted:
            self._taken[key] = before | wanted
        return wanted.without(before)


def _measured(
    plan: RecordPlan, table: str, step: int, is_last: bool, stage: str | None
) -> list[MetricsPlan]:
    return [
        item
        for item in plan.metrics
        if table in item.tables
        and (stage is None or stage in item.wants.stages)
        and item.wants.schedule.wants(step, is_last)
    ]
