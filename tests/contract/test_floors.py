"""The floors of ARCHITECTURE.md hold, and the contracts that guard them notice a breach."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CONTRACTS = {item["id"]: item for item in CONFIG["tool"]["importlinter"]["contracts"]}
NEVER_TORCH = ("compute", "lake", "metrics", "report", "share", "sql", "upkeep")

# planted line, file that gets it, contract that must break
BREACHES = {
    "upward": ("from pico import api", "lake/names.py", "A floor imports only lower floors"),
    "far upward, inside a function": (
        "def late() -> None:\n    import pico.cli\n",
        "errors.py",
        "A floor imports only lower floors",
    ),
    "sideways": ("import pico.record", "sql/library.py", "A floor imports only lower floors"),
    "a module without a floor": ("", "stray.py", "A floor imports only lower floors"),
    "torch in a reader": ("import torch", "sql/session.py", "Reading needs no torch"),
    "torch behind a lower floor": ("import torch", "errors.py", "Reading needs no torch"),
    "fsspec elsewhere": (
        "import fsspec",
        "lake/table.py",
        "Only lake/storage.py and lake/snapfs.py touch fsspec",
    ),
    "a cycle": (
        "from pico.lake import table, commit",
        "lake/names.py",
        "No cycles inside packages",
    ),
}


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter on the package in a folder, which wins over the installed one."""
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    command = [sys.executable, "-c", code, "--no-cache"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package and its contracts, to spoil."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "pico", tmp_path / "pico", ignore=ignored)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_floors_hold() -> None:
    result = lint(ROOT)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("breach", BREACHES)
def test_a_breach_is_noticed(copy: Path, breach: str) -> None:
    line, file, contract = BREACHES[breach]
    with (copy / "pico" / file).open("a", encoding="utf-8") as spoiled:
        spoiled.write(f"\n{line}\n")
    result = lint(copy)
    assert result.returncode == 1, result.stdout
    assert f"{contract} BROKEN" in result.stdout


def test_every_reading_package_is_kept_from_torch() -> None:
    present = {name for name in NEVER_TORCH if (ROOT / "pico" / name).is_dir()}
    guarded = {name.removeprefix("pico.") for name in CONTRACTS["no-torch"]["source_modules"]}
    assert present <= guarded


def test_parts_that_exist_are_not_optional() -> None:
    floors = "|".join(CONTRACTS["floors"]["layers"]).split("|")
    optional = [name.strip()[1:-1] for name in floors if name.strip().startswith("(")]
    exist = [name for name in optional if list((ROOT / "pico").glob(f"{name}*"))]
    assert not exist, f"take the parentheses off in pyproject.toml: {exist}"
