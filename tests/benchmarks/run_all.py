"""Run every benchmark and write `RESULTS.md` beside this file; `make bench` calls it.

    python -m tests.benchmarks.run_all [--quick] [--only NAME ...] [--output FILE]

A benchmark that fails is reported with its error and does not lose the others; then the exit code
is 1. `--quick` takes 3 pairs instead of 9: enough to see that all is well, not to publish.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.benchmarks import (
    bench_bytes,
    bench_compute,
    bench_log,
    bench_metrics,
    bench_recorder,
    bench_sql,
    bench_stats,
    bench_train_step,
    measure,
    plan_scale,
)
from tests.benchmarks.measure import Line, Result

RESULTS = Path(__file__).with_name("RESULTS.md")
LIBRARIES = (
    "torch",
    "transformers",
    "pyarrow",
    "duckdb",
    "polars",
    "numpy",
    "safetensors",
    "lightning",
)
METHOD = """\
Wall-clock times of one process with all cores. Rivals take turns within a pair and change places
from pair to pair; a warm-up turn of each is not counted. A figure is the median, with the least and
the greatest value in parentheses; a ratio is the median over pairs of the pair's ratio (above 1:
ours is faster). Every rival's answer is compared with ours. All files were just written, so they
are warm in the page cache for everybody."""


def train_step(pairs: int = 9) -> Result:
    """Return (a) in the form that the others have."""
    found = bench_train_step.run(pairs)
    result = Result("(a) A training step of pico-decoder, pico-tiny, 8 x 512 tokens")
    result.lines.append(
        Line(
            "pico-decoder",
            f"{found['ours_s']:.2f} s",
            "transformers LlamaForCausalLM, plain loop",
            f"{found['theirs_s']:.2f} s",
            f"{found['ratio']:.2f}x ({found['ratio_min']:.2f}-{found['ratio_max']:.2f})",
            ">= 0.98x, wanted 1.1x",
            found["ratio"] >= 0.98,
        )
    )
    result.notes.append(
        f"Same weights, batches, optimizer (fused AdamW) and clipping; last losses "
        f"{found['ours_loss']:.4f} and {found['theirs_loss']:.4f}."
    )
    return result


BENCHMARKS: dict[str, Callable[[int], Result]] = {
    "train_step": train_step,
    "recorder": bench_recorder.run,
    "bytes": bench_bytes.run,
    "sql": bench_sql.run,
    "stats": bench_stats.run,
    "log": bench_log.run,
    "metrics": bench_metrics.run,
    "compute": bench_compute.run,
    "plan": plan_scale.run,
}


def main(arguments: list[str] | None = None) -> int:
    """Run, print, write the report; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.run_all")
    parser.add_argument("--quick", action="store_true", help="3 pairs instead of 9")
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, default=list(BENCHMARKS))
    parser.add_argument("--output", type=Path, default=RESULTS)
    asked = parser.parse_args(arguments)
    pairs = 3 if asked.quick else 9
    results, failed = [], False
    for name in asked.only:
        start = time.perf_counter()
        try:
            result = BENCHMARKS[name](pairs)
        except Exception as error:  # the other benchmarks go on; the report tells
            traceback.print_exc()
            result = Result(f"{name}: failed", notes=[f"{type(error).__name__}: {error}"])
            failed = True
        result.notes.append(f"Took {time.perf_counter() - start:.0f} s.")
        measure.show(result)
        results.append(result)
        asked.output.write_text(report(results, pairs), encoding="utf-8")
    print(f"\nwritten to {asked.output}")
    return int(failed)


def report(results: list[Result], pairs: int) -> str:
    """Return the results as Markdown."""
    parts = [
        "# Benchmark results",
        f"Written by `make bench` on {datetime.date.today()}: {pairs} pairs.",
        f"Machine: {machine()}.",
        f"Versions: {versions()}.",
        METHOD,
    ]
    for result in results:
        parts.append(f"## {result.title}")
        if result.lines:
            parts.append(_table(result.lines))
        parts.append("\n".join(f"- {note}" for note in result.notes))
    return "\n\n".join(parts) + "\n"


def machine() -> str:
    """Say in words what this machine is."""
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
    return (
        f"{os.cpu_count()} cores, {_cpu_model()}, {_memory()} memory, {platform.system()}; "
        f"load average at the end {load}"
    )


def versions() -> str:
    """Return the versions of Python and of the libraries that the figures depend on."""
    found = [f"Python {platform.python_version()}"]
    for name in LIBRARIES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{name} absent")
    return ", ".join(found)


def _table(lines: list[Line]) -> str:
    verdict = {True: "yes", False: "**no**", None: ""}
    rows = [
        ("what", "median (min-max)", "peer", "median (min-max)", "figure", "target", "met"),
        ("---",) * 7,
    ]
    rows += [
        (
            line.what,
            line.measured,
            line.peer,
            line.peer_measured,
            line.figure,
            line.target,
            verdict[line.met],
        )
        for line in lines
    ]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    models = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return models[0] if models else platform.machine()


def _memory() -> str:
    try:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return "unknown"
    return f"{size / 2**30:.0f} GiB"


if __name__ == "__main__":
    sys.exit(main())
