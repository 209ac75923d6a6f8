"""What a report says is borne out by its numbers."""

from __future__ import annotations

import numpy as np
import polars as pl

from pico.report import sentences


def test_what_runs_are() -> None:
    runs = [
        {"run": "a", "n_params": 1200, "dataset": "books", "extra": None},
        {
            "run": "m",
            "n_params": None,
            "dataset": "books",
            "extra": '{"average_of": {"run": "a", "steps": [2, 4]}}',
        },
        {
            "run": "between",
            "n_params": 7,
            "dataset": None,
            "extra": '{"interpolation": {"a": ["a", 4], "b": ["m", 5], "t": 0.25}}',
        },
    ]
    assert sentences.about(runs) == (
        "a: 1,200 parameters; m: 0 parameters, the mean of a at steps 2, 4; between: 7 parameters, "
        "between a at step 4 and m at step 5, t = 0.25. Trained on books."
    )


def test_each_run_speaks_for_itself() -> None:
    """At its own last step, and only where frequent tokens are easier."""
    rows = [
        ("a", 0, 10, 9.0),
        ("a", 5, 10, 7.0),
        ("a", 5, 1000, 3.0),
        ("b", 3, 10, 8.5),
        ("b", 3, 1000, 2.5),
        ("c", 3, 10, 1.0),
        ("c", 3, 1000, 2.0),
        ("d", 3, 10, 1.0),
    ]
    frame = pl.DataFrame(rows, schema=["run", "step", "count_from", "loss"], orient="row")
    assert sentences.frequent_first(frame) == (
        "a at step 5: targets that stand 1,000 times or more in the corpus cost 3.00 nats, those "
        "of the rarest band 7.00. b at step 3: targets that stand 1,000 times or more in the "
        "corpus cost 2.50 nats, those of the rarest band 8.50."
    )


def test_chance_is_the_score_of_even_attention() -> None:
    n = 12
    even = np.tril(np.ones((n, n))) / np.arange(1, n + 1)[:, None]
    expected = np.mean([even[i, i - n // 2 + 1] for i in range(n // 2, n)])
    assert abs(sentences.chance(n) - expected) < 1e-12
    assert sentences.chance(None) is None and sentences.chance(1) is None


def test_what_is_missing_comes_with_two_ways_to_get_it() -> None:
    told = sentences.recorded("weights: pythia", "--probe text")
    assert "record: {weights: pythia}." in told and "pico probe RUN --probe text" in told
    assert "pico probe" not in sentences.recorded("weights: pythia")
