"""The facts of the commit protocol, each with the test that guards it and the line that it guards.

`tests.stress.protections` lists them; `make reliability` takes each line out and sees the test
fail. Here only that places and tests are still there, and the facts that no other file tests.
"""

import re
from pathlib import Path

import pytest

from pico.lake.storage import Storage
from tests.servers.s3 import s3_bucket, s3_client, s3_env, s3_server, s3_url  # noqa: F401
from tests.stress.protections import PROTECTIONS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("protection", PROTECTIONS, ids=lambda p: p.fact[:60])
def test_a_protection_stands_where_its_mutation_looks_for_it(protection):
    assert (ROOT / protection.file).read_text().count(protection.before) == 1
    file, _, name = protection.test.partition("::")
    assert re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.MULTILINE)


def test_facts_are_told_once():
    assert len({protection.fact for protection in PROTECTIONS}) == len(PROTECTIONS) > 20


def test_listings_are_not_cached(s3_url):  # noqa: F811
    """A cached listing would hide the commits of other writers for ever."""
    reader, writer = Storage(s3_url), Storage(s3_url)
    assert reader._fs.dircache.use_listings_cache is False
    for number in range(3):
        writer.put(f"_log/train.r/{number:012d}.parquet", b"x")
        writer._fs.invalidate_cache = lambda *_: None  # as a writer in another process
        assert len(reader.list("_log")) == len(reader.paths("_log")) == number + 1
