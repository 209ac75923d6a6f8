"""Batches from worker processes: the same ones, errors in one line, and no process left behind."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pico.api import Lake
from pico.data import order
from pico.data.loader import Loader, SequenceReader
from pico.errors import ConfigError, CorruptError, DataError
from pico.lake.storage import Storage
from pico.train import batches
from pico.train.batches import Batches
from tests.data.test_loader import write
from tests.train import tiny

torch.set_num_threads(1)
BATCH = 8


@pytest.fixture
def loader(tmp_path: Path) -> Loader:
    write(Storage(str(tmp_path / "lake")), np.arange(300))
    reader = SequenceReader(tiny.snapshot(tmp_path / "lake"), "text")
    return Loader(reader, order.SHUFFLED, 5, BATCH)


def children() -> set[int]:
    """Return the processes below this one that run Python's workers, by `/proc`."""
    me, found = str(os.getpid()), set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if parent == me and b"spawn_main" in command:
            found.add(int(folder.name))
    return found


def test_workers_bring_the_same_batches_in_order(loader: Loader) -> None:
    before = torch.get_rng_state()
    with Batches(loader, 3, 12, n_workers=2) as coming:
        assert len(children()) == 2
        for step in range(3, 12):
            ids, rows = coming.at(step)
            expected_ids, expected = loader.batch(step)
            assert ids == expected_ids
            assert rows.dtype == expected.dtype
            assert (rows == expected).all()
    assert torch.equal(before, torch.get_rng_state())
    assert not children()


def test_stopping_early_leaves_no_process(loader: Loader) -> None:
    handler = signal.getsignal(signal.SIGCHLD)
    with pytest.raises(ZeroDivisionError), Batches(loader, 0, 1000, n_workers=1) as coming:
        coming.at(0)
        raise ZeroDivisionError
    assert not children()
    assert signal.getsignal(signal.SIGCHLD) == handler
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & {signal.SIGINT, signal.SIGTERM}


def test_an_error_in_a_worker_is_the_error_of_the_step(loader: Loader, tmp_path: Path) -> None:
    (file,) = (tmp_path / "lake" / "sequences").rglob("*.parquet")
    data = bytearray(file.read_bytes())
    data[20:2000] = bytes(1980)
    file.write_bytes(bytes(data))
    with pytest.raises(CorruptError) as alone:
        loader.batch(0)
    with Batches(loader, 0, 4, n_workers=1) as coming, pytest.raises(CorruptError) as caught:
        coming.at(0)
    assert str(caught.value) == str(alone.value)
    assert not children()


def test_a_killed_worker(loader: Loader) -> None:
    with Batches(loader, 0, 10_000, n_workers=1) as coming:
        coming.at(0)
        for child in children():
            os.kill(child, signal.SIGKILL)
        with pytest.raises(
            DataError, match=r"a data worker ended while step .* fewer data\.workers"
        ):
            for step in range(1, 100):
                coming.at(step)


def test_ctrl_c_and_sigterm_do_not_reach_workers(loader: Loader) -> None:
    with Batches(loader, 0, 10_000, n_workers=1) as coming:
        for number in (signal.SIGINT, signal.SIGTERM):
            for child in children():
                os.kill(child, number)
        for step in range(20):
            assert coming.at(step)[0] == loader.batch(step)[0]


def test_a_lake_in_memory_is_refused(tmp_path: Path) -> None:
    source = tiny.write_text(tmp_path / "text.txt")
    config = tiny.config(source, data={"workers": 1})
    with pytest.raises(ConfigError, match="other processes cannot read memory://workers"):
        Lake("memory://workers").train(config, "r")
    batches.check(Storage("memory://workers"), 0)


def alive(pids: set[int]) -> set[int]:
    return {pid for pid in pids if Path(f"/proc/{pid}").exists()}


def descendants(pid: int) -> set[int]:
    found: set[int] = set()
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            found |= {child} | descendants(child)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_command_leaves_no_process(tmp_path: Path, number: int) -> None:
    source = tiny.write_text(tmp_path / "text.txt")
    every: dict[str, Any] = {"checkpoints": {"every": 1000}, "weights": False}
    config = tiny.config(source, max_steps=10**6, data={"workers": 2}, record=every)
    file = tiny.write_config(tmp_path / "config.yaml", config)
    lake = tmp_path / "lake"
    process = tiny.start("train", str(file), "--lake", str(lake), "--run", "r")
    try:
        tiny.wait_for(lambda: len(list(lake.glob("_log/train.r/*.parquet"))) > 2, process, 120)
        below = descendants(process.pid)
        assert len(below) >= 2
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert "Traceback" not in errors
    assert process.returncode == (-number if number == signal.SIGKILL else 130)
    for _ in range(300):  # torch's workers look every five seconds whether their parent lives
        if not alive(below):
            break
        time.sleep(0.1)
    assert not alive(below)


def test_the_secrets_of_a_store_are_written_nowhere(
    loader: Loader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "canary-7Qx"
    reader = SequenceReader(tiny.snapshot(tmp_path / "lake"), "text")
    reader._storage = Storage(str(tmp_path / "lake"), {"anything": secret})
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with Batches(Loader(reader, order.SHUFFLED, 5, BATCH), 0, 4, n_workers=1) as coming:
        assert coming.at(0)[0] == loader.batch(0)[0]
        for child in children():
            told = Path(f"/proc/{child}")
            shown = (told / "cmdline").read_bytes() + (told / "environ").read_bytes()
            assert secret.encode() not in shown
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in written if secret.encode() in path.read_bytes()]
