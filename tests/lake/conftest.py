"""A lake on each kind of store, and short ways to put something into it."""

import os
import uuid
from collections.abc import Callable, Iterator, Mapping

import fsspec
import numpy as np
import pytest

from pico.lake import codec, table
from pico.lake.commit import Stream
from pico.lake.storage import Storage


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch) -> None:
    """Do not wait for fsync: only a power cut could tell the difference."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def local(tmp_path) -> Storage:
    return Storage(str(tmp_path / "lake"))


@pytest.fixture
def memory() -> Iterator[Storage]:
    url = f"memory://{uuid.uuid4().hex}"
    yield Storage(url)
    filesystem = fsspec.filesystem("memory")
    if filesystem.exists(url):
        filesystem.rm(url, recursive=True)


@pytest.fixture
def s3(s3_url) -> Storage:
    return Storage(s3_url)


@pytest.fixture(params=["local", "memory", "s3"])
def storage(request) -> Storage:
    return request.getfixturevalue(request.param)


@pytest.fixture
def commit_weights() -> Callable[..., int | None]:
    """Commit tensors by name as `weights` of one run and step."""

    def commit(
        storage: Storage,
        tensors: Mapping[str, codec.Tensor | np.ndarray],
        run: str = "r",
        step: int = 0,
        **options: object,
    ) -> int | None:
        with Stream(storage, f"train.{run}") as stream:
            transaction = stream.begin()
            table.write_tensors(
                transaction,
                "weights",
                {"run": run, "step": step},
                [
                    table.TensorRow(
                        {"name": name},
                        value if isinstance(value, codec.Tensor) else codec.Tensor.of(value),
                    )
                    for name, value in tensors.items()
                ],
                **options,
            )
            return transaction.commit()

    return commit
