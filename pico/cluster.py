"""Computing metrics beyond this process: on the workers of a Ray cluster, or on a GPU.

`Lake.compute_metrics` opens an engine here and gives it to `sql.materialize`, which plans, hands
out tasks and commits what comes back; workers read the lake and write nothing. A worker that dies
is replaced and its tasks are done again, to the same values. Storage options travel to the workers
inside the pickled storage, whose text never shows them; Ray gets no other copy.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pico.compute.tasks import Convert, Done, Engine, Performer, Task, Threads, worker_settings
from pico.errors import ClusterError, MissingExtraError, one_line
from pico.lake.storage import Storage
from pico.metrics import registry

_AHEAD = 2
"""Tasks that each worker has at a time, so that it does not wait for the driver."""
_RETRIES = 3
"""How often a task is begun again after its worker died."""


@contextlib.contextmanager
def engine(
    ray: str | None = None, workers: int | None = None, device: str = "cpu"
) -> Iterator[Engine]:
    """Open what computes metrics: threads of this process, or the workers of a Ray cluster.

    Args:
        ray: the address of a cluster; `auto` for the one that this machine belongs to or, without
            one, for a cluster of this machine alone that ends with the call. None for threads.
        workers: how many; by default one per core, on a GPU one per GPU.
        device: `cpu` for numpy, or torch's name of a device: `cuda`, `cuda:1`.

    Raises:
        ClusterError: if there is no such cluster or device.
        MissingExtraError: without the extra `ray`, or for a GPU without torch.
    """
    if ray is None:
        yield Threads(workers or (1 if device != "cpu" else None), on_device(device))
        return
    library = _ray()
    is_ours = not library.is_initialized()
    if is_ours:
        _connect(library, ray, workers)
    try:
        on_ray = OnRay(library, workers, device)
        try:
            yield on_ray
        finally:
            on_ray.close()
    finally:
        if is_ours:
            library.shutdown()


def on_device(device: str) -> Convert | None:
    """Return what brings arrays to a device; None where they stay numpy's.

    Raises:
        ClusterError: if torch sees no such device here.
        MissingExtraError: without torch.
    """
    if device == "cpu":
        return None
    try:
        import torch
    except ModuleNotFoundError:
        raise MissingExtraError("torch", "train") from None
    try:
        torch.zeros(1, dtype=torch.float64, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ClusterError(
            f"no device {device!r} to compute metrics on: {one_line(error)}; take --device cpu"
        ) from None
    return functools.partial(_to_torch, torch, device)


def _to_torch(torch: Any, device: str, array: Any) -> Any:
    return torch.from_numpy(array.copy()).to(device)


class OnRay:
    """The engine that spreads tasks over actors of a Ray cluster."""

    def __init__(self, ray: Any, workers: int | None, device: str) -> None:
        """Take what a connected cluster has; actors start with the first task."""
        self._ray, self._device = ray, device
        resource = "CPU" if device == "cpu" else "GPU"
        there = int(ray.cluster_resources().get(resource, 0))
        if not there:
            raise ClusterError(
                f"the Ray cluster has no {resource} for device {device!r}; take --device cpu, "
                "or a cluster with one"
            )
        self.workers = min(workers or there, there)
        self._actors: list[Any] = []
        self._of: Storage | None = None

    def __call__(self, storage: Storage, tasks: Iterable[Task]) -> Iterator[Done]:
        """Yield what came of each task, as it comes."""
        idle = deque(self._started(storage) * _AHEAD)
        todo, running = iter(tasks), dict[Any, Any]()
        try:
            while True:
                while idle and (task := next(todo, None)) is not None:
                    actor = idle.popleft()
                    running[actor.perform.remote(task)] = actor
                if not running:
                    return
                ready, _ = self._ray.wait(list(running), num_returns=1)
                for done in ready:
                    idle.append(running.pop(done))
                    yield self._answer(done)
        finally:
            for rest in running:
                with contextlib.suppress(self._ray.exceptions.RayError, ValueError):
                    self._ray.cancel(rest)

    def close(self) -> None:
        """End the workers."""
        for actor in self._actors:
            self._ray.kill(actor)
        self._actors, self._of = [], None

    def _started(self, storage: Storage) -> list[Any]:
        """Return the actors for a lake, started if they are not yet."""
        if self._of is not storage:
            self.close()
            own = _own_metrics()
            for module in {metric.function.__module__ for metric in own}:
                if isinstance(found := sys.modules.get(module), types.ModuleType):
                    with contextlib.suppress(ValueError):  # `__main__` travels anyway
                        self._ray.cloudpickle.register_pickle_by_value(found)
            options = {"num_cpus": 1} if self._device == "cpu" else {"num_gpus": 1}
            remote = self._ray.remote(**options, max_restarts=-1, max_task_retries=_RETRIES)
            actor = remote(Worker)
            self._actors = [actor.remote(storage, own, self._device) for _ in range(self.workers)]
            self._of = storage
        return self._actors

    def _answer(self, done: Any) -> Done:
        errors = self._ray.exceptions
        try:
            found: Done = self._ray.get(done)
        except errors.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, Exception) else error) from None
        except errors.RayError as error:
            raise ClusterError(
                f"a Ray worker was lost {_RETRIES + 1} times at the same tensors: "
                f"{one_line(error):.200}; what was committed stays, and asking again goes on"
            ) from None
        return found


class Worker:
    """What an actor runs: a performer that knows the driver's own metrics."""

    def __init__(self, storage: Storage, own: Sequence[registry.Metric], device: str) -> None:
        """Take a lake's place, and metrics that are not `pico`'s."""
        for metric in own:
            if metric.name not in registry.names():  # an installed package may have brought it
                registry.add(metric)
        worker_settings().__enter__()  # for the life of the process
        self._perform = Performer(storage, on_device(device))

    def perform(self, task: Task) -> Done:
        """Do a task."""
        return self._perform(task)


def _own_metrics() -> Sequence[registry.Metric]:
    """Return the metrics that a worker does not know by itself."""
    found = [registry.get(name) for name in registry.names()]
    return [m for m in found if m.function.__module__.partition(".")[0] != "pico"]


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ModuleNotFoundError:
        raise MissingExtraError("ray", "ray") from None
    return ray


def _connect(ray: Any, address: str, workers: int | None) -> None:
    """Connect to a cluster, or start one here."""
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # its own lines beside our one
    quiet = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
    try:
        if address != "auto":
            ray.init(address=address, **quiet)
            return
        try:
            ray.init(address="auto", **quiet)
        except ConnectionError:
            n_cpus = workers or os.cpu_count() or 1
            ray.init(address="local", num_cpus=n_cpus, include_dashboard=False, **quiet)
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        raise ClusterError(
            f"no Ray cluster at {address!r}: {one_line(error):.300}; start one with ray start, or "
            "take --ray auto"
        ) from None
