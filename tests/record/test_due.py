"""What is due of a tensor, and that nothing is taken twice at a step."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pico.record.due import Due, Ledger, Wanted
from pico.record.plan import parse

WANTED = st.builds(
    Wanted, st.booleans(), st.booleans(), st.frozensets(st.sampled_from(["gini", "per", "alpha"]))
)


def parts(wanted: Wanted) -> set[str]:
    """Everything that is wanted, as a set of words."""
    named = {"stored": wanted.stored, "counted": wanted.counted}
    return {name for name, is_so in named.items() if is_so} | set(wanted.metrics)


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from("ab"), WANTED), max_size=12))
def test_the_ledger_gives_out_everything_once_a_step(asked: list[tuple[int, str, Wanted]]) -> None:
    ledger = Ledger()
    given_out: dict[tuple[int, str], set[str]] = {}
    for step, key, wanted in sorted(asked, key=lambda item: item[0]):  # steps only grow
        before = given_out.setdefault((step, key), set())
        rest = parts(ledger.remaining(step, key, wanted))
        assert rest == parts(wanted) - before
        before |= rest


@given(WANTED, WANTED)
def test_wanted_is_a_set_of_wishes(a: Wanted, b: Wanted) -> None:
    assert parts(a | b) == parts(a) | parts(b)
    assert parts(a.without(b)) == parts(a) - parts(b)
    assert bool(a) == bool(parts(a))


RECORD: dict[str, Any] = {
    "weights": {"every": 4, "names": ["a.*"]},
    "gradients": {"every": 4, "stages": ["raw", "clipped"]},
    "tensor_stats": {"weights": {"every": 2, "names": ["b.*"]}, "gradients": {"every": 1}},
    "metrics": [
        {"names": ["gini", "per"], "every": 3, "tensors": ["*.w"], "stages": ["clipped"]},
        {"names": ["gini", "max_abs"], "every": 2, "tables": ["weights"], "tensors": ["b.*"]},
    ],
}


@pytest.mark.parametrize(
    ("table", "stage", "step", "name", "expected"),
    [
        ("weights", None, 0, "a.w", {"stored", "counted", "gini", "per"}),
        ("weights", None, 0, "a.x", {"stored", "counted"}),
        ("weights", None, 0, "b.w", {"counted", "gini", "per", "max_abs"}),
        ("weights", None, 2, "b.w", {"counted", "gini", "max_abs"}),
        ("weights", None, 3, "b.w", {"gini", "per"}),
        ("weights", None, 5, "b.w", set()),
        ("gradients", "raw", 0, "a.w", {"stored", "counted"}),
        ("gradients", "raw", 3, "a.w", {"counted"}),
        ("gradients", "clipped", 3, "a.w", {"gini", "per"}),
        ("gradients", "clipped", 4, "a.w", {"stored", "counted"}),
        ("gradients", "clipped", 5, "a.w", set()),
        ("optimizer", None, 0, "a.w", set()),
    ],
)
def test_what_is_due(table: str, stage: str | None, step: int, name: str, expected: set) -> None:
    due = Due.of_table(parse(RECORD), table, step, is_last=False, stage=stage)
    assert parts(due.of(name)) == expected
    assert bool(due) >= bool(expected)
    assert due.is_stored_or_measured >= bool(expected - {"counted"})


def test_a_checkpoint_stores_everything_and_pairs_the_next_state() -> None:
    whole = Due.of_table(parse(RECORD), "weights", 5, is_last=False, whole=True)
    assert parts(whole.of("c")) == {"stored", "counted"}
    paired = parse({**RECORD, "pairs": True})
    assert [Due.of_table(paired, "weights", s, False).of("a.x").stored for s in range(6)] == [
        True,
        True,
        False,
        False,
        True,
        True,
    ]
