"""Damaged files: our own error or the right answer, never a crash, a hang or a wrong answer."""

from __future__ import annotations

import pytest

from tests.fuzz import pool
from tests.fuzz.targets import TARGETS
from tests.stress import figures

QUICK = 40
"""Cases per target in every run of the tests, …"""
THOROUGH = 1500
"""… and in the slow ones."""


def check(target: str, seeds: range) -> None:
    found = pool.failures(target, seeds)
    assert not found, f"{len(found)} of {len(seeds)} cases:\n" + "\n".join(found[:20])
    figures.note("fuzz", kind=target, tried=len(seeds), survived=len(seeds))


def test_there_are_enough_cases() -> None:
    assert len(TARGETS) * THOROUGH >= 20_000
    assert len(TARGETS) * QUICK >= 500


@pytest.mark.parametrize("target", TARGETS)
def test_a_few_damaged_files(target: str) -> None:
    check(target, range(QUICK))


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_many_damaged_files(target: str) -> None:
    check(target, range(QUICK, QUICK + THOROUGH))
