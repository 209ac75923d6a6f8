"""`python -m tests.train.killed N pico-arguments…`: run `pico`, and die by SIGKILL at a commit.

The process kills itself when it is about to publish the N-th commit of a training stream: the data
files of that commit stand in their tables, and the log does not name them.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from pico.cli import main
from pico.lake.storage import Storage


def die_at(number: int) -> None:
    publish, seen = Storage.put_new, [0]

    def put_new(self: Storage, path: str, data: bytes, *rest: Any) -> bool:
        if path.startswith("_log/train."):
            seen[0] += 1
            if seen[0] == number:
                os.kill(os.getpid(), signal.SIGKILL)
        return publish(self, path, data, *rest)

    Storage.put_new = put_new  # type: ignore[method-assign]


if __name__ == "__main__":
    die_at(int(sys.argv.pop(1)))
    main()
