"""Functions run in fresh processes that have torch and `pico` imported already.

A server process imports once and is forked per call, so that a call costs milliseconds and starts
without threads: it may fork again, be killed, or end by `os._exit`, and disturbs nobody.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.stress.preload"])


def start(function: Callable[..., Any], *arguments: Any) -> tuple[BaseProcess, Connection]:
    """Start a function in a process; `answer` waits for what it returns."""
    os.environ["OMP_NUM_THREADS"] = "1"
    ours, theirs = _CONTEXT.Pipe()
    process = _CONTEXT.Process(target=_run, args=(theirs, function, arguments), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def answer(process: BaseProcess, pipe: Connection, seconds: float = 120) -> Any:
    """Return what the function returned.

    Raises:
        AssertionError: with the traceback, if it raised or took too long.
        EOFError: if the process died before it could answer.
    """
    try:
        if not pipe.poll(seconds):
            process.kill()
            raise AssertionError(f"no answer within {seconds} s")
        is_good, value = pipe.recv()
    finally:
        pipe.close()
        process.join()
    if not is_good:
        raise AssertionError(value)
    return value


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a function in a process and return what it returns."""
    return answer(*start(function, *arguments))


def each(
    function: Callable[..., Any], cases: Iterable[tuple[Any, ...]], at_once: int = 1
) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Run a function for many cases; yields each case with its value or its `AssertionError`."""
    todo, running = iter(cases), {}
    while True:
        while len(running) < at_once and (case := next(todo, None)) is not None:
            process, pipe = start(function, *case)
            running[pipe] = (case, process)
        if not running:
            return
        for pipe in wait(list(running)):
            case, process = running.pop(pipe)
            try:
                yield case, answer(process, pipe)
            except (AssertionError, EOFError) as error:
                yield case, error


def crash(function: Callable[..., Any], *arguments: Any) -> int:
    """Fork this process, run a function in the child, and return the child's exit code.

    Only for processes that have no threads yet, which those of `call` and `each` are.
    """
    child = os.fork()
    if child == 0:
        code = 1
        try:
            function(*arguments)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _run(pipe: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("ignore")
    try:
        message = (True, function(*arguments))
    except BaseException:
        message = (False, traceback.format_exc())
    try:
        pipe.send(message)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
