import datetime
import json
import os
import subprocess
import sys
import threading
import time

import fsspec
import pytest

from pico.errors import CorruptError, LeaseError, StorageError
from pico.lake import lease
from pico.lake.commit import Stream
from tests.lake.steps import commit_step


def alive() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("pico-lease")]


def record(storage, epoch: int = 1, stream: str = "train.r") -> dict:
    return json.loads(storage.read(f".leases/{stream}/{epoch:08d}.json"))


def alter(storage, epoch: int = 1, **changes) -> None:
    changed = {**record(storage, epoch), **changes}
    storage.put(f".leases/train.r/{epoch:08d}.json", json.dumps(changed).encode())


def test_a_second_writer_learns_who_holds_the_stream(storage):
    with (
        Stream(storage, "train.r"),
        pytest.raises(
            LeaseError,
            match=r"training of run 'r' is held by process \d+ on .+; wait until it is done",
        ),
    ):
        Stream(storage, "train.r")


def test_other_streams_are_free(storage):
    with Stream(storage, "train.r"), Stream(storage, "train.s"), Stream(storage, "derive.r.m"):
        assert len(alive()) == 3
    assert alive() == []


def test_a_released_stream_is_free_at_once(storage):
    for epoch in (1, 2, 3):
        with Stream(storage, "train.r") as stream:
            assert stream.lease.epoch == epoch
            assert stream.lease.clean
    assert [f.path[-13:] for f in storage.list(".leases")] == ["00000002.json", "00000003.json"]
    assert record(storage, 3)["released"]


def test_a_stream_is_free_for_its_process_even_if_the_disk_was_too_full_to_say_so(
    local, monkeypatch
):
    stream = Stream(local, "train.r")
    with monkeypatch.context() as patch:
        patch.setattr(local, "put", lambda *_: (_ for _ in ()).throw(StorageError("disk full")))
        with pytest.raises(StorageError, match="disk full"):
            stream.close()
    assert not record(local)["released"]
    with Stream(local, "train.r") as again:
        assert again.lease.epoch == 2
        assert not again.lease.clean


def test_the_heartbeat_is_written_and_ends(storage, monkeypatch):
    monkeypatch.setattr(lease, "TIME_TO_LIVE", 0.08)
    stream = Stream(storage, "train.r")
    first = record(storage)["heartbeat"]
    deadline = time.monotonic() + 60
    while record(storage)["heartbeat"] == first and time.monotonic() < deadline:
        time.sleep(0.01)
    assert record(storage)["heartbeat"] > first
    assert not record(storage)["released"]
    stream.close()
    stream.close()
    assert alive() == []
    assert record(storage)["released"]


def test_a_store_that_fails_for_a_moment_does_not_end_the_heartbeat(storage, monkeypatch):
    monkeypatch.setattr(lease, "TIME_TO_LIVE", 0.04)
    with Stream(storage, "train.r"):
        put, failures = storage.put, []

        def flaky(path, data):
            if len(failures) < 2:
                failures.append(path)
                raise StorageError("away")
            put(path, data)

        monkeypatch.setattr(storage, "put", flaky)
        deadline = time.monotonic() + 60
        while len(failures) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(failures) == 2
        first = record(storage)["heartbeat"]
        while record(storage)["heartbeat"] == first and time.monotonic() < deadline:
            time.sleep(0.01)
        assert record(storage)["heartbeat"] > first


def test_a_damaged_lease_file_does_not_end_the_heartbeat(storage, monkeypatch):
    monkeypatch.setattr(lease, "TIME_TO_LIVE", 0.04)
    with Stream(storage, "train.r"):
        storage.put(".leases/train.r/00000002.json", b"junk")
        time.sleep(0.1)
        assert alive() == ["pico-lease-train.r"]
        storage.delete([".leases/train.r/00000002.json"])


@pytest.fixture(params=["local", "memory"])
def dated(request):
    """A lake whose store lets a test turn the time of a file back."""
    return request.getfixturevalue(request.param)


def grow_old(storage, seconds: float) -> None:
    """Let the store say that the lease was written some time ago."""
    path, then = ".leases/train.r/00000001.json", time.time() - seconds
    if storage.folder is not None:
        os.utime(storage.folder / path, (then, then))
    elif storage.url.startswith("memory:"):
        file = fsspec.filesystem("memory").store[storage._full(path)]
        file.created = file.modified = datetime.datetime.fromtimestamp(then, datetime.UTC)
    else:
        pytest.skip("nothing makes an object of this store older than it is")
    assert storage.list(".leases")[0].modified == pytest.approx(then)


@pytest.mark.parametrize("minutes", [-10, 10])
def test_a_live_holder_whose_clock_is_wrong_is_not_robbed(storage, minutes):
    with Stream(storage, "train.r") as stream:
        alter(storage, heartbeat=time.time() + 60 * minutes)
        with pytest.raises(LeaseError, match="training of run 'r' is held by"):
            Stream(storage, "train.r")
        commit_step(stream, 0)
    assert not storage.list(".staging")


@pytest.mark.parametrize("minutes", [-10, 0, 10])
def test_a_silent_holder_is_followed_whatever_its_clock_said(dated, minutes):
    stream = Stream(dated, "train.r")
    alter(dated, heartbeat=time.time() + 60 * minutes, machine="elsewhere")
    grow_old(dated, 100)
    with pytest.raises(LeaseError, match="is held by"):
        Stream(dated, "train.r")
    grow_old(dated, 130)
    with Stream(dated, "train.r") as newer:
        assert newer.lease.epoch == 2
    stream.close()


def test_an_expired_heartbeat_can_be_taken_over(dated):
    stream = Stream(dated, "train.r")
    grow_old(dated, 500)
    with Stream(dated, "train.r") as newer:
        assert newer.lease.epoch == 2
        assert not newer.lease.clean
        with pytest.raises(
            LeaseError, match=r"training of run 'r' was taken over by process \d+ on "
        ):
            stream.lease.check()
        stream.close()
        assert not record(dated, 2)["released"]
    assert record(dated, 2)["released"]


def test_a_pid_of_another_machine_means_nothing(storage):
    with Stream(storage, "train.r"):
        alter(storage, machine="elsewhere", pid=2**22 + 1, host="node-7")
        with pytest.raises(
            LeaseError, match=r"process 4194305 on node-7 \(last heard from \d+ s ago"
        ):
            Stream(storage, "train.r")


def test_a_dead_process_of_this_machine_holds_nothing(storage):
    stream = Stream(storage, "train.r")
    alter(storage, process_start="1")  # the pid lives, but it is another process
    with Stream(storage, "train.r") as newer:
        assert newer.lease.epoch == 2
    stream.close()


def test_a_lost_answer_is_recognised(storage, monkeypatch):
    put_new = storage.put_new

    def deaf(path, data):
        put_new(path, data)
        return False

    monkeypatch.setattr(storage, "put_new", deaf)
    held = lease.acquire(storage, "train.r")
    assert held.epoch == 1
    held.release()


def test_a_faster_claimant_wins(storage, monkeypatch):
    def beaten(path, data):
        storage.put(path, json.dumps({**json.loads(data), "id": "other"}).encode())
        return False

    monkeypatch.setattr(storage, "put_new", beaten)
    with pytest.raises(
        LeaseError, match=r"another writer has just claimed training of run 'r'; try again"
    ):
        lease.acquire(storage, "train.r")
    assert alive() == []


@pytest.mark.parametrize(
    "content", [b"", b"junk", b"[]", b"{}", b"null", b"[" * 100_000, b'{"id": 1}', b"\xff"]
)
def test_a_damaged_lease_is_corrupt(storage, content):
    Stream(storage, "train.r").close()
    storage.put(".leases/train.r/00000001.json", content)
    with pytest.raises(CorruptError, match=r"lease file .*00000001.json cannot be read; delete it"):
        Stream(storage, "train.r")
    storage.delete([".leases/train.r/00000001.json"])
    Stream(storage, "train.r").close()


def test_a_lease_with_values_of_a_wrong_type_is_corrupt(storage):
    Stream(storage, "train.r").close()
    alter(storage, heartbeat="yesterday", released=False)
    with pytest.raises(CorruptError):
        Stream(storage, "train.r")


def test_foreign_files_among_leases_are_passed_over(storage):
    storage.put(".leases/train.r/.DS_Store", b"")
    storage.put(".leases/train.r/notes.json", b"")
    with Stream(storage, "train.r") as stream:
        assert stream.lease.epoch == 1


CLAIM = """
import sys, time
from pico.errors import LeaseError
from pico.lake.commit import Stream
from pico.lake.storage import Storage
while time.time() < float(sys.argv[2]):
    pass
try:
    stream = Stream(Storage(sys.argv[1]), "train.r")
except LeaseError:
    print("refused")
else:
    print("held")
    sys.stdin.read()
    stream.close()
"""


def test_of_two_processes_one_gets_the_stream(local):
    start = str(time.time() + 1.5)
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", CLAIM, local.url, start],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    answers = sorted(racer.stdout.readline().strip() for racer in racers)
    for racer in racers:
        racer.communicate("")
    assert answers == ["held", "refused"]


def test_a_claim_whose_answer_was_lost_does_not_lock_its_own_process_out(storage, monkeypatch):
    put_new = type(storage).put_new

    def lose_the_answer(self, path, data):
        put_new(self, path, data)
        raise StorageError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(type(storage), "put_new", lose_the_answer)
        with pytest.raises(StorageError, match="no answer"):
            lease.acquire(storage, "train.r")
    lease.acquire(storage, "train.r").release()
