"""Lakes that tests of upkeep look after."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from pico.lake.storage import Storage
from tests.train import tiny
from tests.upkeep import lakes


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for fsync: only a power cut could tell the difference."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def local(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path / "lake"))


@pytest.fixture
def memory() -> Iterator[Storage]:
    url = f"memory://{uuid.uuid4().hex}"
    yield Storage(url)
    filesystem = fsspec.filesystem("memory")
    if filesystem.exists(url):
        filesystem.rm(url, recursive=True)


@pytest.fixture(params=["local", "memory"])
def storage(request: pytest.FixtureRequest) -> Storage:
    found: Storage = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake with one run of six steps that recorded everything; tests copy it."""
    from pico.api import Lake

    folder = tmp_path_factory.mktemp("trained")
    tiny.write_text(folder / "text.txt")
    lake = Lake(str(folder / "lake"))
    lake.train(lakes.config(folder / "lake"), "tiny")
    for metric in ("gini", "frobenius_norm"):
        lake.compute_metrics(metric)
    return folder / "lake"


@pytest.fixture
def lake(trained: Path, tmp_path: Path) -> Storage:
    """A copy of the trained lake to damage."""
    return lakes.copy(trained, tmp_path / "damaged")
