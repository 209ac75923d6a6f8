"""Ray computes what threads compute: the same values, through the same commits, whoever dies."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pico import Lake, cluster
from pico.compute import materialize
from pico.errors import ClusterError, LakeError, MetricError, MissingExtraError
from pico.lake.storage import Storage
from pico.metrics import registry
from tests.sql import small_lake as lake

ray = pytest.importorskip("ray", reason="ray is absent: pip install 'pico-lake[ray]'")


@pytest.fixture(scope="module")
def here() -> Iterator[None]:
    """A cluster of this machine, connected to: starting one takes seconds."""
    cluster._connect(cluster._ray(), "local", 2)
    yield
    ray.shutdown()


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    found = Storage(str(tmp_path / "lake"))
    for run in lake.RUNS:
        lake.write_run(found, run)
    return found


@pytest.fixture
def own() -> Iterator[Callable[[Callable[..., float]], str]]:
    """Registers a metric of this test's own."""
    names: list[str] = []

    def register(function: Callable[..., float]) -> str:
        registry.add(registry.Metric(function.__name__, function, "tensor", 1, "Of a test."))
        names.append(function.__name__)
        return function.__name__

    yield register
    for name in names:
        registry.remove(name)


def kept(storage: Storage) -> list[tuple[Any, ...]]:
    rows = Lake(storage.url).snapshot().read("metrics").to_pylist()
    columns = ("run_id", "global_step", "name", "metric", "ref_step", "tensor_hash", "value")
    return sorted(tuple(str(row[name]) for name in columns) for row in rows)


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_ray_and_threads_keep_the_same(storage: Storage, tmp_path: Path) -> None:
    other = Storage(str(tmp_path / "other"))
    for run in lake.RUNS:
        lake.write_run(other, run)
    for reference, names in ((None, None), ("last", ["cka", "relative_change"])):
        here_, there = Lake(storage.url), Lake(other.url)
        ours = here_.compute_metrics(names, reference_step=reference)
        theirs = there.compute_metrics(names, reference_step=reference, ray="auto", workers=2)
        assert ours == theirs and ours.computed
        assert there.compute_metrics(names, reference_step=reference, ray="auto").computed == 0
    assert kept(storage) == kept(other)


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_a_worker_that_is_killed_is_replaced(
    storage: Storage, tmp_path: Path, own: Callable[..., str]
) -> None:
    """A tensor of each run kills the worker that computes it, the first time."""
    folder = tmp_path / "killed"
    folder.mkdir()
    marked = [float(lake.weight(run, 2, "embed.weight").max()) for run in lake.RUNS]

    def deadly(tensor: Any) -> float:
        largest = float(np.max(tensor))
        mark = folder / str(largest)
        if largest in marked and not mark.exists():
            mark.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        return largest

    done = Lake(storage.url).compute_metrics(own(deadly), ray="auto", workers=2)
    killed = [int(mark.read_text()) for mark in folder.iterdir()]
    assert len(killed) == 2 and os.getpid() not in killed
    assert done.computed == 2 * 9 + 1
    rows = Lake(storage.url).snapshot().read("metrics").to_pylist()
    assert len(rows) == 2 * len(lake.STEPS) * len(lake.WEIGHTS)
    for row in rows:
        tensor = lake.weight(row["run_id"], row["global_step"], row["name"])
        assert row["value"] == float(np.max(tensor))


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_a_worker_that_always_dies_is_told(
    storage: Storage, own: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "_RETRIES", 1)

    def always_deadly(tensor: Any) -> float:
        os._exit(1)

    with pytest.raises(ClusterError, match="a Ray worker was lost 2 times at the same tensors"):
        Lake(storage.url).compute_metrics(own(always_deadly), ray="auto", workers=1)
    assert Lake(storage.url).compute_metrics("gini", ray="auto", workers=1).computed


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_an_error_of_a_worker_is_the_drivers(storage: Storage, own: Callable[..., str]) -> None:
    def refusing(tensor: Any) -> float:
        raise MetricError("no such luck")

    with pytest.raises(MetricError, match=r"^no such luck$"):
        Lake(storage.url).compute_metrics(own(refusing), ray="auto")


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_a_lake_in_memory_is_refused() -> None:
    storage = Storage("memory://cluster")
    lake.write_run(storage, "first")
    with pytest.raises(LakeError, match="in the memory of this process"):
        Lake("memory://cluster").compute_metrics("gini", ray="auto")


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_a_cluster_without_a_gpu_is_told(storage: Storage) -> None:
    if ray.cluster_resources().get("GPU"):
        pytest.skip("this machine has a GPU")
    with pytest.raises(ClusterError, match="has no GPU for device 'cuda'; take --device cpu"):
        Lake(storage.url).compute_metrics("gini", ray="auto", device="cuda")


def test_no_cluster_at_an_address(storage: Storage) -> None:
    with pytest.raises(ClusterError, match=r"no Ray cluster at '127\.0\.0\.1:1'"):
        cluster._connect(FakeRay(ConnectionError("refused")), "127.0.0.1:1", None)


class FakeRay:
    """A Ray that cannot be connected to."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def init(self, **_: Any) -> None:
        raise self.error


@pytest.mark.slow
@pytest.mark.usefixtures("here")
def test_options_stand_in_no_log(storage: Storage, own: Callable[..., str]) -> None:
    """Not even when a worker fails, with Ray's own account of how it was called."""

    def failing(tensor: Any) -> float:
        raise RuntimeError("on purpose")

    lake_ = Lake(storage.url, {"token": "hush-4711"})
    assert lake_.compute_metrics("gini", ray="auto", workers=1).computed
    with pytest.raises(RuntimeError, match="on purpose"):
        lake_.compute_metrics(own(failing), ray="auto", workers=1)
    logs = Path(ray._private.worker.global_worker.node.get_session_dir_path(), "logs")
    texts = [file.read_bytes() for file in logs.rglob("*") if file.is_file()]
    assert any(b"Worker" in text for text in texts)
    assert not any(b"hush-4711" in text for text in texts)


def test_options_travel_and_are_not_shown() -> None:
    storage = Storage("s3://bucket/lake", {"key": "me", "secret": "hush"})
    again = pickle.loads(pickle.dumps(storage))
    assert again._options == {"key": "me", "secret": "hush"} and again.url == storage.url
    assert "hush" not in repr(again) + str(again) + repr(cluster.Worker)


def test_a_relative_lake_travels_as_an_absolute_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert pickle.loads(pickle.dumps(Storage("lake"))).folder == tmp_path / "lake"


def test_without_ray(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"ray is not installed.*pico-lake\[ray\]"):
        Lake(storage.url).compute_metrics("gini", ray="auto")


def test_a_device_that_is_not_here(storage: Storage) -> None:
    torch = pytest.importorskip("torch", reason="torch is absent")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    for device in ("cuda", "cuda:1", "nonsense"):
        with pytest.raises(ClusterError, match=f"no device '{device}' to compute metrics on: "):
            Lake(storage.url).compute_metrics("gini", device=device)


def test_torch_computes_the_same(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, on torch's CPU: what is handed to the metrics is a torch tensor."""
    torch = pytest.importorskip("torch", reason="torch is absent")
    engine = materialize.Threads(1, partial(cluster._to_torch, torch, "cpu"))
    assert materialize.compute(storage, metrics="gini,per", engine=engine).computed
    for row in Lake(storage.url).snapshot().read("metrics").to_pylist():
        tensor = lake.weight(row["run_id"], row["global_step"], row["name"])
        wanted = registry.compute(tensor, [row["metric"]])[row["metric"]]
        assert row["value"] == pytest.approx(wanted, rel=1e-9)
