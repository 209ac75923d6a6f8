"""The child process of an untrusted query: it runs one SELECT, with as little power as there is.

`untrusted` starts it with a task on standard input and reads rows from its standard output. The
child opens no file of the lake: it asks its parent for bytes, and the parent gives bytes of the
snapshot's files alone. What a statement may be is decided by DuckDB's own parser, not by looking at
words; since DuckDB 2.0 a SELECT may hold INSERT, DELETE and COPY in its WITH, and a path that may
be read by `allowed_paths` may be written too.
"""

from __future__ import annotations

import io
import json
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, BinaryIO

import duckdb
import pyarrow as pa

from pico.errors import PicoError, QueryError, one_line
from pico.lake.log import Entry
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage, StoredFile, filesystem_of
from pico.metrics import plugins
from pico.sql import pipe, session, statements

_READS = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}
_BATCH_ROWS = 1 << 14
_LONGEST = 1 << 31
_SPARE = 1 << 30
"""Address space beyond what DuckDB may use: Python, Arrow, the tensor functions."""
_TALKING = threading.Lock()
"""Held while a message is sent, and until a question is answered: DuckDB's threads ask at will."""


class _Served(Storage):
    """The files of a snapshot, each byte asked of the parent."""

    def __init__(
        self, url: str, sizes: Mapping[str, int], source: BinaryIO, sink: BinaryIO
    ) -> None:
        self.url, self.folder, self._sizes = url, None, dict(sizes)
        self._source, self._sink = source, sink

    def snapshot_filesystem(self, files: Mapping[str, int]) -> tuple[Any, str]:
        return filesystem_of(self._ask, files)

    def list(self, prefix: str) -> list[StoredFile]:
        return [
            StoredFile(path, size, 0.0)
            for path, size in sorted(self._sizes.items())
            if path.startswith(f"{prefix}/")
        ]

    def open(self, path: str, size: int | None = None) -> pa.NativeFile:
        filesystem, _ = self.snapshot_filesystem(self._sizes)
        return pa.PythonFile(filesystem.open(path, "rb"), mode="r")

    def _ask(self, path: str, start: int, stop: int) -> bytes:
        request = json.dumps({"path": path, "start": start, "stop": stop}).encode()
        with _TALKING:
            pipe.send(self._sink, pipe.READ, request)
            answer = pipe.receive(self._source, _LONGEST)
        if answer is None:
            raise OSError("the process that asked is gone")
        kind, payload = answer
        if kind != pipe.DATA:
            raise OSError(payload.decode(errors="replace"))
        return payload


def main() -> None:
    """Run the task that stands on standard input; the parent reads what comes of it."""
    plugins.forbid()
    source, sink = _private_streams()
    try:
        message = pipe.receive(source, _LONGEST)
        assert message is not None and message[0] == pipe.TASK
        for rows in _answer(json.loads(message[1]), source, sink):
            _tell(sink, pipe.ROWS, rows)
        _tell(sink, pipe.DONE)
    except PicoError as error:
        _tell(sink, pipe.FAILURE, str(error).encode(errors="replace"))
    except (MemoryError, pa.ArrowMemoryError):
        _tell(sink, pipe.FAILURE, b"out of memory; narrow the query or raise the memory limit")
    except KeyboardInterrupt:
        _tell(sink, pipe.FAILURE, b"interrupted")
    except Exception as error:
        text = f"{type(error).__name__}: {one_line(error)}"
        _tell(sink, pipe.FAILURE, text.encode(errors="replace"))
    os._exit(0)  # whatever native threads still do


def _tell(sink: BinaryIO, kind: str, payload: bytes = b"") -> None:
    with _TALKING:
        pipe.send(sink, kind, payload)


def check(connection: duckdb.DuckDBPyConnection, statement: str) -> None:
    """Refuse what is not exactly one statement that only reads.

    Raises:
        QueryError: saying what it is instead.
    """
    if "\0" in statement:
        raise QueryError("an untrusted query holds no NUL")  # parsers may differ on what follows
    with statements.guarded():
        found = connection.extract_statements(statement)
    if len(found) != 1:
        raise QueryError(f"an untrusted query is one SELECT statement, not {len(found)} statements")
    if found[0].type != duckdb.StatementType.SELECT:
        raise QueryError(
            f"an untrusted query is a SELECT statement, not {found[0].type.name.replace('_', ' ')}"
        )
    with statements.guarded():
        rows = connection.execute("SELECT json_serialize_sql($1)", [statement]).fetchall()
    try:
        tree = json.loads(rows[0][0])
    except RecursionError:
        raise QueryError("the query is nested too deeply") from None
    if tree.get("error", True):
        raise QueryError(f"the query cannot be checked: {tree.get('error_message', 'no SELECT')}")
    todo = [tree]
    while todo:
        item = todo.pop()
        if isinstance(item, dict):
            kind = item.get("type")
            if isinstance(kind, str) and kind.endswith("_NODE") and kind not in _READS:
                what = kind.removesuffix("_NODE").removesuffix("_QUERY")
                raise QueryError(f"an untrusted query only reads; this one holds {what}")
            todo += item.values()
        elif isinstance(item, list):
            todo += item


def _answer(task: Mapping[str, Any], source: BinaryIO, sink: BinaryIO) -> Iterator[bytes]:
    """Yield the rows of the answer as Arrow streams."""
    _limit(task)
    entries = [Entry(**entry) for entry in task["entries"]]
    sizes = {entry.path: entry.bytes for entry in entries}
    snapshot = Snapshot(_Served(task["url"], sizes, source, sink), entries)
    connection = session.connect(
        snapshot, threads=task["threads"], memory_limit=task["memory_limit"]
    )
    _lock_up(connection, task)
    check(connection, task["statement"])
    timer = threading.Timer(task["seconds"], connection.interrupt)
    timer.daemon = True
    timer.start()
    _tell(sink, pipe.READY)
    try:
        relation = statements.query(connection, task["statement"])
        with statements.guarded():
            reader = relation.to_arrow_reader(_BATCH_ROWS)
            yield _stream(reader.schema, None)
            for batch in reader:
                yield _stream(reader.schema, batch)
    except (KeyboardInterrupt, QueryError, OSError, pa.ArrowException) as error:
        if not timer.is_alive() or "Interrupted" in str(error):
            raise QueryError(timed_out(task["seconds"])) from None
        if isinstance(error, (QueryError, KeyboardInterrupt, pa.ArrowMemoryError)):
            raise
        raise QueryError(one_line(error)) from None


def timed_out(seconds: float) -> str:
    """Return what is said of a query that ran too long."""
    return f"the query ran longer than {seconds:g} s and was stopped; narrow it or raise the limit"


def _stream(schema: pa.Schema, batch: pa.RecordBatch | None) -> bytes:
    buffer = io.BytesIO()
    with pa.ipc.new_stream(buffer, schema) as writer:
        if batch is not None:
            writer.write_batch(batch)
    return buffer.getvalue()


def _lock_up(connection: duckdb.DuckDBPyConnection, task: Mapping[str, Any]) -> None:
    """Take from a session everything that its views do not need, for good."""
    paths = ", ".join(session.quote(f"picosnap://{entry['path']}") for entry in task["entries"])
    settings = {
        "python_enable_replacements": "false",
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "temp_directory": session.quote(task["folder"]),
        "max_temp_directory_size": session.quote(task["temp_limit"]),
        "allowed_paths": f"[{paths}]",
        "enable_external_access": "false",
        "lock_configuration": "true",
    }
    try:
        for name, value in settings.items():
            connection.execute(f"SET {name} = {value}")
    except duckdb.Error as error:
        raise QueryError(f"DuckDB refuses {name}: {statements.message(error)}") from None


def _limit(task: Mapping[str, Any]) -> None:
    """Bound what the process can take of the machine, where the platform can."""
    try:
        import resource
    except ImportError:
        return
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError, ValueError):
        seconds = int(task["seconds"] * task["threads"]) + 60
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_FSIZE, (task["temp_bytes"], task["temp_bytes"]))
    with suppress(OSError, ValueError):
        with open("/proc/self/statm") as statm:
            now = int(statm.read().split()[0]) * resource.getpagesize()
        most = now + task["memory_bytes"] + _SPARE + task["threads"] * (128 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _private_streams() -> tuple[BinaryIO, BinaryIO]:
    """Return the streams to the parent; what else is printed in this process goes nowhere."""
    source, sink = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    sys.stdin = sys.stdout = sys.stderr = open(os.devnull, "r+")  # noqa: SIM115 (for life)
    return source, sink
