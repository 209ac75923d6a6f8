"""An S3 server for tests: moto in this process, or a real one that the environment names.

`tests/conftest.py` makes the fixtures known to every test:

    def test_something(s3_url):
        storage = Storage(s3_url)            # s3://<a new bucket>/lake, credentials by environment

    def test_options(s3_bucket, s3_options): # the same as a mapping of storage options
        Storage(f"s3://{s3_bucket}/lake", s3_options)

A child process inherits the environment, so it reaches the same server. With `PICO_TEST_S3` (an
address like `http://host:port`), `PICO_TEST_S3_KEY` and `PICO_TEST_S3_SECRET` in the environment
the fixtures use that server instead: `tests/lake/test_ceph.py` does so with a real Ceph.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

KEY = os.environ.get("PICO_TEST_S3_KEY", "a-key-for-tests")
SECRET = os.environ.get("PICO_TEST_S3_SECRET", "a-secret-for-tests")
NAME = "S3 (Ceph RGW)" if "PICO_TEST_S3" in os.environ else "S3 (moto)"
"""What the counts of the reliability report call the server."""
_CLEARED = ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_DEFAULT_PROFILE", "AWS_MAX_ATTEMPTS")


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """Return the URL of an S3 server on a free port of this machine."""
    given = os.environ.get("PICO_TEST_S3")
    if given:
        yield given
        return
    pytest.importorskip("moto", reason="moto is not installed (the extra dev brings it)")
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3_env(s3_server, monkeypatch) -> dict[str, str]:
    """Put the server's address and credentials into the environment."""
    given = {
        "AWS_ENDPOINT_URL": s3_server,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_REQUEST_CHECKSUM_CALCULATION": "WHEN_REQUIRED",
        "AWS_RESPONSE_CHECKSUM_VALIDATION": "WHEN_REQUIRED",
    }
    for name in _CLEARED:
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    return given


@pytest.fixture
def s3_client(s3_env) -> Iterator[Any]:
    """Return a plain botocore client of the server: a witness that shares no code with s3fs."""
    from botocore.session import get_session

    client = get_session().create_client("s3")
    yield client
    client.close()


@pytest.fixture
def s3_bucket(s3_client) -> Iterator[str]:
    """Return the name of a new bucket, which is emptied and deleted afterwards."""
    name = f"pico-{uuid.uuid4().hex}"
    s3_client.create_bucket(Bucket=name)
    yield name
    for upload in s3_client.list_multipart_uploads(Bucket=name).get("Uploads", ()):
        s3_client.abort_multipart_upload(
            Bucket=name, Key=upload["Key"], UploadId=upload["UploadId"]
        )
    for page in s3_client.get_paginator("list_objects_v2").paginate(Bucket=name):
        for found in page.get("Contents", ()):
            s3_client.delete_object(Bucket=name, Key=found["Key"])
    s3_client.delete_bucket(Bucket=name)


@pytest.fixture
def s3_url(s3_bucket) -> str:
    """Return the URL of a lake that is not there yet, in a bucket of its own."""
    return f"s3://{s3_bucket}/lake"


@pytest.fixture
def s3_options(s3_server) -> dict[str, Any]:
    """Return storage options that say what `s3_env` says."""
    return {"key": KEY, "secret": SECRET, "client_kwargs": {"endpoint_url": s3_server}}
