"""Progress in a log file: a line now and then, with the time left."""

from __future__ import annotations

import pytest

from pico import progress


def test_a_log_file_gets_lines_with_the_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 600.0, 630.0, 635.0, 660.0])  # what came before the first is no measure
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    with progress.counting_bar("tensors") as move:
        for done in (1, 1000, 1500, 2000):
            move(done, 5000)
    assert capsys.readouterr().err.splitlines() == [
        "tensors: 1 of 5,000",
        "tensors: 1,000 of 5,000, about 2 min left",
        "tensors: 2,000 of 5,000, about 2 min left",
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (29.4, "29 s"),
        (31, "1 min"),
        (3541, "59 min"),
        (3600, "1 h"),
        (9060, "2 h 31 min"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert progress.duration(seconds) == text
