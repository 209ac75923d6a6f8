import gc
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pico import schema
from pico.errors import CorruptError, RunNameError, SchemaError
from pico.lake import codec, table
from pico.lake.codec import Tensor
from pico.lake.commit import Stream
from pico.lake.snapshot import Snapshot
from pico.lake.table import TensorRow

SMALL_FLOATS = {"bfloat16": 16, "float16": 16, "float8_e4m3fn": 8, "float8_e5m2": 8}


def bits(*codes: int) -> np.ndarray:
    return np.array(codes, np.uint32).view(np.float32)


TENSORS = {
    "awkward float32": Tensor(
        "float32",
        (2, 5),
        bits(
            0x7FC00001, 0x7F800001, 0xFFABCDEF, 0x7F800000, 0xFF800000, 1 << 31, 1, 0x7FFFFF, 0, 9
        ),
    ),
    "0-d": Tensor.of(np.float32(-0.0)),
    "empty": Tensor.of(np.zeros((0, 3), np.float32)),
    "empty float64": Tensor.of(np.zeros((2, 0))),
    "float64": Tensor.of(np.array([[1e300, np.nan, -0.0, 5e-324]])),
    "int64": Tensor.of(np.array([-(2**63), 2**63 - 1, 0])),
    "small int64": Tensor.of(np.arange(-3, 4)),
    "uint64": Tensor.of(np.array([0, 2**64 - 1], np.uint64)),
    "uint8": Tensor.of(np.arange(256, dtype=np.uint8)),
    "bool": Tensor.of(np.array([[True], [False]])),
    "complex64": Tensor.of(np.array([1 + 2j, complex(np.nan, -0.0)], np.complex64)),
    "complex128": Tensor.of(np.array(1e300j)),
    "large": Tensor.of(np.random.default_rng(0).normal(size=(70, 1000)).astype(np.float32)),
    **{
        dtype: Tensor(dtype, (1 << n_bits,), np.arange(1 << n_bits).astype(codec.storage(dtype)))
        for dtype, n_bits in SMALL_FLOATS.items()
    },
}


def stored(storage, step=0, keep=lambda keys: True) -> dict[str, Tensor]:
    return {
        row.keys["name"]: row.tensor
        for row in Snapshot.take(storage).tensors("weights", "r", step, keep)
    }


def assert_identical(one: Tensor, other: Tensor) -> None:
    assert (one.dtype, one.shape) == (other.dtype, other.shape)
    assert one.data.tobytes() == other.data.tobytes()


def scalars(run: str, steps, name: str = "loss") -> pa.Table:
    steps = list(steps)
    return schema.table("scalars").batch(
        {
            "run_id": [run] * len(steps),
            "global_step": steps,
            "name": [name] * len(steps),
            "value": [float(step) for step in steps],
        }
    )


def commit_scalars(storage, *batches) -> None:
    with Stream(storage, "train.r") as stream:
        transaction = stream.begin()
        table.write_rows(transaction, "scalars", {"run": "r"}, batches)
        transaction.commit()


def test_every_kind_of_tensor_comes_back_bit_for_bit(storage, commit_weights):
    commit_weights(storage, TENSORS)
    found = stored(storage)
    assert found.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert_identical(found[name], tensor)


def test_parts_come_back_as_one_tensor(storage, commit_weights):
    commit_weights(storage, TENSORS, part_limit=1000)
    rows = Snapshot.take(storage).read("weights", ["name", "part", "n_parts", "value"])
    n_parts = dict(zip(rows["name"].to_pylist(), rows["n_parts"].to_pylist(), strict=True))
    assert (n_parts["large"], n_parts["bfloat16"], n_parts["0-d"]) == (70, 66, 1)
    assert max(pc.list_value_length(rows["value"].combine_chunks()).to_pylist()[:5]) <= 1000
    for name, tensor in stored(storage).items():
        assert_identical(tensor, TENSORS[name])


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_float32_bits_survive_parquet(memory, commit_weights, data):
    shape = data.draw(st.lists(st.integers(0, 4), max_size=3).map(tuple))
    size = int(np.prod(shape))
    codes = data.draw(st.lists(st.integers(0, 2**32 - 1), min_size=size, max_size=size))
    tensor = Tensor("float32", shape, bits(*codes))
    step = data.draw(st.integers(0, 2**40))
    written = commit_weights(memory, {"w": tensor}, step=step)
    files = Snapshot.take(memory).all_files()
    newest = [entry for entry in files if entry.txn == files[-1].txn]
    assert written is not None
    (row,) = table.read_tensors(memory, newest)
    assert_identical(row.tensor, tensor)
    assert row.keys["global_step"] == step


def test_the_row_carries_keys_and_hash(storage):
    tensor = Tensor.of(np.ones(2, np.float32))
    keys = {"name": "layers.3.q", "layer": 3, "component": "q", "param": "weight", "extra": "{}"}
    with Stream(storage, "train.r") as stream:
        transaction = stream.begin()
        table.write_tensors(
            transaction, "weights", {"run": "r", "step": 7}, [TensorRow(keys, tensor)]
        )
        transaction.commit()
    (row,) = Snapshot.take(storage).tensors("weights", "r", 7)
    assert row.keys == {
        **keys,
        "expert": None,
        "run_id": "r",
        "global_step": 7,
        "content_hash": tensor.content_hash,
    }


def test_keep_opens_only_what_is_wanted(local, commit_weights):
    commit_weights(local, {"a": np.zeros(40_000, np.float32), "b": np.ones(2, np.float32)})
    assert list(stored(local, keep=lambda keys: keys["name"] == "b")) == ["b"]


def test_a_failing_write_adds_nothing(storage):
    def batches():
        yield scalars("r", range(3))
        raise RuntimeError("the source broke")

    with Stream(storage, "train.r") as stream:
        transaction = stream.begin()
        with pytest.raises(RuntimeError, match="the source broke"):
            table.write_rows(transaction, "scalars", {"run": "r"}, batches())
        gc.collect()  # a Parquet writer's destructor must not complain
        assert transaction.is_empty
        table.write_rows(transaction, "scalars", {"run": "r"}, scalars("r", [5]))
        transaction.commit()
    assert Snapshot.take(storage).read("scalars")["global_step"].to_pylist() == [5]
    assert len([f for f in storage.list("") if f.path.startswith("scalars")]) == 1
    assert not storage.list(".staging")


def test_a_full_disk_is_a_storage_error(local, monkeypatch):
    rows = scalars("r", range(10))
    with Stream(local, "train.r") as stream:
        transaction = stream.begin()

        def refuse(self, data):
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr("pico.lake.sink.LocalSink.write", refuse)
            with pytest.raises(OSError, match="No space left"):
                table.write_rows(transaction, "scalars", {"run": "r"}, rows)
            gc.collect()
        assert transaction.is_empty
    assert not local.list(".staging")


@pytest.mark.parametrize("names", [("a", "a"), ("a", "b", "a")])
@pytest.mark.parametrize("size", [2, 40_000])
def test_two_tensors_of_one_name_are_refused(local, names, size):
    with Stream(local, "train.r") as stream:
        transaction = stream.begin()
        rows = [TensorRow({"name": n}, Tensor.of(np.zeros(size, np.float32))) for n in names]
        with pytest.raises(SchemaError, match=r"share the primary key .*'name': 'a'"):
            table.write_tensors(transaction, "weights", {"run": "r", "step": 0}, rows)
        assert transaction.is_empty


def test_a_key_may_not_return_in_a_later_batch(local):
    with pytest.raises(SchemaError, match="share the primary key"):
        commit_scalars(local, scalars("r", [1, 2]), scalars("r", [2]))


@pytest.mark.parametrize(
    ("partition", "error"),
    [
        ({}, SchemaError),
        ({"run": "r"}, SchemaError),
        ({"run": "r", "step": 0, "more": 1}, SchemaError),
        ({"run": "../x", "step": 0}, RunNameError),
        ({"run": "true", "step": 0}, RunNameError),
        ({"run": "r", "step": -1}, RunNameError),
        ({"run": "r", "step": 1.5}, RunNameError),
        ({"run": "r", "step": True}, RunNameError),
    ],
)
def test_a_partition_must_fit_the_table(local, partition, error):
    with Stream(local, "train.r") as stream:
        rows = [TensorRow({"name": "a"}, Tensor.of(np.zeros(2, np.float32)))]
        with pytest.raises(error):
            table.write_tensors(stream.begin(), "weights", partition, rows)


def test_rows_of_another_run_are_refused(local):
    with pytest.raises(SchemaError, match=r"scalars.run_id must be 'r' as in the path, not 'q'"):
        commit_scalars(local, scalars("q", [1]))


def test_rows_are_sorted_within_a_batch(storage):
    commit_scalars(storage, scalars("r", [3, 1, 2]), scalars("r", [0]))
    rows = Snapshot.take(storage).read("scalars")
    assert rows["global_step"].to_pylist() == [1, 2, 3, 0]
    (entry,) = Snapshot.take(storage).files("scalars")
    assert (entry.rows, entry.min_step, entry.max_step) == (4, 0, 3)


def test_no_rows_write_no_file(storage):
    commit_scalars(storage, scalars("r", []))
    assert storage.list("scalars") == []


def test_files_roll(storage, monkeypatch, commit_weights):
    monkeypatch.setattr("pico.lake.datafile.FILE_BYTES", 200_000)
    rng = np.random.default_rng(0)
    tensors = {f"n{i}": rng.normal(size=40_000).astype(np.float32) for i in range(5)}
    commit_weights(storage, tensors)
    files = Snapshot.take(storage).files("weights")
    assert [entry.rows for entry in files] == [2, 2, 1]
    assert {f.path: f.size for f in storage.list("weights")} == {e.path: e.bytes for e in files}
    found = stored(storage)
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert np.array_equal(found[name].to_numpy(), tensor)


def test_a_tensor_may_continue_in_the_next_file(storage, monkeypatch, commit_weights):
    monkeypatch.setattr("pico.lake.datafile.FILE_BYTES", 1)
    tensor = TENSORS["large"]
    commit_weights(storage, {"w": tensor}, part_limit=20_000)
    files = Snapshot.take(storage).files("weights")
    assert [entry.rows for entry in files] == [3, 1]  # three parts fill a row group
    assert_identical(stored(storage)["w"], tensor)


def test_read_returns_columns_as_asked(storage):
    commit_scalars(storage, scalars("r", range(5)))
    snapshot = Snapshot.take(storage)
    rows = snapshot.read("scalars", ["value", "name"], steps=[1, 3])
    assert rows.column_names == ["value", "name"]
    assert rows["value"].to_pylist() == [1.0, 3.0]
    filtered = snapshot.read("scalars", ["value"], filter=pc.field("value") > 2)
    assert filtered["value"].to_pylist() == [3.0, 4.0]
    assert snapshot.read("scalars", ["value", "name"], runs=["other"]).column_names == [
        "value",
        "name",
    ]
    with pytest.raises(SchemaError, match=r"no column 'valu'. Did you mean 'value'\?"):
        snapshot.read("scalars", ["valu"])


def test_a_write_needs_little_memory_beyond_the_tensors(local, commit_weights):
    tensors = {f"n{i}": np.zeros(1 << 18, np.float32) for i in range(16)}
    commit_weights(local, {"first": np.zeros(1)}, run="before")  # what is imported at first use
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        commit_weights(local, tensors)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 3 * 4 * (1 << 18)
    assert pa.total_allocated_bytes() - before < 4 * (1 << 18)


# damaged files ------------------------------------------------------------------------------


def data_file(storage, name="weights"):
    (file,) = storage.list(name)
    return storage.folder / file.path


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1PAR1", b"not parquet at all", b"\0" * 99])
def test_a_file_that_is_no_parquet(local, commit_weights, content):
    commit_weights(local, {"w": np.zeros(2, np.float32)})
    data_file(local).write_bytes(content)
    with pytest.raises(CorruptError, match=r"weights/run=r/step=0/.* cannot be read") as caught:
        stored(local)
    assert "\n" not in str(caught.value)
    with pytest.raises(CorruptError):
        Snapshot.take(local).read("weights")


def test_a_truncated_file(local, commit_weights):
    commit_weights(local, {"w": np.zeros(2000, np.float32)})
    path = data_file(local)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(CorruptError):
        stored(local)


def test_a_missing_file(storage, commit_weights):
    commit_weights(storage, {"w": np.zeros(2, np.float32)})
    storage.delete([storage.list("weights")[0].path])
    with pytest.raises(CorruptError, match="is missing although the log names it"):
        stored(storage)


def test_a_missing_part(local, commit_weights, monkeypatch):
    monkeypatch.setattr("pico.lake.datafile.FILE_BYTES", 1)
    commit_weights(local, {"w": TENSORS["large"]}, part_limit=20_000)
    entries = Snapshot.take(local).files("weights")
    with pytest.raises(CorruptError, match="tensor 'w' lacks some of its 4 parts"):
        list(table.read_tensors(local, entries[:-1]))


@pytest.mark.parametrize("name", ["weights", "scalars"])
def test_a_flipped_byte_is_found_or_does_no_harm(local, name):
    values = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    with Stream(local, "train.r") as stream:
        transaction = stream.begin()
        row = TensorRow({"name": "alpha", "component": "q"}, Tensor.of(values))
        table.write_tensors(transaction, "weights", {"run": "r", "step": 0}, [row])
        table.write_rows(transaction, "scalars", {"run": "r"}, scalars("r", range(9)))
        transaction.commit()
    snapshot = Snapshot.take(local)

    def content():
        if name == "scalars":
            return snapshot.read("scalars").to_pylist()
        return [
            (row.keys, row.tensor.shape, row.tensor.data.tobytes())
            for row in snapshot.tensors("weights", "r", 0)
        ]

    intact = content()
    path = data_file(local, name)
    good = path.read_bytes()
    n_found = 0
    for place in range(0, len(good), 3):
        bad = bytearray(good)
        bad[place] ^= 1 << place % 8
        path.unlink()  # a mapping that is still open keeps the old file
        path.write_bytes(bad)
        try:
            found = content()
        except (CorruptError, SchemaError) as error:
            assert "\n" not in str(error)
            n_found += 1
        else:
            assert found == intact, place
    assert n_found > len(good) / 3 / 3


def test_a_wrong_hash_is_found(local, commit_weights, monkeypatch):
    monkeypatch.setattr(Tensor, "content_hash", "0" * 32)
    commit_weights(local, {"w": np.zeros(2, np.float32)})
    monkeypatch.undo()
    with pytest.raises(CorruptError, match=r"tensor 'w' in weights/.* content hash differs"):
        stored(local)
    (row,) = table.read_tensors(local, Snapshot.take(local).files("weights"), verify=False)
    assert row.tensor.data.tolist() == [0.0, 0.0]


def test_a_file_of_another_version_is_refused(local, commit_weights, monkeypatch):
    commit_weights(local, {"w": np.zeros(2, np.float32)})
    path = data_file(local)
    rows = pq.read_table(path)
    newer = {**rows.schema.metadata, b"pico.schema_version": b"2"}
    path.unlink()
    pq.write_table(rows.replace_schema_metadata(newer), path)
    with pytest.raises(SchemaError, match=r"schema version 2 of table weights.*reads version 1"):
        stored(local)
