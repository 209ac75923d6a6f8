"""The built wheel carries everything that the source tree has beside the code."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir"]
    built = subprocess.run([*command, str(folder), str(ROOT)], capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    return next(folder.glob("pico_lake-*.whl"))


@pytest.mark.parametrize(
    ("folder", "pattern", "target"),
    [
        ("schemas", "*.json", "pico/_resources/schemas"),
        ("queries", "*.sql", "pico/_resources/queries"),
        ("pico/configs", "*.yaml", "pico/configs"),
        ("pico", "**/*.py", "pico"),
    ],
)
def test_the_wheel_has_every_file(wheel: Path, folder: str, pattern: str, target: str) -> None:
    sources = sorted((ROOT / folder).glob(pattern))
    assert sources
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        for source in sources:
            name = f"{target}/{source.relative_to(ROOT / folder).as_posix()}"
            assert name in names
            assert archive.read(name) == source.read_bytes()


def test_the_wheel_has_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        folders = {name.split("/")[0] for name in archive.namelist()}
    assert folders == {"pico", wheel.name.rsplit("-", 3)[0] + ".dist-info"}


def test_base_dependencies_train_nothing(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
        entry_points = archive.read(name.replace("METADATA", "entry_points.txt")).decode()
    base = [text for text in metadata.get_all("Requires-Dist", []) if "extra ==" not in text]
    assert any(text.startswith("duckdb") for text in base)
    assert not [text for text in base if text.startswith(("torch", "lightning", "transformers"))]
    assert metadata["License-Expression"] == "Apache-2.0"
    assert "pico = pico.cli:main" in entry_points
