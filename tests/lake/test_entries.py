"""Log files with content that no pico writes are refused as they are decoded."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pico.errors import CorruptError, SchemaError
from pico.lake import entries, log, names
from pico.lake.snapshot import Snapshot
from tests.lake.test_log import entry


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"path": "../../etc/x.parquet"}, "no data file of a lake"),
        ({"path": "/etc/x.parquet"}, "no data file of a lake"),
        ({"action": "delete"}, "unknown action 'delete'"),
    ],
)
def test_a_hostile_log_is_refused(local, changes, message):
    data = log.encode([entry(0, **changes)], {})
    local.put(log.commit_path("train.r", 0), data)
    with pytest.raises(CorruptError, match=message):
        Snapshot.take(local)


def test_text_that_is_no_utf8_is_found_when_the_log_is_read(local):
    rows = entries.to_rows([entry(0)])
    bad = pa.array([b"\xff\xfe"], pa.binary()).view(pa.string())
    place = rows.schema.get_field_index("hash")
    data = log.encode(rows.set_column(place, rows.schema.field(place), bad), {})
    local.put(log.commit_path("train.r", 0), data)
    with pytest.raises(CorruptError, match=r"train.r/000000000000.parquet cannot be read"):
        Snapshot.take(local)


def test_a_path_is_checked_as_names_check_it():
    """The vectorised check and `names.check_path` agree."""
    good = "scalars/run=r/0.parquet"
    hostile = ["", ".parquet", "a", "a.parquet ", "a.parquet\n", "\na.parquet", "a//b.parquet"]
    hostile += ["a/.b.parquet", "a/b=.parquet/..", "ä.parquet", "a/../b.parquet", "a=b/c.parquet"]
    for path in [good, "a.parquet", "a/b.parquet", "a/b=c/d=e.parquet", *hostile]:
        data = log.encode([entry(0), entry(0, path=path)], {})
        try:
            names.check_path(path)
        except CorruptError as error:
            with pytest.raises(CorruptError) as caught:
                entries.decode(data, "a log file")
            assert str(caught.value) == str(error)
        else:
            assert entries.from_rows(entries.decode(data, "a log file")[0])[1].path == path


def test_a_log_of_another_version_is_refused(local):
    rows = pq.read_table(pa.BufferReader(log.encode([entry(0)], {})))
    newer = {**rows.schema.metadata, b"pico.schema_version": b"2"}
    sink = io.BytesIO()
    pq.write_table(rows.replace_schema_metadata(newer), sink)
    local.put(log.commit_path("train.r", 0), sink.getvalue())
    with pytest.raises(SchemaError, match="schema version 2 of table log"):
        Snapshot.take(local)


def test_encoding_keeps_every_field():
    made = [
        entry(0),
        entry(1, "remove", extra="{}", min_step=0, max_step=2**62, hash="ä"),
        entry(2, "withdraw", schema_version=7, rows=0, bytes=2**40),
    ]
    for times in (1, 100):  # few rows and many are written in different ways
        rows, metadata = entries.decode(log.encode(made * times, {"txn": "x"}), "a log file")
        assert entries.from_rows(rows) == made * times
        assert metadata[b"pico.txn"] == b"x"
