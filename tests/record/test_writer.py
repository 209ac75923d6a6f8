"""The background writer: order, a bounded queue, and errors that reach the training loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pico import schema
from pico.errors import PicoError, RecordError, StorageError
from pico.lake.commit import Stream, Transaction
from pico.lake.storage import Storage
from pico.lake.table import write_rows
from pico.record.writer import BackgroundWriter, Job
from tests.train import tiny


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[Stream]:
    with Stream(Storage(str(tmp_path / "lake")), "train.tiny") as opened:
        yield opened


def scalar(step: int) -> Job:
    def job(transaction: Transaction) -> None:
        row = {"run_id": ["tiny"], "global_step": [step], "name": ["loss"], "value": [1.0]}
        write_rows(transaction, "scalars", {"run": "tiny"}, schema.table("scalars").batch(row))

    return job


def steps(tmp_path: Path) -> list[int]:
    return [row["global_step"] for row in tiny.rows(tmp_path / "lake", "scalars", "tiny")]


def test_jobs_between_two_commits_become_visible_together(stream: Stream, tmp_path: Path) -> None:
    writer = BackgroundWriter(stream)
    writer.put(scalar(0))
    writer.put(scalar(1))
    writer.commit()
    writer.put(scalar(2))
    writer.flush()
    assert steps(tmp_path) == [0, 1]
    assert len(list((tmp_path / "lake").glob("_log/train.tiny/*.parquet"))) == 1
    writer.commit()
    writer.close()
    assert steps(tmp_path) == [0, 1, 2]


def test_jobs_run_in_order_on_one_other_thread(stream: Stream) -> None:
    seen: list[tuple[int, str]] = []

    def job(number: int) -> Job:
        return lambda _: seen.append((number, threading.current_thread().name))

    writer = BackgroundWriter(stream)
    for number in range(50):
        writer.put(job(number), 1)
    writer.close()
    assert seen == [(number, "pico-writer") for number in range(50)]


def test_a_full_queue_makes_the_caller_wait(stream: Stream) -> None:
    gate, writer, done = threading.Event(), BackgroundWriter(stream, queue_bytes=10), []

    def job(_: Transaction) -> None:
        assert gate.wait(10)

    def fill() -> None:
        for number in range(4):
            writer.put(job, 6)
            done.append(number)

    filler = threading.Thread(target=fill)
    filler.start()
    time.sleep(0.1)
    assert done == [0]  # six bytes wait, six more would exceed ten
    gate.set()
    filler.join(10)
    assert done == [0, 1, 2, 3]
    writer.close()


def test_a_job_larger_than_the_queue_goes_alone(stream: Stream, tmp_path: Path) -> None:
    writer = BackgroundWriter(stream, queue_bytes=10)
    for step in range(3):
        writer.put(scalar(step), 1000)
    writer.commit()
    writer.close()
    assert steps(tmp_path) == [0, 1, 2]


def broken(error: BaseException) -> Job:
    def job(_: Transaction) -> None:
        raise error

    return job


@pytest.mark.parametrize("how", ["put", "commit", "flush", "close"])
def test_the_first_error_is_raised_by_every_later_call(
    stream: Stream, tmp_path: Path, how: str
) -> None:
    writer = BackgroundWriter(stream)
    writer.put(scalar(0))
    writer.commit()
    writer.put(scalar(1))
    writer.put(broken(ValueError("a\nbad\nvalue")))
    writer.put(broken(KeyError("a later one"))) if how == "close" else None
    call: dict[str, Any] = {
        "put": lambda: [writer.put(scalar(2)) or time.sleep(0.001) for _ in range(10_000)],
        "commit": lambda: [writer.commit() or time.sleep(0.001) for _ in range(10_000)],
        "flush": writer.flush,
        "close": writer.close,
    }
    for _ in range(2):
        with pytest.raises(
            RecordError, match=r"^writing to the lake failed: a bad value$"
        ) as caught:
            call[how]()
        assert isinstance(caught.value.__cause__, ValueError)
    if how != "close":
        with pytest.raises(RecordError):
            writer.close(discard=True)
    assert steps(tmp_path) == [0]  # what was committed before stays, the rest is gone


def test_errors_with_a_message_of_their_own_pass_as_they_are(stream: Stream) -> None:
    error = StorageError("the store is away")
    writer = BackgroundWriter(stream)
    writer.put(broken(error))
    with pytest.raises(PicoError) as caught:
        writer.flush()
    assert caught.value is error
    with pytest.raises(StorageError):
        writer.close()


def test_an_error_wakes_a_caller_that_waits(stream: Stream) -> None:
    gate, writer = threading.Event(), BackgroundWriter(stream, queue_bytes=1)

    def job(_: Transaction) -> None:
        gate.wait(10)
        raise ValueError("bad")

    writer.put(job, 1)
    threading.Timer(0.05, gate.set).start()
    with pytest.raises(RecordError, match="bad"):
        writer.put(scalar(0), 1)
    with pytest.raises(RecordError, match="bad"):
        writer.close()


def test_discarding_drops_the_queue_and_the_open_commit(stream: Stream, tmp_path: Path) -> None:
    gate, writer = threading.Event(), BackgroundWriter(stream)
    writer.put(scalar(0))
    writer.commit()
    writer.flush()
    writer.put(scalar(1))
    writer.put(lambda _: gate.wait(10) and None)
    writer.put(scalar(2))
    writer.commit()
    threading.Timer(0.05, gate.set).start()
    writer.close(discard=True)
    assert steps(tmp_path) == [0]
    assert len(list((tmp_path / "lake" / "scalars").rglob("*.parquet"))) == 1
    with pytest.raises(RecordError, match="the recorder is closed"):
        writer.put(scalar(3))
