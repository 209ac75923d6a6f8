"""A training process is killed at each of its file operations; see `tests.stress.crash_points`."""

import random
from collections import Counter

import pytest

from tests.stress import crash_points, forks
from tests.stress.crash_points import KILL, one_crash, survive, two_crashes


@pytest.fixture(scope="module")
def whole() -> dict:
    return forks.call(crash_points.reference)


def test_no_operation_passes_by_the_shim(whole):
    seen = Counter(whole["kinds"])
    assert {kind: seen[kind] for kind in whole["audited"]} == dict(whole["audited"])
    assert set(seen) - set(whole["audited"]) == {"write", "close", "fsync", "list"}
    assert min(seen.values()) >= 3
    assert seen["write"] >= seen["open"] == seen["close"]


def test_the_run_is_the_same_every_time(whole):
    again = forks.call(crash_points.reference)
    assert again["prefixes"] == whole["prefixes"]
    assert again["kinds"] == whole["kinds"]
    assert len(whole["prefixes"]) > 4
    sizes = [sum(prefix.files.values()) for prefix in whole["prefixes"]]
    assert sizes == sorted(set(sizes))


def test_a_kill_at_some_operations(whole):
    cases = random.Random(1).sample(range(whole["n"]), whole["n"] // 25)
    survive("local, killed", one_crash, [(n, KILL, whole["prefixes"]) for n in cases])


@pytest.mark.slow
def test_a_kill_at_every_operation(whole):
    cases = range(whole["n"])
    survive("local, killed", one_crash, [(n, KILL, whole["prefixes"]) for n in cases])


@pytest.mark.slow
def test_a_kill_at_every_operation_of_publishing_without_hard_links():
    whole = forks.call(crash_points.reference, False)
    assert "link" not in whole["kinds"]
    renames = [n for n, kind in enumerate(whole["kinds"]) if kind == "rename"]
    cases = sorted({n + after for n in renames for after in (0, 1)} & set(range(whole["n"])))
    survive(
        "local without hard links, killed",
        one_crash,
        [(n, KILL, whole["prefixes"], False) for n in cases],
    )


@pytest.mark.parametrize("n_cases", [2, pytest.param(40, marks=pytest.mark.slow)])
def test_a_second_kill_while_resuming(whole, n_cases):
    draw = random.Random(2)
    cases = [(draw.randrange(whole["n"]), draw.randrange(120)) for _ in range(n_cases)]
    came = survive(
        "local, killed twice",
        two_crashes,
        [(*case, (KILL, KILL), whole["prefixes"]) for case in cases],
    )
    assert sum(came) > n_cases // 2
