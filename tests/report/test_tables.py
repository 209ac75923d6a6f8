"""What a report tells in numbers."""

from __future__ import annotations

import polars as pl
import pytest

from pico.report import tables


def test_settings_that_differ_come_apart() -> None:
    runs = [
        {"run": run, "lr": None, "seed_init": seed, "config": config, "created_at": seed}
        for run, seed, config in (
            ("a", 0, '{"seeds": {"init": 0}, "model": {"d": 8, "odd": {}}}'),
            ("b", 1, '{"seeds": {"init": 1}, "model": {"d": 8}, "text": "' + "x" * 99 + '"}'),
        )
    ]
    differing, same = tables.settings(runs)
    assert differing == [
        {"setting": "seeds.init", "a": "0", "b": "1"},
        {"setting": "model.odd", "a": "{}", "b": ""},
        {"setting": "text", "a": "", "b": "x" * 77 + "…"},
    ]
    assert same == [{"setting": "model.d", "a": "8", "b": "8"}]


def test_what_a_derived_run_does_not_say_is_no_difference() -> None:
    runs = [
        {"run": "a", "max_steps": 5, "config": '{"max_steps": 5, "lr": 1, "only": 2}'},
        {"run": "b", "max_steps": 5, "config": '{"max_steps": 5, "lr": 1}'},
        {"run": "mean", "max_steps": None, "config": None},
    ]
    differing, same = tables.settings(runs)
    assert differing == [{"setting": "only", "a": "2", "b": "", "mean": ""}]
    assert [row["setting"] for row in same] == ["max_steps", "lr"]


def test_the_last_values_of_each_run() -> None:
    """Runs end where they end; rows without a value are not the last."""
    frame = pl.DataFrame(
        {
            "run": ["a", "a", "a", "b", "b"],
            "layer": [0, 0, 0, 0, 0],
            "step": [0, 5, 9, 0, 5],
            "gini": [0.1, 0.2, None, 0.3, 0.4],
        }
    )
    rows, title = tables.last_numbers(frame)
    assert rows == [{"run": "b", "gini": 0.4}, {"run": "a", "gini": 0.2}]
    assert title == "In numbers, at step 5"
    many = pl.DataFrame({"step": [1] * 20, "head": range(20), "score": [i / 2 for i in range(20)]})
    rows, title = tables.last_numbers(many, "score")
    assert [row["head"] for row in rows] == list(range(19, 7, -1))
    assert title == "The 12 largest at step 1"
    square = pl.DataFrame({"step": [1], "other_step": [1], "cka": [1.0]})
    assert tables.last_numbers(square) == ([], "")


def test_megabytes_and_their_sum() -> None:
    frame = pl.DataFrame(
        {
            "run": ["a", "a", "b"],
            "table_name": ["weights", "runs", "weights"],
            "bytes": [3_000_000, 500_000, 1_000_000],
        }
    )
    rows = tables.megabytes(frame, ["b", "a"])
    assert {row["table"]: (row["b"], row["a"]) for row in rows} == {
        "weights": (1.0, 3.0),
        "runs": (None, 0.5),
        "all": (1.0, pytest.approx(3.5)),
    }
    assert list(rows[0]) == ["table", "b", "a"] and rows[-1]["table"] == "all"
