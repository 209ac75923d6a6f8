"""Kept metrics: only what is missing is computed, equal tensors once, a kill loses one batch."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from pico import metrics, schema
from pico.compute import materialize, tasks
from pico.compute.summary import Summary
from pico.errors import LeaseError, MetricError, RunNameError, SchemaError
from pico.lake.codec import Tensor
from pico.lake.commit import Stream
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from pico.lake.table import TensorRow, write_tensors
from pico.metrics import registry
from tests.sql import small_lake as lake
from tests.stress import forks

OF_TENSOR = [name for name in registry.names("tensor") if not registry.get(name).on_request]
SPECTRAL = registry.names("spectrum")
MATRICES = 3
TENSORS = len(lake.WEIGHTS)


def kept(storage: Storage) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = Snapshot.take(storage).read("metrics").to_pylist()
    return rows


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The metric names of every tensor that is computed."""
    seen: list[tuple[str, ...]] = []
    real = registry.measured

    def counting(asked: Any, *tensor: Any) -> Any:
        seen.append(tuple(metric.name for metric in asked))
        return real(asked, *tensor)

    monkeypatch.setattr(registry, "measured", counting)
    return seen


@pytest.fixture
def spectra(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The tensors whose spectrum is computed."""
    seen: list[Any] = []
    real = registry.spectra

    def counting(tensors: Any) -> Any:
        seen.extend(tensors)
        return real(tensors)

    monkeypatch.setattr(registry, "spectra", counting)
    return seen


def test_every_metric_of_every_tensor_is_kept(new_lake: Callable[..., Storage]) -> None:
    storage = new_lake()
    done = materialize.compute(storage, "first")
    rows = kept(storage)
    n_steps = len(lake.STEPS)
    n_values = n_steps * (TENSORS * len(OF_TENSOR) + MATRICES * len(SPECTRAL))
    assert len(rows) == n_values
    # the norm never changes: its values at two of the three steps are those of the first
    assert done.reused == (n_steps - 1) * len(OF_TENSOR)
    assert done.computed == n_values - done.reused
    assert (done.present, done.skipped) == (0, n_steps * len(SPECTRAL))
    details = {name: (layer, component) for name, layer, component, _ in lake.WEIGHTS}
    for row in rows:
        tensor = lake.weight("first", row["global_step"], row["name"])
        wanted = getattr(metrics, row["metric"])(tensor)
        assert row["value"] == pytest.approx(wanted, rel=1e-12, nan_ok=True)
        assert row["tensor_hash"] == Tensor.of(tensor).content_hash
        assert (row["layer"], row["component"]) == details[row["name"]]
        assert (row["table_name"], row["param"]) == ("weights", "weight")
        assert row["metric_version"] == registry.get(row["metric"]).version


def test_a_second_call_computes_nothing_and_writes_nothing(
    new_lake: Callable[..., Storage], computed: list[tuple[str, ...]]
) -> None:
    storage = new_lake()
    first = materialize.compute(storage)
    assert computed
    computed.clear()
    before = storage.list("_log")
    second = materialize.compute(storage)
    assert computed == []
    assert storage.list("_log") == before
    assert (second.computed, second.reused) == (0, 0)
    assert second.present == first.computed + first.reused


def test_one_spectrum_serves_all_metrics_of_a_tensor(
    new_lake: Callable[..., Storage],
    spectra: list[Any],
    computed: list[tuple[str, ...]],
) -> None:
    materialize.compute(new_lake())
    assert len(spectra) == MATRICES * len(lake.STEPS)
    assert len(computed) == MATRICES * len(lake.STEPS) + 1


def test_only_what_is_missing_is_computed(
    new_lake: Callable[..., Storage], computed: list[tuple[str, ...]]
) -> None:
    storage = new_lake()
    assert materialize.compute(storage, metrics=["gini"]).computed == 10
    done = materialize.compute(storage, metrics=["gini", "per", "gini"])
    assert set(computed[10:]) == {("per",)}
    assert (done.computed, done.reused, done.present, done.skipped) == (9, 0, 12, 3)


def test_equal_tensors_of_another_run_are_not_computed_again(
    new_lake: Callable[..., Storage], computed: list[tuple[str, ...]]
) -> None:
    storage = new_lake()
    materialize.compute(storage)
    lake.write_run(storage, "second")
    with Stream(storage, "train.copy") as stream:
        transaction = stream.begin()
        rows = [TensorRow({"name": "w"}, Tensor.of(lake.weight("first", 0, "embed.weight")))]
        write_tensors(transaction, "weights", {"run": "copy", "step": 9}, rows)
        transaction.commit()
    computed.clear()
    done = materialize.compute(storage, "copy")
    assert computed == []
    assert (done.computed, done.reused) == (0, len(OF_TENSOR) + len(SPECTRAL))
    wanted = {
        row["metric"]: row["value"]
        for row in kept(storage)
        if (row["run_id"], row["global_step"], row["name"]) == ("first", 0, "embed.weight")
    }
    found = {row["metric"]: row["value"] for row in kept(storage) if row["run_id"] == "copy"}
    assert found == wanted
    # among the runs of one call, too: the norm is the same in both
    assert materialize.compute(storage).computed == MATRICES * len(lake.STEPS) * (
        len(OF_TENSOR) + len(SPECTRAL)
    )


def test_a_new_version_of_a_metric_is_computed_anew(
    new_lake: Callable[..., Storage], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = new_lake()
    materialize.compute(storage, metrics=["gini"])
    old = registry.get("gini")
    newer = registry.Metric("gini", lambda array: 0.5, "tensor", old.version + 1, old.summary)
    monkeypatch.setitem(registry._METRICS, "gini", newer)
    assert materialize.compute(storage, metrics=["gini"]).computed == 10
    values = {row["value"] for row in kept(storage) if row["metric_version"] == newer.version}
    assert values == {0.5}
    assert materialize.compute(storage, metrics=["gini"]).computed == 0


def test_a_changed_tensor_is_computed_anew(new_lake: Callable[..., Storage]) -> None:
    """A resumed run writes other tensors under the same step; the hash tells."""
    storage = new_lake()
    materialize.compute(storage, metrics=["gini"])
    with Stream(storage, "train.first") as stream:
        transaction = stream.begin()
        transaction.take_away(Snapshot.take(storage).files("weights", steps=[5]), withdraw=True)
        transaction.commit()
        transaction = stream.begin()
        rows = [TensorRow({"name": "embed.weight"}, Tensor.of(np.eye(3, dtype=np.float32)))]
        write_tensors(transaction, "weights", {"run": "first", "step": 5}, rows)
        transaction.commit()
    assert materialize.compute(storage, metrics=["gini"]).computed == 1


@pytest.mark.parametrize("table", ["gradients", "activations"])
def test_other_tables_keep_their_qualifiers(new_lake: Callable[..., Storage], table: str) -> None:
    storage = new_lake()
    done = materialize.compute(storage, metrics=["l1_norm"], table=table)
    rows = kept(storage)
    per_step = 2 * TENSORS if table == "gradients" else len(lake.SITES)
    assert len(rows) == done.computed + done.reused == per_step * len(lake.STEPS)
    assert {row["table_name"] for row in rows} == {table}
    if table == "gradients":
        assert {row["stage"] for row in rows} == {"raw", "clipped"}
        assert done.computed == 10  # raw and clipped are equal here
    else:
        assert {(row["site"], row["probe"]) for row in rows} == {
            ("resid.pre", "text"),
            ("resid.post", "text"),
        }
    assert materialize.compute(storage, metrics=["l1_norm"], table=table).computed == 0


def test_nan_split_and_complex_tensors(new_lake: Callable[..., Storage]) -> None:
    storage = new_lake()
    tensors = {
        "nan": np.asarray([[1.0, math.nan], [2.0, 3.0]], np.float32),
        "complex": np.ones((2, 2), np.complex64),
        "big": np.arange(16, dtype=np.float32).reshape(4, 4),
        "exact": np.asarray([1.0, 1.0 + 1e-12]),
    }
    with Stream(storage, "train.odd") as stream:
        transaction = stream.begin()
        rows = [TensorRow({"name": name}, Tensor.of(array)) for name, array in tensors.items()]
        write_tensors(transaction, "weights", {"run": "odd", "step": 0}, rows, part_limit=8)
        transaction.commit()
    done = materialize.compute(storage, "odd", ["gini", "per"])
    found = {(row["name"], row["metric"]): row["value"] for row in kept(storage)}
    assert math.isnan(found.pop(("nan", "gini"))) and math.isnan(found.pop(("nan", "per")))
    assert found == {
        ("big", "gini"): metrics.gini(tensors["big"]),
        ("big", "per"): metrics.per(tensors["big"]),
        ("exact", "gini"): metrics.gini(tensors["exact"]),
    }
    assert (done.computed, done.skipped) == (5, 3)
    assert materialize.compute(storage, "odd", ["gini", "per"]).computed == 0


def test_an_interruption_loses_one_batch_at_most(
    new_lake: Callable[..., Storage], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = new_lake()
    monkeypatch.setattr(materialize, "BATCH_ROWS", 3)
    real, calls = registry.measured, 0

    def dying(*asked: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 8:
            raise KeyboardInterrupt
        return real(*asked)

    monkeypatch.setattr(registry, "measured", dying)
    with pytest.raises(KeyboardInterrupt):
        materialize.compute(storage, metrics=["gini"], workers=1)
    n_kept = len(kept(storage))
    assert 3 <= n_kept < 12
    monkeypatch.setattr(registry, "measured", real)
    done = materialize.compute(storage, metrics=["gini"])
    assert done.present == n_kept
    assert len(kept(storage)) == 12
    schema.table("metrics").check_unique(Snapshot.take(storage).read("metrics"))


def _computing(url: str, kept_before_death: int) -> None:
    """Compute, and die without a word in the middle of a batch."""
    materialize.BATCH_ROWS = tasks.TASK_VALUES = 4
    real, n_done = registry.measured, 0

    def deadly(*asked: Any) -> Any:
        nonlocal n_done
        n_done += 1
        if n_done > kept_before_death:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*asked)

    registry.measured = deadly
    materialize.compute(Storage(url), metrics=["gini"], workers=1)


@pytest.mark.parametrize("n_done", [0, 3, 14, 18])
def test_a_kill_loses_one_batch_at_most(new_lake: Callable[..., Storage], n_done: int) -> None:
    """Of 20 tensors in two runs. A batch is 4 values, and so is a task, of which two are ahead."""
    storage = new_lake("lake", "first", "second")
    process, pipe = forks.start(_computing, storage.url, n_done)
    with pytest.raises(EOFError):
        forks.answer(process, pipe)
    assert process.exitcode == -signal.SIGKILL
    n_kept = len(kept(storage))
    assert n_kept <= 2 + n_done + 2 + 2  # the norm stands for three rows in each run
    assert n_kept >= n_done - 4 - 2 * 4
    done = materialize.compute(storage, metrics=["gini"])
    assert done.present == n_kept
    rows = kept(storage)
    assert len(rows) == 2 * TENSORS * len(lake.STEPS)
    schema.table("metrics").check_unique(Snapshot.take(storage).read("metrics"))
    for row in rows:
        wanted = metrics.gini(lake.weight(row["run_id"], row["global_step"], row["name"]))
        assert row["value"] == pytest.approx(wanted, rel=1e-12)


def test_a_dry_run_says_how_much_is_missing(new_lake: Callable[..., Storage]) -> None:
    storage = new_lake("lake", "first", "second")
    before = storage.list("")
    told = materialize.compute(
        storage, metrics="gini,per", table=["weights", "gradients"], dry_run=True
    )
    assert storage.list("") == before
    steps = len(lake.STEPS)
    found = {(lack.run, lack.table): lack for lack in told.lacks}
    assert found.keys() == {(r, t) for r in lake.RUNS for t in ("weights", "gradients")}
    first, second = found["first", "weights"], found["second", "weights"]
    assert first.values == second.values == steps * (TENSORS + MATRICES)
    assert (first.tensors, first.to_compute) == (steps * MATRICES + 1, 2 * steps * MATRICES + 1)
    # the norm of the second run is that of the first, and the gradients are the weights here
    assert (second.tensors, second.to_compute) == (steps * MATRICES, 2 * steps * MATRICES)
    assert found["first", "gradients"].to_compute == 0
    assert found["first", "gradients"].n_bytes == 0
    assert first.n_bytes == sum(_value_bytes(storage, e) for e in files(storage, "first"))
    assert "values are missing" in str(told) and len(told.rows()) == 4
    done = materialize.compute(storage, metrics="gini,per", table=["weights", "gradients"])
    assert done.computed == sum(lack.to_compute for lack in told.lacks)
    assert done.computed + done.reused == sum(lack.values for lack in told.lacks)
    assert materialize.compute(storage, metrics="gini,per", dry_run=True).lacks == ()


def files(storage: Storage, run: str) -> list[Any]:
    return Snapshot.take(storage).files("weights", [run])


def _value_bytes(storage: Storage, entry: Any) -> int:
    metadata = pq.read_metadata(f"{storage.folder}/{entry.path}")
    groups = [metadata.row_group(n) for n in range(metadata.num_row_groups)]
    columns = [group.column(n) for group in groups for n in range(group.num_columns)]
    return sum(
        column.total_compressed_size
        for column in columns
        if column.path_in_schema.partition(".")[0] in ("value", "raw")
    )


def test_batches_are_commits(
    new_lake: Callable[..., Storage], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = new_lake()
    monkeypatch.setattr(materialize, "BATCH_ROWS", 4)
    materialize.compute(storage, metrics=["gini"])
    assert len(Snapshot.take(storage).files("metrics")) == 3


def test_progress_reaches_its_total(new_lake: Callable[..., Storage]) -> None:
    seen: list[tuple[int, int]] = []
    storage = new_lake("lake", "first", "second")
    materialize.compute(storage, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(n + 1, 20) for n in range(20)]


def test_a_lake_in_memory(request: pytest.FixtureRequest) -> None:
    storage = Storage(f"memory://kept-{id(request)}")
    lake.write_run(storage, "first")
    assert materialize.compute(storage, metrics=["per"]).computed == 9
    assert materialize.compute(storage, metrics=["per"]).present == 9


def test_what_cannot_be_asked_is_refused(new_lake: Callable[..., Storage]) -> None:
    storage = new_lake()
    with pytest.raises(MetricError, match=r"no metric 'ginni'\. Did you mean 'gini'"):
        materialize.compute(storage, metrics=["ginni"])
    with pytest.raises(MetricError, match="'cka' compares two tensors"):
        materialize.compute(storage, metrics=["cka"])
    with pytest.raises(SchemaError, match=r"no tensor table 'weight'\. Did you mean 'weights'"):
        materialize.compute(storage, table="weight")
    with pytest.raises(RunNameError, match="'firts'"):
        materialize.compute(storage, "firts")
    with (
        Stream(storage, "derive.first.metrics"),
        pytest.raises(LeaseError),
    ):
        materialize.compute(storage)


def test_a_summary_says_what_was_done() -> None:
    total = Summary(1, 2, 3, 4) + Summary(computed=1)
    assert str(total) == (
        "2 values computed, 2 taken from identical tensors, 3 there already, "
        "4 not defined for their tensor"
    )
