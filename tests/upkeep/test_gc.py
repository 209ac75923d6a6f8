"""gc deletes what is of no use and old, and nothing else, whatever the lake went through."""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
import uuid
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pico.errors import ConfigError, CorruptError, LeaseError, NotALakeError
from pico.lake import log, table
from pico.lake.commit import Stream, Transaction
from pico.lake.datafile import PartitionFiles
from pico.lake.log import Entry
from pico.lake.objects import Upload
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from pico.schema import table as schema_of
from pico.upkeep.gc import Garbage, gc
from pico.upkeep.gc import age as age_of
from tests.lake.steps import add_step, commit_step, expire, live_files
from tests.upkeep import lakes
from tests.upkeep.lakes import age, kinds, live, orphan, take_away

DAY = 24 * 3600.0


def present(storage: Storage) -> set[str]:
    return {f.path for f in storage.list("") if not f.path.startswith(("_log/", ".leases/"))}


def collected(storage: Storage, **options: object) -> list[Garbage]:
    """Collect, and return what it was but for old leases, of which each opening leaves one."""
    return [item for item in gc(storage, **options).items if item.what != "old lease"]


@pytest.fixture
def lake(local: Storage) -> Storage:
    """Three steps of one run, of which nothing is garbage."""
    with Stream(local, "train.r") as stream:
        for step in range(3):
            commit_step(stream, step)
    return local


def test_a_sound_lake_loses_nothing(lake):
    age(lake, 2 * DAY)
    before = {file.path for file in lake.list("")}
    assert str(gc(lake)) == "nothing to delete"
    assert {file.path for file in lake.list("")} == before


def test_where_there_is_no_lake(storage):
    with pytest.raises(NotALakeError):
        gc(storage)


@pytest.mark.parametrize("withdraw", [True, False])
def test_files_taken_away_go_after_the_grace(lake, withdraw):
    gone = live(lake, "scalars", steps=[1])
    take_away(lake, gone, "train.r", withdraw)
    age(lake, 2 * DAY, gone[0].path)  # the age of the file itself does not count
    assert gc(lake).items == ()
    age(lake, 2 * DAY)
    done = collected(lake)
    assert done == [Garbage("taken away", gone[0].path, gone[0].bytes)]
    assert gone[0].path not in present(lake)
    assert present(lake) == set(live_files(lake))
    assert kinds(lake) == []
    assert gc(lake).items == ()


def test_the_grace_counts_from_the_commit_not_from_a_later_copy(local):
    """A long log is read from level files, which may be younger than what they copy."""
    with Stream(local, "train.r") as stream:
        commit_step(stream, 0)
    take_away(local, live(local, "scalars"), "train.r")
    with Stream(local, "train.r") as stream:
        for step in range(1, 15):
            commit_step(stream, step)
    assert [p for p in local.paths(log.ROOT) if "level" in p]
    commits = [p for p in local.paths(log.ROOT) if "level" not in p]
    age(local, 2 * DAY, *commits)
    assert [item.what for item in collected(local)] == ["taken away"]


def test_a_dry_run_deletes_nothing(lake):
    take_away(lake, live(lake, "weights"), "train.r")
    orphan(lake, "train.r")
    lake.put(f".staging/train.r/{uuid.uuid4().hex}/x.inprogress", b"half")
    age(lake, 2 * DAY)
    before = {file.path for file in lake.list("")}
    planned = gc(lake, dry_run=True)
    assert {file.path for file in lake.list("")} == before
    assert "would delete 6 files" in str(planned)
    assert "3 taken away, 1 uncommitted, 1 unfinished, 1 old lease" in str(planned)
    seen: list[tuple[int, int]] = []
    done = gc(lake, progress=lambda n, total: seen.append((n, total)))
    assert done.items == planned.items
    assert seen[-1] == (6, 6)
    assert present(lake) == set(live_files(lake))


def test_debris_of_a_dead_writer_goes(lake):
    path = orphan(lake, "train.r")
    assert gc(lake).items == ()
    age(lake, 2 * DAY)
    assert [(item.what, item.path) for item in collected(lake)] == [("uncommitted", path)]
    assert kinds(lake) == []


@pytest.mark.parametrize(
    ("given", "seconds"),
    [("24h", DAY), ("7d", 7 * DAY), ("30m", 1800), ("90s", 90), ("0", 0), (0, 0), (2.5, 2.5)],
)
def test_ages(given, seconds):
    assert age_of(given) == seconds


@pytest.mark.parametrize("given", ["", "h", "soon", "-1d", "nan", "inf", "1w"])
def test_what_is_no_age(given):
    with pytest.raises(ConfigError, match="is no age"):
        age_of(given)


def test_foreign_files_stay(lake):
    foreign = ["notes.txt", "weights/notes.txt", f"scalars/run=r/{uuid.uuid4()}.parquet"]
    foreign += [".staging/mine.txt", ".staging/put/lock", "README.md", "_log/train.r/notes"]
    for path in foreign:
        lake.put(path, b"anything")
    age(lake, 2 * DAY)
    gc(lake, older_than=0)
    assert {file.path for file in lake.list("")} >= set(foreign)


def test_files_of_a_live_transaction_stay_however_old(lake):
    with Stream(lake, "train.r") as stream:
        transaction = stream.begin()
        add_step(transaction, 3)
        for sink in transaction._sinks.values():
            sink.publish()
        unfinished = stream.begin()
        _, sink = unfinished.create("scalars/run=r")
        age(lake, 2 * DAY, *present(lake))
        assert gc(lake).items == ()
        unfinished.rollback()
        transaction._published, transaction._sinks = list(transaction._sinks), {}
        transaction.commit()
    assert len(live(lake, "scalars")) == 4
    assert kinds(lake) == []


def test_a_file_committed_between_the_looks_stays(lake, monkeypatch):
    """A writer that commits and leaves while gc reads: listed before, named after."""
    from pico.upkeep import inventory

    stream = Stream(lake, "train.r")
    transaction = stream.begin()
    add_step(transaction, 3)
    for sink in transaction._sinks.values():
        sink.publish()
    age(lake, 2 * DAY, *present(lake))
    real = inventory.take

    def slow(storage):
        files = {file.path: file for file in storage.list("")}
        transaction._published, transaction._sinks = list(transaction._sinks), {}
        transaction.commit()
        stream.close()
        return replace(real(storage), files=files)

    monkeypatch.setattr(inventory, "take", slow)
    assert collected(lake) == []
    monkeypatch.setattr(inventory, "take", real)
    assert len(live(lake, "scalars")) == 4
    assert kinds(lake) == []


def test_a_writer_that_slept_too_long_cannot_commit_what_was_collected(lake):
    stream = Stream(lake, "train.r")
    transaction = stream.begin()
    add_step(transaction, 3)
    for sink in transaction._sinks.values():
        sink.publish()
    transaction._published, transaction._sinks = list(transaction._sinks), {}
    expire(lake)
    age(lake, 2 * DAY)
    assert [item.what for item in gc(lake).items].count("uncommitted") == 2
    with pytest.raises(LeaseError):
        transaction.commit()
    stream.close()
    assert kinds(lake) == []
    with Stream(lake, "train.r") as after:
        commit_step(after, 3)
    assert len(live(lake, "scalars")) == 4


def test_staging_and_puts_left_behind(lake):
    staged = f".staging/train.r/{uuid.uuid4().hex}/x.parquet.inprogress"
    put = f".staging/put/{uuid.uuid4().hex}.inprogress"
    for path in (staged, put):
        lake.put(path, b"half")
    assert gc(lake).items == ()
    age(lake, 2 * DAY, staged, put)
    assert {item.path for item in gc(lake).items} == {staged, put}
    assert not lake.list(".staging")
    assert not (lake.folder / staged).parent.exists()


def test_leases_of_old_epochs_go_and_the_newest_stays(lake):
    for _ in range(3):
        Stream(lake, "train.r").close()
    leases = [file.path for file in lake.list(".leases")]
    assert len(leases) > 1
    age(lake, 2 * DAY)
    assert {item.path for item in gc(lake).items} == set(leases[:-1])
    assert [file.path for file in lake.list(".leases")] == leases[-1:]
    Stream(lake, "train.r").close()


def test_a_log_with_a_gap_or_damage_stops_everything(lake):
    orphan(lake, "train.r")
    age(lake, 2 * DAY)
    before = present(lake)
    second = log.commit_path("train.r", 1)
    kept = lake.read(second)
    lakes.flip(lake, second, 50)
    with pytest.raises(CorruptError, match="000000000001"):
        gc(lake)
    lake.delete([second])
    with pytest.raises(CorruptError, match="gap"):
        gc(lake)
    assert present(lake) == before
    lake.put(second, kept)
    assert len(collected(lake)) == 1


def test_a_kill_in_the_middle_leaves_a_valid_lake(lake, monkeypatch):
    take_away(lake, live(lake, "weights"), "train.r")
    for _ in range(3):
        orphan(lake, "train.r")
    age(lake, 2 * DAY)
    alive = set(live_files(lake))
    content = Snapshot.take(lake).read("scalars")
    total = len(gc(lake, dry_run=True).items)
    delete = Storage.delete
    for survived in range(total):
        count = 0

        def killed(self, paths, limit=survived):
            nonlocal count
            for path in paths:
                if count == limit:
                    raise KeyboardInterrupt
                delete(self, [path])
                count += 1

        copied = lakes.copy(lake.folder, lake.folder.parent / f"copy-{survived}")
        age(copied, 2 * DAY)
        monkeypatch.setattr(Storage, "delete", killed)
        with pytest.raises(KeyboardInterrupt):
            gc(copied)
        monkeypatch.setattr(Storage, "delete", delete)
        assert set(live_files(copied)) == alive
        assert Snapshot.take(copied).read("scalars").equals(content)
        assert {"file.missing"}.isdisjoint(kinds(copied))
        gc(copied)
        assert present(copied) == alive


def test_gc_on_any_store(storage):
    with Stream(storage, "train.r") as stream:
        commit_step(stream, 0)
        commit_step(stream, 1)
    gone = live(storage, "scalars", steps=[0])
    take_away(storage, gone, "train.r")
    assert gc(storage).items == ()
    paths = {item.path for item in gc(storage, older_than=-1).items}
    assert gone[0].path in paths
    assert kinds(storage) == []


def test_gc_while_others_write_and_read(local):
    """No live file is ever deleted, and an open snapshot's files stay for the grace age."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def write() -> None:
        try:
            with Stream(local, "train.r") as stream:
                for step in range(60):
                    commit_step(stream, step)
                    if step % 5 == 4:
                        transaction = stream.begin()
                        transaction.take_away(live(local, "scalars", steps=[step]), True)
                        transaction.commit()
        except BaseException as error:
            failures.append(error)
        stop.set()

    with Stream(local, "train.r") as stream:
        commit_step(stream, 100)
    thread = threading.Thread(target=write)
    thread.start()
    while not stop.is_set():
        snapshot = Snapshot.take(local)
        gc(local, older_than=30)
        snapshot.read("scalars")
        gc(local, older_than=0)
        lakes.verify(local)
    thread.join()
    assert failures == []
    assert len(live(local, "scalars")) == 49
    gc(local, older_than=-1)
    assert kinds(local) == []


def replacement(transaction: Transaction, removed: list[Entry], origin: Entry) -> None:
    """Merge files of scalars into one, as compact does."""
    rows = table.read(transaction.stream.storage, removed)
    stands_for = {"stream": "train.r", "txn": origin.txn}
    extra = json.dumps({"stands_for": stands_for})
    with PartitionFiles(transaction, schema_of("scalars"), {"run": "r"}, extra) as files:
        files.write(rows.sort_by("global_step"))
    transaction.take_away(removed, withdraw=False)


class _History:
    """A lake that goes through random events, and what must be left of it afterwards."""

    def __init__(self, folder: str) -> None:
        self.storage = Storage(str(Path(folder) / "lake"))
        self.step = 0
        self.keep: set[str] = set()
        self.go: set[str] = set()
        self.held: list[Stream] = []
        self.commit()

    def commit(self) -> None:
        with Stream(self.storage, "train.r") as stream:
            commit_step(stream, self.step)
        self.step += 1

    def withdraw(self) -> None:
        take_away(self.storage, live(self.storage, "scalars")[-1:], "train.r", withdraw=True)

    def replace(self) -> None:
        files = live(self.storage, "scalars")[-3:]
        if len(files) > 1:
            with Stream(self.storage, "derive.r.upkeep") as stream:
                transaction = stream.begin()
                replacement(transaction, files, files[-1])
                transaction.commit()

    def void(self) -> None:
        """Withdraw a file that was replaced meanwhile: the replacement counts no more."""
        files = [f for f in live(self.storage, "scalars") if f.extra is None][-2:]
        if len(files) > 1:
            with Stream(self.storage, "derive.r.upkeep") as stream:
                transaction = stream.begin()
                replacement(transaction, files, files[-1])
                transaction.commit()
            take_away(self.storage, files[-1:], "train.r", withdraw=True)
            assert files[0].path in live_files(self.storage)

    def crash(self) -> None:
        orphan(self.storage, "train.r")

    def die(self) -> None:
        orphan(self.storage, "derive.r.dead")
        path = self.storage.list(".leases/derive.r.dead")[-1].path
        record = json.loads(self.storage.read(path))
        record |= {"released": False, "heartbeat": time.time() - 500}
        self.storage.put(path, json.dumps(record).encode())

    def hold(self) -> None:
        name = f"derive.r.live{len(self.held)}"
        self.keep.add(orphan(self.storage, name))
        self.held.append(Stream(self.storage, name))

    def stage(self) -> None:
        self.storage.put(f".staging/train.r/{uuid.uuid4().hex}/x.inprogress", b"half")

    def put(self) -> None:
        self.storage.put(f".staging/put/{uuid.uuid4().hex}.inprogress", b"half")

    def foreign(self) -> None:
        path = f"weights/run=r/{uuid.uuid4()}.parquet"
        self.storage.put(path, b"anything")
        self.keep.add(path)


EVENTS = [name for name in vars(_History) if not name.startswith("_")]


@settings(max_examples=50)
@given(
    old=st.lists(st.sampled_from(EVENTS), max_size=8),
    new=st.lists(st.sampled_from(EVENTS), max_size=4),
)
def test_after_any_history_live_files_are_there_and_nothing_else_that_is_old(old, new):
    with tempfile.TemporaryDirectory() as folder:
        history = _History(folder)
        storage = history.storage
        try:
            for event in old:
                getattr(history, event)()
            useless = present(storage) - set(live_files(storage)) - history.keep
            age(storage, 2 * DAY)
            for stream in history.held:  # their heartbeats go on
                stream.lease.check()
            for event in new:
                getattr(history, event)()
            alive = set(live_files(storage))
            content = Snapshot.take(storage).read("scalars").sort_by("global_step")
            young = {
                p
                for p in present(storage)
                if os.path.getmtime(storage.folder / p) > time.time() - DAY
            }
            before = present(storage)
            gc(storage)
            left = present(storage)
            assert left >= alive | history.keep
            assert before - left <= useless
            assert left <= alive | history.keep | young | _taken_away_lately(storage, before)
            assert useless.isdisjoint(left)
            assert Snapshot.take(storage).read("scalars").sort_by("global_step").equals(content)
        finally:
            for stream in history.held:
                stream.close()


def _taken_away_lately(storage: Storage, before: set[str]) -> set[str]:
    """Files that young commits mention."""
    limit = time.time() - DAY
    young = [f.path for f in storage.list(log.ROOT) if f.modified > limit]
    return {entry.path for path in young for entry in log.read_file(storage, path)} & before


def test_unfinished_uploads_are_aborted_when_old(lake, monkeypatch):
    uploads = [
        Upload(f"weights/{name}", name, time.time() - age)
        for name, age in (("old", 2 * DAY), ("new", 5))
    ]
    aborted: list[Upload] = []
    monkeypatch.setattr(Storage, "unfinished_uploads", lambda self, prefix="": uploads)
    monkeypatch.setattr(Storage, "abort_uploads", lambda self, given: aborted.extend(given))
    assert [item.path for item in gc(lake, dry_run=True).items] == ["weights/old"]
    assert aborted == []
    assert [item.what for item in gc(lake).items] == ["upload"]
    assert aborted == uploads[:1]
