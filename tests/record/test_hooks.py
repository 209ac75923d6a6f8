"""Taking tensors from a model: positions, sites, input hashes, copies."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from pico.errors import RecordError
from pico.models.architecture import SitePoint
from pico.record import hooks, probes
from pico.record.hooks import TapPoint, Taps, select_positions
from pico.record.tensors import to_host
from tests.record import loops


@given(st.integers(1, 4), st.integers(1, 6), st.lists(st.integers(-6, 5), min_size=1, max_size=4))
def test_positions_are_rows_of_sequences(n: int, length: int, positions: list[int]) -> None:
    value = torch.arange(n * length * 3).reshape(n, length, 3)
    if any(not -length <= position < length for position in positions):
        with pytest.raises(RecordError, match=rf"do not lie in sequences of {length} tokens"):
            select_positions(value, tuple(positions))
        return
    kept, taken = select_positions(value, tuple(positions))
    assert taken == [position % length for position in positions]
    by_hand = [value[s, p].tolist() for s in range(n) for p in positions]
    assert kept.tolist() == by_hand


def test_last_and_all() -> None:
    value = torch.arange(24).reshape(2, 4, 3)
    kept, taken = select_positions(value, "last")
    assert (kept.tolist(), taken) == (value[:, 3].tolist(), [3])
    kept, taken = select_positions(value, "all")
    assert (kept.tolist(), taken) == (value.reshape(8, 3).tolist(), [0, 1, 2, 3])


def test_heads_are_features() -> None:
    value = torch.arange(48).reshape(2, 4, 3, 2)
    kept, _ = select_positions(value, "all")
    assert kept.tolist() == value.reshape(8, 6).tolist()


@pytest.mark.parametrize("shape", [(5, 3), (5,), ()])
def test_without_positions_every_row_is_taken(shape: tuple[int, ...]) -> None:
    value = torch.arange(float(np.prod(shape, dtype=int))).reshape(shape)
    kept, taken = select_positions(value, "last")
    assert taken is None
    assert kept.shape == (shape[0] if shape else 1, 3 if len(shape) == 2 else 1)


def test_a_hash_is_over_shape_and_ids() -> None:
    ids = torch.tensor([[1, 2, 3]])
    by_hand = xxhash.xxh3_128_hexdigest(b"[1, 3]" + np.array([1, 2, 3], "<i8").tobytes())
    assert probes.make("a", ids.numpy(), "text").input_hash == by_hand
    assert hooks.hash_bytes(ids.to(torch.int32)) == hooks.hash_bytes(ids)
    assert hooks.hash_bytes(ids.T) != hooks.hash_bytes(ids)


class Two(nn.Module):
    """Gives a tuple from one module and nothing useful from another."""

    def __init__(self) -> None:
        super().__init__()
        self.pair, self.word, self.embed = Pair(), Word(), nn.Embedding(5, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        value: torch.Tensor = self.pair(self.embed(ids))[1]
        self.word(x=value)
        return value


class Pair(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[str, torch.Tensor]:
        return "text", x + 1


class Word(nn.Module):
    def forward(self, x: torch.Tensor) -> str:
        return "text"


def point(module: str, side: str) -> TapPoint:
    return TapPoint(SitePoint(f"{module}.{side}", None, module, side), "all")  # type: ignore[arg-type]


def test_tuples_and_named_inputs() -> None:
    model = Two()
    taps = Taps(model, [point("pair", "out"), point("word", "in")])
    ids = torch.tensor([[1, 2], [3, 4]])
    value = model(ids).detach()
    taps.remove()
    model(ids)  # seen by nobody
    rows = {row.keys["site"]: row for row in taps.rows("mine", "text", [8, 9])}
    for site in ("pair.out", "word.in"):
        assert (rows[site].tensor.to_numpy() == value.reshape(4, 3).numpy()).all()
        assert rows[site].keys["sequence_ids"] == [8, 9]
        assert rows[site].keys["positions"] == [0, 1]
    assert rows["word.in"].keys["input_hash"] == probes.make("x", ids.numpy(), "text").input_hash
    assert loops.hooks(model) == 0


def test_a_site_without_a_tensor_is_an_error() -> None:
    model = Two()
    taps = Taps(model, [point("word", "out")])
    with pytest.raises(RecordError, match=r"site word\.out of 'word' gives no tensor but str"):
        model(torch.tensor([[1]]))
    taps.remove()


def test_sequence_ids_that_do_not_fit_are_left_out() -> None:
    model = Two()
    taps = Taps(model, [point("pair", "out")])
    model(torch.tensor([[1, 2], [3, 4]]))
    (row,) = taps.rows(None, "text", [8, 9, 10])
    assert row.keys["sequence_ids"] is None
    assert row.keys["dataset"] is None
    (row,) = taps.rows(None, None, [])
    assert row.keys["sequence_ids"] is None


def test_what_is_taken_is_a_copy() -> None:
    model = loops.mlp()
    taps = Taps(model, [point("0", "out")])
    model(torch.ones(2, 4)).sum().backward()
    infos: dict = {}
    taken = [
        *(to_host(live) for _, live in hooks.weights(model, infos, lambda name: True)),
        *(to_host(live) for _, live in hooks.gradients(model, infos, lambda name: True)),
        *(row.tensor for row in taps.rows(None, None, [])),
    ]
    before = [tensor.to_numpy().copy() for tensor in taken]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(7)
            assert parameter.grad is not None
            parameter.grad.fill_(7)
    assert all((a.to_numpy() == b).all() for a, b in zip(taken, before, strict=True))
    taps.remove()
    taps.remove()
