"""Readers that know nothing of pico read `weights`, and agree with each other and with us."""

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow.dataset as ds
import pytest

from pico import schema
from pico.lake import table
from pico.lake.codec import Tensor
from pico.lake.commit import Stream
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from pico.lake.table import TensorRow

PAYLOAD = np.array([0x7F800001, 0xFFC12345], np.uint32).view(np.float32)
TENSORS = {
    "plain": np.arange(6, dtype=np.float32).reshape(2, 3),
    "nan": np.array([1.0, np.nan, np.inf, -np.inf, -0.0, 1e-45], np.float32),
    "payload": PAYLOAD,
    "scalar": np.float32(2.5),
    "empty": np.zeros((0, 4), np.float32),
    "float64": np.array([0.1, 1e300]),
    "int64": np.array([1, 2**62]),
    "complex": np.array([1j], np.complex64),
    "large": np.random.default_rng(0).normal(size=(200, 300)).astype(np.float32),
}
RUNS, STEPS = ("alpha", "e10"), (0, 7)


@pytest.fixture(scope="module")
def lake(tmp_path_factory) -> Storage:
    storage = Storage(str(tmp_path_factory.mktemp("readers") / "lake"))
    for run in RUNS:
        with Stream(storage, f"train.{run}") as stream:
            for step in STEPS:
                transaction = stream.begin()
                rows = [TensorRow({"name": n}, Tensor.of(a)) for n, a in TENSORS.items()]
                table.write_tensors(transaction, "weights", {"run": run, "step": step}, rows)
                transaction.commit()
    return storage


def normal(row: dict) -> tuple:
    """One row as comparable bytes, whatever the reader's types for lists.

    Readers that hand out Python floats quieten signalling NaNs, so all are quietened here.
    """
    value, shape = row["value"], row["shape"]
    return (
        str(row["run_id"]),
        int(row["global_step"]),
        row["name"],
        row["dtype"],
        tuple(int(n) for n in shape),
        row["content_hash"],
        None if value is None else quiet(value),
        None if row["raw"] is None else bytes(row["raw"]),
    )


def quiet(value) -> bytes:
    with np.errstate(invalid="ignore"):
        return np.asarray(value, np.float64).astype(np.float32).tobytes()


@pytest.fixture(scope="module")
def expected(lake) -> list[tuple]:
    rows = Snapshot.take(lake).read("weights").to_pylist()
    return sorted(map(normal, rows), key=lambda row: row[:3])


def glob(lake: Storage) -> str:
    return f"{lake.url}/weights/**/*.parquet"


def by_duckdb(lake):
    with duckdb.connect() as con:
        found = con.sql(f"FROM read_parquet('{glob(lake)}', hive_partitioning = true)")
        assert found.columns[-2:] == ["run", "step"]
        return found.to_arrow_table().to_pylist()


def by_polars(lake):
    frame = pl.scan_parquet(glob(lake), hive_partitioning=True).collect()
    assert frame.schema["step"] == pl.Int64
    return frame.to_dicts()


def by_pandas(lake):
    frame = pd.read_parquet(f"{lake.url}/weights")
    return frame.astype(object).where(frame.notna(), None).to_dict("records")


def by_dataset(lake):
    return ds.dataset(f"{lake.url}/weights", partitioning="hive").to_table().to_pylist()


def by_datasets(lake):
    datasets = pytest.importorskip("datasets")
    folder = lake.folder.parent / "cache"
    datasets.disable_progress_bars()
    loaded = datasets.load_dataset(
        "parquet", data_files=glob(lake), split="train", cache_dir=str(folder)
    )
    return loaded.with_format("arrow")[:].to_pylist()


@pytest.mark.parametrize("read", [by_duckdb, by_polars, by_pandas, by_dataset, by_datasets])
def test_every_reader_sees_what_was_written(lake, expected, read):
    rows = read(lake)
    assert sorted(map(normal, rows), key=lambda row: row[:3]) == expected
    for row in rows:
        if "run" in row:
            assert (str(row["run"]), int(row["step"])) == (row["run_id"], row["global_step"])


def test_the_rows_are_the_tensors(expected):
    assert len(expected) == len(RUNS) * len(STEPS) * len(TENSORS)
    for _, _, name, _, shape, content_hash, value, _ in expected:
        array = np.asarray(TENSORS[name])
        assert shape == array.shape
        assert content_hash == Tensor.of(array).content_hash
        if not np.iscomplexobj(array):
            with np.errstate(over="ignore"):
                assert value == quiet(array.astype(np.float32).reshape(-1))


def test_nan_rows_are_found(lake):
    with duckdb.connect() as con:
        names = con.sql(
            f"SELECT DISTINCT name FROM (SELECT name, unnest(value) AS x FROM "
            f"read_parquet('{glob(lake)}')) WHERE isnan(x) ORDER BY ALL"
        ).fetchall()
    assert names == [("nan",), ("payload",)]
    found = (
        pl.scan_parquet(glob(lake))
        .select("name", "value")
        .explode("value", empty_as_null=True)
        .filter(pl.col("value").is_nan())
        .select("name")
        .unique()
        .collect()
    )
    assert sorted(found["name"]) == ["nan", "payload"]


def test_nan_rows_of_a_float_column_are_found(tmp_path):
    storage = Storage(str(tmp_path / "lake"))
    values = [1.0, float("nan"), 2.0, None]
    with Stream(storage, "train.r") as stream:
        transaction = stream.begin()
        rows = schema.table("scalars").batch(
            {
                "run_id": ["r"] * 4,
                "global_step": range(4),
                "name": ["loss"] * 4,
                "value": values,
            }
        )
        table.write_rows(transaction, "scalars", {"run": "r"}, rows)
        transaction.commit()
    pattern = f"{storage.url}/scalars/**/*.parquet"
    with duckdb.connect() as con:
        for condition in ("isnan(value)", "value > 100", "value = 'nan'::DOUBLE"):
            query = f"SELECT global_step FROM read_parquet('{pattern}') WHERE {condition}"
            assert con.sql(query).fetchall() == [(1,)]  # DuckDB orders NaN above all numbers
    scan = pl.scan_parquet(pattern)
    assert scan.filter(pl.col("value").is_nan()).collect()["global_step"].to_list() == [1]


def test_path_keys_prune_without_opening_files(lake):
    with duckdb.connect() as con:
        plan = con.sql(
            f"EXPLAIN ANALYZE SELECT name FROM read_parquet('{glob(lake)}', "
            "hive_partitioning = true) WHERE run = 'alpha' AND step = 7"
        ).fetchall()[0][1]
    assert "Total Files Read: 1" in plan
