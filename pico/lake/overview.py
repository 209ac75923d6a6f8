"""What a lake holds, told from its log and a few small tables: its runs, and what each recorded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow.compute as pc

from pico import schema
from pico.lake.snapshot import Snapshot, partition


def runs(snapshot: Snapshot) -> list[dict[str, Any]]:
    """Return a row per run: sizes, seeds, data set, last step, checkpoints, bytes."""
    rows = {row["run_id"]: row for row in snapshot.read("runs").to_pylist()}
    return [_summary(snapshot, name, rows.get(name, {})) for name in snapshot.runs()]


def coverage(snapshot: Snapshot, run: str) -> list[dict[str, Any]]:
    """Return what is recorded of a run: a row per table, and per site and probe of activations.

    Columns: `table, site, probe, files, steps, first_step, last_step, rows, bytes`. `steps` counts
    those of tensor tables; files and bytes are those of a whole table.

    Raises:
        RunNameError: for a run that the lake does not have.
    """
    snapshot.check_run(run)
    rows = []
    for table in schema.tables():
        files = snapshot.files(table, runs=[run])
        files = [file for file in files if f"/run={run}/" in file.path]
        steps = [s for f in files for s in (f.min_step, f.max_step) if s is not None]
        places = {partition(f.path).get("step") for f in files}
        if files:
            rows.append(
                {
                    "table": table,
                    "site": None,
                    "probe": None,
                    "files": len(files),
                    "steps": None if None in places else len(places),
                    "first_step": min(steps, default=None),
                    "last_step": max(steps, default=None),
                    "rows": sum(file.rows for file in files),
                    "bytes": sum(file.bytes for file in files),
                }
            )
        if files and table == "activations":
            rows += _sites(snapshot, run)
    return rows


def _sites(snapshot: Snapshot, run: str) -> list[dict[str, Any]]:
    """Return a row per site and probe of a run's activations."""
    found = snapshot.read("activations", ["site", "probe", "global_step"], runs=[run])
    counts: dict[tuple[str, str], list[int]] = {}
    for row in found.to_pylist():
        counts.setdefault((row["site"], row["probe"]), []).append(row["global_step"])
    return [
        {
            "table": "activations",
            "site": site,
            "probe": probe,
            "files": None,
            "steps": len(set(steps)),
            "first_step": min(steps),
            "last_step": max(steps),
            "rows": len(steps),
            "bytes": None,
        }
        for (site, probe), steps in sorted(counts.items(), key=lambda item: str(item[0]))
    ]


def _summary(snapshot: Snapshot, name: str, row: Mapping[str, Any]) -> dict[str, Any]:
    files = [file for file in snapshot.all_files() if f"/run={name}/" in file.path]
    checkpoints = snapshot.read("checkpoints", ["global_step"], runs=[name])
    steps = [file.max_step for file in files if file.max_step is not None]
    config = json.loads(row.get("config") or "{}")
    return {
        "run": name,
        "created_at": row.get("created_at"),
        "family": row.get("family"),
        "n_params": row.get("n_params"),
        "dataset": row.get("dataset"),
        "seed_init": row.get("seed_init"),
        "seed_data": row.get("seed_data"),
        "last_step": max(steps, default=None),
        "max_steps": config.get("max_steps"),
        "checkpoints": len(pc.unique(checkpoints["global_step"])),
        "files": len(files),
        "rows": sum(file.rows for file in files),
        "bytes": sum(file.bytes for file in files),
    }
