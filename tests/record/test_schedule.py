"""The grammar of schedules: tables by hand, properties, and errors that name the key."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pico.errors import ConfigError
from pico.record import schedule
from pico.record.schedule import NEVER, Schedule, is_pythia_step, parse

PYTHIA = [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 2000, 3000]

EVERY = st.builds(
    lambda every, start, length: {"every": every, "from": start, "until": start + length},
    st.integers(1, 50),
    st.integers(0, 100),
    st.integers(0, 200),
)
SPEC = st.recursive(
    st.one_of(
        st.sampled_from(["pythia", "last", "always", "never", True, False, None]),
        st.integers(0, 300),
        EVERY,
        st.lists(st.integers(0, 300), max_size=4),
    ),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)


@pytest.mark.parametrize(
    ("spec", "last", "steps"),
    [
        ("pythia", 3500, PYTHIA),
        ("last", 7, [7]),
        ("always", 3, [0, 1, 2, 3]),
        (True, 3, [0, 1, 2, 3]),
        (False, 3, []),
        (None, 3, []),
        ("never", 3, []),
        ([], 3, []),
        (0, 3, [0]),
        (2, 3, [2]),
        ({"every": 50}, 120, [0, 50, 100]),
        ({"every": 3, "from": 4}, 12, [4, 7, 10]),
        ({"every": 3, "until": 6}, 12, [0, 3, 6]),
        ({"every": 3, "from": 4, "until": 9}, 12, [4, 7]),
        ({"every": 3, "from": 4, "until": 2}, 12, []),
        ([0, 10, 300], 20, [0, 10]),
        (["pythia", {"every": 6}], 20, [0, 1, 2, 4, 6, 8, 12, 16, 18]),
        ([[1, 2], [2, "last"]], 5, [1, 2, 5]),
        ([{"every": 4}, {"every": 6}], 12, [0, 4, 6, 8, 12]),
    ],
)
def test_grammar(spec: Any, last: int, steps: list[int]) -> None:
    assert list(parse(spec).planned(last)) == steps


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("pythai", r"record\.weights: no schedule 'pythai'\. Did you mean 'pythia'\?"),
        ("", r"record\.weights: no schedule ''\."),
        (-1, r"record\.weights: -1 is no step; steps are whole numbers from 0"),
        ([3, -2], r"record\.weights: -2 is no step"),
        (1.5, r"record\.weights: 1\.5 is no schedule"),
        ({"evry": 3}, r"unknown config key 'record\.weights\.evry'\. Did you mean 'every'\?"),
        ({}, r"record\.weights\.every must be a whole number of at least 1, not None"),
        ({"every": 0}, r"record\.weights\.every must be a whole number of at least 1, not 0"),
        ({"every": True}, r"record\.weights\.every .*not True"),
        ({"every": "3"}, r"record\.weights\.every .*not '3'"),
        ({"every": 2, "from": -1}, r"record\.weights\.from: -1 is no step"),
        ({"every": 2, "until": 2.5}, r"record\.weights\.until: 2\.5 is no step"),
        ({"every": 2, "from": None}, r"record\.weights\.from: None is no step"),
    ],
)
def test_errors_name_the_key(spec: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parse(spec, "record.weights")
    assert "\n" not in str(caught.value)


@given(SPEC, SPEC, st.integers(0, 300), st.booleans())
def test_a_list_wants_what_any_part_wants(a: Any, b: Any, step: int, is_last: bool) -> None:
    either = parse(a).wants(step, is_last) or parse(b).wants(step, is_last)
    assert parse([a, b]).wants(step, is_last) == either
    assert (parse(a) | parse(b)).wants(step, is_last) == either


@given(SPEC, st.integers(0, 300))
def test_planned_is_what_is_wanted(spec: Any, last: int) -> None:
    planned = list(parse(spec).planned(last))
    assert planned == sorted(set(planned))
    wanted = [step for step in range(last + 1) if parse(spec).wants(step, step == last)]
    assert planned == wanted
    if parse(spec).is_never:
        assert planned == []


@given(EVERY, st.integers(0, 400))
def test_every_counts_from_its_start(spec: dict[str, int], step: int) -> None:
    counted = range(spec["from"], spec["until"] + 1, spec["every"])
    assert parse(spec).wants(step) == (step in counted)


@given(st.integers(0, 200_000))
def test_pythia_is_the_suites_list(step: int) -> None:
    published = {0, *(2**power for power in range(10)), *range(1000, 200_001, 1000)}
    assert is_pythia_step(step) == (step in published)


def test_never_wants_nothing_even_at_the_end() -> None:
    assert NEVER.is_never
    assert not NEVER.wants(0, is_last=True)
    assert not Schedule(last=True).is_never


@pytest.mark.parametrize("name", schedule.NAMES)
def test_every_name_parses(name: str) -> None:
    assert parse(name).is_never == (name == "never")
