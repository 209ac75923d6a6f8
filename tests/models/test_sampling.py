"""Sampling against exact probabilities."""

from __future__ import annotations

import pytest
import torch

from pico.errors import DataError
from pico.models.sampling import sample


def frequencies(logits: list[float], temperature: float, top_k: int | None) -> torch.Tensor:
    rows = torch.tensor([logits]).expand(20_000, -1)
    drawn = sample(rows, temperature, top_k, torch.Generator().manual_seed(0))
    return torch.bincount(drawn.flatten(), minlength=len(logits)) / len(rows)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_follow_the_softmax(temperature: float) -> None:
    logits = [0.0, 1.0, 2.0, -1.0]
    expected = (torch.tensor(logits) / temperature).softmax(0)
    assert (frequencies(logits, temperature, None) - expected).abs().max() < 0.02


def test_top_k_cuts_the_tail_and_may_exceed_the_vocabulary() -> None:
    logits = [0.0, 1.0, 2.0, -1.0]
    expected = torch.tensor([0.0, *torch.tensor([1.0, 2.0]).softmax(0), 0.0])
    assert (frequencies(logits, 1.0, 2) - expected).abs().max() < 0.02
    assert torch.equal(frequencies(logits, 1.0, 9), frequencies(logits, 1.0, None))


def test_zero_temperature_takes_the_first_of_the_largest() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0]])
    assert sample(logits, 0.0, None, torch.Generator()).tolist() == [[1]]


@pytest.mark.parametrize(("temperature", "top_k"), [(-1.0, None), (float("nan"), 1), (1.0, 0)])
def test_bad_arguments(temperature: float, top_k: int | None) -> None:
    with pytest.raises(DataError, match="temperature >= 0 and top_k >= 1"):
        sample(torch.zeros(1, 3), temperature, top_k, torch.Generator())
