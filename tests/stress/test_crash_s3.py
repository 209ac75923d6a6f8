"""A training process dies before and after each request to an S3 store."""

import random

import pytest

from tests.lake.test_races import one_gets_each_number
from tests.servers.s3 import (  # noqa: F401
    NAME,
    s3_bucket,
    s3_client,
    s3_env,
    s3_options,
    s3_server,
)
from tests.stress import crash_requests, figures, forks
from tests.stress.crash_points import survive

pytest.importorskip("s3fs", reason="s3fs is not installed")
CHANGES = ("PutObject", "DeleteObject", "DeleteObjects", "CompleteMultipartUpload")


@pytest.fixture(scope="module")
def wanted() -> list:
    return forks.call(crash_requests.reference)


@pytest.mark.parametrize("n_cases", [3, pytest.param(None, marks=pytest.mark.slow)])
def test_a_crash_before_or_after_any_request(s3_bucket, s3_env, wanted, n_cases):  # noqa: F811
    requests = forks.call(crash_requests.count, s3_bucket, s3_env)
    assert {"PutObject", "ListObjectsV2"} <= set(requests)
    assert requests.count("PutObject") > 15
    points = [(number, False) for number in range(len(requests))]
    points += [(number, True) for number, kind in enumerate(requests) if kind in CHANGES]
    if n_cases:
        points = random.Random(8).sample(points, n_cases)
    cases = [(*point, s3_bucket, s3_env, wanted) for point in points]
    survive(NAME, crash_requests.one_crash, cases)


def test_of_eight_processes_exactly_one_gets_each_number_on_s3(s3_bucket, s3_options):  # noqa: F811
    one_gets_each_number(f"s3://{s3_bucket}/lake", s3_options, 15)
    kind = f"8 processes for one commit number, {NAME}"
    figures.note("races", kind=kind, tried=15, survived=15)
