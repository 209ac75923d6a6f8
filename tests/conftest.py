"""Fixtures that every test may use."""

from pathlib import Path

import pytest
from hypothesis import settings

from tests.servers.s3 import s3_bucket, s3_client, s3_env, s3_options, s3_server, s3_url

__all__ = ["s3_bucket", "s3_client", "s3_env", "s3_options", "s3_server", "s3_url"]

# A time limit per example fails on a busy machine, and says nothing about the code.
settings.register_profile("pico", deadline=None)
settings.load_profile("pico")


@pytest.fixture(scope="session")
def shared() -> Path:
    """Return the folder of reference values and sample data beside the repository."""
    folder = Path(__file__).resolve().parents[1].parent / "shared"
    if not folder.is_dir():
        pytest.skip("no ../shared: the folder of reference values and sample data is absent")
    return folder
