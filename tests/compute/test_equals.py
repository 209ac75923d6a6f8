"""What other runs hold of equal tensors: found by hash, in whatever run and however many."""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
import pytest

from pico.compute.equals import Elsewhere


def hashes(*numbers: int) -> pa.Array:
    return pa.array([hashlib.md5(str(n).encode()).hexdigest() for n in numbers], pa.string())


@pytest.mark.parametrize("n_runs", [1, 2, 9, 40])
def test_runs_are_found_by_what_they_hold(n_runs: int) -> None:
    found = Elsewhere([])
    for number in range(n_runs):  # neighbours share half of what they hold
        found.note(f"r{number}", hashes(*range(10 * number, 10 * number + 20)))
    for number in range(n_runs):
        own = hashes(10 * number + 3)
        wanted = [f"r{number - 1}"] * (number > 0) + [f"r{number}"]
        assert found.runs_with(own) == wanted
        assert found.holds(own).tolist() == [True]
    strangers = hashes(*range(10_000, 10_100))
    assert found.runs_with(strangers) == [] and not found.holds(strangers).any()
    both = found.holds(pa.concat_arrays([strangers, hashes(0, 1)]))
    assert both.tolist() == [False] * 100 + [True, True]


def test_a_run_may_be_noted_again() -> None:
    found = Elsewhere([])
    found.note("a", hashes(1))
    found.note("b", hashes(1, 2))
    found.note("a", hashes(1, 3))
    assert found.runs_with(hashes(1)) == ["a", "b"]
    assert found.runs_with(hashes(3, 2)) == ["a", "b"] and found.runs_with(hashes(3)) == ["a"]


def test_nothing_is_held_by_nobody() -> None:
    found = Elsewhere([])
    assert not found.holds(hashes(1)).any() and found.runs_with(hashes(1)) == []
    found.note("a", hashes())
    assert found.holds(hashes()).tolist() == []
    assert not found.holds(hashes(5)).any()


def test_memory_is_eight_bytes_a_tensor() -> None:
    found = Elsewhere([])
    rng = np.random.default_rng(0)
    for number in range(30):
        texts = [f"{n:016x}" for n in rng.integers(0, 2**63, 1000)]
        found.note(f"r{number}", pa.array(texts))
    assert sum(level.nbytes for level in found._levels) == 8 * 30_000
    assert len(found._levels) <= 6


def test_hashes_that_are_none_do_no_harm() -> None:
    found = Elsewhere([])
    odd = pa.array(["", "ä", "x" * 40, "zz:yy"], pa.string())
    found.note("a", odd)
    assert found.holds(odd).all() and found.runs_with(odd) == ["a"]
