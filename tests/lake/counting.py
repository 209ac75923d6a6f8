"""A storage that counts what is asked of it: for tests and benchmarks of how few requests do."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from pico.lake.storage import Storage

OPERATIONS = ("read", "open", "list", "paths", "is_empty", "create", "put", "put_new", "delete")


class CountingStorage(Storage):
    """Counts calls by operation; a call that another one makes inside is not counted twice."""

    def __init__(self, url: str) -> None:
        """Connect to `url` with nothing counted."""
        super().__init__(url)
        self.counts: Counter[str] = Counter()
        self.n_bytes_read = 0
        self._inside = threading.local()
        self._lock = threading.Lock()  # the log is read by several threads

    @property
    def n_operations(self) -> int:
        """All calls together."""
        return self.counts.total()

    def reset(self) -> None:
        """Forget what was counted."""
        self.counts.clear()
        self.n_bytes_read = 0

    def _call(self, name: str, method: Callable[..., Any], *args: Any, **options: Any) -> Any:
        if getattr(self._inside, "depth", False):
            return method(self, *args, **options)
        self._inside.depth = True
        try:
            answer = method(self, *args, **options)
        finally:
            self._inside.depth = False
            with self._lock:
                self.counts[name] += 1
        with self._lock:
            self.n_bytes_read += len(answer) if name == "read" else 0
        return answer


def _counted(name: str) -> Callable[..., Any]:
    method = getattr(Storage, name)

    def call(self: CountingStorage, *args: Any, **options: Any) -> Any:
        return self._call(name, method, *args, **options)

    return call


for _name in OPERATIONS:
    if hasattr(Storage, _name):
        setattr(CountingStorage, _name, _counted(_name))
