"""Finds the files that are data rather than code: schemas, queries and shipped configs.

In a source tree `schemas/` and `queries/` lie beside the package; a wheel carries copies of them
in `pico/_resources/` (hatch's `force-include`, which editable installs do not get). Callers never
care which of the two they are in.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


@cache
def folder(name: str) -> Path:
    """Return the folder `schemas` or `queries`, from the wheel or from the source tree."""
    for candidate in (_PACKAGE / "_resources" / name, _PACKAGE.parent / name):
        if candidate.is_dir():
            return candidate
    raise FileNotFoundError(f"this installation of pico has no {name}/ folder; install it again")


def config_names() -> list[str]:
    """Return the names of the configs shipped in the package, sorted."""
    return sorted(path.stem for path in (_PACKAGE / "configs").glob("*.yaml"))


def config_path(name: str) -> Path:
    """Return the path of a shipped config, whether or not it exists."""
    return _PACKAGE / "configs" / f"{name}.yaml"
