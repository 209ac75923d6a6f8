"""Probes: the same input under the same name, stored once."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pico.errors import RecordError, RunNameError
from pico.lake.storage import Storage
from pico.record import probes
from tests.train import tiny


def test_repeat_says_its_first_half_twice() -> None:
    probe = probes.repeat(50, 9, 3, seed=1, dataset="text")
    assert probe.tokens.shape == (3, 8)
    assert (probe.tokens[:, :4] == probe.tokens[:, 4:]).all()
    assert probe.tokens.min() >= 0
    assert probe.tokens.max() < 50
    assert len(np.unique(probe.tokens[:, :4])) > 6
    same, other = (probes.repeat(50, 9, 3, seed, "text") for seed in (1, 2))
    assert probe.input_hash == same.input_hash != other.input_hash


def test_an_input_hash_depends_on_shape_and_ids_alone() -> None:
    first = probes.make("a", [[1, 2], [3, 4]], "text").input_hash
    assert probes.make("b", np.array([[1, 2], [3, 4]], np.int32), "other").input_hash == first
    assert probes.make("a", [[1, 2, 3, 4]], "text").input_hash != first
    assert probes.make("a", [[1, 2], [4, 3]], "text").input_hash != first


@pytest.mark.parametrize("tokens", [[1, 2], [[1.5]], [[]], [], [[[1]]], [["a"]]])
def test_what_is_no_matrix_of_ids_is_refused(tokens: Any) -> None:
    with pytest.raises(RecordError, match="probe 'mine' must be a non-empty matrix of token ids"):
        probes.make("mine", tokens, "text")


def test_a_data_set_needs_a_name() -> None:
    with pytest.raises(RunNameError, match="'none' cannot name a data set"):
        probes.make("mine", [[1]], "none")


def test_a_probe_is_stored_once(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path / "lake"))
    probe = probes.make("mine", [[1, 2], [3, 4]], "text", [7, 9])
    for _ in range(2):
        probes.store(storage, probe)
    rows = tiny.rows(tmp_path / "lake", "probes")
    assert [(r["probe"], r["sequence_id"], r["tokens"]) for r in rows] == [
        ("mine", 7, [1, 2]),
        ("mine", 9, [3, 4]),
    ]
    assert {row["input_hash"] for row in rows} == {probe.input_hash}
    with pytest.raises(RecordError, match="'text' already has another probe named 'mine'"):
        probes.store(storage, probes.make("mine", [[1, 2], [3, 5]], "text"))
    probes.store(storage, probes.make("mine", [[1, 2], [3, 5]], "other"))


def test_several_runs_may_store_it_at_once(tmp_path: Path) -> None:
    probe = probes.make("mine", [[1, 2]], "text")
    errors: list[BaseException] = []

    def store() -> None:
        try:
            probes.store(Storage(str(tmp_path / "lake")), probe)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=store) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not errors
    assert len(tiny.rows(tmp_path / "lake", "probes")) == 1


def test_tokens_are_an_input_as_torch_takes_it() -> None:
    tokens = probes.make("mine", np.array([[1, 2]], np.uint16), "text").tokens
    assert torch.from_numpy(tokens).dtype == torch.int64
