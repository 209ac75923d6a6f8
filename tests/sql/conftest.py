"""Fixtures of the SQL tests: the small lake, read on a local disk and in memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pytest

from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from pico.sql import session
from tests.sql.small_lake import write_lake, write_run

_numbers = itertools.count()


@pytest.fixture(scope="session", params=["local", "memory"])
def storage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Storage:
    """A lake to read, on a local disk and in memory."""
    if request.param == "memory":
        return write_lake(Storage(f"memory://sql-{next(_numbers)}"))
    return write_lake(Storage(str(tmp_path_factory.mktemp("sql") / "lake")))


@pytest.fixture(scope="session")
def connection(storage: Storage) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection to the lake."""
    found = session.connect(Snapshot.take(storage))
    yield found
    found.close()


@pytest.fixture(scope="session")
def local_lake(tmp_path_factory: pytest.TempPathFactory) -> Storage:
    """The lake on a local disk, to read."""
    return write_lake(Storage(str(tmp_path_factory.mktemp("sql") / "lake")))


@pytest.fixture
def new_lake(tmp_path: Path) -> Callable[..., Storage]:
    """A function that makes a lake of a test's own, by default with the run `first`."""

    def make(name: str = "lake", *runs: str) -> Storage:
        storage = Storage(str(tmp_path / name))
        for run in runs or ("first",):
            write_run(storage, run)
        return storage

    return make
