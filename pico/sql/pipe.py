"""Messages between a process and the child that runs an untrusted query for it.

`untrusted` and `confined` call it. A message is a kind (one letter), a length and bytes; nothing in
it is unpickled, and the receiver says how long a message may be.
"""

from __future__ import annotations

import struct
from typing import IO

TASK = "T"
"""Parent to child: what to run, as JSON."""
READY = "R"
"""Child to parent: the session stands, the query begins."""
READ = "?"
"""Child to parent: give me these bytes of a file, as JSON."""
DATA = "D"
"""Parent to child: the bytes."""
ROWS = "B"
"""Child to parent: some rows of the answer, as an Arrow stream."""
FAILURE = "E"
"""Either way: why it cannot be done, in UTF-8."""
DONE = "."
"""Child to parent: that was all."""

_HEAD = struct.Struct("<cQ")


def send(file: IO[bytes], kind: str, payload: bytes = b"") -> None:
    """Write a message."""
    file.write(_HEAD.pack(kind.encode(), len(payload)))
    file.write(payload)
    file.flush()


def receive(file: IO[bytes], longest: int) -> tuple[str, bytes] | None:
    """Return kind and bytes of the next message; None when the other side has closed.

    Raises:
        OverflowError: for a message longer than `longest`.
    """
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        return None
    kind, length = _HEAD.unpack(head)
    if length > longest:
        raise OverflowError(f"a message of {length} bytes")
    payload = file.read(length)
    return None if len(payload) < length else (kind.decode("latin-1"), payload)
