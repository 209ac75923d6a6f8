"""Checkpoints that hold weights of another step are named, and nothing else is.

Somebody uploads the final weights under an earlier step, all of them or one file of three: the
bytes, the hashes and the log all fit. The integrity queries and `pico verify` must tell, for runs
of one's own, whose learning rate is known, and for imported ones, of which only weights are known.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from pico.api import Lake
from pico.cli import run_command
from pico.lake.commit import Stream
from pico.lake.storage import Storage
from pico.upkeep.verify import verify
from tests.sql import demo_lake
from tests.sql.demo_lake import SHARD, States, replaced, states

_numbers = itertools.count()
_RATES = {"trained here": None, "imported": {}}


def lake_with(weights: States, rates: dict[int, float] | None) -> Storage:
    """Return a lake whose run `seed-0` holds the weights, and `seed-1` what it should."""
    storage = Storage(f"memory://wrong-{next(_numbers)}")
    demo_lake.write_data(storage)
    demo_lake.write_run(storage, "seed-0", weights, rates)
    demo_lake.write_run(storage, "seed-1", None, rates)
    return storage


def shared(storage: Storage) -> list[tuple[Any, ...]]:
    """Return run, step, whose weights it has, and how many of how many tensors."""
    return Lake(storage.url).query("shared_weights").fetchall()


def named(storage: Storage) -> list[tuple[str, str | None, int | None]]:
    return [(finding.kind, finding.run, finding.step) for finding in verify(storage).findings]


@pytest.fixture(params=list(_RATES))
def rates(request: pytest.FixtureRequest) -> dict[int, float] | None:
    return _RATES[request.param]


def test_a_sound_lake(rates: dict[int, float] | None) -> None:
    storage = lake_with(states("seed-0"), rates)
    assert shared(storage) == []
    assert named(storage) == []


@pytest.mark.parametrize("step", [0, 2, 8])
def test_a_checkpoint_that_holds_the_final_weights(
    step: int, rates: dict[int, float] | None
) -> None:
    storage = lake_with(replaced("seed-0", step), rates)
    assert shared(storage) == [("seed-0", step, "seed-0", 16, 12, 12, 1.0)]
    assert named(storage) == [("history.repeated", "seed-0", step)]
    (finding,) = verify(storage).findings
    assert f"has at step {step} the same weights as at step 16" in finding.message


@pytest.mark.parametrize("step", [0, 2, 8])
def test_a_checkpoint_of_which_a_third_is_final(step: int, rates: dict[int, float] | None) -> None:
    storage = lake_with(replaced("seed-0", step, SHARD), rates)
    assert shared(storage) == [("seed-0", step, "seed-0", 16, 4, 12, pytest.approx(1 / 3))]
    (finding,) = verify(storage).findings
    assert (finding.run, finding.step) == ("seed-0", step)
    if step < 8:
        assert finding.kind == "history.mixed"
        assert f"has at step {step} 4 of 12 tensors of step 16" in finding.message
    else:  # no step in between shows that the weights were others
        assert finding.kind == "history.unchanged"
        assert "did not change from step 8 to 16" in finding.message
    assert all(name in finding.message for name in SHARD)


def test_many_checkpoints_that_hold_the_final_weights(rates: dict[int, float] | None) -> None:
    """As in the suite where 86 of 154 steps of a model served its last ones."""
    weights = states("seed-0")
    for step in (1, 2, 8):
        weights[step] = weights[16]
    weights[4] = {**weights[4], **{name: weights[16][name] for name in SHARD}}
    storage = lake_with(weights, rates)
    found = [(step, other, n) for _, step, _, other, n, _, _ in shared(storage)]
    assert found == [(1, 16, 12), (2, 16, 12), (4, 16, 4), (8, 16, 12)]
    repeated, partly = verify(storage).findings
    assert "has at steps 1–2, 8 the same weights as at step 16" in repeated.message
    assert (repeated.kind, repeated.step) == ("history.repeated", 1)
    assert (partly.kind, partly.step) == ("history.unchanged", 4)
    assert "from step 4 to 16" in partly.message


def test_a_run_of_whose_parameters_nothing_is_known(rates: dict[int, float] | None) -> None:
    """Weights alone, as from somebody's files."""
    storage = Storage(f"memory://wrong-{next(_numbers)}")
    weights = replaced("seed-0", 4, SHARD)
    with Stream(storage, "train.seed-0") as stream:
        for step, tensors in weights.items():
            transaction = stream.begin()
            demo_lake._write_state(transaction, "seed-0", step, tensors)
            transaction.commit()
    assert [row[:5] for row in shared(storage)] == [("seed-0", 4, "seed-0", 16, 4)]
    assert named(storage) == [("history.mixed", "seed-0", 4)]


def test_low_precision_that_stays_or_comes_back_is_no_fault() -> None:
    """A norm in bfloat16 may be the same at two steps; nothing is known of the rate."""
    weights = states("seed-0")
    weights[4]["norm.weight"] = weights[1]["norm.weight"] = weights[0]["norm.weight"]
    storage = lake_with(weights, {})
    assert named(storage) == []


def test_the_commands_say_so(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    lake = str(tmp_path / "lake")
    demo_lake.write(Storage(lake), seed_1=replaced("seed-1", 2, SHARD))
    assert run_command(["verify", "--lake", lake]) == 1
    out = capsys.readouterr().out
    assert "history.mixed" in out and "'seed-1'" in out and "step 2" in out
    command = ["query", "shared_weights", "--lake", lake, "--format", "json"]
    assert run_command(command) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["run"], row["step"], row["n_shared"]) == ("seed-1", 2, 4)
