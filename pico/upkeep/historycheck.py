"""Whether a run's history is plausible: planned checkpoints there and whole, states that differ.

`verify` calls it for each run, on live rows. Equal weights at different steps are how a suite that
served its final weights under earlier steps can be told, all of them or some of a checkpoint's
shards. A learning rate of zero explains weights that stay, and so does an untrained tensor;
nothing explains weights that come back.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from pico.errors import ConfigError
from pico.lake.snapshot import Snapshot
from pico.record import plan as plans
from pico.upkeep.report import Finding

_DEFAULT_CHECKPOINTS = {"checkpoints": {"every": 1000}}
"""What the trainer adds to a `record` section that does not speak of checkpoints."""
_SHOWN = 4
_STATE_TABLES = ("weights", "optimizer", "checkpoints")

Steps = Sequence[int]
Pairs = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class _Rates:
    """The learning rate of each parameter group at the steps that recorded it."""

    of_group: Mapping[int, tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]]

    def moved(self, first: int, last: int, groups: Iterable[int] | None) -> bool | None:
        """Say whether a rate was above zero from step `first` to before `last`; None: unknown."""
        known = False
        for group in self.of_group if groups is None else groups:
            steps, rates = self.of_group.get(group, (np.empty(0, np.int64), np.empty(0)))
            part = rates[np.searchsorted(steps, first) : np.searchsorted(steps, last)]
            known = known or part.size > 0
            if (part > 0).any():
                return True
        return False if known else None


@dataclass(frozen=True)
class _Equal:
    """Tensors that are the same at two steps."""

    first: int
    last: int
    names: Sequence[str]
    returned: bool
    """Whether they are others at a step in between."""
    moved: bool
    """Whether the learning rate is known to have been above zero."""


def check(snapshot: Snapshot, run: str) -> Iterator[Finding]:
    """Yield what is implausible about a run's history."""
    parameters = snapshot.read("parameters", runs=[run]).to_pylist()
    stored, matrices = _stored_weights(snapshot, run)
    yield from _missing(snapshot, run)
    yield from _incomplete(snapshot, run, parameters, stored)
    trainable = {row["name"] for row in parameters if row["trainable"]}
    trained = {
        # Frozen tensors and buffers do not change; where no parameters are known all are judged.
        step: {n: digest for n, digest in tensors.items() if n in trainable or not parameters}
        for step, tensors in stored.items()
    }
    whole = trainable - {row["name"] for row in parameters if row["alias_of"] is not None}
    rates = _rates(snapshot, run)
    equal = list(_equal_states(trained, whole, rates))
    yield from _repeated(run, equal, list(trained))
    same_as = {step: pairs[-1][1] for pairs in equal for pair in pairs for step in pair}
    groups = {row["name"]: [row["param_group"]] for row in parameters}
    found = list(_equal_tensors(trained, rates, groups, matrices, same_as))
    yield from _mixed(run, [item for item in found if item.returned], trained)
    yield from _unchanged(run, [item for item in found if not item.returned])


def _stored_weights(snapshot: Snapshot, run: str) -> tuple[dict[int, dict[str, str]], set[str]]:
    """Return step → name → content hash of a run's stored weights, and which are matrices."""
    columns = ["global_step", "name", "content_hash", "shape"]
    rows = snapshot.read("weights", columns, [run])
    stored: dict[int, dict[str, str]] = {}
    matrices: set[str] = set()
    columns_of = (rows[column].to_pylist() for column in columns)
    for step, name, digest, shape in zip(*columns_of, strict=True):
        stored.setdefault(step, {})[name] = digest
        if len(shape) > 1:
            matrices.add(name)
    return dict(sorted(stored.items())), matrices


def _missing(snapshot: Snapshot, run: str) -> Iterator[Finding]:
    """Yield planned checkpoints that the run has passed and that are not there."""
    config = _config(snapshot, run)
    if config is None or not config.keys() & {"record", "max_steps"}:  # nothing was planned
        return
    try:
        plan = plans.parse({**_DEFAULT_CHECKPOINTS, **(config.get("record") or {})}).checkpoints
    except ConfigError:
        return  # recorded by a version with other words; what was planned is not known here
    max_steps = config.get("max_steps")
    rows = snapshot.read("checkpoints", ["global_step"], [run])
    present = set(rows["global_step"].to_pylist())
    reached = _reached(snapshot, run, max_steps)
    planned = [step for step in range(reached + 1) if plan.wants(step, step == max_steps)]
    lacking = [step for step in planned if step not in present]
    if lacking:
        which = f"{'steps' if len(lacking) > 1 else 'step'} {_ranges(lacking, planned)}"
        message = f"run {run!r} has no checkpoint at {which}, which its schedule plans"
        yield Finding("history.missing", message, run=run, step=lacking[0])


def _config(snapshot: Snapshot, run: str) -> dict[str, Any] | None:
    rows = snapshot.read("runs", ["config"], [run]).to_pylist()
    try:
        config = json.loads(rows[0]["config"] or "null") if rows else None
    except ValueError:
        return None
    return config if isinstance(config, dict) else None


def _reached(snapshot: Snapshot, run: str, max_steps: Any) -> int:
    """Return the last step whose state must have been committed, -1 if none.

    The state at s is committed before anything that batch s causes, and the state at the end
    together with what the last batch caused.
    """
    reached = -1
    for name in (*_STATE_TABLES, "scalars", "batches", "gradients"):
        ends = [e.max_step for e in snapshot.files(name, [run]) if e.max_step is not None]
        reached = max([reached, *ends])
        if name not in _STATE_TABLES and max_steps in [end + 1 for end in ends]:
            reached = max(reached, max_steps)
    return reached


def _incomplete(
    snapshot: Snapshot,
    run: str,
    parameters: Sequence[Mapping[str, Any]],
    stored: Mapping[int, Mapping[str, str]],
) -> Iterator[Finding]:
    """Yield checkpoints that lack a parameter: tied ones stand once, frozen ones once before."""
    own = [row for row in parameters if row["alias_of"] is None]
    frozen = {row["name"] for row in own if not row["trainable"]}
    rows = snapshot.read("checkpoints", ["global_step", "complete"], [run]).to_pylist()
    for step in sorted(row["global_step"] for row in rows if row["complete"]):
        there = set(stored.get(step, {}))
        for earlier in stored:
            there |= stored[earlier].keys() & frozen if earlier < step else set()
        lacking = [row["name"] for row in own if row["name"] not in there]
        if lacking:
            message = f"the checkpoint of run {run!r} at step {step} lacks {_names(lacking)}"
            yield Finding("history.incomplete", message, run=run, step=step)


def _equal_states(
    trained: Mapping[int, Mapping[str, str]], whole: Set[str], rates: _Rates
) -> Iterator[list[tuple[int, int]]]:
    """Yield, for each whole state that stands at several steps, the pairs that nothing explains.

    A rate of zero explains a state that stays; where no rate is known, nothing does.
    """
    complete = {
        step: tensors for step, tensors in trained.items() if tensors and tensors.keys() >= whole
    }
    stored = list(complete)
    for steps in _same(complete):
        pairs = [
            pair
            for pair in pairwise(steps)
            # What differs in between came back, which no rate explains.
            if _distance(stored, *pair) > 1 or rates.moved(*pair, None) is not False
        ]
        if pairs:
            yield pairs


def _equal_tensors(
    trained: Mapping[int, Mapping[str, str]],
    rates: _Rates,
    groups: Mapping[str, Sequence[int]],
    matrices: Set[str],
    same_as: Mapping[int, int],
) -> Iterator[_Equal]:
    """Yield the tensors that two steps share and nothing explains, where the states differ.

    Where nothing is known of the rate, and for what came back, matrices alone tell: a few numbers
    of low precision can stay, or come back, by chance. `same_as` names for a step the last one
    whose whole state is the same, which is told already.
    """
    shared: dict[tuple[int, int, bool, bool], list[str]] = {}
    for name, steps in _same_tensors(trained):
        stored = [step for step, tensors in trained.items() if name in tensors]
        for first, last in pairwise(sorted({same_as.get(step, step) for step in steps})):
            moved = rates.moved(first, last, groups.get(name))
            came_back = _distance(stored, first, last) > _distance(steps, first, last)
            # A tensor that is the same at all steps may never have been trained.
            if came_back or moved or (moved is None and len(steps) < len(stored)):
                shared.setdefault((first, last, came_back, moved is True), []).append(name)
    for (first, last, came_back, moved), names in sorted(shared.items()):
        if not matrices.isdisjoint(names) or (moved and not came_back):
            yield _Equal(first, last, names, came_back, moved)


def _distance(steps: Steps, first: int, last: int) -> int:
    """Return how many of the sorted steps lie after `first` and up to `last`."""
    return bisect_right(steps, last) - bisect_right(steps, first)


def _repeated(run: str, equal: Iterable[Pairs], stored: Steps) -> Iterator[Finding]:
    for pairs in equal:
        *earlier, last = sorted({step for pair in pairs for step in pair})
        which = f"{'steps' if len(earlier) > 1 else 'step'} {_ranges(earlier, stored)}"
        message = f"run {run!r} has at {which} the same weights as at step {last}"
        yield Finding("history.repeated", message, run=run, step=earlier[0])


def _mixed(
    run: str, found: Iterable[_Equal], trained: Mapping[int, Mapping[str, str]]
) -> Iterator[Finding]:
    for item in found:
        share = f"{len(item.names)} of {len(trained[item.first])} tensors"
        message = (
            f"run {run!r} has at step {item.first} {share} of step {item.last}, although they "
            f"differ in between: {_names(item.names)}"
        )
        yield Finding("history.mixed", message, run=run, step=item.first)


def _unchanged(run: str, found: Iterable[_Equal]) -> Iterator[Finding]:
    for item in found:
        why = "the learning rate was above zero" if item.moved else "other steps differ"
        message = (
            f"{_names(item.names)} of run {run!r} did not change from step {item.first} to "
            f"{item.last}, although {why}"
        )
        yield Finding("history.unchanged", message, run=run, step=item.first)


def _rates(snapshot: Snapshot, run: str) -> _Rates:
    columns = ["global_step", "group", "lr"]
    rows = snapshot.read("param_groups", columns, [run]).sort_by("global_step")
    steps, groups, rates = (rows[column].to_numpy() for column in columns)
    found = {int(g): (steps[groups == g], rates[groups == g]) for g in np.unique(groups)}
    return _Rates(found)


def _same(states: Mapping[int, Mapping[str, str]]) -> Iterator[list[int]]:
    """Yield the steps of equal states, where there are several."""
    by_content: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for step, tensors in states.items():
        by_content.setdefault(tuple(sorted(tensors.items())), []).append(step)
    return (steps for steps in by_content.values() if len(steps) > 1)


def _same_tensors(states: Mapping[int, Mapping[str, str]]) -> Iterator[tuple[str, list[int]]]:
    """Yield tensors that are equal at several steps, with these."""
    by_content: dict[tuple[str, str], list[int]] = {}
    for step, tensors in states.items():
        for item in tensors.items():
            by_content.setdefault(item, []).append(step)
    return ((name, steps) for (name, _), steps in by_content.items() if len(steps) > 1)


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def _ranges(steps: Steps, known: Steps) -> str:
    """Write steps as ranges of those that are stored.

    >>> _ranges([0, 1, 2, 8], [0, 1, 2, 4, 8])
    '0–2, 8'
    """
    places = [known.index(step) for step in steps]
    parts: list[list[int]] = []
    for place, step in zip(places, steps, strict=True):
        if parts and place == parts[-1][2] + 1:
            parts[-1][1:] = [step, place]
        else:
            parts.append([step, step, place])
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b, _ in parts)
