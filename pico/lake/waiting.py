"""Waiting for a stream that another process holds, for writers that make what others may make too.

`corpus` (a data set), `probes` and `derived` (stale rows) call it: what they are about to write is
either there already, or another process is writing the same under the lease that they need.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from pico.errors import LeaseError

T = TypeVar("T")


def wait_for(attempt: Callable[[], T | None], patience: float, pause: float) -> T:
    """Call `attempt` until it answers; while a lease is refused to it, wait.

    Args:
        attempt: returns what is wanted, or None to be called again at once.
        patience: seconds after which a refused lease is an error.
        pause: seconds between two tries.

    Raises:
        LeaseError: the last refusal.
    """
    deadline = time.monotonic() + patience
    while True:
        try:
            answer = attempt()
        except LeaseError:
            if time.monotonic() > deadline:
                raise
            time.sleep(pause)
            continue
        if answer is not None:
            return answer
