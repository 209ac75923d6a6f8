"""A disk without space, with a failing operation, or without the right to write."""

import errno
import os
import random
import subprocess
import sys

import pytest

from pico.errors import StorageError
from pico.lake.commit import Stream
from pico.lake.storage import Storage
from tests.stress import crash_points, failing_disk, figures, forks

KIB = 1024


@pytest.fixture(scope="module")
def wanted() -> list:
    return forks.call(crash_points.reference)["prefixes"]


def fail_at(numbers, error: int, wanted: list) -> list[str]:
    words, failures = [], []
    cases = [(number, error, wanted) for number in numbers]
    for case, answer in forks.each(failing_disk.one_failure, cases):
        if isinstance(answer, BaseException):
            failures.append(f"{case[0]}: {answer}")
        words.append(answer)
    assert not failures, f"{len(failures)} of {len(cases)}\n" + "\n".join(failures[:3])
    figures.note("faults", kind=os.strerror(error), tried=len(cases), survived=len(cases))
    return words


@pytest.mark.parametrize("n_cases", [5, pytest.param(None, marks=pytest.mark.slow)])
def test_a_disk_that_is_full_stops_training_with_its_cause(wanted, n_cases):
    n = forks.call(failing_disk.count, errno.ENOSPC)
    assert n > 100
    numbers = random.Random(5).sample(range(n), n_cases) if n_cases else range(n)
    words = fail_at(numbers, errno.ENOSPC, wanted)
    # the last of all writes lets the lease go; what was trained is in the lake by then
    assert sum("No space left on device" in said for said in words) >= len(words) - 3


@pytest.mark.parametrize("n_cases", [4, pytest.param(40, marks=pytest.mark.slow)])
def test_a_disk_that_fails_once_tears_nothing(wanted, n_cases):
    n = forks.call(failing_disk.count, errno.EIO)
    words = fail_at(random.Random(6).sample(range(n), n_cases), errno.EIO, wanted)
    assert sum("Input/output error" in said for said in words) > n_cases // 2


@pytest.fixture
def small_disk(tmp_path):
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a tmpfs: {mounted.stderr.decode().strip()}")
    yield tmp_path
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


@pytest.mark.skipif(sys.platform != "linux", reason="mounts a tmpfs")
@pytest.mark.parametrize("leave", [0, 24 * KIB, 60 * KIB, 120 * KIB])
def test_a_file_system_without_space(small_disk, wanted, leave):
    words = forks.call(failing_disk.on_small_disk, small_disk, leave, wanted)
    assert "No space left on device" in words
    assert "\n" not in words
    figures.note("faults", kind="a full tmpfs", tried=1, survived=1)


@pytest.mark.skipif(sys.platform != "linux", reason="mounts a tmpfs")
def test_a_read_only_file_system(small_disk, wanted):
    storage = Storage(str(small_disk / "lake"))
    Stream(storage, "train.r").close()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for name in ("train.r", "train.new"):
        with pytest.raises(StorageError, match="Read-only file system") as refused:
            Stream(storage, name)
        assert "\n" not in str(refused.value)


@pytest.mark.skipif(os.name == "posix" and os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_the_right_to_write(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(StorageError, match="Permission denied"):
        Stream(Storage(str(tmp_path / "lake")), "train.r")
    tmp_path.chmod(0o700)


def test_a_file_system_that_became_read_only_stops_training(wanted):
    words = fail_at([0, 40, 120], errno.EROFS, wanted)
    assert all("Read-only file system" in said for said in words)
