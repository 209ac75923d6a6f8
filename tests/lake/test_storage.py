import datetime
import errno
import json
import subprocess
import sys
import threading
import time
import uuid
from typing import ClassVar

import duckdb
import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from pico.errors import CorruptError, LakeError, MissingExtraError, StorageError
from pico.lake import local as local_files
from pico.lake.listing import StoredFile, listed
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage


def test_a_lake_needs_no_existing_folder(storage):
    assert storage.is_empty()
    assert storage.list("") == storage.list("_log") == []


def test_put_read_list_delete(storage):
    storage.put("a/b/one.bin", b"1")
    storage.put("a/b/one.bin", b"22")
    storage.put("a/two.bin", b"")
    storage.put("ab/three.bin", b"333")
    assert storage.read("a/b/one.bin") == b"22"
    assert [(f.path, f.size) for f in storage.list("a")] == [("a/b/one.bin", 2), ("a/two.bin", 0)]
    assert [f.path for f in storage.list("")] == ["a/b/one.bin", "a/two.bin", "ab/three.bin"]
    assert not storage.is_empty()
    storage.delete(["a/b/one.bin", "a/b/never.bin"])
    assert [f.path for f in storage.list("a")] == ["a/two.bin"]
    with pytest.raises(FileNotFoundError):
        storage.read("a/b/one.bin")


def test_put_new_never_overwrites(storage):
    assert storage.put_new("_log/s/0.parquet", b"first")
    assert not storage.put_new("_log/s/0.parquet", b"second")
    assert storage.read("_log/s/0.parquet") == b"first"
    assert not storage.list(".staging")


def test_two_storages_of_one_memory_url_are_one_lake(memory):
    other = Storage(memory.url)
    memory.put("x", b"1")
    assert other.read("x") == b"1"
    assert not other.put_new("x", b"2")
    assert Storage(memory.url + "2").list("") == []


def test_threads_race_for_one_name(storage, monkeypatch):
    exists = storage._fs.exists

    def slowly(path):
        found = exists(path)
        time.sleep(0.01)  # another thread's turn, at the worst moment
        return found

    monkeypatch.setattr(storage._fs, "exists", slowly)
    start = threading.Barrier(8)
    won = []

    def claim(number: int) -> None:
        start.wait()
        if storage.put_new("race", str(number).encode()):
            won.append(number)

    threads = [threading.Thread(target=claim, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [storage.read("race")] == [str(number).encode() for number in won]


RACE = """
import errno, json, os, sys, time
from pico.lake.listing import StoredFile, listed
from pico.lake.storage import Storage
url, me, fallback, start = sys.argv[1], sys.argv[2], sys.argv[3] == "True", float(sys.argv[4])
def refuse(*a, **k):
    raise OSError(errno.EPERM, "no hard links here")
if fallback:
    os.link = refuse
storage = Storage(url)
won = []
for number in range(100):
    while time.time() < start + number * 0.005:
        pass  # both begin each attempt together
    if storage.put_new(f"race/{number}", me.encode()):
        won.append(number)
print(json.dumps(won))
"""


@pytest.mark.parametrize("fallback", [False, True], ids=["hard links", "no hard links"])
def test_processes_race_for_many_names(local, fallback):
    arguments = [str(fallback), str(time.time() + 1.5)]
    racers = {
        me: subprocess.Popen(
            [sys.executable, "-c", RACE, local.url, me, *arguments],
            stdout=subprocess.PIPE,
            text=True,
        )
        for me in ("a", "b")
    }
    won = {me: json.loads(racer.communicate()[0]) for me, racer in racers.items()}
    assert sorted(won["a"] + won["b"]) == list(range(100))
    for me, numbers in won.items():
        assert {local.read(f"race/{number}") for number in numbers} <= {me.encode()}


def test_without_hard_links_a_crash_blocks_nobody(local, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("os.link", refuse)
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", refuse)
        with pytest.raises(StorageError):
            local.put_new("_log/s/0", b"lost")
    assert local.put_new("_log/s/0", b"first")
    assert not local.put_new("_log/s/0", b"second")
    assert local.read("_log/s/0") == b"first"
    assert [f.path for f in local.list("_log")] == ["_log/s/0"]


def test_a_refused_link_is_not_taken_for_a_store_without_links(local, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.link", refuse)
    with pytest.raises(StorageError, match=r"cannot write x of .*: .*No space left"):
        local.put_new("x", b"1")
    assert local.list("") == []


def test_put_leaves_nothing_staged_when_it_fails(local, monkeypatch):
    local.put("x", b"old")

    def refuse(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(StorageError, match="Input/output error"):
        local.put("x", b"new")
    assert [(f.path, f.size) for f in local.list("")] == [("x", 3)]


def test_a_listing_that_fails_is_not_an_empty_one(local, monkeypatch):
    local.put("a/x", b"1")

    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("os.scandir", refuse)
    with pytest.raises(StorageError, match=r"cannot list a of .*Permission denied"):
        local.list("a")


def test_files_that_vanish_during_a_listing_are_left_out(local, monkeypatch):
    for name in ("a/1", "a/2", "b/3"):
        local.put(name, b"")
    scandir = local_files.os.scandir

    def vanish(path):
        listing = scandir(path)
        if str(path).endswith("a"):
            (local.folder / "a/1").unlink()
        return listing

    monkeypatch.setattr("os.scandir", vanish)
    assert [f.path for f in local.list("")] in (["a/2", "b/3"], ["a/1", "a/2", "b/3"])


def test_an_empty_or_absent_file_is_opened_or_refused(storage):
    storage.put("empty", b"")
    try:
        with storage.open("empty") as file:
            assert file.read() == b""
    except (StorageError, CorruptError) as error:
        assert "\n" not in str(error)
    with pytest.raises(FileNotFoundError):
        storage.open("absent").read()


# URLs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url", ["s3://KEY:SECRET@bucket/lake", "https://user@host/x", "simplecache::s3://K:S@b/lake"]
)
def test_urls_with_credentials_are_refused(url):
    with pytest.raises(LakeError, match="must not carry credentials") as caught:
        Storage(url)
    assert "SECRET" not in str(caught.value)


def test_an_at_sign_in_a_path_is_no_credential(tmp_path):
    assert Storage(f"file://{tmp_path}/a@b").folder == tmp_path / "a@b"


def test_storage_options_are_never_shown(memory):
    url = f"memory://{uuid.uuid4().hex}"
    storage = Storage(url, {"key": "SECRET"})
    assert repr(storage) == f"Storage({url!r})"
    assert "SECRET" not in repr(storage)
    with pytest.raises(LakeError) as caught:
        Storage("nosuch://x", {"key": "SECRET"})
    assert "SECRET" not in str(caught.value)
    assert "nosuch" in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.fixture
def absent_packages(monkeypatch):
    """Pretend that no package for a remote store is installed."""
    for name in ("s3fs", "gcsfs"):
        monkeypatch.setitem(sys.modules, name, None)
    for protocol in ("s3", "s3a", "gs"):
        monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, protocol, raising=False)


def test_a_missing_extra_is_named(absent_packages):
    with pytest.raises(MissingExtraError, match=r"s3fs is not .* pip install 'pico-lake\[s3\]'"):
        Storage("s3://bucket/lake")


def test_a_missing_package_without_an_extra_is_named(absent_packages):
    with pytest.raises(LakeError, match=r"cannot open 'gs://bucket/lake': .*gcsfs"):
        Storage("gs://bucket/lake")


@pytest.mark.parametrize("suffix", ["", "/"])
def test_urls_of_local_folders(tmp_path, monkeypatch, suffix):
    monkeypatch.chdir(tmp_path)
    for url in (f"{tmp_path}/lake", f"file://{tmp_path}/lake", "lake", "./lake"):
        assert Storage(url + suffix).folder == tmp_path / "lake"


def test_the_root_folder_is_not_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert str(Storage("/").folder) == "/"
    assert not Storage("/").is_empty()


# stores with put-if-absent ------------------------------------------------------------------


class ObjectStore(MemoryFileSystem):
    """Memory as an object store: conditional PUT in the ways that real ones answer."""

    protocol = "objects"
    store: ClassVar[dict] = {}
    pseudo_dirs: ClassVar[list] = [""]
    behaviour = "aws"

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.replace("objects://", "memory://"))

    def pipe_file(self, path, value, mode="overwrite", **kwargs):
        kind = type(self).behaviour
        if mode == "create" and kind != "ignores" and self.exists(path):
            if kind == "aws":
                raise FileExistsError(path)
            cause = RuntimeError()
            cause.response = {
                "Error": {"Code": "PreconditionFailed" if kind == "ceph" else "412"},
                "ResponseMetadata": {"HTTPStatusCode": 412},
            }
            raise OSError(errno.EINVAL, "a pre-condition did not hold") from cause
        super().pipe_file(path, value)
        if kind == "lost answer" and "probe" not in path:
            raise TimeoutError(errno.ETIMEDOUT, f"no answer for {path}")

    def __init__(self, **kwargs):
        super().__init__(**kwargs)


@pytest.fixture
def objects(monkeypatch):
    monkeypatch.setattr(ObjectStore, "store", {})
    monkeypatch.setattr(ObjectStore, "pseudo_dirs", [""])
    fsspec.register_implementation("objects", ObjectStore, clobber=True)
    storage = Storage(f"objects://{uuid.uuid4().hex}")
    # the exact class is what `put_new` asks for to take the lock instead
    monkeypatch.setattr("pico.lake.storage.MemoryFileSystem", ())
    return storage


@pytest.mark.parametrize("behaviour", ["aws", "ceph", "plain 412"])
def test_conditional_puts(objects, monkeypatch, behaviour):
    monkeypatch.setattr(ObjectStore, "behaviour", behaviour)
    assert objects.put_new("_log/s/0", b"1")
    assert not objects.put_new("_log/s/0", b"2")
    assert objects.read("_log/s/0") == b"1"
    assert not objects.list(".staging")


def test_a_store_that_ignores_the_condition_is_refused(objects, monkeypatch):
    monkeypatch.setattr(ObjectStore, "behaviour", "ignores")
    with pytest.raises(StorageError, match="does not honour put-if-absent"):
        objects.put_new("_log/s/0", b"1")
    assert not objects.list("")


def test_a_timeout_is_no_answer_even_for_commit_412(objects, monkeypatch):
    monkeypatch.setattr(ObjectStore, "behaviour", "lost answer")
    with pytest.raises(StorageError, match="no answer"):
        objects.put_new("_log/s/000000000412.parquet", b"1")


# the snapshot's file system -----------------------------------------------------------------


def test_duckdb_reads_a_snapshot_through_its_file_system(storage, commit_weights):
    commit_weights(storage, {"w": np.arange(9, dtype=np.float32)}, step=1)
    commit_weights(storage, {"w": np.ones(2, np.float32)}, run="q")
    files = Snapshot.take(storage).files("weights", runs=["r"])
    filesystem, protocol = storage.snapshot_filesystem({e.path: e.bytes for e in files})
    with duckdb.connect() as con:
        con.register_filesystem(filesystem)
        urls = [f"{protocol}://{entry.path}" for entry in files]
        query = "SELECT name, list_sum(value), run, step FROM read_parquet(?, hive_partitioning=1)"
        assert con.execute(query, [urls]).fetchall() == [("w", 36.0, "r", 1)]
        with pytest.raises(duckdb.Error):
            con.execute(query, [[f"{protocol}://{storage.list('weights/run=q')[0].path}"]])


def test_a_snapshot_file_system_is_read_only_and_holds_nothing_else(memory):
    memory.put("weights/a.parquet", b"12345")
    memory.put("secret", b"x")
    filesystem, _ = memory.snapshot_filesystem({"weights/a.parquet": 5})
    assert filesystem.glob("picosnap://weights/a.parquet") == ["weights/a.parquet"]
    assert filesystem.cat_file("weights/a.parquet", start=1, end=3) == b"23"
    assert filesystem.exists("weights/a.parquet") and not filesystem.exists("secret")
    with pytest.raises(FileNotFoundError):
        filesystem.open("secret")
    with pytest.raises(PermissionError, match="read-only"):
        filesystem.open("weights/a.parquet", "wb")


def test_a_listing_says_when_a_file_was_last_changed(storage):
    before = time.time() - 2
    storage.put("a/one", b"1")
    storage.put("a/b/two", b"22")
    found = storage.list("a")
    assert [(file.path, file.size) for file in found] == [("a/b/two", 2), ("a/one", 1)]
    assert all(before < file.modified < time.time() + 2 for file in found)
    assert storage.paths("a") == [file.path for file in found]
    assert storage.paths("absent") == storage.list("absent") == []


@pytest.mark.parametrize("word", ["mtime", "LastModified", "last_modified", "created", None])
def test_each_store_has_its_word_for_the_time(word):
    moment = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    info = {"size": 3, **({word: moment} if word else {})}
    expected = moment.timestamp() if word else pytest.approx(time.time(), abs=5)
    assert listed("x", info) == StoredFile("x", 3, expected)
