"""The power fails at each file operation; see `tests.stress.crash_points`."""

import random

import pytest

from tests.stress import crash_points, forks
from tests.stress.crash_points import KILL, LOST, one_crash, survive, two_crashes


@pytest.fixture(scope="module")
def whole() -> dict:
    return forks.call(crash_points.reference)


def test_a_power_cut_at_some_operations(whole):
    draw = random.Random(3)
    cases = draw.sample(range(whole["n"]), whole["n"] // 25)
    modes = [LOST if index % 2 else n for index, n in enumerate(cases)]
    survive(
        "local, power cut",
        one_crash,
        [(n, mode, whole["prefixes"]) for n, mode in zip(cases, modes, strict=True)],
    )


@pytest.mark.parametrize("every", [15, pytest.param(1, marks=pytest.mark.slow)])
def test_a_power_cut_after_a_kill_between_making_a_folder_and_its_fsync(whole, every):
    made = [n + 1 for n, kind in enumerate(whole["kinds"]) if kind == "mkdir"]
    cases = [(first, 150, (KILL, LOST), whole["prefixes"]) for first in made[:-4:every]]
    survive("local, killed, then power cut", two_crashes, cases)


@pytest.mark.slow
def test_a_power_cut_that_loses_all_it_may_at_every_operation(whole):
    cases = range(whole["n"])
    survive("local, power cut", one_crash, [(n, LOST, whole["prefixes"]) for n in cases])


@pytest.mark.slow
def test_a_power_cut_that_loses_some_at_every_operation(whole):
    cases = range(whole["n"])
    survive("local, power cut", one_crash, [(n, n, whole["prefixes"]) for n in cases])


@pytest.mark.slow
def test_a_second_power_cut_while_resuming(whole):
    draw = random.Random(4)
    cases = [
        (draw.randrange(whole["n"]), draw.randrange(120), powers, whole["prefixes"])
        for powers in ((LOST, LOST), (KILL, LOST), (5, 6), (LOST, KILL))
        for _ in range(10)
    ]
    came = survive("local, power cut twice", two_crashes, cases)
    assert sum(came) > 25
