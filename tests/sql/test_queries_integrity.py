"""The queries about weights that are not what they should be, on rows checked by hand."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest

from pico.lake.commit import Stream
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from pico.record import schedule
from pico.sql import library, session, statements
from tests.sql import demo_lake
from tests.sql.demo_lake import SHARD, STEPS, replaced, states

_numbers = itertools.count()


@pytest.fixture
def storage() -> Storage:
    return Storage(f"memory://integrity-{next(_numbers)}")


def ask(storage: Storage, name: str, **parameters: str) -> list[dict[str, Any]]:
    connection = session.connect(Snapshot.take(storage), threads=1)
    relation = library.run(connection, library.get_query(name), parameters)
    found: list[dict[str, Any]] = statements.fetch(relation).to_pylist()
    return found


def test_a_sound_lake_has_nothing_to_show(storage: Storage) -> None:
    demo_lake.write(storage)
    # the norms at step 0 are ones in both runs, which tells nothing
    for name in ("shared_weights", "unchanged_weights", "tensor_jumps"):
        assert ask(storage, name) == []
    assert ask(storage, "planned_checkpoints", lacking="true") == []


def test_shared_weights_of_a_whole_checkpoint(storage: Storage) -> None:
    demo_lake.write(storage, seed_0=replaced("seed-0", 4))
    expected = {
        "run": "seed-0",
        "step": 4,
        "other_run": "seed-0",
        "other_step": 16,
        "n_shared": 12,
        "n_tensors": 12,
        "share": 1.0,
    }
    assert ask(storage, "shared_weights") == [expected]
    assert ask(storage, "shared_weights", run="seed-0") == [expected]
    assert ask(storage, "shared_weights", run="seed-1") == []


def test_shared_weights_of_one_shard_of_three(storage: Storage) -> None:
    demo_lake.write(storage, seed_1=replaced("seed-1", 2, SHARD))
    (row,) = ask(storage, "shared_weights")
    assert (row["run"], row["step"], row["other_step"]) == ("seed-1", 2, 16)
    assert (row["n_shared"], row["n_tensors"]) == (4, 12)
    assert row["share"] == pytest.approx(1 / 3)


def test_shared_weights_of_another_run(storage: Storage) -> None:
    wrong = states("seed-0")
    wrong[8] = {**wrong[8], **{name: states("seed-1")[8][name] for name in SHARD}}
    wrong[16] = states("seed-1")[2]
    demo_lake.write(storage, seed_0=wrong)
    found = [
        (row["run"], row["step"], row["other_run"], row["other_step"], row["n_shared"])
        for row in ask(storage, "shared_weights")
    ]
    assert found == [("seed-0", 8, "seed-1", 8, 4), ("seed-1", 2, "seed-0", 16, 12)]
    assert len(ask(storage, "shared_weights", run="seed-0")) == 2


def test_several_checkpoints_that_hold_the_final_weights(storage: Storage) -> None:
    wrong = states("seed-0")
    wrong[1] = wrong[4] = wrong[16]
    demo_lake.write(storage, seed_0=wrong)
    found = [(row["step"], row["other_step"]) for row in ask(storage, "shared_weights")]
    assert found == [(1, 16), (4, 16)]


def test_frozen_tensors_and_buffers_are_not_shared(storage: Storage) -> None:
    """What no parameter says is trained may be the same at every step."""
    weights = states("seed-0")
    demo_lake.write_run(storage, "seed-0", weights)
    for step in STEPS:
        for name in ("embed.weight", "mask"):
            weights[step][name] = np.arange(4.0, dtype=np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo_lake, "PARAMETERS", (*demo_lake.PARAMETERS, ("mask", None, None, (4,))))
        frozen = Storage(f"memory://integrity-{next(_numbers)}")
        rows = demo_lake._rows

        def some_frozen(transaction: Any, table: str, keys: Any, **columns: Any) -> None:
            if table == "parameters":
                columns = {key: values[:-1] for key, values in columns.items()}
                columns["trainable"] = [name != "embed.weight" for name in columns["name"]]
            rows(transaction, table, keys, **columns)

        patch.setattr(demo_lake, "_rows", some_frozen)
        demo_lake.write_run(frozen, "seed-0", weights)
    assert ask(frozen, "shared_weights") == []
    assert ask(frozen, "unchanged_weights") == []
    assert ask(frozen, "planned_checkpoints")[0]["n_parameters"] == 11


def test_unchanged_weights_and_the_rate_that_explains_them(storage: Storage) -> None:
    wrong = states("seed-0")
    wrong[1] = wrong[0]  # the rate was zero, as in Pythia's first step
    wrong[8] = {**wrong[8], **{name: wrong[16][name] for name in SHARD}}
    rates = {step: 0.1 * step for step in range(16)}
    demo_lake.write_run(storage, "seed-0", wrong, rates)
    demo_lake.write_run(storage, "seed-1", replaced("seed-1", 8), {})
    assert ask(storage, "unchanged_weights", run="seed-0") == [
        {
            "run": "seed-0",
            "step": 0,
            "next_step": 1,
            "n_unchanged": 12,
            "n_tensors": 12,
            "share": 1.0,
            "max_lr": 0.0,
        },
        {
            "run": "seed-0",
            "step": 8,
            "next_step": 16,
            "n_unchanged": 4,
            "n_tensors": 12,
            "share": 4 / 12,
            "max_lr": 1.5,
        },
    ]
    (unknown,) = ask(storage, "unchanged_weights", run="seed-1")
    assert (unknown["step"], unknown["share"], unknown["max_lr"]) == (8, 1.0, None)
    assert len(ask(storage, "unchanged_weights")) == 3


def test_the_rate_is_that_of_the_group_that_did_not_change(storage: Storage) -> None:
    demo_lake.write_run(storage, "seed-0", replaced("seed-0", 8, SHARD), {8: 0.5})
    with Stream(storage, "derive.seed-0.rates") as stream:
        transaction = stream.begin()
        keys = {"run": "seed-0"}
        columns = {"global_step": [9], "group": [1], "lr": [7.0], "weight_decay": [0.0]}
        demo_lake._rows(transaction, "param_groups", keys, **columns)
        transaction.commit()
    (row,) = ask(storage, "unchanged_weights")
    assert row["max_lr"] == 0.5


def test_planned_checkpoints_that_are_missing_or_lack_tensors(storage: Storage) -> None:
    some = states("seed-0")
    del some[4], some[16]
    some[2] = {name: value for name, value in some[2].items() if name not in SHARD}
    demo_lake.write_run(storage, "seed-0", some)
    found = [tuple(row.values())[1:] for row in ask(storage, "planned_checkpoints")]
    assert found == [
        (0, True, True, True, 12, 12),
        (1, True, True, True, 12, 12),
        (2, True, True, True, 8, 12),
        (4, True, False, None, 0, 12),
        (8, True, True, True, 12, 12),
        (16, True, False, None, 0, 12),
    ]
    lacking = ask(storage, "planned_checkpoints", run="seed-0", lacking="true")
    assert [row["step"] for row in lacking] == [2, 4, 16]


@pytest.mark.parametrize(
    "spec",
    [
        "pythia",
        "last",
        "always",
        True,
        6,
        [0, 3, 11],
        {"every": 5},
        {"every": 3, "from": 2, "until": 9},
        ["last", [{"every": 7}, [3, "pythia"]], False, None],
        "never",
        None,
        False,
        [],
    ],
)
def test_planned_checkpoints_read_schedules_as_the_recorder_does(
    storage: Storage, spec: Any
) -> None:
    config = json.dumps({"max_steps": 16, "record": {"checkpoints": spec}})
    demo_lake.write_run(storage, "seed-0", config=config)
    found = {row["step"] for row in ask(storage, "planned_checkpoints") if row["planned"]}
    parsed = schedule.parse(spec)
    wanted = set(parsed.planned(16)) | (set() if parsed.is_never else {16})
    assert found == wanted | set(STEPS)  # these say themselves that they were planned


def test_long_schedules_and_runs_without_a_config(storage: Storage) -> None:
    config = json.dumps({"max_steps": 143000, "record": {"checkpoints": "pythia"}})
    weights = {step: tensors for step, tensors in states("seed-0").items() if step < 2}
    weights[3000] = weights.pop(1)
    demo_lake.write_run(storage, "seed-0", weights, config=config)
    found = ask(storage, "planned_checkpoints", run="seed-0")
    assert [row["step"] for row in found] == [0, *(2**i for i in range(10)), 1000, 2000, 3000]
    assert [row["step"] for row in found if row["present"]] == [0, 3000]
    demo_lake.write_run(storage, "seed-1", config=None)
    assert [row["step"] for row in ask(storage, "planned_checkpoints", run="seed-1")] == [*STEPS]


def test_tensor_jumps_name_the_wrong_tensors(storage: Storage) -> None:
    demo_lake.write(storage, seed_0=replaced("seed-0", 2, SHARD))
    found = ask(storage, "tensor_jumps")
    assert {(row["run"], row["step"], row["name"]) for row in found} == {
        ("seed-0", 2, name) for name in SHARD
    }
    assert {row["layer"] for row in found} == {None, 0}  # the embedding is not lost
    for row in found:
        right = states("seed-0")
        norms = {step: np.linalg.norm(right[step][row["name"]]) for step in STEPS}
        assert (row["previous_step"], row["next_step"]) == (1, 4)
        assert row["previous_norm"] == pytest.approx(norms[1])
        assert row["frobenius_norm"] == pytest.approx(norms[16])
        assert row["next_norm"] == pytest.approx(norms[4])
        assert row["jump"] == pytest.approx(norms[16] / norms[4] - 1)
    assert ask(storage, "tensor_jumps", min_jump="5") == []
    assert ask(storage, "tensor_jumps", run="seed-1") == []


def test_several_wrong_steps_in_a_row_jump_too_and_so_does_a_fall(storage: Storage) -> None:
    wrong = states("seed-0")
    wrong[1]["norm.weight"] = wrong[2]["norm.weight"] = wrong[16]["norm.weight"]
    wrong[8]["embed.weight"] = wrong[0]["embed.weight"] * np.float32(0.1)
    demo_lake.write_run(storage, "seed-0", wrong)
    found = ask(storage, "tensor_jumps", run="seed-0")
    places = [(row["step"], row["name"], row["previous_step"], row["next_step"]) for row in found]
    assert places == [
        (1, "norm.weight", 0, 4),
        (2, "norm.weight", 0, 4),
        (8, "embed.weight", 4, 16),
    ]
    # 3 against 1.5 times ones; a tenth of step 0 against one and a half times it
    assert [round(row["jump"], 2) for row in found] == [1.0, 1.0, pytest.approx(0.93, abs=0.01)]


def test_init_std_against_what_was_declared(storage: Storage) -> None:
    wrong = states("seed-0")
    wrong[0]["layers.1.q.weight"] = 2 * wrong[0]["layers.1.q.weight"]
    demo_lake.write_run(storage, "seed-0", wrong)
    found = {row["name"]: row for row in ask(storage, "init_std", run="seed-0")}
    assert len(found) == 12  # embedding and final norm, whose layer is NULL, are among them
    row = found["layers.1.q.weight"]
    value = wrong[0]["layers.1.q.weight"].astype(np.float64)
    assert (row["init"], row["declared_mean"], row["declared_std"]) == ("normal(0.0, 0.5)", 0, 0.5)
    assert row["std"] == pytest.approx(value.std())
    assert row["ratio"] == pytest.approx(value.std() / 0.5)
    assert row["standard_errors"] == pytest.approx((value.std() / 0.5 - 1) * 72**0.5)
    beyond = [name for name, row in found.items() if abs(row["standard_errors"] or 0) > 4]
    assert beyond == ["layers.1.q.weight"]
    norm = found["norm.weight"]
    assert (norm["declared_mean"], norm["mean"], norm["declared_std"]) == (1, 1, 0)
    assert (norm["std"], norm["ratio"], norm["standard_errors"]) == (0, None, None)


@pytest.mark.parametrize(
    ("init", "mean", "std"),
    [
        ("normal(0, 2e-2)", 0.0, 0.02),
        ("uniform(-0.3, 0.3)", 0.0, 0.6 / 12**0.5),
        ("constant(0)", 0.0, 0.0),
        ("by hand", None, None),
        ("normal(a, b)", None, None),
        (None, None, None),
    ],
)
def test_init_std_reads_declarations(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, init: Any, mean: Any, std: Any
) -> None:
    rows = demo_lake._rows

    def declared(transaction: Any, table: str, keys: Any, **columns: Any) -> None:
        if table == "parameters":
            columns["init"] = [init] * len(columns["name"])
        rows(transaction, table, keys, **columns)

    monkeypatch.setattr(demo_lake, "_rows", declared)
    demo_lake.write_run(storage, "seed-0")
    found = ask(storage, "init_std", run="seed-0")
    assert len(found) == 12
    for row in found:
        assert row["declared_mean"] == (None if mean is None else pytest.approx(mean))
        assert row["declared_std"] == (None if std is None else pytest.approx(std))


def test_hashes_and_statistics_suffice(storage: Storage) -> None:
    """The queries run where the values of the tensors cannot be read."""
    demo_lake.write(storage)
    connection = session.connect(Snapshot.take(storage), threads=1)
    connection.execute("CREATE TABLE kept AS SELECT * EXCLUDE (value, raw, tensor) FROM weights")
    connection.execute("CREATE OR REPLACE VIEW weights AS FROM kept")
    for name in (
        "shared_weights",
        "unchanged_weights",
        "planned_checkpoints",
        "tensor_jumps",
        "init_std",
    ):
        query = library.get_query(name)
        given = {parameter.name: "seed-0" for parameter in query.parameters if parameter.required}
        statements.fetch(library.run(connection, query, given))
