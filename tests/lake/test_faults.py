"""An S3 store on a bad day: every request spoiled once, in every way that stores have.

A writer goes on or stops with one of our errors; whatever happens, every step that it was told is
committed is there, whole and once, no other step is there by halves, and the next writer goes on.
"""

import itertools

import numpy as np
import pytest

from pico.errors import PicoError, StorageError
from pico.lake import codec
from pico.lake.commit import Stream
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from pico.lake.table import TensorRow, write_tensors
from tests.servers.faulty_proxy import FAULTS, FaultyProxy
from tests.servers.s3 import NAME
from tests.stress import figures

N_STEPS = 3
TABLES = ("weights", "gradients")
HASTY = {"connect_timeout": 2, "read_timeout": 0.5, "retries": {"total_max_attempts": 1}}
PATIENT = {"connect_timeout": 5, "read_timeout": 2, "retries": {"total_max_attempts": 4}}


class World:
    """A server, a proxy that spoils what goes through it, and lakes in one bucket."""

    def __init__(self, bucket: str, options: dict, proxy: FaultyProxy) -> None:
        self.bucket, self.options, self.proxy = bucket, options, proxy
        self._numbers = itertools.count()

    def storages(self, config: dict) -> tuple[Storage, Storage]:
        """Return the storage of a new lake, through the proxy and straight."""
        url = f"s3://{self.bucket}/{next(self._numbers)}"
        options = self.options | {"config_kwargs": config}
        spoiled = Storage(url, options | {"client_kwargs": {"endpoint_url": self.proxy.url}})
        if config is HASTY:
            spoiled._fs.retries = 1
        return spoiled, Storage(url, self.options)


@pytest.fixture
def world(s3_bucket, s3_options, s3_server, monkeypatch):
    monkeypatch.setattr("s3fs.core.asyncio.sleep", _no_pause())
    with FaultyProxy(s3_server, patience=1.0) as proxy:
        yield World(s3_bucket, s3_options, proxy)


def _no_pause():
    import asyncio

    pause = asyncio.sleep

    async def briefly(seconds, *arguments):
        return await pause(min(seconds, 0.01), *arguments)

    return briefly


def tensor(table: str, step: int) -> np.ndarray:
    return np.full((3, 4), 10.0 * step + TABLES.index(table), np.float32)


def train(storage: Storage, steps: range, done: list[int]) -> None:
    """Commit steps, each in two tables; note each whose commit returned."""
    with Stream(storage, "train.r") as stream:
        for step in steps:
            transaction = stream.begin()
            for table in TABLES:
                row = TensorRow(
                    {"name": "w", "component": "q"}, codec.Tensor.of(tensor(table, step))
                )
                keys = {"stage": "raw"} if table == "gradients" else {}
                row = TensorRow(row.keys | keys, row.tensor)
                write_tensors(transaction, table, {"run": "r", "step": step}, [row])
            transaction.commit()
            done.append(step)


def stored(storage: Storage) -> list[int]:
    """Return the steps of a lake, each verified to be there once, whole, in both tables."""
    snapshot = Snapshot.take_or_empty(storage)
    steps = {
        table: [row["global_step"] for row in snapshot.read(table, ["global_step"]).to_pylist()]
        for table in TABLES
    }
    assert sorted(steps["weights"]) == sorted(steps["gradients"]) == sorted(set(steps["weights"]))
    for table, step in itertools.product(TABLES, steps["weights"]):
        [row] = snapshot.tensors(table, "r", step)
        assert np.array_equal(row.tensor.to_numpy(), tensor(table, step))
    return sorted(steps["weights"])


def endure(world: World, config: dict, first: int, fault: str, count: int = 1) -> str:
    """Train with requests spoiled, check what is left, and go on; returns how it ended."""
    spoiled, straight = world.storages(config)
    done: list[int] = []
    world.proxy.spoil(first, fault, count)
    ending = "went on"
    try:
        train(spoiled, range(N_STEPS), done)
    except PicoError as error:
        assert "\n" not in str(error)
        assert "another writer" not in str(error), "its own commit was taken for another's"
        ending = "stopped"
    if not world.proxy.n_spoiled:
        return "not met"
    world.proxy.spoil(0, "", 0)
    present = stored(straight)
    # A commit whose answer was lost may be there although its writer was told that it failed.
    assert done == present[: len(done)] and len(present) <= len(done) + 1
    train(straight, range(len(present), N_STEPS + 1), [])
    assert stored(straight) == list(range(N_STEPS + 1))
    known = {entry.path for entry in Snapshot.take(straight).all_files()}
    assert known == {path for table in TABLES for path in straight.paths(table)}, "debris is left"
    return ending


def every(world: World, config: dict, fault: str, stride: int, count: int = 1) -> dict[str, int]:
    """Spoil every request in turn, or every `stride`-th; returns the endings, counted."""
    endings: dict[str, int] = {}
    for first in range(0, 10_000, stride):
        ending = endure(world, config, first, fault, count)
        if ending == "not met" and first >= world.proxy.n_requests:
            tried = sum(endings.values()) - endings.get("not met", 0)
            kind = f"{NAME}, a request in turn: {fault}"
            figures.note("faults", kind=kind, tried=tried, survived=tried)
            return endings
        endings[ending] = endings.get(ending, 0) + 1
    raise AssertionError("training makes no end of requests")


@pytest.mark.parametrize("fault", FAULTS)
def test_one_spoiled_request_is_overcome_by_patience(world, fault):
    endings = every(world, PATIENT, fault, stride=17)
    assert set(endings) <= {"went on", "not met"} and sum(endings.values()) > 1


@pytest.mark.parametrize("fault", FAULTS)
def test_a_spoiled_request_tears_nothing(world, fault):
    # Twice: the HTTP client itself repeats a request whose connection broke.
    assert sum(every(world, HASTY, fault, stride=17, count=2).values()) > 1


@pytest.mark.slow
@pytest.mark.parametrize("config", [HASTY, PATIENT], ids=["hasty", "patient"])
@pytest.mark.parametrize("fault", FAULTS)
def test_every_request_may_be_spoiled(world, fault, config):
    endings = every(world, config, fault, stride=1, count=2 if config is HASTY else 1)
    print(fault, endings)
    if config is PATIENT:
        assert "stopped" not in endings


@pytest.mark.parametrize("fault", ["503", "reset"])
def test_a_store_that_stays_away_stops_training_with_a_clear_error(world, fault):
    assert endure(world, HASTY, 12, fault, count=10_000) == "stopped"


def test_throttling_for_a_while_is_waited_for(world):
    assert endure(world, PATIENT, 12, "503", count=3) == "went on"


def test_an_answer_lost_to_a_commit_does_not_double_it(world):
    spoiled, straight = world.storages(HASTY)
    done: list[int] = []
    world.proxy.spoil(0, "", 0)
    train(spoiled, range(1), done)
    requests = list(world.proxy.requests)
    [number] = [n for n, (method, path) in enumerate(requests) if _is_commit(method, path)]
    spoiled, straight = world.storages(HASTY)
    world.proxy.spoil(number, "lost answer")
    train(spoiled, range(1), done)
    assert world.proxy.n_spoiled == 1 and done == [0, 0]
    assert stored(straight) == [0]
    assert len(straight.paths("_log")) == 1


def _is_commit(method: str, path: str) -> bool:
    return method == "PUT" and "/_log/" in path


def test_a_truncated_answer_is_never_taken_for_the_whole(world):
    spoiled, straight = world.storages(HASTY)
    straight.put("x", bytes(range(256)) * 64)
    world.proxy.spoil(0, "truncated", 100)
    with pytest.raises(StorageError, match="cannot read x of"):
        spoiled.read("x")
    with pytest.raises((StorageError, OSError)):
        spoiled.open("x", 256 * 64).read()
