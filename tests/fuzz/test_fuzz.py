"""Damaged files: our own error or the right answer, never a crash, a hang or a wrong answer."""

from __future__ import annotations

import pytest

from tests.fuzz import pool
from tests.fuzz.targets import TARGETS
from tests.stress import figures

QUICK = 40
"""Cases per target in every run of the tests, …"""
THOROUGH = 1750
"""… and in the slow ones; …"""
COSTLY = {"data files in SQL": 400, "log files, lake opened": 1000}
"""… of targets whose every case takes long, fewer."""


def check(target: str, seeds: range) -> None:
    found = pool.failures(target, seeds)
    assert not found, f"{len(found)} of {len(seeds)} cases:\n" + "\n".join(found[:20])
    figures.note("fuzz", kind=target, tried=len(seeds), survived=len(seeds))


def test_there_are_enough_cases() -> None:
    assert sum(COSTLY.get(target, THOROUGH) for target in TARGETS) >= 20_000
    assert len(TARGETS) * QUICK >= 500


@pytest.mark.parametrize(
    ("planted", "said"),
    [
        ("abort", "died with -6"),
        ("bomb", "MemoryError"),
        ("wrong", "a wrong answer without an error"),
        ("foreign", "builtins.KeyError"),
    ],
)
def test_faults_are_found_and_named(planted: str, said: str) -> None:
    found = pool.failures(planted, range(3))
    assert len(found) == 3
    assert all(said in line and f"{planted}, seed " in line for line in found)


def test_a_hang_is_found_and_named() -> None:
    assert pool.failures("hang", range(1), 1, seconds=5) == ["hang, seed 0: hung"]


@pytest.mark.parametrize("target", TARGETS)
def test_a_few_damaged_files(target: str) -> None:
    check(target, range(QUICK))


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_many_damaged_files(target: str) -> None:
    check(target, range(QUICK, QUICK + COSTLY.get(target, THOROUGH)))
