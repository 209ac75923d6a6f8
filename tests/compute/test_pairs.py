"""Metrics of two tensors: the right partners, counted refusals, and nothing computed twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pico import metrics, schema
from pico.compute import materialize
from pico.errors import MetricError, RunNameError
from pico.lake.codec import Tensor
from pico.lake.commit import Stream
from pico.lake.groups import GroupReader
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from pico.lake.table import TensorRow, write_tensors
from tests.sql import small_lake as lake

LAST = lake.STEPS[-1]
MATRICES = [name for name, _, _, shape in lake.WEIGHTS if len(shape) == 2]
TENSORS = [name for name, _, _, _ in lake.WEIGHTS]


def kept(storage: Storage) -> list[dict[str, Any]]:
    snapshot = Snapshot.take(storage)
    schema.table("metrics").check_unique(snapshot.read("metrics"))
    rows: list[dict[str, Any]] = snapshot.read("metrics").to_pylist()
    return rows


def write(storage: Storage, run: str, step: int, table: str, rows: list[TensorRow]) -> None:
    with Stream(storage, f"train.{run}") as stream:
        transaction = stream.begin()
        write_tensors(transaction, table, {"run": run, "step": step}, rows)
        transaction.commit()


def activation(seed: int, input_hash: str | None, probe: str | None = "text") -> TensorRow:
    keys = {"name": "layers.0", "layer": 0, "site": "resid.post", "probe": probe}
    array = np.random.default_rng(seed).standard_normal((5, 3), dtype=np.float32)
    return TensorRow({**keys, "input_hash": input_hash}, Tensor.of(array))


def test_each_tensor_is_compared_with_itself_at_a_step(new_lake: Callable[..., Storage]) -> None:
    storage = new_lake()
    done = materialize.compute(
        storage, metrics=["cka", "relative_change", "subspace_overlap(k=2)"], reference_step=2
    )
    n_steps = len(lake.STEPS)
    assert done.computed + done.reused == n_steps * (len(TENSORS) + 2 * len(MATRICES))
    assert done.skipped == 2 * n_steps  # the norm is no matrix
    assert done.reused == n_steps - 1  # and never changes
    for row in kept(storage):
        own = lake.weight("first", row["global_step"], row["name"])
        other = lake.weight("first", 2, row["name"])
        arguments = {"k": 2} if row["metric"] == "subspace_overlap" else {}
        wanted = getattr(metrics, row["metric"])(own, other, **arguments)
        assert row["value"] == pytest.approx(wanted, rel=1e-12)
        assert (row["ref_run"], row["ref_step"], row["ref_name"]) == ("first", 2, row["name"])
        assert row["args"] == ('{"k": 2}' if arguments else None)
        hashes = [Tensor.of(array).content_hash for array in (own, other)]
        assert row["tensor_hash"] == ":".join(hashes)
    again = materialize.compute(
        storage, metrics=["cka", "relative_change", "subspace_overlap(k=2)"], reference_step=2
    )
    assert (again.computed, again.reused) == (0, 0)
    assert (again.present, again.skipped) == (done.computed + done.reused, done.skipped)


def test_arguments_and_references_are_part_of_the_key(new_lake: Callable[..., Storage]) -> None:
    storage = new_lake()
    for name, step in (("cka", 2), ("cka", 0), ("cka_rbf(bandwidth=2)", 0), ("cka_rbf", 0)):
        assert materialize.compute(storage, metrics=name, reference_step=step).computed == 9
    assert len(kept(storage)) == 4 * 9
    assert materialize.compute(storage, metrics="cka,cka_rbf", reference_step=0).computed == 0


def test_the_last_step_moves_with_the_run(new_lake: Callable[..., Storage]) -> None:
    storage = new_lake()
    assert materialize.compute(storage, metrics="cka", reference_step="last").computed == 9
    assert {row["ref_step"] for row in kept(storage)} == {LAST}
    name = MATRICES[0]
    row = TensorRow({"name": name, "param": "weight"}, Tensor.of(np.eye(6, 4, dtype=np.float32)))
    write(storage, "first", 9, "weights", [row])
    done = materialize.compute(storage, metrics="cka", reference_step="last")
    assert done.computed == 4  # one name, at four steps
    assert done.skipped == 9  # the three other names have no partner, at three steps
    new = [row for row in kept(storage) if row["ref_step"] == 9]
    assert {(row["name"], row["global_step"]) for row in new} == {
        (name, step) for step in (*lake.STEPS, 9)
    }
    assert len(kept(storage)) == 13


@pytest.mark.parametrize("step", [None, 0, "last"])
def test_another_run(new_lake: Callable[..., Storage], step: int | str | None) -> None:
    storage = new_lake("lake", "first", "second")
    done = materialize.compute(
        storage, "second", "cosine_similarity", reference_run="first", reference_step=step
    )
    rows = kept(storage)
    assert len(rows) == len(lake.STEPS) * len(TENSORS) == done.computed + done.reused
    for row in rows:
        assert (row["run_id"], row["ref_run"]) == ("second", "first")
        assert row["ref_step"] == {None: row["global_step"], 0: 0, "last": LAST}[step]
        own = lake.weight("second", row["global_step"], row["name"])
        other = lake.weight("first", row["ref_step"], row["name"])
        assert row["value"] == pytest.approx(metrics.cosine_similarity(own, other), rel=1e-12)


def test_all_runs_against_one_leaves_that_one_out(new_lake: Callable[..., Storage]) -> None:
    storage = new_lake("lake", "first", "second")
    materialize.compute(storage, metrics="cka", reference_run="first")
    assert {row["run_id"] for row in kept(storage)} == {"second"}


def test_activations_need_the_same_input(new_lake: Callable[..., Storage]) -> None:
    storage = new_lake()
    materialize.compute(storage, metrics="cka", table="activations", reference_step="last")
    rows = kept(storage)
    assert len(rows) == len(lake.STEPS) * len(lake.SITES)
    for row in rows:
        own, other = (
            lake.activation("first", step, row["name"]) for step in (row["global_step"], LAST)
        )
        assert row["value"] == pytest.approx(metrics.cka(own, other), rel=1e-12)
    for step, input_hash in ((0, "h"), (1, "other"), (2, None), (3, "h")):
        write(storage, "probed", step, "activations", [activation(step, input_hash)])
    done = materialize.compute(storage, "probed", "cka", table="activations", reference_step="last")
    assert (done.computed, done.skipped) == (2, 2)
    assert {r["global_step"] for r in kept(storage) if r["run_id"] == "probed"} == {0, 3}


def test_other_shapes_and_kinds_of_numbers_are_skipped(new_lake: Callable[..., Storage]) -> None:
    storage = new_lake()
    rng = np.random.default_rng(0)
    shapes = {"samples": ((4, 3), (5, 3)), "features": ((4, 3), (4, 2)), "vector": ((4,), (4,))}
    for step in (0, 1):
        rows = [
            TensorRow({"name": name}, Tensor.of(rng.standard_normal(pair[step])))
            for name, pair in shapes.items()
        ]
        rows.append(TensorRow({"name": "complex"}, Tensor.of(np.ones((4, 3), np.complex64))))
        write(storage, "odd", step, "weights", rows)
    done = materialize.compute(storage, "odd", "cka,cosine_similarity", reference_step=1)
    found = {(r["name"], r["metric"]) for r in kept(storage) if r["global_step"] == 0}
    assert found == {("features", "cka"), ("vector", "cosine_similarity")}
    assert done.computed == 2 + 2 + 3  # at step 1 each is compared with itself
    assert done.computed + done.skipped == 16


def test_equal_pairs_of_another_run_are_not_computed_again(
    new_lake: Callable[..., Storage],
) -> None:
    storage = new_lake()
    materialize.compute(storage, metrics="cka", reference_step=0)
    for step in lake.STEPS:
        rows = [
            TensorRow({"name": name}, Tensor.of(lake.weight("first", step, name)))
            for name in MATRICES
        ]
        write(storage, "copy", step, "weights", rows)
    done = materialize.compute(storage, "copy", "cka", reference_step=0)
    assert (done.computed, done.reused) == (0, 9)
    values: dict[str, set[float]] = {}
    for row in kept(storage):
        values.setdefault(row["tensor_hash"], set()).add(row["value"])
    assert len(values) == 9 and all(len(found) == 1 for found in values.values())


def test_tensors_of_both_kinds_in_one_call(new_lake: Callable[..., Storage]) -> None:
    storage = new_lake()
    seen: list[tuple[int, int]] = []
    done = materialize.compute(
        storage,
        metrics="gini,cka",
        reference_step=0,
        table=["weights", "gradients"],
        progress=lambda n, total: seen.append((n, total)),
    )
    assert {row["metric"] for row in kept(storage)} == {"gini", "cka"}
    assert {row["table_name"] for row in kept(storage)} == {"weights", "gradients"}
    assert seen[-1][0] == seen[-1][1] == len(seen)
    assert done.computed + done.reused == 12 + 9 + 24 + 18


def test_each_row_group_is_read_once(
    new_lake: Callable[..., Storage], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = new_lake()
    read: list[tuple[str, int]] = []
    opened = GroupReader._opened

    def counting(self: GroupReader, entry: Any) -> Any:
        file = opened(self, entry)

        class Counted:
            def read_row_group(self, group: int, columns: Any) -> Any:
                read.append((entry.path, group))
                return file.read_row_group(group, columns)

        return Counted()

    monkeypatch.setattr(GroupReader, "_opened", counting)
    materialize.compute(storage, metrics="cka", reference_step=0, workers=1)
    own = Snapshot.take(storage).files("weights")
    # the reference is one of the three steps: read once more as what it is compared with
    assert len(read) == len(own) + 1
    assert len(set(read)) == len(own)


def test_a_reference_that_is_not_there_is_refused(new_lake: Callable[..., Storage]) -> None:
    storage = new_lake("lake", "first", "second")
    with pytest.raises(MetricError, match="no tensors at the reference step 3"):
        materialize.compute(storage, metrics="cka", reference_step=3)
    with pytest.raises(RunNameError, match="'frist'"):
        materialize.compute(storage, metrics="cka", reference_run="frist")
    with pytest.raises(MetricError, match="at the same step is the run itself"):
        materialize.compute(storage, "first", "cka", reference_run="first")
    done = materialize.compute(storage, metrics="cka", table="optimizer", reference_step="last")
    assert done == materialize.Summary()
