"""`pico analyze`: the numbers that a config of pico-analyze asks for, kept in the table `metrics`.

`Lake.analyze` calls `analyze`. Numbers that the lake has are not computed again, whoever computed
them; a commit per step, so that a kill loses at most one. Beside ours stand pico-analyze's own
numbers where they differ: metrics with `_pico`, and its OV circuit as component `vo_product`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow.compute as pc

from pico import schema
from pico.errors import ConfigError
from pico.importers import analysis_config
from pico.importers.analysis_plan import Entry, Numbers, Plan, Value
from pico.importers.analysis_values import Calculator
from pico.lake.commit import Stream
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from pico.lake.table import write_rows

Progress = Callable[[int, int], None]
Key: TypeAlias = tuple[Any, ...]
_KEY = (
    "global_step", "table_name", "name", "head", "site", "stage", "probe", "metric", "ref_run",
    "ref_step", "ref_name", "tensor_hash", "metric_version",
)  # fmt: skip


@dataclass(frozen=True)
class Analyzed:
    """What an analysis did, or would do."""

    entries: Sequence[Entry]
    run: str
    new: Mapping[Key, float | str | None]
    """The numbers computed by key, or why one is not defined; None where it is to be computed."""
    is_dry: bool

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per metric and component of the config."""
        return [self._row(entry) for entry in self.entries]

    def _row(self, entry: Entry) -> dict[str, Any]:
        keys = [_key(item, self.run) for item in entry.values]
        new = [self.new[key] for key in keys if key in self.new]
        n_undefined = sum(isinstance(value, str) for value in new)
        metrics = dict.fromkeys(item.metric for item in entry.values)
        steps = {item.of.parts[0].step for item in entry.values}
        return {
            "metric": " ".join(metrics) or entry.metric.ours,
            "component": entry.component.component_name,
            "of": entry.component.data_type,
            "split": entry.metric.data_split,
            "target": entry.metric.target_checkpoint,
            "steps": len(steps),
            "to compute" if self.is_dry else "computed": len(new) - n_undefined,
            "there": len(keys) - len(new),
            "undefined": n_undefined,
            "absent": entry.n_absent,
        }

    def __str__(self) -> str:
        """Say it in lines, for people."""
        n_all = len({_key(item, self.run) for entry in self.entries for item in entry.values})
        verb = "to compute" if self.is_dry else "computed"
        reasons = Counter(value for value in self.new.values() if isinstance(value, str))
        n_undefined = reasons.total()
        n_absent = sum(entry.n_absent for entry in self.entries)
        lines = [
            f"run {self.run!r}: {len(self.new) - n_undefined} values {verb}, "
            f"{n_all - len(self.new)} there already, {n_undefined} not defined"
        ]
        lines += [f"not defined ({n}): {why}" for why, n in reasons.items()]
        if n_absent:
            lines.append(
                f"{n_absent} times the run lacks a layer's tensors at a step; see `absent`"
            )
        return "\n".join(lines)


def analyze(
    storage: Storage,
    config: str | Path | Mapping[str, Any],
    run: str,
    numbers: Numbers = "both",
    dry_run: bool = False,
    progress: Progress | None = None,
) -> Analyzed:
    """Compute what a config of pico-analyze asks for and the lake does not have, and keep it.

    Args:
        storage: the lake.
        config: path of the YAML file, or what such a file holds.
        run: name of the run.
        numbers: `ours`, `pico` (what pico-analyze itself gives), or both.
        dry_run: only say what would be computed.
        progress: called with the values done and to do.

    Raises:
        ConfigError: with every problem of the config; for layers, modules, probes and targets that
            the run does not have; if the run has nothing of what is asked for.
        RunNameError: if the lake has no such run.
        LeaseError: if another process analyzes the run.
        CorruptError: for a damaged file; what was committed before it stays.
    """
    asked = analysis_config.load(config)
    snapshot = Snapshot.take(storage)
    entries = Plan(snapshot, run, numbers).entries(asked)
    if not any(entry.values for entry in entries):
        raise ConfigError(_nothing(snapshot, run, asked.steps))
    todo = _missing(snapshot, run, entries)
    if dry_run or not todo:
        return Analyzed(entries, run, dict.fromkeys(todo), dry_run)
    with Stream(storage, f"derive.{run}.analyze") as stream:
        # Under the lease: what another process has computed meanwhile is not missing any more.
        snapshot = Snapshot.take(storage)
        entries = Plan(snapshot, run, numbers).entries(asked)
        todo = _missing(snapshot, run, entries)
        return Analyzed(entries, run, _compute(stream, snapshot, run, todo, progress), False)


def _compute(
    stream: Stream,
    snapshot: Snapshot,
    run: str,
    todo: Mapping[Key, Value],
    progress: Progress | None,
) -> dict[Key, float | str | None]:
    """Compute and commit, step by step; returns the numbers, or why there is none."""
    calculator = Calculator(snapshot, run)
    steps: dict[int, list[Value]] = {}
    for value in todo.values():
        steps.setdefault(value.of.parts[0].step, []).append(value)
    new: dict[Key, float | str | None] = {}
    for _, values in sorted(steps.items()):
        found = calculator.values(values)
        _commit(stream, run, {item: x for item, x in found.items() if not isinstance(x, str)})
        new |= {_key(item, run): answer for item, answer in found.items()}
        if progress is not None:
            progress(len(new), len(todo))
    return new


def _commit(stream: Stream, run: str, found: Mapping[Value, float]) -> None:
    if not found:
        return
    rows = [{**item.row(run), "value": value} for item, value in found.items()]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    transaction = stream.begin()
    write_rows(transaction, "metrics", {"run": run}, schema.table("metrics").batch(columns))
    transaction.commit()


def _missing(snapshot: Snapshot, run: str, entries: Iterable[Entry]) -> dict[Key, Value]:
    """Return the numbers that the lake does not have, by key, each once."""
    wanted = {_key(item, run): item for entry in entries for item in entry.values}
    steps = sorted({key[0] for key in wanted})
    kept = snapshot.read("metrics", [*_KEY, "args", "state"], [run], steps)
    kept = kept.filter(pc.and_(pc.is_null(kept["args"]), pc.is_null(kept["state"])))
    there = set(zip(*(kept[name].to_pylist() for name in _KEY), strict=True))
    return {key: item for key, item in wanted.items() if key not in there}


def _key(item: Value, run: str) -> Key:
    row = item.row(run)
    return tuple(row[name] for name in _KEY)


def _nothing(snapshot: Snapshot, run: str, steps: Sequence[int]) -> str:
    has = sorted({e.min_step for e in snapshot.files("weights", [run]) if e.min_step is not None})
    shown = ", ".join(map(str, has[:20])) or "none"
    return (
        f"run {run!r} has nothing of what the config asks for, at no step from {steps[0]} to "
        f"{steps[-1]}; weights are there at {shown}"
    )
