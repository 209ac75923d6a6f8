"""Torch's `.pt` files, opened by a child process (`ptchild`) and never in this one.

Importers read through a `PtReader`. It promises that a file which is broken, hostile or too large
ends in a `DataError` of one line, and that nothing but tensors and plain values comes of it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from pico.errors import DataError, MissingExtraError, one_line, printable
from pico.importers import tensorfile
from pico.lake import codec

_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from pico.importers.ptchild import main; main()"
)
_START_SECONDS = 180.0
"""For importing torch, which takes long where the disk is cold."""
_SECONDS, _BYTES_PER_SECOND = 60.0, 10e6
_SPARE = 4 << 30
"""Memory beyond three times the file: what torch itself takes."""
_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "LANG")


@dataclass(frozen=True)
class PtFile:
    """What a `.pt` file holds."""

    tensors: dict[str, codec.Tensor]
    """By name; keys of nested mappings are joined by `/`."""
    facts: Any
    """The same structure with plain values: numbers and texts; None for everything else."""


class PtReader:
    """Reads `.pt` files, all with one child process; a context manager."""

    def __init__(self, largest: int, seconds: float | None = None) -> None:
        """Prepare for files of at most `largest` bytes; the child starts with the first.

        Args:
            largest: decides how much memory the child may take.
            seconds: time for one file; by default a minute and what its size warrants.
        """
        self._largest, self._seconds = largest, seconds
        self._process: subprocess.Popen[str] | None = None
        self._folder = ""
        self._n_read = 0

    def __enter__(self) -> PtReader:
        """Return the reader itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """End the child and delete what it wrote."""
        self.close()

    def read(self, path: str | os.PathLike[str], keys: Sequence[str] | None = None) -> PtFile:
        """Return what a file holds.

        Args:
            path: a file that `torch.save` wrote.
            keys: top-level keys whose tensors are wanted; by default all.

        Raises:
            DataError: if it is broken, holds more than tensors and plain values, or takes too
                much time or memory.
            MissingExtraError: without torch.
        """
        path = Path(path).absolute()
        if not path.is_file():
            raise DataError(f"no file {path}")
        process = self._started()
        self._n_read += 1
        out = Path(self._folder, f"{self._n_read}.safetensors")
        request = {"path": str(path), "out": str(out), "keys": None if keys is None else list(keys)}
        assert process.stdin is not None
        with suppress(OSError):  # the missing answer says that it died
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        seconds = self._seconds or _SECONDS + path.stat().st_size / _BYTES_PER_SECOND
        answer = self._answer(f"cannot read {path}", seconds)
        if "error" in answer:
            raise DataError(f"cannot read {path}: {printable(str(answer['error']))}")
        tensors = tensorfile.read(out)
        with suppress(OSError):  # its bytes stay mapped; some systems delete no mapped file
            out.unlink()
        return PtFile(tensors, answer.get("facts"))

    def close(self) -> None:
        """End the child; a second call does nothing."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            with suppress(OSError):
                stream.close()
        process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _started(self) -> subprocess.Popen[str]:
        """Return the child, started in an empty folder with nothing of this environment."""
        if self._process is not None:
            return self._process
        _require_torch()
        self._folder = tempfile.mkdtemp(prefix="pico-import-")
        kept = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        environment = {**kept, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HOME": self._folder}
        search = json.dumps([os.path.abspath(path) for path in sys.path])
        limit = str(3 * self._largest + _SPARE)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", _START, search, limit],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                cwd=self._folder,
                encoding="utf-8",
            )
        except OSError as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise DataError(f"cannot start a process to read with: {one_line(error)}") from None
        self._answer("cannot start torch to read .pt files", _START_SECONDS)
        return self._process

    def _answer(self, doing: str, seconds: float) -> dict[str, Any]:
        """Wait for a line of the child; a child that is silent for too long is ended."""
        process = self._process
        assert process is not None and process.stdout is not None
        is_over = threading.Event()

        def expire() -> None:
            is_over.set()
            process.kill()

        timer = threading.Timer(seconds, expire)
        timer.daemon = True
        timer.start()
        try:
            answer = json.loads(process.stdout.readline())
        except ValueError:
            answer = None
        finally:
            timer.cancel()
        if isinstance(answer, dict):
            return answer
        self.close()
        if is_over.is_set():
            raise DataError(f"{doing}: it takes longer than {seconds:.0f} s")
        raise DataError(
            f"{doing}: the process that read it died (exit code {process.returncode}); the file "
            "is damaged, hostile, or needs too much memory"
        )


def _require_torch() -> None:
    import importlib.util

    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError("torch", "train")
