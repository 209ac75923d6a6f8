import errno
import os
from pathlib import Path

import pytest

from pico.lake import local
from pico.lake.storage import Storage


@pytest.fixture
def operations(tmp_path, monkeypatch) -> list[tuple[str, str]]:
    """What reaches the disk, in order: operation and last part of the path."""
    done = []

    def note(name, path_of):
        operation = getattr(os, name)

        def noted(*args, **kwargs):
            done.append((name, path_of(*args).name))
            return operation(*args, **kwargs)

        monkeypatch.setattr(os, name, noted)

    note("fsync", lambda handle: Path(os.readlink(f"/proc/self/fd/{handle}")))
    note("mkdir", lambda path, *_: Path(path))
    note("replace", lambda _, target: Path(target))
    note("link", lambda _, target: Path(target))
    return done


def without_staging(operations) -> list[tuple[str, str]]:
    """The operations, every staged file under one name."""
    return [(name, "staged" if path.endswith(".inprogress") else path) for name, path in operations]


def test_a_data_file_is_durable_before_it_is_named_and_its_name_after(tmp_path, operations):
    storage = Storage(str(tmp_path))
    sink = storage.create("weights/run=r/a.parquet", ".staging/s/t")
    sink.write(b"data")
    operations.clear()
    sink.finish()
    sink.publish()
    assert without_staging(operations) == [
        ("fsync", "staged"),
        ("mkdir", "weights"),
        ("fsync", tmp_path.name),
        ("mkdir", "run=r"),
        ("fsync", "weights"),
        ("replace", "a.parquet"),
        ("fsync", "run=r"),
    ]


@pytest.mark.parametrize(("write", "name"), [("put", "replace"), ("put_new", "link")])
def test_small_files_are_durable_before_they_are_named(tmp_path, operations, write, name):
    storage = Storage(str(tmp_path))
    local.make_folder(tmp_path / "_log")
    local.make_folder(tmp_path / ".staging" / "put")
    operations.clear()
    getattr(storage, write)("_log/0.parquet", b"data")
    assert without_staging(operations) == [
        ("fsync", "staged"),
        (name, "0.parquet"),
        ("fsync", "_log"),
    ]


def test_a_folder_that_another_process_made_is_made_durable_once(tmp_path, operations):
    (tmp_path / "_log" / "train.r").mkdir(parents=True)
    operations.clear()
    local.make_folder(tmp_path / "_log" / "train.r")
    assert [op for op in operations if op[1] in (tmp_path.name, "_log")] == [
        ("fsync", tmp_path.name),
        ("fsync", "_log"),
    ]
    operations.clear()
    local.make_folder(tmp_path / "_log" / "train.r")
    assert operations == []


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_disk_that_fails_to_sync_a_folder_is_an_error(tmp_path, monkeypatch, error):
    def refuse(_):
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr("os.fsync", refuse)
    with pytest.raises(OSError, match=os.strerror(error)):
        local.sync_folder(tmp_path)


def test_folders_that_cannot_be_synced_are_no_trouble(tmp_path, monkeypatch):
    def refuse(_):
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr("os.fsync", refuse)
    local.sync_folder(tmp_path)
    local.sync_folder(tmp_path / "absent")
    local.make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()


def test_links_in_a_lake_are_followed_to_files_but_not_to_folders(tmp_path):
    (tmp_path / "lake" / "weights").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "x").write_bytes(b"123")
    (tmp_path / "lake" / "weights" / "file").symlink_to(tmp_path / "elsewhere" / "x")
    (tmp_path / "lake" / "weights" / "folder").symlink_to(tmp_path / "lake")
    (tmp_path / "lake" / "weights" / "nowhere").symlink_to(tmp_path / "absent")
    found = list(local.files_below(tmp_path / "lake", ""))
    assert [(path, size) for path, size, _ in found] == [("weights/file", 3)]
    assert list(local.names_below(tmp_path / "lake", "")) == ["weights/file"]
