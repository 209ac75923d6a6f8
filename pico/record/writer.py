"""The background writer: a bounded queue between the training loop and the lake.

`Recorder` puts jobs; one thread runs them in order, each on the open transaction, and commits when
told to. A full queue makes training wait: nothing is ever dropped. The first error stops the
thread, and every later call raises it, so that training stops with its cause.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from pico.errors import PicoError, RecordError, one_line
from pico.lake.commit import Stream, Transaction

Job = Callable[[Transaction], None]

QUEUE_BYTES = 1 << 30
"""Tensor bytes that may wait in the queue."""


class BackgroundWriter:
    """Runs write jobs on one thread, in the order in which they were put."""

    def __init__(self, stream: Stream, queue_bytes: int = QUEUE_BYTES) -> None:
        """Start the thread for an open stream."""
        self._stream = stream
        self._limit = queue_bytes
        self._jobs: deque[tuple[Job | None, int]] = deque()
        self._waiting_bytes = 0
        self._busy = False
        self._closing = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="pico-writer", daemon=True)
        self._thread.start()

    def put(self, job: Job, n_bytes: int = 0) -> None:
        """Queue a job that holds `n_bytes` of tensors; waits while the queue is full.

        Raises:
            PicoError: the error that stopped the writer.
        """
        self._enqueue(job, n_bytes)

    def commit(self) -> None:
        """Queue a commit of everything put before."""
        self._enqueue(None, 0)

    def flush(self) -> None:
        """Wait until everything queued is in the lake."""
        with self._changed:
            self._changed.wait_for(lambda: self._error or not (self._jobs or self._busy))
            self._raise()

    def close(self, discard: bool = False) -> None:
        """Finish the queue (or drop it), stop the thread, raise its error if it had one."""
        with self._changed:
            if discard:
                self._jobs.clear()
                self._waiting_bytes = 0
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        self._raise()

    def _enqueue(self, job: Job | None, n_bytes: int) -> None:
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._error
                    or self._waiting_bytes == 0
                    or self._waiting_bytes + n_bytes <= self._limit
                )
            )
            self._raise()
            if self._closing:
                raise RecordError("the recorder is closed; nothing more can be recorded")
            self._jobs.append((job, n_bytes))
            self._waiting_bytes += n_bytes
            self._changed.notify_all()

    def _raise(self) -> None:
        error = self._error
        if error is None:
            return
        if isinstance(error, PicoError):
            raise error
        raise RecordError(f"writing to the lake failed: {one_line(error)}") from error

    def _run(self) -> None:
        transaction = self._stream.begin()
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._jobs or self._closing)
                    if not self._jobs:
                        break
                    job, n_bytes = self._jobs.popleft()
                    self._busy = True
                if job is None:
                    transaction.commit()
                    transaction = self._stream.begin()
                else:
                    job(transaction)
                del job
                with self._changed:
                    self._busy = False
                    self._waiting_bytes -= n_bytes
                    self._changed.notify_all()
        except BaseException as error:  # the thread must not die silently: `_raise` tells
            with self._changed:
                self._error = error
                self._jobs.clear()
                self._busy = False
                self._changed.notify_all()
        finally:
            transaction.rollback()
