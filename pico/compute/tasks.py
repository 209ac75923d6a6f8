"""The work of computing metrics, cut into tasks that any engine can run: threads here, or Ray.

`missing` makes jobs of what a run lacks, `cut` makes tasks of jobs, a `Performer` does one. A task
is the row groups to read and the metrics wanted of the tensors in them; it is small, carries no
values, and can be done again with the same result, so that a lost worker costs time alone. An
`Engine` takes tasks and yields what came of them, in any order.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import pyarrow as pa
import threadpoolctl

from pico.compute.asked import Label
from pico.lake.groups import GroupReader, StoredTensor
from pico.lake.storage import Storage
from pico.metrics import registry

Values: TypeAlias = dict[Label, float]
Done: TypeAlias = list[tuple[str, Values]]
"""What came of a task: by tensor hash (of a pair both) the values."""
Convert: TypeAlias = Callable[[Any], Any]
"""Brings a numpy array to where metrics are computed."""

TASK_BYTES = 8 << 20
"""A task is closed once the row groups that it reads have this size, …"""
TASK_VALUES = 512
"""… or it makes so many values; row groups stay whole."""
STACK_BYTES = 7 << 18
"""Tensors up to this size together (1.75 MiB as float32, three of 384 x 384) …"""
STACK_TENSORS = 6
"""… and up to so many are computed in one go, in which numpy gives up Python's lock as it does not
for a small one; larger ones alone."""
KEPT_BYTES = 64 << 20
"""Decoded row groups of references that each worker keeps."""


@dataclass(frozen=True)
class Job:
    """One tensor, or one pair, and the metrics wanted of it."""

    tensor_hash: str
    tensor: StoredTensor
    reference: StoredTensor | None
    labels: tuple[Label, ...]
    n_bytes: int
    """Stored bytes of values in its row group."""


@dataclass(frozen=True)
class Task:
    """Jobs that one worker does in turn, each row group of theirs in one go."""

    jobs: tuple[Job, ...]


class Engine(Protocol):
    """Runs tasks."""

    def __call__(self, storage: Storage, tasks: Iterable[Task]) -> Iterator[Done]:
        """Yield what came of each task, in any order; takes tasks only as it can do them."""
        ...


def cut(jobs: Iterable[Job], n_values: int = TASK_VALUES) -> Iterator[Task]:
    """Cut jobs into tasks; jobs in a row that share a row group stay together.

    Args:
        jobs: in the order in which their row groups are to be read.
        n_values: number of values after which a task is closed.
    """
    pending: list[Job] = []
    size = made = 0
    for job in jobs:
        is_further = bool(pending) and _place(job) == _place(pending[-1])
        if pending and not is_further and (size >= TASK_BYTES or made >= n_values):
            yield Task(tuple(pending))
            pending, size, made = [], 0, 0
        pending.append(job)
        made += len(job.labels)
        size += 0 if is_further else job.n_bytes
    if pending:
        yield Task(tuple(pending))


def _place(job: Job) -> tuple[str, int]:
    piece = job.tensor.pieces[-1]
    return piece.entry.path, piece.group


class Performer:
    """Does tasks; any number of threads may share one, each has its own readers."""

    def __init__(self, storage: Storage, convert: Convert | None = None) -> None:
        """Prepare for tasks of one lake.

        Args:
            storage: the lake.
            convert: brings an array to another device; by default they stay numpy's.
        """
        self._storage, self._convert = storage, convert or (lambda array: array)
        self._own = threading.local()

    def __call__(self, task: Task) -> Done:
        """Read the row groups of a task, one at a time, and compute."""
        own, references = self._readers()
        done: Done = []
        try:
            for jobs in stacked(task.jobs):
                read = [self._convert(own.tensor(job.tensor).to_numpy()) for job in jobs]
                if jobs[0].reference is None:
                    values = _computed(jobs[0].labels, read)
                else:
                    other = self._convert(references.tensor(jobs[0].reference).to_numpy())
                    values = [{each: _compared(each, read[0], other) for each in jobs[0].labels}]
                done.extend(zip((job.tensor_hash for job in jobs), values, strict=True))
        finally:
            own.close()
            references.close()
        return done

    def _readers(self) -> tuple[GroupReader, GroupReader]:
        if not hasattr(self._own, "readers"):
            kept = GroupReader(self._storage, KEPT_BYTES)
            self._own.readers = GroupReader(self._storage), kept
        readers: tuple[GroupReader, GroupReader] = self._own.readers
        return readers


def stacked(jobs: Iterable[Job]) -> Iterator[list[Job]]:
    """Put jobs in a row together whose tensors are small and want the same metrics; pairs alone."""
    pending: list[Job] = []
    size = 0
    for job in jobs:
        n_bytes = 4 * math.prod(job.tensor.shape)
        fits = size + n_bytes <= STACK_BYTES and len(pending) < STACK_TENSORS
        if pending and not (fits and _is_alike(job, pending[0])):
            yield pending
            pending, size = [], 0
        pending.append(job)
        size += n_bytes
    if pending:
        yield pending


def _is_alike(job: Job, other: Job) -> bool:
    return job.reference is None is other.reference and job.labels == other.labels


def _computed(labels: Sequence[Label], tensors: Sequence[Any]) -> list[Values]:
    names = {name: (name, args, version) for name, args, version in labels}
    found = registry.compute_many(tensors, list(names))
    return [{names[name]: value for name, value in each.items()} for each in found]


def _compared(label: Label, array: Any, other: Any) -> float:
    name, args, _ = label
    arguments: Mapping[str, Any] = json.loads(args) if args else {}
    return registry.get(name).function(array, other, **arguments)


class Threads:
    """The engine of one machine: threads that compute with one BLAS thread each.

    Threads suffice because what takes the time (LAPACK, sorting, decoding, hashing) lets go of
    Python's lock, and they share the user's own metrics and one import of everything.
    """

    def __init__(self, workers: int | None = None, convert: Convert | None = None) -> None:
        """Take that many threads, by default one per core."""
        self.workers = workers or os.cpu_count() or 1
        self._convert = convert

    def __call__(self, storage: Storage, tasks: Iterable[Task]) -> Iterator[Done]:
        """Yield what came of each task; what is begun when the caller stops is finished."""
        perform = Performer(storage, self._convert)
        with worker_settings(), ThreadPoolExecutor(self.workers) as pool:
            yield from spread(tasks, lambda task: pool.submit(perform, task), self.workers + 1)


@contextlib.contextmanager
def worker_settings() -> Iterator[None]:
    """Set this process up for workers, for as long as the context lasts.

    BLAS gets one thread, since there are as many workers as cores. Arrow takes memory from the
    system, which gives that of a large tensor back at once: its own pools hold on to what the
    steps of decoding needed (measured: 1,014 MB at the peak of reading 155 MB, against 837).
    """
    pool = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        with threadpoolctl.threadpool_limits(1, user_api="blas"):
            yield
    finally:
        pa.set_memory_pool(pool)


def spread(
    tasks: Iterable[Task], submit: Callable[[Task], Future[Done]], n_ahead: int
) -> Iterator[Done]:
    """Keep so many tasks submitted, and yield results as they come."""
    running: set[Future[Done]] = set()
    ready: deque[Done] = deque()
    todo = iter(tasks)
    try:
        while True:
            while len(running) < n_ahead and (task := next(todo, None)) is not None:
                running.add(submit(task))
            if not running:
                return
            finished, running = wait(running, return_when=FIRST_COMPLETED)
            ready.extend(future.result() for future in finished)
            while ready:
                yield ready.popleft()
    finally:
        for future in running:
            future.cancel()


def by_reference(jobs: Sequence[Job]) -> list[Job]:
    """Order pairs so that what is compared with the same row group is done in one go."""

    def place(job: Job) -> tuple[str, int, str, int]:
        mine, other = job.tensor.pieces[0], (job.reference or job.tensor).pieces[0]
        return other.entry.path, other.group, mine.entry.path, mine.group

    return sorted(jobs, key=place)
