"""Processes that work on one lake at the same time; `tests.stress.racers` says what they do."""

import os
import re
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from pico.lake import log
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from tests.lake.steps import assert_clean, data_files, live_files, steps
from tests.stress import figures, forks, kill_loop, racers


def test_one_trainer_works_while_metrics_and_evaluations_are_written(tmp_path):
    url, held, go = str(tmp_path / "lake"), tmp_path / "held", tmp_path / "go"
    trainer = forks.start(racers.train, url, tmp_path, "r", 12, (held, go))
    racers.wait_for(held)
    writers = [
        forks.start(racers.derive, url, "r", name, 15, go) for name in ("metrics", "evaluations")
    ]
    second = forks.call(racers.refused, url, "r")
    go.touch()
    assert [forks.answer(*writer) for writer in writers] == [15, 15]
    forks.answer(*trainer)
    host = re.escape(os.uname().nodename)
    assert re.match(
        rf"LeaseError: training of run 'r' is held by process {trainer[0].pid} on {host} \(last ",
        second,
    )
    snapshot = Snapshot.take(Storage(url))
    for name in ("metrics", "evaluations"):
        assert sorted(snapshot.read(name)["global_step"].to_pylist()) == list(range(15))
    assert sorted(snapshot.read("scalars")["global_step"].to_pylist()) == list(range(12))
    assert_clean(Storage(url))
    figures.note("races", kind="trainer, metrics and evaluations on one run", tried=1, survived=1)


@pytest.mark.parametrize("moment", ["before its check", "before the log"])
def test_a_holder_that_wakes_up_after_a_take_over_stops(tmp_path, moment):
    url, ttl = str(tmp_path / "lake"), 0.4
    sleeper = forks.start(racers.hold, url, tmp_path, moment, ttl)
    racers.wait_for(tmp_path / "held")
    wait_until_stopped(sleeper[0].pid)
    try:
        assert forks.call(racers.take_over, url, 7, ttl) == 2
        assert steps(Storage(url)) == ([0, 7], [0, 7])
    finally:
        os.kill(sleeper[0].pid, signal.SIGCONT)
    ended = forks.answer(*sleeper)
    assert re.match(
        r"LeaseError: training of run 'r' was taken over by process \d+ on .*this writer st", ended
    )
    assert steps(Storage(url)) == ([0, 7], [0, 7])
    assert_clean(Storage(url))
    figures.note("races", kind="old holder woken after a take-over", tried=1, survived=1)


def wait_until_stopped(pid: int) -> None:
    end = time.monotonic() + 30
    stat = Path(f"/proc/{pid}/stat")
    while (state := stat.read_text().rpartition(")")[2].split()[0]) != "T":
        assert time.monotonic() < end, f"the process is in state {state}"
        time.sleep(0.005)


@pytest.mark.parametrize("links", [True, False], ids=["hard links", "no hard links"])
def test_of_eight_processes_exactly_one_gets_each_number(tmp_path, links):
    url, n = str(tmp_path / "lake"), 100
    one_gets_each_number(url, {}, n, links)
    kind = f"8 processes for one commit number, {'with' if links else 'without'} hard links"
    figures.note("races", kind=kind, tried=n, survived=n)


def one_gets_each_number(url: str, options: dict, n: int, links: bool = True) -> None:
    start = time.time() + 1.0
    racing = [forks.start(racers.claim, url, options, i, n, links, start) for i in range(8)]
    won = {name: forks.answer(*racer) for name, racer in enumerate(racing)}
    assert Counter(seq for seqs in won.values() for seq in seqs) == Counter(range(n))
    storage = Storage(url, options)
    for name, seqs in won.items():
        for seq in seqs:
            assert storage.read(log.commit_path("train.r", seq)) == f"process {name}".encode()


def test_eight_runs_are_written_at_once_while_readers_read(tmp_path):
    n_steps = kill_loop.STEPS
    _, wanted = forks.call(kill_loop.uninterrupted, tmp_path)
    url, stop = str(tmp_path / "lake"), tmp_path / "stop"
    readers = [forks.start(racers.read_all, url, wanted, stop) for _ in range(2)]
    trainers = [forks.start(racers.train, url, tmp_path, f"r{i}", n_steps) for i in range(8)]
    for trainer in trainers:
        forks.answer(*trainer)
    stop.touch()
    for n_reads, wrong in [forks.answer(*reader) for reader in readers]:
        assert not wrong, wrong[:3]
        assert n_reads > 3
    for i in range(8):
        storage = Storage(url)
        assert kill_loop.small_run.shown(Snapshot.take(storage), f"r{i}").rows == wanted[-1].rows
    assert_clean(storage)
    figures.note("races", kind="8 runs at once with 2 readers", tried=1, survived=1)


def test_files_of_a_live_writer_are_never_collected(tmp_path):
    url, storage, grace = str(tmp_path / "lake"), Storage(str(tmp_path / "lake")), 1.0
    writer = forks.start(racers.hold, url, tmp_path, "before the log", 120.0)
    racers.wait_for(tmp_path / "held")
    wait_until_stopped(writer[0].pid)
    try:
        with pytest.raises(EOFError):
            forks.call(racers.die_before_the_log, url, "dead")
        unnamed = set(data_files(storage)) - set(live_files(storage))
        of_dead = {path for path in unnamed if "run=dead" in path}
        assert len(of_dead) == len(unnamed - of_dead) == 2
        time.sleep(2 * grace)
        collected = set(forks.call(racers.collect, url, grace))
        assert collected >= of_dead
        assert not collected & (unnamed - of_dead)
    finally:
        os.kill(writer[0].pid, signal.SIGCONT)
    assert forks.answer(*writer) == "committed"
    assert steps(storage) == ([0, 1], [0, 1])
    assert_clean(storage)
    figures.note("races", kind="garbage collected beside a live writer", tried=1, survived=1)
