"""What a report tells in numbers: settings of runs, values beside figures, sizes.

`pico.evaluate.story` calls it. It takes dataframes and rows, as everything here does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from pico.report import choices

Rows = list[dict[str, Any]]
_NO_SETTINGS = ("run", "run_uuid", "created_at", "library_versions")
_MOST_ROWS = 12
_LONGEST = 80


def settings(runs: Sequence[Mapping[str, Any]]) -> tuple[Rows, Rows]:
    """Return the settings of runs that differ, and those that are the same.

    What a run that was not trained here does not say, such as an average of checkpoints, is no
    difference.

    Args:
        runs: rows of the table `runs`, with its `config`.
    """
    of_run = {row["run"]: _flat(dict(row)) for row in runs}
    says_all = {run for run, flat in of_run.items() if flat.get("max_steps") is not None}
    differing: Rows = []
    same: Rows = []
    for key in dict.fromkeys(key for flat in of_run.values() for key in flat):
        values = [
            flat.get(key)
            for run, flat in of_run.items()
            if flat.get(key) is not None or run in says_all or not says_all
        ] or [None]
        row = {"setting": key, **{run: _short(flat.get(key)) for run, flat in of_run.items()}}
        if len({json.dumps(value, default=str) for value in values}) > 1:
            differing.append(row)
        elif values[0] is not None:
            same.append(row)
    return differing, same


def last_numbers(frame: pl.DataFrame, value: str | None = None) -> tuple[Rows, str]:
    """Return what is drawn at the last step, the largest first, and a title for it.

    Of an answer with two kinds of steps, layers or runs against each other: nothing.
    """
    value = value or choices.value_of(frame)
    if "step" not in frame.columns or any(name.startswith("other_") for name in frame.columns):
        return [], ""
    known = frame.drop_nulls(["step", value])
    ends = known.group_by("run").agg(pl.max("step")) if "run" in known.columns else None
    last = (
        known.filter(pl.col("step") == pl.max("step"))
        if ends is None
        else known.join(ends, on=["run", "step"])
    )
    named = [c for c in choices.KEYS if c in last.columns and c not in ("step", "tokens")]
    told = [c for c in named if last[c].n_unique() > 1]
    rows = last.sort(value, descending=True, nulls_last=True).select(*told, value).to_dicts()
    step = f"step {int(known['step'].cast(pl.Int64).to_numpy().max()):,}"
    if len(rows) > _MOST_ROWS:
        return rows[:_MOST_ROWS], f"The {_MOST_ROWS} largest at {step}"
    return rows, f"In numbers, at {step}"


def megabytes(frame: pl.DataFrame, runs: Sequence[str]) -> Rows:
    """Return megabytes per table, a column for each run, and their sums.

    Args:
        frame: columns `run`, `table_name`, `bytes`.
        runs: in their order.
    """
    found = frame.group_by("run", "table_name").agg(pl.sum("bytes"))
    by_table = {
        name: {run: n_bytes / 1e6 for run, n_bytes in part.select("run", "bytes").iter_rows()}
        for (name,), part in found.sort("bytes", descending=True).group_by(
            "table_name", maintain_order=True
        )
    }
    total = {run: sum(of.get(run, 0.0) for of in by_table.values()) for run in runs}
    return [
        {"table": name, **{run: of.get(run) for run in runs}}
        for name, of in [*by_table.items(), ("all", total)]
    ]


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """Return settings of a run under dotted names."""
    config = json.loads(row.pop("config") or "{}")
    found = {key: value for key, value in row.items() if key not in _NO_SETTINGS}

    def add(prefix: str, value: Any) -> None:
        if isinstance(value, dict) and value:
            for key, item in value.items():
                add(f"{prefix}.{key}" if prefix else key, item)
        elif prefix:
            found[prefix] = value

    add("", config)
    for seed in ("init", "data", "dropout"):
        if f"seeds.{seed}" in found:
            found.pop(f"seed_{seed}", None)  # the same, told twice
    return found


def _short(value: Any) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(value, default=str).strip('"')
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "…"
