"""Commits that were made and are gone, or stand in another's place, are told and never built on."""

import os
import threading

import pytest

import pico
from pico.errors import ConfigError, CorruptError
from pico.lake import log
from pico.lake.commit import Stream
from pico.lake.snapshot import Snapshot
from pico.upkeep.gc import age, gc
from pico.upkeep.verify import verify
from tests.lake.steps import commit_step, expire, steps


@pytest.fixture
def lake(storage):
    for run in ("r", "s"):
        with Stream(storage, f"train.{run}") as stream:
            for step in range(4):
                commit_step(stream, step) if run == "r" else stream._publish([], f"{step}")
    return storage


def swap(storage, one: str, other: str) -> None:
    first, second = storage.read(one), storage.read(other)
    storage.put(one, second)
    storage.put(other, first)


@pytest.mark.parametrize("other", [log.commit_path("train.r", 3), log.commit_path("train.s", 1)])
def test_exchanged_log_files_are_no_log(lake, other):
    swap(lake, log.commit_path("train.r", 1), other)
    with pytest.raises(CorruptError, match=r"was written as that of stream 'train\.[rs]'"):
        Snapshot.take(lake)
    report = verify(lake)
    assert not report.is_sound
    assert {finding.kind for finding in report.errors} >= {"log.damaged"}
    with pytest.raises(CorruptError):
        gc(lake, older_than=0)


def test_a_renamed_stream_is_told(lake):
    for seq in range(4):
        lake.put(log.commit_path("train.t", seq), lake.read(log.commit_path("train.r", seq)))
        lake.delete([log.commit_path("train.r", seq)])
    with pytest.raises(CorruptError, match="it was moved or exchanged"):
        Snapshot.take(lake)


@pytest.mark.parametrize("kept", [3, 1, 0])
def test_a_log_that_lost_its_end_is_told_and_not_gone_on_with(lake, kept):
    lake.delete(log.commit_path("train.r", seq) for seq in range(kept, 4))
    before = sorted(file.path for file in lake.list("weights"))
    (finding,) = [f for f in verify(lake).errors if f.kind == "log.lost"]
    assert "but commit 3 was made" in finding.message and finding.run == "r"
    with pytest.raises(CorruptError, match="nothing is deleted"):
        gc(lake, older_than=0)
    with pytest.raises(CorruptError, match=r"commits are lost; .* delete \.leases/train\.r"):
        Stream(lake, "train.r")
    assert sorted(file.path for file in lake.list("weights")) == before
    lake.delete([file.path for file in lake.list(".leases/train.r")])
    with Stream(lake, "train.r") as stream:
        commit_step(stream, 9)
    assert steps(lake)[0] == [*range(kept), 9]


def test_a_killed_writer_that_told_nothing_costs_nobody_anything(lake):
    stream = Stream(lake, "train.r")
    commit_step(stream, 4)
    stream.lease._stop.set()
    expire(lake)
    with Stream(lake, "train.r") as stream:
        commit_step(stream, 5)
    assert steps(lake)[0] == [0, 1, 2, 3, 4, 5]
    assert verify(lake).is_sound


@pytest.mark.parametrize("table", ["weights", "scalars"])
def test_a_pipe_in_place_of_a_file_is_refused_at_once(local, table):
    with Stream(local, "train.r") as stream:
        commit_step(stream, 0)
    (entry,) = Snapshot.take(local).files(table)
    os.unlink(local.folder / entry.path)
    os.mkfifo(local.folder / entry.path)
    answers = []

    def ask() -> None:
        for question in (
            lambda: Snapshot.take(local).read(table),
            lambda: pico.Lake(local.url).sql(f"SELECT * FROM {table}").fetchall(),
            lambda: pico.Lake(local.url).scan(table).collect(),
        ):
            try:
                question()
            except Exception as error:
                answers.append(str(error))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "it waits for what the pipe will never bring"
    assert len(answers) == 3
    assert all("neither a file nor a folder" in answer for answer in answers)
    assert not verify(local).is_sound


def test_an_age_needs_its_unit():
    assert age("0") == 0 and age("90s") == 90.0 and age(5) == 5.0
    for text in ("5", "7.5", "-1h"):
        with pytest.raises(ConfigError, match="write it with its unit"):
            age(text)
