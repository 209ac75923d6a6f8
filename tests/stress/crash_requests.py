"""The same as `crash_points`, on an object store: the process dies before or after each request.

After means: the store did as it was asked, and nobody heard the answer. Intercepted is the one
method of the client library through which every request passes, so nothing passes by.
"""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aiobotocore.client import AioBaseClient

from pico.lake.storage import Storage
from tests.stress import crash_points, forks, small_run
from tests.stress.crash_shim import CRASHED
from tests.stress.small_run import RUN, Shown

STEPS = 2
RECORD = {"checkpoints": {"every": 1}, "gradients": {"every": 1}}


def reference() -> list[Shown]:
    """Return what each commit of an uninterrupted run shows, on a local disk."""
    folder = Path(tempfile.mkdtemp(prefix="pico-crash-"))
    storage = Storage(str(folder / "lake"))
    small_run.train(storage, folder / "told", RUN, STEPS, RECORD)
    return small_run.prefixes(storage)


def count(bucket: str, env: Mapping[str, str]) -> list[str]:
    """Train without interruption; returns the requests in order."""
    os.environ.update(env)
    requests = _stop_at(None, False)
    folder = Path(tempfile.mkdtemp(prefix="pico-crash-"))
    storage = Storage(f"s3://{bucket}/{uuid.uuid4().hex}")
    small_run.train(storage, folder / "told", RUN, STEPS, RECORD)
    return requests


def one_crash(
    number: int, is_done: bool, bucket: str, env: Mapping[str, str], wanted: list[Shown]
) -> None:
    """Crash before or after one request; then look, resume and compare."""
    os.environ.update(env)
    folder = Path(tempfile.mkdtemp(prefix="pico-crash-"))
    url = f"s3://{bucket}/{uuid.uuid4().hex}"
    assert forks.crash(_train, url, folder, number, is_done) == CRASHED
    storage = Storage(url)
    there = crash_points.transactions(storage, folder / "told")
    assert crash_points.shows(storage, wanted[len(there)])
    crash_points.assert_whole(storage)
    crash_points.finish(storage, folder, wanted, n_steps=STEPS, record=RECORD)


def _train(url: str, folder: Path, number: int, is_done: bool) -> None:
    _stop_at(number, is_done)
    small_run.train(Storage(url), folder / "told", RUN, STEPS, RECORD)


def _stop_at(number: int | None, is_done: bool) -> list[str]:
    """Let the process end before the given request is sent, or before its answer is heard."""
    request, seen = AioBaseClient._make_api_call, []

    async def counted(self: Any, operation: str, parameters: Any) -> Any:
        is_last = len(seen) == number
        seen.append(operation)
        if is_last and not is_done:
            os._exit(CRASHED)
        try:
            return await request(self, operation, parameters)
        finally:
            if is_last:
                os._exit(CRASHED)

    AioBaseClient._make_api_call = counted
    return seen
