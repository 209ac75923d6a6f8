"""Runs SQL that one does not trust over a snapshot: in a child process that can only read it.

`Lake.sql_untrusted` and `pico sql --untrusted` call `run`. It promises that the statement is one
that reads, that it sees the bytes of the snapshot's files and nothing else of this machine (no
other file, no variable, no environment, no network), that it ends within its time, memory and
temporary space, and that whatever goes wrong, a native abort included, is a `QueryError` of one
line here.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import IO, Any

import pyarrow as pa

from pico.errors import LakeError, QueryError, one_line
from pico.lake.snapshot import Snapshot
from pico.sql import confined, pipe

_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from pico.sql.confined import main; main()"
)
_START_SECONDS = 60.0
"""For starting the child and making its views; the query's own time comes after."""
_GRACE_SECONDS = 2.0
"""Between the interrupt inside the child and its end from outside."""
_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "LANG")
_UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
_SIZE = re.compile(r"\s*(\d{1,12}(?:\.\d{1,6})?)\s*([KMGT]?)(i?)B\s*", re.IGNORECASE)


def run(
    snapshot: Snapshot,
    statement: str,
    *,
    seconds: float = 60.0,
    memory_limit: str = "2GB",
    temp_limit: str = "1GB",
) -> pa.Table:
    """Run one SELECT statement over a snapshot and return its rows.

    Args:
        snapshot: the files that the statement may read.
        statement: SQL (also `FROM …`, `VALUES …`, `WITH …`); views and tensor functions as ever.
        seconds: time that the query may take.
        memory_limit: of DuckDB (`'2GB'`); the child's address space and the size of the answer
            are bounded by it too.
        temp_limit: space for temporary files, in a folder that is deleted afterwards.

    Raises:
        QueryError: the statement is not one SELECT, asks for what it may not have, fails, or goes
            beyond a limit; or its process dies.
    """
    memory_bytes, temp_bytes = _bytes(memory_limit), _bytes(temp_limit)
    if not 0 < seconds < 1e7:
        raise QueryError(f"the time limit must be a number of seconds above 0, not {seconds!r}")
    with tempfile.TemporaryDirectory(prefix="pico-untrusted-", ignore_cleanup_errors=True) as own:
        task = {
            "url": snapshot.storage.url,
            "entries": [asdict(entry) for entry in snapshot.all_files()],
            "statement": statement,
            "seconds": float(seconds),
            "threads": min(os.cpu_count() or 1, 4),
            "memory_limit": memory_limit,
            "memory_bytes": memory_bytes,
            "temp_limit": temp_limit,
            "temp_bytes": temp_bytes,
            "folder": own,
        }
        with _child(own) as child:
            return _converse(child, snapshot, task)


def _bytes(text: str) -> int:
    match = _SIZE.fullmatch(text)
    if match is None:
        raise QueryError(f"{text!r} is no size; give one such as '512MB' or '2GB'")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** _UNITS[match[2].upper()])


@contextmanager
def _child(folder: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start the child in an empty folder, with nothing of this process's environment."""
    kept = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    # Arrow's own allocators reserve address space ahead, which the child's limit counts.
    single = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    environment = {**kept, **single, "ARROW_DEFAULT_MEMORY_POOL": "system", "HOME": folder}
    search = [os.path.abspath(path) for path in sys.path]
    command = [sys.executable, "-I", "-c", _START, json.dumps(search)]
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd=folder,
        )
    except OSError as error:
        raise QueryError(f"cannot start a process for the query: {one_line(error)}") from None
    try:
        yield process
    finally:
        process.kill()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            with suppress(OSError):
                stream.close()
        process.wait()


def _converse(
    process: subprocess.Popen[bytes], snapshot: Snapshot, task: Mapping[str, Any]
) -> pa.Table:
    """Serve the child's reads and collect its rows."""
    assert process.stdin is not None and process.stdout is not None
    files = _Files(snapshot)
    pieces: list[pa.Table] = []
    room = int(task["memory_bytes"])
    with _Deadline(process, _START_SECONDS + task["seconds"]) as deadline:
        _send(process.stdin, pipe.TASK, json.dumps(task).encode(errors="replace"))
        while True:
            try:
                message = pipe.receive(process.stdout, room)
            except OverflowError:
                raise QueryError(
                    f"the answer is larger than the memory limit ({task['memory_limit']}); "
                    "add LIMIT, aggregate, or raise the limit"
                ) from None
            if message is None:
                raise QueryError(_obituary(process, deadline.is_over, task["seconds"]))
            kind, payload = message
            if kind == pipe.READY:
                deadline.set(task["seconds"] + _GRACE_SECONDS)
            elif kind == pipe.READ:
                _send(process.stdin, *files.read(payload))
            elif kind == pipe.ROWS:
                room -= len(payload)
                pieces.append(_rows(payload))
            elif kind == pipe.FAILURE:
                raise QueryError(payload.decode(errors="replace"))
            else:
                return pa.concat_tables(pieces)


def _send(file: IO[bytes], kind: str, payload: bytes) -> None:
    with suppress(BrokenPipeError):  # the end of its output says why
        pipe.send(file, kind, payload)


def _rows(payload: bytes) -> pa.Table:
    try:
        rows = pa.ipc.open_stream(payload).read_all()
        rows.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise QueryError(f"the query's process sent no rows: {one_line(error)}") from None
    return rows


def _obituary(process: subprocess.Popen[bytes], is_over: bool, seconds: float) -> str:
    """Say why the child is silent."""
    if is_over:
        return confined.timed_out(seconds)
    process.kill() if process.poll() is None else None
    code = process.wait()
    how = f"exit code {code}"
    if code < 0:
        with suppress(ValueError):
            how = signal.Signals(-code).name
    return (
        f"the query's process died ({how}); a damaged file, or too little memory: narrow the query "
        "or raise the memory limit"
    )


class _Files:
    """The bytes of a snapshot's files, and of nothing else."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._storage = snapshot.storage
        self._sizes = {entry.path: entry.bytes for entry in snapshot.all_files()}
        self._open: dict[str, pa.NativeFile] = {}

    def read(self, request: bytes) -> tuple[str, bytes]:
        """Return the answer to a child's request."""
        try:
            wanted = json.loads(request)
            path, start, stop = str(wanted["path"]), int(wanted["start"]), int(wanted["stop"])
            if path not in self._sizes or not 0 <= start <= stop <= self._sizes[path]:
                return pipe.FAILURE, b"the snapshot has no such bytes"
            if path not in self._open:
                if len(self._open) >= 64:
                    self._open.pop(next(iter(self._open))).close()
                self._open[path] = self._storage.open(path)
            file = self._open[path]
            file.seek(start)
            return pipe.DATA, bytes(file.read(stop - start))
        except FileNotFoundError:
            return pipe.FAILURE, f"{path} is missing although the log names it".encode()
        except (LakeError, OSError, ValueError, KeyError, TypeError) as error:
            return pipe.FAILURE, one_line(error).encode(errors="replace")


class _Deadline:
    """Kills a process when its time is over; a context manager."""

    def __init__(self, process: subprocess.Popen[bytes], seconds: float) -> None:
        self.is_over = False
        self._process = process
        self._timer = self._start(seconds)

    def __enter__(self) -> _Deadline:
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def set(self, seconds: float) -> None:
        """Count anew."""
        self._timer.cancel()
        self._timer = self._start(seconds)

    def _start(self, seconds: float) -> threading.Timer:
        timer = threading.Timer(seconds, self._expire)
        timer.daemon = True
        timer.start()
        return timer

    def _expire(self) -> None:
        self.is_over = True
        self._process.kill()
