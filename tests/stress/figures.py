"""Counts that tests keep for `make reliability`.

A test that tries many cases says at its end how many there were:

    figures.note("faults", kind="connection reset", tried=40, survived=40)

Without the environment variable PICO_RELIABILITY nothing happens; with it, each note becomes a
line of JSON in a file of that folder, and `tests.stress.report` makes the table of them.
"""

import json
import os
from pathlib import Path

FOLDER = "PICO_RELIABILITY"


def note(section: str, **figures: str | int) -> None:
    """Keep figures for a section of the report; call it after the assertions, not before.

    Args:
        section: one of `report.SECTIONS`, such as "crash points" or "faults".
        figures: words say what it was (several words make a row), counts how many there were;
            counts of notes with the same words are added up.
    """
    folder = os.environ.get(FOLDER)
    if not folder:
        return
    Path(folder).mkdir(parents=True, exist_ok=True)
    line = json.dumps({"section": section, **figures})
    with (Path(folder) / f"{os.getpid()}.jsonl").open("a") as file:
        file.write(line + "\n")


def noted(folder: Path) -> list[dict[str, str | int]]:
    """Return all notes of a folder."""
    return [
        json.loads(line)
        for path in sorted(folder.glob("*.jsonl"))
        for line in path.read_text().splitlines()
    ]
