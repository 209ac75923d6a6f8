"""What `import pico` promises: its names, their documentation, and what it does not load."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import re
import subprocess
import sys
import tomllib
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import pico
from tests.contract.make_lake import make_lake

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "lightning", "transformers", "datasets", "tokenizers", "matplotlib", "ray")
PACKAGES = sorted(item.name for item in pkgutil.walk_packages(pico.__path__, "pico.") if item.ispkg)
READERS = ("pico.api", "pico.cli", "pico.compute", "pico.lake", "pico.metrics", "pico.sql")

# Stands before the other finders and answers that a module is not installed.
_HIDE = """
import importlib.abc, json, sys
hidden = set(json.loads(sys.argv[1]))
class Hider(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hider())
"""


def run(code: str, *arguments: str) -> str:
    """Run code in a new interpreter and return what it prints."""
    command = [sys.executable, "-W", "error", "-c", code, *arguments]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


def modules_under(names: tuple[str, ...]) -> list[str]:
    """Return the modules of packages, themselves included."""
    found = list(names)
    for name in names:
        path = getattr(importlib.import_module(name), "__path__", ())
        found += [item.name for item in pkgutil.walk_packages(path, f"{name}.")]
    return found


def base_distributions() -> set[str]:
    """Return the distributions that an installation without extras brings, normalised."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    waiting = [Requirement(text) for text in project["dependencies"]]
    found: set[str] = set()
    while waiting:
        requirement = waiting.pop()
        found.add(normal(requirement.name))
        for item in map(Requirement, distribution(requirement.name).requires or ()):
            extras = requirement.extras or {""}
            applies = not item.marker or any(item.marker.evaluate({"extra": e}) for e in extras)
            if applies and normal(item.name) not in found:
                waiting.append(item)
    return found


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_public_names_are_exactly_all() -> None:
    assert sorted(pico.__all__) == list(pico.__all__) == dir(pico)


@pytest.mark.parametrize("name", pico.__all__)
def test_a_public_name_exists_and_is_documented(name: str) -> None:
    thing = getattr(pico, name)
    assert inspect.getdoc(thing)
    if inspect.isclass(thing):
        public = {k: v for k, v in vars(thing).items() if not k.startswith("_")}
        assert not [k for k, v in public.items() if callable(v) and not inspect.getdoc(v)]


@pytest.mark.parametrize("name", PACKAGES)
def test_names_that_a_package_offers_exist_and_are_documented(name: str) -> None:
    package = importlib.import_module(name)
    assert not [item for item in getattr(package, "__all__", ()) if not hasattr(package, item)]
    offered = [getattr(package, item) for item in getattr(package, "__all__", ())]
    assert not [item for item in offered if callable(item) and not inspect.getdoc(item)]


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        pico.no_such_name  # noqa: B018


def test_every_metric_of_the_interface_is_a_function() -> None:
    names = "gini hoyer l1_norm frobenius_norm max_abs spectrum nuclear_norm spectral_norm per"
    names += " effective_rank stable_rank condition_number cka compute"
    assert not [name for name in names.split() if not callable(getattr(pico.metrics, name, None))]


def test_importing_pico_loads_little() -> None:
    loaded = set(run("import sys, pico; print(*sys.modules)").split())
    assert not loaded & {*HEAVY, "pyarrow", "duckdb", "polars", "numpy"}


def test_readers_load_no_training_library() -> None:
    imports = f"import {', '.join(modules_under(READERS))}"
    loaded = set(run(f"import sys\n{imports}\nprint(*sys.modules)").split())
    assert not loaded & set(HEAVY)


def test_reading_needs_the_base_dependencies_alone(tmp_path: Path) -> None:
    base = base_distributions()
    assert {"duckdb", "pyarrow"} <= base and "torch" not in base
    hidden = [
        module
        for module, owners in packages_distributions().items()
        if not {normal(owner) for owner in owners} & base and module != "pico"
    ]
    make_lake(str(tmp_path / "lake"))
    code = f"""{_HIDE}
import pico, {", ".join(modules_under(READERS))}
lake = pico.Lake.open(sys.argv[2])
answer = lake.sql("SELECT step, gini(tensor) FROM weights WHERE component = 'o' ORDER BY step")
print(json.dumps([row[0] for row in answer.fetchall()]))
try:
    pico.Recorder
except pico.PicoError as error:
    print(error)
"""
    steps, message = run(code, json.dumps(hidden), str(tmp_path / "lake")).splitlines()
    assert json.loads(steps) == [0, 1]
    assert "pico-lake[train]" in message
