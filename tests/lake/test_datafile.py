"""The layout of data files as pyarrow reports it (DESIGN 3)."""

import io

import numpy as np
import pyarrow.parquet as pq
import pytest

from pico import schema
from pico.lake import table
from pico.lake.codec import Tensor
from pico.lake.commit import Stream
from pico.lake.datafile import MANY_ROWS, STATISTICS, _parquet_writer
from pico.lake.snapshot import Snapshot
from pico.lake.table import TensorRow

KEYS = [(c, layer, f"{c}.{layer}") for c in ("q", "k") for layer in range(3)]


@pytest.fixture
def weights(memory) -> pq.ParquetFile:
    """Six matrices of 48 KB, a large one, a few small ones without a component."""
    rng = np.random.default_rng(0)

    def row(name, size, **keys):
        return TensorRow({"name": name, **keys}, Tensor.of(rng.normal(size=size).astype("f4")))

    rows = [row(name, 12_000, component=c, layer=n) for c, n, name in reversed(KEYS)]
    rows += [row("embed", 100_000, component="embed"), row("z", 5), row("a", ()), row("b", 0)]
    with Stream(memory, "train.r") as stream:
        transaction = stream.begin()
        table.write_tensors(transaction, "weights", {"run": "r", "step": 1}, rows)
        transaction.commit()
    (entry,) = Snapshot.take(memory).files("weights")
    return pq.ParquetFile(io.BytesIO(memory.read(entry.path)))


def columns(file: pq.ParquetFile, group: int = 0):
    meta = file.metadata.row_group(group)
    return {meta.column(i).path_in_schema: meta.column(i) for i in range(meta.num_columns)}


def test_rows_are_in_sort_order(weights):
    rows = weights.read(columns=["component", "layer", "name"]).to_pylist()
    assert [row["name"] for row in rows] == [
        "embed",
        *("k.0", "k.1", "k.2"),
        *("q.0", "q.1", "q.2"),
        *("a", "b", "z"),
    ]


def test_row_groups_hold_about_175_kb_and_a_large_tensor_alone(weights):
    names = [
        weights.read_row_group(group, columns=["name"])["name"].to_pylist()
        for group in range(weights.num_row_groups)
    ]
    assert names == [["embed"], ["k.0", "k.1", "k.2", "q.0"], ["q.1", "q.2", "a", "b", "z"]]


def test_values_are_byte_stream_split_and_zstd(weights):
    value = columns(weights)["value.list.element"]
    assert "BYTE_STREAM_SPLIT" in value.encodings
    assert not {"PLAIN_DICTIONARY", "RLE_DICTIONARY"} & set(value.encodings)
    assert value.physical_type == "FLOAT"
    assert value.total_compressed_size < 0.95 * 400_000
    assert {column.compression for column in columns(weights).values()} == {"ZSTD"}


def test_statistics_stand_on_keys_only(weights):
    found = {path for path, column in columns(weights).items() if column.is_stats_set}
    assert found == {"name", "layer", "component"}  # the path tells run and step
    group = columns(weights, 1)
    assert (group["name"].statistics.min, group["name"].statistics.max) == ("k.0", "q.0")


@pytest.fixture(params=[MANY_ROWS - 1, MANY_ROWS])
def scalars(request, memory) -> pq.ParquetFile:
    """A row table's file with one row less than many, and one with many."""
    n = request.param
    rows = schema.table("scalars").batch(
        {
            "run_id": ["r"] * n,
            "global_step": list(range(n)),
            "name": ["loss"] * n,
            "value": [1.0] * n,
        }
    )
    with Stream(memory, "train.r") as stream:
        transaction = stream.begin()
        table.write_rows(transaction, "scalars", {"run": "r"}, rows)
        transaction.commit()
    (entry,) = Snapshot.take(memory).files("scalars")
    return pq.ParquetFile(io.BytesIO(memory.read(entry.path)))


def test_dictionaries_and_page_index_come_with_many_rows(scalars, weights):
    has_many = scalars.metadata.num_rows >= MANY_ROWS
    name = columns(scalars)["name"]
    assert ("RLE_DICTIONARY" in name.encodings) == has_many
    assert name.has_offset_index == name.has_column_index == has_many
    assert not columns(scalars)["value"].has_column_index
    found = {path for path, column in columns(scalars).items() if column.is_stats_set}
    assert found == {"run_id", "global_step", "name"}
    assert not any(column.has_offset_index for column in columns(weights).values())
    assert "RLE_DICTIONARY" not in columns(weights)["component"].encodings


def test_the_file_says_what_it_is(weights):
    assert weights.schema_arrow.metadata == {
        b"pico.table": b"weights",
        b"pico.schema_version": b"1",
    }
    assert weights.schema_arrow.equals(schema.table("weights").arrow)


@pytest.mark.parametrize("name", schema.tables())
def test_no_table_has_float_statistics_or_float16(name):
    spec = schema.table(name)
    kinds = {column.name: column.type for column in spec.columns}
    assert not {kinds[key] for key in STATISTICS if key in kinds} - {
        "string",
        "int16",
        "int32",
        "int64",
    }
    examples = {"string": "a", "json": "{}", "binary": b"a", "bool": True, "timestamp": 0}
    row = {
        name: [[1] if kind.startswith("list<") else examples.get(kind, 1)]
        for name, kind in kinds.items()
    }
    sink = io.BytesIO()
    writer = _parquet_writer(sink, spec, has_many_rows=True)
    writer.write_table(spec.batch(row))
    writer.close()
    stored = pq.ParquetFile(sink)
    assert "Float16" not in str(stored.schema)
    assert stored.schema_arrow.equals(spec.arrow)
    for path, column in columns(stored).items():
        told_by_path = spec.kind == "tensor" and path in ("run_id", "global_step")
        assert column.is_stats_set == (path in STATISTICS and not told_by_path)


def test_statistics_name_columns_that_exist():
    known = {column for spec in schema.tables().values() for column in spec.column_names}
    assert set(STATISTICS) <= known


@pytest.mark.parametrize("dtype", ["complex64", "float64"])
def test_tensors_with_raw_bytes_are_cut_into_row_groups_as_well(memory, dtype):
    rows = [TensorRow({"name": f"{n:02}"}, Tensor.of(np.zeros(8000, dtype))) for n in range(20)]
    with Stream(memory, "train.r") as stream:
        transaction = stream.begin()
        table.write_tensors(transaction, "weights", {"run": "r", "step": 1}, rows)
        transaction.commit()
    (entry,) = Snapshot.take(memory).files("weights")
    assert pq.ParquetFile(io.BytesIO(memory.read(entry.path))).num_row_groups > 3
