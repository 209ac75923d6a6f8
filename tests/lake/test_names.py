import datetime

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from pico.errors import CorruptError, RunNameError
from pico.lake.names import check_name, check_path, path_key

REFUSED = [
    *(
        "",
        ".",
        "..",
        "../x",
        "a/b",
        "a\\b",
        "a b",
        "a\n",
        "\na",
        "a\0",
        "é",
        "ａ",
        "-a",
        "_a",
        ".a",
    ),
    *("1", "12", "1e5", "2024-01-01", "0x10", "a" * 129, "a=b", "a%2Fb", "a*", "a'b", 'a"b', "a,b"),
    *("true", "True", "FALSE", "null", "None", "nan", "NaN", "inf", "Infinity", "NaT", "epoch"),
    *("jan1", "Jan-01", "january1", "dec-2024", "may_5", "mar.1.2024", "Sept-2024"),
]
ALLOWED = [
    "a",
    "pico-tiny",
    "run1",
    "e10",
    "E5",
    "x1",
    "may",
    "a.b_c-D",
    "a" * 128,
    "truely",
    "nan1",
]


@pytest.mark.parametrize("name", REFUSED)
def test_names_that_could_be_misread_are_refused(name):
    with pytest.raises(RunNameError, match="cannot name a run") as caught:
        check_name(name)
    assert repr(name) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [None, 3, b"a", True])
def test_what_is_no_string_is_refused(name):
    with pytest.raises(RunNameError, match="cannot name a data set"):
        check_name(name, "data set")


@pytest.mark.parametrize("name", ALLOWED)
def test_good_names_pass(name):
    assert check_name(name) == name


def passes(name: str) -> bool:
    try:
        check_name(name)
    except RunNameError:
        return False
    return True


MONTHS = ["jan", "Feb", "march", "APR", "may", "june", "jul", "sept", "oct", "november", "dec"]
WORDS = ["e", "E", "p", "t", "z", "i", "d", "x", "inf", "nan", "na", "nat", "now", "today", "utc"]
names = st.one_of(
    st.from_regex(r"[A-Za-z][A-Za-z0-9._-]{0,7}", fullmatch=True),
    st.builds(
        lambda word, sep, number, tail: f"{word}{sep}{number}{tail}",
        st.sampled_from(MONTHS + WORDS),
        st.sampled_from(["", "-", ".", "_"]),
        st.integers(0, 3000),
        st.sampled_from(["", "-1", "-2024", ".5", "T10", "e5"]),
    ),
).filter(passes)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=names)
@example(name="e10")
@example(name="may")
def test_readers_take_allowed_names_for_strings(tmp_path_factory, name):
    root = tmp_path_factory.mktemp("names")
    folder = root / "t" / path_key("run", name)
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"x": [1]}), folder / "a.parquet")
    pattern = f"{root}/t/**/*.parquet"
    with duckdb.connect() as con:
        query = f"SELECT run FROM read_parquet('{pattern}', hive_partitioning = true)"
        assert con.sql(query).fetchall() == [(name,)]
    frame = pl.scan_parquet(pattern, hive_partitioning=True).collect()
    assert frame["run"].to_list() == [name]
    assert ds.dataset(root / "t", partitioning="hive").to_table()["run"].to_pylist() == [name]


def test_a_refused_date_would_indeed_be_misread(tmp_path):
    folder = tmp_path / "run=2024-01-01"
    folder.mkdir()
    pq.write_table(pa.table({"x": [1]}), folder / "a.parquet")
    with duckdb.connect() as con:
        query = f"SELECT run FROM read_parquet('{tmp_path}/**/*.parquet', hive_partitioning = true)"
        assert con.sql(query).fetchall() == [(datetime.date(2024, 1, 1),)]


def test_path_keys():
    assert path_key("run", "tiny.heldout") == "run=tiny.heldout"
    assert path_key("step", 100) == "step=100"
    for value in ("../x", "true", "", "a/b", -1, 1.0, None, True, "jan1"):
        with pytest.raises(RunNameError, match="cannot stand in a path as run="):
            path_key("run", value)


@pytest.mark.parametrize(
    "path",
    [
        *("", "x", "/etc/x.parquet", "../x.parquet", "weights/../../x.parquet", "~/x.parquet"),
        *("weights/run=a/x.txt", "weights\\x.parquet", "C:/x.parquet", "s3://b/x.parquet"),
        *("weights/x\0.parquet", "weights/x.parquet\n", "weights//x.parquet", "./x.parquet"),
        *(
            "weights/*.parquet",
            "weights/a'b.parquet",
            "weights/?/[a].parquet",
            "weights/.x.parquet",
        ),
        *("_log/train.r/000000000000.parquet", ".leases/x.parquet", "weights/run=a/.parquet"),
    ],
)
def test_paths_of_a_hostile_log_are_refused(path):
    with pytest.raises(CorruptError, match="no data file of a lake"):
        check_path(path)


@pytest.mark.parametrize(
    "path",
    ["weights/run=a/step=5/59d694d3-da8e.parquet", "vocab/tokenizer=bpe-2048-ab.c/1.parquet"],
)
def test_paths_of_data_files_pass(path):
    assert check_path(path) == path
