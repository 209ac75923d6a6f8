"""A lake on S3: what is peculiar to it, beside what every store's tests say."""

import logging
import os
import threading
import time
import uuid

import numpy as np
import pytest

import pico
from pico.errors import LakeError, NotALakeError, StorageError
from pico.lake import objects
from pico.lake.commit import Stream, file_tag
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage, Upload
from tests.servers.faulty_proxy import FaultyProxy
from tests.servers.s3 import KEY, SECRET

FAST = {"connect_timeout": 2, "read_timeout": 2, "retries": {"total_max_attempts": 1}}


def hurried(options: dict) -> dict:
    """Return storage options that give up at once."""
    return options | {"config_kwargs": FAST}


# errors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("do", ["read", "list", "put", "put_new", "delete", "is_empty", "uploads"])
def test_a_store_that_is_not_there_is_one_clear_line(s3_bucket, s3_options, do):
    options = hurried(s3_options) | {"client_kwargs": {"endpoint_url": "http://127.0.0.1:9"}}
    storage = Storage(f"s3://{s3_bucket}/lake", options)
    calls = {
        "read": lambda: storage.read("x"),
        "list": lambda: storage.list(""),
        "put": lambda: storage.put("x", b"1"),
        "put_new": lambda: storage.put_new("x", b"1"),
        "delete": lambda: storage.delete(["x"]),
        "is_empty": storage.is_empty,
        "uploads": storage.unfinished_uploads,
    }
    with pytest.raises(StorageError, match=r"no connection.*endpoint_url.*AWS_ENDPOINT_URL") as e:
        calls[do]()
    assert "\n" not in str(e.value) and storage.url in str(e.value)


def test_without_credentials_the_way_out_is_named(s3_url, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(StorageError, match=r"no credentials; .*AWS_ACCESS_KEY_ID.*storage_options"):
        Storage(s3_url).read("x")


def test_credentials_given_later_are_used(s3_url, monkeypatch, s3_env):
    with monkeypatch.context() as patch:
        patch.delenv("AWS_ACCESS_KEY_ID")
        patch.delenv("AWS_SECRET_ACCESS_KEY")
        with pytest.raises(StorageError):
            Storage(s3_url).put("x", b"1")
    Storage(s3_url).put("x", b"1")


def test_a_bucket_that_is_not_there_is_named(s3_env):
    storage = Storage(f"s3://pico-{uuid.uuid4().hex}/lake")
    with pytest.raises(StorageError, match="no such bucket; create it"):
        storage.put("x", b"1")
    with pytest.raises(NotALakeError):
        Snapshot.take(storage)


def test_a_store_that_never_answers_is_given_up(s3_bucket, s3_options, s3_server):
    with FaultyProxy(s3_server, patience=30) as proxy:
        proxy.spoil(0, "timeout", 1000)
        options = hurried(s3_options) | {"client_kwargs": {"endpoint_url": proxy.url}}
        with pytest.raises(StorageError, match="no answer in time; check endpoint_url"):
            Storage(f"s3://{s3_bucket}/lake", options).read("x")
        assert proxy.n_requests <= 4


def test_patience_is_bounded_and_can_be_overridden(monkeypatch):
    mine = objects.connection("s3", {"key": "k"})
    assert mine["config_kwargs"]["retries"]["total_max_attempts"] == 5
    assert mine["config_kwargs"]["read_timeout"] == 20
    theirs = objects.connection("s3", {"config_kwargs": {"read_timeout": 7}})
    assert theirs["config_kwargs"] == mine["config_kwargs"] | {"read_timeout": 7}
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "9")
    assert "retries" not in objects.connection("s3", {})["config_kwargs"]
    assert objects.connection("file", {"a": 1}) == {"a": 1}


# put-if-absent ----------------------------------------------------------------------------------


def test_a_conflict_between_conditional_puts_is_repeated(s3_bucket, s3_options, s3_server):
    with FaultyProxy(s3_server) as proxy:
        options = s3_options | {"client_kwargs": {"endpoint_url": proxy.url}}
        storage = Storage(f"s3://{s3_bucket}/lake", options)
        storage.put_new("first", b"1")
        proxy.spoil(0, "409", 3)
        assert storage.put_new("second", b"2")
        assert proxy.n_spoiled == 3 and proxy.n_requests == 4
        proxy.spoil(0, "409", 100)
        with pytest.raises(StorageError, match="cannot write third"):
            storage.put_new("third", b"3")


def test_a_lost_answer_to_the_probe_is_no_proof_against_the_store(s3_bucket, s3_options, s3_server):
    with FaultyProxy(s3_server) as proxy:
        options = s3_options | {"client_kwargs": {"endpoint_url": proxy.url}}
        for number in range(3):
            storage = Storage(f"s3://{s3_bucket}/lake", options)
            proxy.spoil(number, "lost answer")
            assert storage.put_new(f"x{number}", b"1")
            assert proxy.n_spoiled == 1


def test_threads_race_for_one_key(s3):
    won, start = [], threading.Barrier(8)

    def claim(number: int) -> None:
        start.wait()
        if s3.put_new("race", str(number).encode()):
            won.append(number)

    threads = [threading.Thread(target=claim, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [s3.read("race")] == [str(number).encode() for number in won]


def test_readers_need_no_right_to_write(s3, commit_weights, monkeypatch):
    commit_weights(s3, {"w": np.arange(4, dtype=np.float32)}, step=1)
    reader = Storage(s3.url)

    def refuse(*_, **__):
        raise PermissionError("Access Denied")

    for name in ("pipe_file", "rm_file", "rm"):
        monkeypatch.setattr(reader._fs, name, refuse)
    assert Snapshot.take(reader).read("weights")["name"].to_pylist() == ["w"]
    with pico.connect(s3.url) as con:
        assert con.execute("SELECT list_sum(value) FROM weights").fetchall() == [(6.0,)]
    with pytest.raises(StorageError, match="Access Denied"):
        reader.put_new("x", b"")


# unfinished uploads -----------------------------------------------------------------------------


def begin_upload(s3_client, bucket: str, key: str) -> str:
    found = s3_client.create_multipart_upload(Bucket=bucket, Key=key)
    s3_client.upload_part(
        Bucket=bucket, Key=key, PartNumber=1, UploadId=found["UploadId"], Body=b"half"
    )
    return found["UploadId"]


def test_unfinished_uploads_are_listed_and_aborted(s3, s3_bucket, s3_client):
    first = begin_upload(s3_client, s3_bucket, "lake/weights/run=r/a.parquet")
    begin_upload(s3_client, s3_bucket, "lake/metrics/run=r/b.parquet")
    begin_upload(s3_client, s3_bucket, "elsewhere/weights/c.parquet")
    [found] = s3.unfinished_uploads("weights")
    assert found == Upload("weights/run=r/a.parquet", first, found.started)
    if "PICO_TEST_S3" in os.environ:  # moto says 2010 of every upload
        assert abs(found.started - time.time()) < 3600
    assert [u.path for u in s3.unfinished_uploads()] == [
        "metrics/run=r/b.parquet",
        "weights/run=r/a.parquet",
    ]
    assert s3.list("weights") == []
    s3.abort_uploads([found, found])
    assert [u.path for u in s3.unfinished_uploads()] == ["metrics/run=r/b.parquet"]
    left = s3_client.list_multipart_uploads(Bucket=s3_bucket)["Uploads"]
    assert sorted(u["Key"] for u in left) == [
        "elsewhere/weights/c.parquet",
        "lake/metrics/run=r/b.parquet",
    ]


def test_other_stores_have_no_unfinished_uploads(local, memory):
    for storage in (local, memory):
        assert storage.unfinished_uploads() == []
        storage.abort_uploads([])


def test_a_stream_aborts_what_its_killed_predecessor_left(s3, s3_bucket, s3_client, commit_weights):
    commit_weights(s3, {"w": np.ones(2, np.float32)})
    mine = f"lake/weights/run=r/step=1/{file_tag('train.r')}-x.parquet"
    theirs = f"lake/weights/run=r/step=1/{file_tag('derive.r.m')}-x.parquet"
    begin_upload(s3_client, s3_bucket, mine)
    begin_upload(s3_client, s3_bucket, theirs)
    dead = Stream(s3, "train.r")
    dead.lease.release(tidy=False)
    Stream(s3, "train.r").close()
    left = s3_client.list_multipart_uploads(Bucket=s3_bucket).get("Uploads", ())
    assert [u["Key"] for u in left] == [theirs]


# secrets ----------------------------------------------------------------------------------------


def test_secrets_of_the_options_are_seen_nowhere(
    s3_bucket, s3_client, s3_options, commit_weights, caplog, monkeypatch
):
    s3_client.list_buckets()  # it has its credentials now
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    canary = "canary" + uuid.uuid4().hex
    options = s3_options | {"token": canary}
    seen = []
    with caplog.at_level(logging.DEBUG, logger="pico"):
        url = f"s3://{s3_bucket}/lake"
        storage = Storage(url, options)
        commit_weights(storage, {"w": np.ones(3, np.float32)})
        seen += [repr(storage), str(vars(Snapshot.take(storage)).get("storage"))]
        lake = pico.Lake(url, options)
        seen += [repr(lake), repr(lake.sql("SELECT name, shape FROM weights"))]
        seen.append(repr(lake.sql("SELECT * FROM files")))
        for wrong in (
            lambda: Storage(f"s3://{s3_bucket}/lake", options | {"config_kwargs": {canary: 1}}),
            lambda: Storage(f"nosuch://{s3_bucket}/lake", options),
        ):
            try:
                wrong().read("x")
            except LakeError as error:
                seen.append(str(error))
        monkeypatch.setattr(
            storage._fs, "cat_file", lambda *_, **__: (_ for _ in ()).throw(OSError(f"no {canary}"))
        )
        with pytest.raises(StorageError, match=r"no \*\*\*") as caught:
            storage.read("x")
        seen.append(str(caught.value))
    seen += [record.getMessage() for record in caplog.records if record.name.startswith("pico")]
    for found in s3_client.list_objects_v2(Bucket=s3_bucket)["Contents"]:
        data = s3_client.get_object(Bucket=s3_bucket, Key=found["Key"])["Body"].read()
        seen.append(found["Key"] + data.decode("latin-1"))
    assert len(seen) > 8
    for text in seen:
        for secret in (canary, SECRET, KEY):
            assert secret not in text
