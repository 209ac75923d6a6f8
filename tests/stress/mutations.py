"""`python -m tests.stress.mutations [WORD …]`: take each protection out; its test must fail.

Works on a copy of the source. A test that passes without the protection that it is there for is no
test of it, so the command then ends with exit code 1. Words choose the facts that contain them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.stress.protections import PROTECTIONS, Protection

ROOT = Path(__file__).parents[2]
_COPIED = ("pico", "tests", "schemas", "queries", "pyproject.toml", "README.md")


def try_all(words: tuple[str, ...] = ()) -> list[dict[str, str]]:
    """Take out every protection in turn; returns a row of the report for each.

    Raises:
        AssertionError: if a test passes without its protection, or fails with it.
    """
    wanted = [p for p in PROTECTIONS if all(word in p.fact for word in words)]
    rows = []
    with tempfile.TemporaryDirectory(prefix="pico-mutations-") as folder:
        copy = Path(folder)
        for name in _COPIED:
            source = ROOT / name
            ignored = shutil.ignore_patterns("__pycache__")
            if source.is_dir():
                shutil.copytree(source, copy / name, ignore=ignored)
            elif source.exists():
                shutil.copy(source, copy / name)
        tests = sorted({protection.test for protection in wanted})
        code, said = _run(copy, tests)
        assert code == 0, f"tests fail on the source as it is:\n{said}"
        for protection in wanted:
            with _Mutated(copy, protection):
                code, said = _run(copy, [protection.test])
            fails = "yes" if code == 1 else "no"
            print(f"{fails:<4}{protection.fact}", flush=True)
            if fails == "no":
                print(said)
            rows.append(
                {
                    "protection": protection.fact,
                    "mutation": f"{protection.change} in `{protection.file}`",
                    "test": f"`{protection.test}`",
                    "fails": fails,
                }
            )
    missed = [row["protection"] for row in rows if row["fails"] == "no"]
    assert not missed, f"no test fails without: {'; '.join(missed)}"
    return rows


class _Mutated:
    """A source file with a protection taken out, until the block ends."""

    def __init__(self, root: Path, protection: Protection) -> None:
        self._file, self._protection = root / protection.file, protection

    def __enter__(self) -> None:
        self._text = self._file.read_text()
        assert self._text.count(self._protection.before) == 1, self._protection.fact
        changed = self._text.replace(self._protection.before, self._protection.after)
        compile(changed, str(self._file), "exec")
        self._file.write_text(changed)

    def __exit__(self, *_: object) -> None:
        self._file.write_text(self._text)


def _run(root: Path, tests: list[str]) -> tuple[int, str]:
    """Run tests of a copy; exit code 1 is pytest's for tests that fail, 2 and above for less."""
    env = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    options = ["-q", "-x", "-m", "not slow", "-p", "no:cacheprovider", "--show-capture=no"]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True)
    return done.returncode, done.stdout[-3000:] + done.stderr[-1000:]


if __name__ == "__main__":
    try_all(tuple(sys.argv[1:]))
