import dataclasses
import datetime

import numpy as np
import pyarrow as pa
import pytest

from pico import schema
from pico.errors import SchemaError

GOOD = {"run_id": ["r", "r"], "global_step": [0, 1], "name": ["loss", "loss"], "value": [1.0, None]}


def scalars(**changes) -> dict:
    return {key: value for key, value in {**GOOD, **changes}.items() if value is not None}


def test_a_batch_has_the_schema_of_its_table():
    rows = schema.table("scalars").batch(GOOD)
    assert rows.schema.equals(schema.table("scalars").arrow, check_metadata=True)
    assert rows["extra"].to_pylist() == [None, None]
    assert rows["value"].to_pylist() == [1.0, None]


def test_a_batch_takes_arrays_of_any_kind():
    spec = schema.table("scalars")
    plain = spec.batch(GOOD)
    arrays = scalars(
        run_id=pa.array(["r", "r"]),
        global_step=np.array([0, 1], np.int32),
        name=pa.chunked_array([["loss"], ["loss"]]),
    )
    assert spec.batch(arrays).equals(plain)
    assert spec.batch({}).num_rows == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"valu": [1, 2]}, r"table scalars has no column 'valu'. Did you mean 'value'\?"),
        ({"run_id": None}, r"scalars.run_id must not be NULL"),
        ({"name": ["loss", None]}, r"scalars.name must not be NULL"),
        ({"global_step": ["0", "1"]}, r"scalars.global_step takes int64: "),
        ({"global_step": [0.5, 1]}, r"scalars.global_step takes int64: "),
        ({"global_step": [0, 2**63]}, r"scalars.global_step takes int64: "),
        ({"name": [1, 2]}, r"scalars.name takes string: "),
        ({"value": ["a", "b"]}, r"scalars.value takes float64: "),
        ({"value": [{}, []]}, r"scalars.value takes float64: "),
        ({"value": [1j, 2j]}, r"scalars.value takes float64: "),
        ({"value": np.zeros((2, 2))}, r"scalars.value takes float64: "),
        ({"global_step": [True, False]}, r"scalars.global_step takes int64: "),
        ({"global_step": np.zeros(2)}, r"scalars.global_step takes int64: "),
        ({"global_step": pa.array([0.5, 1.0])}, r"rows do not fit table scalars: "),
        ({"value": [1.0, 2.0, 3.0]}, r"rows do not fit table scalars: |must not be NULL"),
        ({"global_step": [1, 1]}, r"two rows of scalars share the primary key .*'global_step': 1"),
    ],
)
def test_rows_that_do_not_fit_are_refused(changes, message):
    columns = {**GOOD, **changes}
    columns = {key: value for key, value in columns.items() if value is not None}
    with pytest.raises(SchemaError, match=message) as caught:
        schema.table("scalars").batch(columns)
    assert "\n" not in str(caught.value)


def test_null_keys_count_as_equal():
    row = {"run_id": "r", "global_step": 0, "name": "w", "site": "z", "part": 0, "n_parts": 1}
    row |= {"dtype": "float32", "shape": [1], "content_hash": "0"}
    spec = schema.table("activations")
    same = {key: [value, value] for key, value in row.items()}
    with pytest.raises(SchemaError, match="share the primary key"):
        spec.batch({**same, "probe": [None, None]})
    assert spec.batch({**same, "probe": [None, "text"]}).num_rows == 2


def test_lists_hold_no_null_elements():
    spec = schema.table("probes")
    row = {"dataset_id": ["d"], "probe": ["p"], "input_hash": ["0"], "sequence_id": [0]}
    with pytest.raises(SchemaError, match=r"probes.tokens must not hold NULL elements"):
        spec.batch({**row, "tokens": [[1, None]]})
    assert spec.batch({**row, "tokens": [[]]}).num_rows == 1
    hidden = pa.array([[1, None], [2]], spec.arrow.field("tokens").type)
    assert spec.batch({**row, "tokens": hidden[1:]})["tokens"].to_pylist() == [[2]]


def retyped(rows: pa.Table, name: str, kind: pa.DataType, nullable: bool = False) -> pa.Table:
    place = rows.schema.get_field_index(name)
    return rows.set_column(place, pa.field(name, kind, nullable), rows[name].cast(kind))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda rows: rows.drop_columns("extra"), "table scalars needs column 'extra'"),
        (
            lambda rows: rows.append_column("more", pa.nulls(2, pa.int8())),
            "table scalars has no column 'more'",
        ),
        (
            lambda rows: retyped(rows, "global_step", pa.int32()),
            "scalars.global_step must be int64, not int32",
        ),
        (
            lambda rows: retyped(rows, "name", pa.large_string()),
            "scalars.name must be string, not large_string",
        ),
        (
            lambda rows: retyped(rows, "name", pa.string(), nullable=True),
            "scalars.name must be declared not nullable",
        ),
        (
            lambda rows: rows.select(rows.column_names[::-1]),
            "the columns of scalars are not in the order of its schema",
        ),
    ],
)
def test_the_door_and_the_reader_refuse_other_columns(spoil, message):
    spec = schema.table("scalars")
    spoilt = spoil(spec.batch(GOOD))
    with pytest.raises(SchemaError, match=message):
        spec.check(spoilt)
    with pytest.raises(SchemaError, match=f"x.parquet: {message}"):
        spec.accepts(spoilt.schema, "x.parquet")


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (None, r"x.parquet says that it belongs to table '', not 'scalars'"),
        ({"pico.table": "weights", "pico.schema_version": "1"}, r"belongs to table 'weights'"),
        ({"pico.table": "scalars"}, r"has no schema version of table scalars: ''"),
        (
            {"pico.table": "scalars", "pico.schema_version": "2"},
            r"version 2 of.*reads version 1;.*upgrade",
        ),
        ({"pico.table": b"\xff", "pico.schema_version": "1"}, r"belongs to table"),
    ],
)
def test_a_file_of_another_table_or_version_is_refused(metadata, message):
    spec = schema.table("scalars")
    with pytest.raises(SchemaError, match=message):
        spec.accepts(spec.arrow.with_metadata(metadata), "x.parquet")
    spec.accepts(spec.arrow, "x.parquet")


def test_further_metadata_is_no_obstacle():
    spec = schema.table("scalars")
    spec.accepts(spec.arrow.with_metadata({**spec.arrow.metadata, "huggingface": "{}"}), "x")


def test_unknown_tables_are_named():
    with pytest.raises(
        SchemaError, match=r"no table 'gradient'. Did you mean 'gradients'\? Tables"
    ):
        schema.table("gradient")
    with pytest.raises(SchemaError, match="no table 'log'"):
        schema.table("log")
    assert "log" not in schema.tables()


def test_path_columns():
    assert schema.table("weights").path_columns == {"run": "run_id", "step": "global_step"}
    assert schema.table("scalars").path_columns == {"run": "run_id"}
    assert schema.table("sequences").path_columns == {"dataset": "dataset_id"}
    assert schema.table("vocab").path_columns == {"tokenizer": "tokenizer_id"}
    assert schema.log().path_columns == {}


def test_values_keep_their_meaning():
    when = datetime.datetime(2026, 5, 1, 12, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))
    rows = schema.table("runs").batch({"run_id": ["r"], "run_uuid": ["u"], "created_at": [when]})
    assert rows["created_at"].to_pylist()[0].isoformat() == "2026-05-01T10:00:00+00:00"
    rows = schema.table("scalars").batch(scalars(value=[np.float32(0.5), 2]))
    assert rows["value"].to_pylist() == [0.5, 2.0]


def test_column_types():
    column = schema.table("weights").columns[0]
    kinds = {"list<float32>": pa.float32(), "list<int64>": pa.int64()}
    for name, element in kinds.items():
        arrow = dataclasses.replace(column, type=name).arrow
        assert arrow == pa.list_(pa.field("element", element, nullable=False))
    assert dataclasses.replace(column, type="json").arrow == pa.string()


def test_the_page_about_tables_mentions_every_column():
    text = schema.markdown()
    for spec in [*schema.tables().values(), schema.log()]:
        section = text.split(f"## `{spec.name}` (version")[1].split("\n## ")[0]
        for column in spec.columns:
            assert f"| `{column.name}` | {column.type} |" in section
            assert column.description.replace("|", "\\|") in section
        assert spec.description in section
    assert "`weights/run=…/step=…/….parquet`" in text
    assert "`_log/STREAM/COMMIT.parquet`" in text
