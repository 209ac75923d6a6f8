"""The documents tell the truth: links lead somewhere, commands exist, examples run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

import pico
from pico import schema
from pico.cli import app

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
MODULES = sorted(item.name for item in pkgutil.walk_packages(pico.__path__, "pico."))
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```(?:bash|sh|console|shell)\n(.*?)^```", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"`([^`\n]+)`")


def commands(group: Any = None) -> Iterator[str]:
    """Yield every command of `pico`: `sql`, `metrics list`, …."""
    for name, command in (group or typer.main.get_command(app)).commands.items():
        if hasattr(command, "commands"):
            yield from (f"{name} {inner}" for inner in commands(command))
        else:
            yield name


def make_targets() -> set[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))


def shell_lines(text: str) -> list[list[str]]:
    """Return the command lines that a document shows, as words, comments and prompts removed."""
    shown = [line for block in FENCE.findall(text) for line in block.splitlines()]
    shown = [line.removeprefix("$ ") for line in shown + CODE.findall(text)]
    lines = []
    for line in shown:
        try:
            lines.append(shlex.split(line, comments=True))
        except ValueError:  # a quote that a later line closes
            lines.append(line.split())
    return [words for words in lines if words]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    targets = LINK.findall(document.read_text(encoding="utf-8"))
    local = [t.split("#")[0] for t in targets if not re.match(r"[a-z]+:|#", t)]
    assert not [target for target in local if not (document.parent / target).exists()]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_shown_exist(document: Path) -> None:
    known = set(commands())
    groups = {name.split()[0] for name in known if " " in name}
    wrong = []
    for words in shell_lines(document.read_text(encoding="utf-8")):
        if words[0] == "pico" and len(words) > 1 and re.fullmatch("[a-z]+", words[1]):
            name = " ".join(words[1 : 3 if words[1] in groups else 2])
            if name not in known | groups:
                wrong.append(f"pico {name}")
        if words[0] == "make" and len(words) > 1:
            targets = [w for w in words[1:] if re.fullmatch("[a-z-]+", w)]
            wrong += [f"make {target}" for target in targets if target not in make_targets()]
    assert not wrong


def test_every_command_is_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert not [name for name in commands() if f"pico {name}" not in readme]


def test_every_public_name_is_in_the_readme() -> None:
    words = set(re.findall(r"\w+", (ROOT / "README.md").read_text(encoding="utf-8")))
    assert not set(pico.__all__) - words


def test_every_make_target_is_explained() -> None:
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert not [name for name in make_targets() if f"make {name}" not in contributing]


def test_the_description_of_the_tables_is_not_stale() -> None:
    stored = (ROOT / "schemas" / "README.md").read_text(encoding="utf-8")
    assert stored == schema.markdown(), "run `make schemas`"


def test_every_table_says_what_it_answers() -> None:
    assert not [spec.name for spec in schema.tables().values() if not spec.questions]


def test_the_page_of_components_and_sites_is_whole_and_not_stale() -> None:
    pytest.importorskip("torch")
    from pico.models import families, page

    stored = (ROOT / "schemas" / "COMPONENTS.md").read_text(encoding="utf-8")
    assert stored == page.markdown(), "run `make schemas`"
    for family in families.FAMILIES:
        words = {*family.components.values(), *family.heads.values(), *family.sites}
        assert not [word for word in words if f"| `{word}` |" not in stored]
        assert not [name for name in family.components if f"{name}`" not in stored]
    assert set(families.TL_HOOKS) == set(families.PICO.sites)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name), verbose=False)
    assert not result.failed, f"{result.failed} of {result.attempted} examples"
