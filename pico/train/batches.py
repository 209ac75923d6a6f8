"""The batches of a run, prepared ahead by worker processes where the config asks for them.

The trainer asks `Batches.at(step)`, step after step. Which rows a step sees depends on the step
alone, so workers change when they are read, never what is read. Workers are started afresh (spawn):
a fork would copy the threads of Arrow and torch in the middle of their work. They are given the
loader through a pipe, storage options with it; nothing of that is written anywhere.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import DataLoader, Dataset

from pico.data.loader import Loader
from pico.errors import ConfigError, DataError, PicoError, one_line
from pico.lake.storage import Storage

Batch: TypeAlias = tuple[list[int], npt.NDArray[np.int64]]

_AHEAD = 2
"""Batches that each worker keeps ready."""


class Batches:
    """The batches of consecutive steps; a context manager that leaves no process behind."""

    def __init__(self, loader: Loader, first: int, stop: int, n_workers: int) -> None:
        """Start the workers, if any.

        Args:
            loader: what a batch is made of.
            first: the first step that will be asked for.
            stop: the step after the last one.
            n_workers: processes that prepare batches; with 0, the calling one does.
        """
        self._loader = loader
        self._coming: Iterator[Any] | None = None
        if n_workers and first < stop:
            self._coming = _started(loader, first, stop, n_workers)

    def __enter__(self) -> Batches:
        """Return the object itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the workers."""
        self._coming = None

    def at(self, step: int) -> Batch:
        """Return the sequence ids of a step and their tokens `(batch_size, seq_len + 1)`.

        Raises:
            PicoError: what went wrong while the batch was read, be it in a worker.
            DataError: if a worker was killed.
        """
        if self._coming is None:
            return self._loader.batch(step)
        try:
            found = next(self._coming)
        except RuntimeError as error:  # torch's word for a worker that is gone
            raise DataError(
                f"a data worker ended while step {step} was read: {one_line(error)}; resume the "
                "run, with fewer data.workers if memory was short"
            ) from None
        if isinstance(found, _Failure):
            raise found.kind(found.message)
        at, ids, rows = found
        assert at == step, f"the workers bring step {at}, not {step}"
        return ids, rows


def check(storage: Storage, n_workers: int) -> None:
    """Refuse workers for a lake that other processes cannot see.

    Raises:
        ConfigError: for a lake in memory.
    """
    if n_workers and storage.url.startswith("memory:"):
        raise ConfigError(
            f"data.workers is {n_workers}, but other processes cannot read {storage.url}; "
            "set data.workers=0, or put the lake on a disk or an object store"
        )


class _Failure:
    """What a worker says instead of a batch: an error, without the traceback of its process."""

    def __init__(self, error: Exception) -> None:
        has_plain_message = isinstance(error, PicoError) and error.args == (str(error),)
        self.kind = type(error) if has_plain_message else DataError
        self.message = str(error) if has_plain_message else f"a data worker: {one_line(error)}"


class _Steps(Dataset[Any]):
    """Batches by step, as torch's loader wants them."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __getitem__(self, step: int) -> Any:
        try:
            return (step, *self._loader.batch(step))
        except Exception as error:
            return _Failure(error)


def _started(loader: Loader, first: int, stop: int, n_workers: int) -> Iterator[Any]:
    batches = DataLoader(
        _Steps(loader.shared_by(n_workers)),
        batch_size=None,
        sampler=range(first, stop),
        num_workers=n_workers,
        prefetch_factor=_AHEAD,
        collate_fn=_as_it_is,
        multiprocessing_context="spawn",
        generator=torch.Generator(),  # else its seed is drawn from the one that makes dropout masks
    )
    with _signals_for_us_alone():
        return iter(batches)


def _as_it_is(batch: Any) -> Any:
    return batch


@contextmanager
def _signals_for_us_alone() -> Iterator[None]:
    """Let processes started meanwhile never see Ctrl-C or SIGTERM, nor their end interrupt us.

    A terminal sends Ctrl-C to workers as well, which would die while the step under way still
    needs them. torch's handler of SIGCHLD raises wherever training happens to be; `at` looks.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # it changes the mask when it starts
    is_main = threading.current_thread() is threading.main_thread()
    at_end_of_child = signal.getsignal(signal.SIGCHLD)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        if is_main and at_end_of_child is not None:
            signal.signal(signal.SIGCHLD, at_end_of_child)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
