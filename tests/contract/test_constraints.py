"""`constraints.txt` pins, within what pyproject.toml allows, all that CI installs."""

from __future__ import annotations

import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
INSTALLED_BY_CI = ("train", "hf", "s3", "plot", "ray", "dev")


def pins() -> dict[str, str]:
    """Return the pinned version of every distribution."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


def requirements() -> list[Requirement]:
    """Return what the base installation and the extras of CI ask for."""
    texts = list(PROJECT["dependencies"])
    for extra in INSTALLED_BY_CI:
        texts += PROJECT["optional-dependencies"][extra]
    found = [Requirement(text) for text in texts]
    return [item for item in found if item.name != PROJECT["name"]]


def test_every_requirement_is_pinned_to_a_version_that_it_allows() -> None:
    versions = pins()
    missing = [r.name for r in requirements() if canonicalize_name(r.name) not in versions]
    assert not missing
    assert not [
        str(r) for r in requirements() if versions[canonicalize_name(r.name)] not in r.specifier
    ]


def test_pins_are_plain() -> None:
    assert not [version for version in pins().values() if set(version) & set("+*@/ ;")]


def test_all_is_everything_but_flash() -> None:
    extras = PROJECT["optional-dependencies"]
    everything = Requirement(extras["all"][0]).extras
    assert everything == set(extras) - {"all", "dev", "flash"}
