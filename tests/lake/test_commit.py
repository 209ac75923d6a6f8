import errno
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import xxhash

from pico.errors import LeaseError, NotALakeError, RunNameError, StorageError
from pico.lake import local as lake_local
from pico.lake import log
from pico.lake.commit import Stream
from pico.lake.sink import LocalSink
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from tests.lake.steps import (
    add_step,
    assert_clean,
    commit_step,
    data_files,
    expire,
    live_files,
    steps,
)


def test_a_commit_shows_all_tables_at_once(storage):
    with Stream(storage, "train.r") as stream:
        transaction = stream.begin()
        add_step(transaction, 0)
        assert data_files(storage) == []
        assert steps(storage) == ([], [])
        assert transaction.commit() == 0
        assert steps(storage) == ([0], [0])
        assert commit_step(stream, 1) == 1
    assert steps(storage) == ([0, 1], [0, 1])
    assert_clean(storage)


def test_the_log_says_size_and_hash_of_each_file(storage):
    with Stream(storage, "train.r") as stream:
        commit_step(stream, 4)
    for entry in Snapshot.take(storage).all_files():
        data = storage.read(entry.path)
        assert (entry.bytes, entry.hash) == (len(data), xxhash.xxh3_128_hexdigest(data))
        assert (entry.rows, entry.min_step, entry.max_step, entry.schema_version) == (1, 4, 4, 1)


def test_nothing_is_committed_by_nothing(storage):
    with Stream(storage, "train.r") as stream:
        assert stream.begin().commit() is None
    assert log.listed(storage, "train.r") == []


def test_an_exception_leaves_nothing(storage):
    with pytest.raises(ZeroDivisionError), Stream(storage, "train.r") as stream:
        add_step(stream.begin(), 0)
        raise ZeroDivisionError
    assert steps(storage) == ([], [])
    assert_clean(storage)
    with Stream(storage, "train.r") as stream:
        assert stream.lease.clean


def test_rollback_leaves_nothing(storage):
    with Stream(storage, "train.r") as stream:
        transaction = stream.begin()
        add_step(transaction, 0)
        transaction.rollback()
        assert transaction.commit() is None
        assert_clean(storage)
        commit_step(stream, 1)
    assert steps(storage) == ([1], [1])


def test_two_transactions_keep_apart(storage):
    with Stream(storage, "train.r") as stream:
        one, other = stream.begin(), stream.begin()
        add_step(one, 0)
        add_step(other, 1)
        other.commit()
        assert steps(storage) == ([1], [1])
        one.rollback()
    assert steps(storage) == ([1], [1])
    assert_clean(storage)


def test_a_snapshot_stays_what_it_was(storage):
    with Stream(storage, "train.r") as stream:
        commit_step(stream, 0)
        before = Snapshot.take(storage)
        commit_step(stream, 1)
        transaction = stream.begin()
        transaction.take_away(before.all_files(), withdraw=True)
        transaction.commit()
    assert before.read("scalars")["global_step"].to_pylist() == [0]
    assert [row.tensor.data.tolist() for row in before.tensors("weights", "r", 0)] == [[0.0] * 3]
    assert steps(storage) == ([1], [1])


@pytest.mark.parametrize("withdraw", [True, False])
def test_files_are_taken_away_and_replaced_in_one_commit(storage, withdraw):
    with Stream(storage, "train.r") as stream:
        commit_step(stream, 0)
        commit_step(stream, 1)
        transaction = stream.begin()
        transaction.take_away(Snapshot.take(storage).files("scalars", steps=[1]), withdraw)
        add_step(transaction, 2)
        transaction.commit()
    assert steps(storage) == ([0, 1, 2], [0, 2])
    actions = [entry.action for entry in log.LogReader(storage).stream("train.r")]
    assert actions.count("withdraw" if withdraw else "remove") == 1


def test_a_closed_stream_writes_nothing(storage):
    stream = Stream(storage, "train.r")
    transaction = stream.begin()
    add_step(transaction, 0)
    stream.close()
    for action in (transaction.commit, stream.begin, lambda: transaction.create("weights")):
        with pytest.raises(LeaseError, match=r"train.r was closed"):
            action()
    assert_clean(storage)


def test_many_commits_in_a_stream(storage):
    with Stream(storage, "train.r") as stream:
        for step in range(40):
            commit_step(stream, step)
    with Stream(storage, "train.r") as stream:
        assert commit_step(stream, 40) == 40
    assert steps(storage) == (list(range(41)),) * 2
    assert [p.split("/")[2] for p in log.listed(storage, "train.r") if "level" in p] == [
        "level=1"
    ] * 2


# answers that are lost, stores that refuse --------------------------------------------------


def replace_put_new(storage, monkeypatch, stand_in) -> None:
    put_new = storage.put_new
    monkeypatch.setattr(storage, "put_new", lambda path, data: stand_in(put_new, path, data))


def lost_as_error(put_new, path, data):
    put_new(path, data)
    raise StorageError("timed out")


def lost_as_refusal(put_new, path, data):
    return put_new(path, data) and False


@pytest.mark.parametrize(
    ("lost", "place"),
    [(lost_as_error, "memory"), (lost_as_refusal, "memory"), (lost_as_refusal, "local")],
)
def test_a_lost_answer_is_a_commit(request, monkeypatch, lost, place):
    storage = request.getfixturevalue(place)
    with Stream(storage, "train.r") as stream:
        with monkeypatch.context() as patch:
            replace_put_new(storage, patch, lost)
            assert commit_step(stream, 0) == 0
        assert commit_step(stream, 1) == 1
    assert steps(storage) == ([0, 1], [0, 1])
    assert_clean(storage)


def test_a_disk_that_fails_after_the_link_is_an_error_and_the_commit_can_be_tried_again(
    local, monkeypatch
):
    sync_folder, failures = lake_local.sync_folder, []

    def fail_once(folder):
        if folder.parent.name == "_log" and not failures:
            failures.append(folder)
            raise OSError(errno.EIO, "Input/output error")
        sync_folder(folder)

    monkeypatch.setattr(lake_local, "sync_folder", fail_once)
    with Stream(local, "train.r") as stream:
        transaction = stream.begin()
        add_step(transaction, 0)
        with pytest.raises(StorageError, match=r"cannot write _log/train.r.*Input/output error"):
            transaction.commit()
        assert failures
        assert steps(local) == ([0], [0])
        assert transaction.commit() == 0
        assert commit_step(stream, 1) == 1
    assert steps(local) == ([0, 1], [0, 1])
    assert_clean(local)


def test_a_refused_commit_can_be_tried_again(storage, monkeypatch):
    def refuse(put_new, path, data):
        raise StorageError("no answer")

    with Stream(storage, "train.r") as stream:
        transaction = stream.begin()
        add_step(transaction, 0)
        with monkeypatch.context() as patch:
            replace_put_new(storage, patch, refuse)
            with pytest.raises(StorageError, match="no answer"):
                transaction.commit()
        assert steps(storage) == ([], [])
        assert transaction.commit() == 0
    assert steps(storage) == ([0], [0])
    assert_clean(storage)


def test_a_commit_of_unknown_outcome_is_cleared_by_the_next_holder(storage, monkeypatch):
    def refuse(put_new, path, data):
        raise StorageError("no answer")

    with (
        monkeypatch.context() as patch,
        pytest.raises(StorageError),
        Stream(storage, "train.r") as stream,
    ):
        replace_put_new(storage, patch, refuse)
        commit_step(stream, 0)
    assert len(data_files(storage)) == 2  # the log might yet have named them
    with Stream(storage, "train.r") as stream:
        assert not stream.lease.clean
        assert_clean(storage)
        commit_step(stream, 1)
    with Stream(storage, "train.r") as stream:
        assert stream.lease.clean
    assert steps(storage) == ([1], [1])


def test_a_publication_that_fails_halfway_leaves_nothing(local, monkeypatch):
    publish, published = LocalSink.publish, []

    def second_fails(self):
        if published:
            raise StorageError("disk full")
        published.append(self)
        publish(self)

    monkeypatch.setattr(LocalSink, "publish", second_fails)
    with pytest.raises(StorageError, match="disk full"), Stream(local, "train.r") as stream:
        commit_step(stream, 0)
    assert published
    assert_clean(local)


def test_a_failing_level_file_does_not_fail_the_commit(storage, monkeypatch):
    def no_levels(put_new, path, data):
        if "level=" in path:
            raise StorageError("refused")
        return put_new(path, data)

    replace_put_new(storage, monkeypatch, no_levels)
    with Stream(storage, "train.r") as stream:
        for step in range(17):
            assert commit_step(stream, step) == step
    assert steps(storage) == (list(range(17)),) * 2


# another holder ------------------------------------------------------------------------------


def test_an_old_holder_publishes_nothing_and_disturbs_nobody(storage):
    old = Stream(storage, "train.r")
    commit_step(old, 0)
    late = old.begin()
    add_step(late, 1)
    expire(storage)
    with Stream(storage, "train.r") as new:
        transaction = new.begin()
        add_step(transaction, 2)
        with pytest.raises(LeaseError, match=r"training of run 'r' was taken over by process"):
            late.commit()
        old.close()
        transaction.commit()
    assert steps(storage) == ([0, 2], [0, 2])
    assert_clean(storage)


def test_a_holder_that_sleeps_through_its_last_check_is_fenced(storage, monkeypatch):
    old = Stream(storage, "train.r")
    commit_step(old, 0)
    late = old.begin()
    add_step(late, 1)
    monkeypatch.setattr(old.lease, "check", lambda: None)
    expire(storage)
    with Stream(storage, "train.r"):
        # in memory it finds the fence in the log, on a disk its staged files gone
        with pytest.raises((LeaseError, StorageError)):
            late.commit()
        old.close()
    assert steps(storage) == ([0], [0])
    assert_clean(storage)


CHILD = """
import os, signal, sys
from pico.lake import log
from pico.lake.commit import Stream
from pico.lake.storage import Storage
from tests.lake.steps import add_step, commit_step
stream = Stream(Storage(sys.argv[1]), "train.r")
commit_step(stream, 0)
transaction = stream.begin()
add_step(transaction, 1)
if sys.argv[2] == "unlogged":
    log.encode = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    transaction.commit()
elif sys.argv[2] == "committed":
    transaction.commit()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    ("moment", "expected"), [("staged", [0]), ("unlogged", [0]), ("committed", [0, 1])]
)
def test_after_a_kill_the_next_writer_opens_at_once_and_clears_up(local, moment, expected):
    root = Path(__file__).parents[2]
    child = subprocess.run([sys.executable, "-c", CHILD, local.url, moment], cwd=root)
    assert child.returncode == -signal.SIGKILL
    debris = bool(local.list(".staging")) or data_files(local) != live_files(local)
    assert debris == (moment != "committed")
    assert steps(local) == (expected, expected)
    with Stream(local, "train.r") as stream:
        assert not stream.lease.clean
        assert_clean(local)
        commit_step(stream, 7)
    assert steps(local) == ([*expected, 7], [*expected, 7])


def test_only_debris_of_the_same_stream_is_cleared(storage):
    with Stream(storage, "train.r") as stream:
        commit_step(stream, 0)
    other = Stream(storage, "derive.r.metrics")
    pending = other.begin()
    _, sink = pending.create("metrics/run=r")
    sink.write(b"not yet committed")
    sink.finish()
    sink.publish()
    crashed = Stream(storage, "train.r")
    _, sink = crashed.begin().create("metrics/run=r")
    sink.write(b"never committed")
    sink.finish()
    sink.publish()
    expire(storage)
    storage.put("weights/run=r/step=0/foreign.parquet", b"somebody else's")
    Stream(storage, "train.r").close()
    left = set(data_files(storage)) - set(live_files(storage))
    assert sorted(path.split("/")[0] for path in left) == ["metrics", "weights"]
    assert storage.read(next(p for p in left if p.startswith("metrics"))) == b"not yet committed"
    other.close()
    crashed.close()


@pytest.mark.parametrize(
    "folder", ["sequences/dataset=d", "sequences/dataset=d.heldout", "vocab/tokenizer=bpe-9-ab"]
)
def test_debris_of_a_data_set_is_cleared_wherever_it_wrote(storage, folder):
    crashed = Stream(storage, "data.d")
    _, sink = crashed.begin().create(folder)
    sink.write(b"x")
    sink.finish()
    sink.publish()
    expire(storage, "data.d")
    assert data_files(storage)
    with Stream(storage, "data.d"):
        assert data_files(storage) == []
    crashed.close()


# what is a lake, what is a stream -----------------------------------------------------------


@pytest.mark.parametrize("content", ["notes.txt", "weights/x.parquet"])
def test_a_folder_with_something_else_is_refused_and_left_alone(storage, content):
    storage.put(content, b"precious")
    if storage.folder is not None:
        storage.delete_staging(".staging")
    with pytest.raises(NotALakeError, match="is not empty and holds no lake; choose another"):
        Stream(storage, "train.r")
    assert [f.path for f in storage.list("")] == [content]


def test_a_file_is_no_lake(tmp_path):
    (tmp_path / "file").write_text("x")
    storage = Storage(str(tmp_path / "file"))
    with pytest.raises(NotALakeError, match="is not empty and holds no lake"):
        Stream(storage, "train.r")
    with pytest.raises(NotALakeError, match="no lake at"):
        Snapshot.take(storage)


def test_a_lake_whose_first_writer_died_before_its_first_commit_is_a_lake(storage):
    crashed = Stream(storage, "train.r")
    _, sink = crashed.begin().create("weights/run=r/step=0")
    sink.write(b"x")
    sink.finish()
    sink.publish()
    expire(storage)
    with Stream(storage, "train.r") as stream:
        commit_step(stream, 0)
    crashed.close()
    assert_clean(storage)


def test_two_writers_may_begin_a_lake_together(storage):
    with Stream(storage, "data.d") as one:
        _, sink = one.begin().create("sequences/dataset=d")
        sink.write(b"x")
        sink.finish()
        sink.publish()
        with Stream(storage, "train.r") as other:
            commit_step(other, 0)
    assert steps(storage) == ([0], [0])


@pytest.mark.parametrize(
    "name",
    [
        *("r", "", ".", "train", "train.", "train.../x", "train.a/b", "log.r", "train.true"),
        *("derive.r", "derive..m", "derive.r.", "data.jan1", "train.r\n", "train." + "a" * 300),
    ],
)
def test_streams_have_one_of_three_forms(storage, name):
    with pytest.raises(RunNameError):
        Stream(storage, name)
    assert storage.is_empty()


def test_streams_of_runs_with_dots(storage):
    for name in ("train.a.b-c_d", "derive.a.b.metrics", "data." + "a" * 137):
        Stream(storage, name).close()


def test_committed_files_are_whole_for_plain_readers(local):
    with Stream(local, "train.r") as stream:
        commit_step(stream, 3)
    for path in data_files(local):
        assert pq.read_table(local.folder / path, partitioning=None).num_rows == 1
