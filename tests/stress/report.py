"""`make reliability`: run what is counted, take protections out, and write `tests/reliability.md`.

    python -m tests.stress.report [--only-write FOLDER]

The figures are the tests' own (`tests.stress.figures`): a test notes its counts after it has passed
its assertions. A run with failing tests ends with their exit code and writes nothing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tests.stress import figures, mutations

REPORT = Path(__file__).parents[1] / "reliability.md"
COUNTED = ("tests/stress", "tests/lake", "tests/fuzz", "tests/sql/test_untrusted.py")
SECTIONS = {
    "crash points": "A small training run is stopped at the k-th operation, for every k; what was "
    "committed is read back, the run is resumed to its end, and the lake is compared with that of "
    "an uninterrupted run, row for row and file for file. A power cut also takes what was not "
    "fsynced: all of it, or some of it by chance. On object stores the process dies before a "
    "request, and after the store has served it.",
    "kill loop": "A trainer is killed by SIGKILL at random moments while a reader reads all the "
    "time, through the API and with plain DuckDB.",
    "races": "Processes that work on one lake, one run or one commit number at the same time.",
    "faults": "Disks without space and stores that fail; training goes on or stops with one line, "
    "and goes on when the cause is gone.",
    "fuzz": "Mutated files of every kind that is read: only errors of our own, no crash, no hang.",
    "attacks": "Statements and files that try to get out of `pico sql --untrusted`.",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only-write", metavar="FOLDER", help="of notes from an earlier run")
    parser.add_argument("--jobs", default="2", help="processes that run the tests")
    asked = parser.parse_args()
    folder = Path(asked.only_write or tempfile.mkdtemp(prefix="pico-reliability-"))
    if not asked.only_write:
        run_tests(folder, asked.jobs)
    outcomes = [{"section": "mutations", **outcome} for outcome in mutations.try_all()]
    notes = [*figures.noted(folder), *outcomes]
    REPORT.write_text(written(notes), encoding="utf-8")
    print(f"wrote {REPORT}")


def run_tests(folder: Path, jobs: str) -> None:
    """Run all counted tests, the slow ones too; ends the process if one fails."""
    env = {**os.environ, figures.FOLDER: str(folder), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "--quiet", "-n", jobs, "--dist", "loadfile"]
    done = subprocess.run([*command, *COUNTED], env=env, cwd=REPORT.parents[1])
    if done.returncode:
        raise SystemExit(done.returncode)


def written(notes: Iterable[dict[str, str | int]]) -> str:
    """Return the report as Markdown."""
    parts = [
        "# Reliability\n\nWritten by `make reliability` from counts that the tests keep; a test "
        "that fails keeps none. What is promised, and how, stands in "
        "[ARCHITECTURE.md](../ARCHITECTURE.md).\n"
    ]
    notes = list(notes)
    for section, words in SECTIONS.items():
        rows = added_up(note for note in notes if note["section"] == section)
        parts.append(f"## {section.capitalize()}\n\n{words}\n")
        parts.append(table(rows) if rows else "Nothing was counted.\n")
    rows = [note for note in notes if note["section"] == "mutations"]
    parts.append(
        "## Protections\n\nEach is taken out of a copy of the source by one changed line; the "
        "named test must then fail.\n"
    )
    parts.append(table(rows) if rows else "None was tried.\n")
    return "\n".join(parts)


def added_up(notes: Iterable[dict[str, str | int]]) -> list[dict[str, str | int]]:
    """Return one row per set of words, counts added."""
    rows: dict[tuple[str, ...], dict[str, str | int]] = {}
    for note in notes:
        words = tuple(str(value) for value in note.values() if isinstance(value, str))
        row = rows.setdefault(words, {k: v for k, v in note.items() if isinstance(v, str)})
        for key, value in note.items():
            if isinstance(value, int):
                row[key] = int(row.get(key, 0)) + value
    return [rows[words] for words in sorted(rows)]


def table(rows: list[dict[str, str | int]]) -> str:
    """Return rows of equal keys as a Markdown table, without the section."""
    columns = [key for key in dict.fromkeys(k for row in rows for k in row) if key != "section"]
    lines = [
        "| " + " | ".join(name.replace("_", " ") for name in columns) + " |",
        "|" + "---|" * len(columns),
    ]
    for row in rows:
        cells = [row.get(name, "") for name in columns]
        texts = [f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in cells]
        lines.append("| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
