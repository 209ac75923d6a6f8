"""SQL of somebody else: what it may do, and a list of attacks of which none may succeed.

Each attack must end as one line of `QueryError` (or, where it asks for nothing forbidden, as an
answer without secrets), with every file of the lake and around it as it was.
"""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pico
from pico.cli import run_command
from pico.errors import QueryError
from pico.lake.codec import Tensor
from pico.lake.commit import Stream
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from pico.lake.table import TensorRow, write_tensors
from pico.sql import confined, output, session, statements, untrusted
from tests.sql import small_lake as lake
from tests.stress import figures

SECRET = "CANARY-5f2b"
secret_rows = pa.table({"text": [SECRET]})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a lake, and secrets beside it."""
    folder = tmp_path_factory.mktemp("untrusted")
    lake.write_lake(Storage(str(folder / "lake")))
    (folder / "secret.txt").write_text(SECRET)
    (folder / "secret.csv").write_text(f"text\n{SECRET}\n")
    pq.write_table(secret_rows, folder / "secret.parquet")
    return folder


@pytest.fixture(scope="module")
def snapshot(place: Path) -> Snapshot:
    return Snapshot.take(Storage(str(place / "lake")))


def everything(place: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path): (path.lstat().st_mtime_ns, path.lstat().st_size)
        for path in [place, *place.rglob("*")]
    }


@pytest.fixture
def unharmed(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail the test if anything changes in the lake, beside it, or in the working folder."""
    monkeypatch.chdir(place)
    monkeypatch.setenv("PICO_SECRET", SECRET)
    before = everything(place)
    yield
    assert everything(place) == before


def refusal(snapshot: Snapshot, sql: str, seconds: float = 30, memory_limit: str = "500MB") -> str:
    with pytest.raises(QueryError) as caught:
        untrusted.run(snapshot, sql, seconds=seconds, memory_limit=memory_limit)
    message = str(caught.value)
    assert message.isprintable(), message
    assert SECRET not in message
    assert "Traceback" not in message
    return message


HONEST = {
    "SELECT": "SELECT count(*) AS n FROM weights",
    "FROM first": "FROM weights SELECT count(*) AS n",
    "WITH": "WITH w AS (SELECT * FROM weights) SELECT count(*) AS n FROM w",
    "VALUES": "VALUES (24)",
    "set operation": "SELECT 24 AS n UNION SELECT 24",
    "recursion": "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t WHERE n < 24) "
    "SELECT max(n) AS n FROM t",
    "trailing semicolon": "SELECT 24 AS n;",
    "comment": "-- how many\nSELECT 24 AS n -- so many",
}


@pytest.mark.parametrize("sql", HONEST.values(), ids=HONEST)
def test_a_query_that_reads_is_no_attack(locked: duckdb.DuckDBPyConnection, sql: str) -> None:
    confined.check(locked, sql)
    assert statements.query(locked, sql).fetchall() == [(24,)]


def test_a_query_that_reads_is_answered(snapshot: Snapshot) -> None:
    assert untrusted.run(snapshot, HONEST["SELECT"]).to_pydict() == {"n": [24]}


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_tensor_functions_and_views_are_those_of_a_trusted_session(
    kind: str, snapshot: Snapshot
) -> None:
    if kind == "memory":
        snapshot = Snapshot.take(lake.write_lake(Storage(f"memory://{uuid.uuid4().hex}")))
    sql = (
        "SELECT run, step, name, gini(tensor) AS g, per(tensor) AS p, spectrum(tensor) AS s, "
        "tensor FROM weights ORDER BY run, step, name"
    )
    found = untrusted.run(snapshot, sql).to_pylist()
    assert found == session.connect(snapshot).sql(sql).to_arrow_table().to_pylist()
    assert len(found) == 24
    told = "SELECT detokenize([7]::INTEGER[], tokenizer) AS t FROM (SELECT 'nosuch' AS tokenizer)"
    assert untrusted.run(snapshot, told).to_pylist() == [{"t": None}]
    listed = untrusted.run(snapshot, "SELECT path FROM files ORDER BY path")["path"].to_pylist()
    assert listed == sorted(entry.path for entry in snapshot.all_files())


def test_questions_and_rows_do_not_get_mixed_up(tmp_path: Path) -> None:
    """DuckDB's threads ask for bytes while rows are on their way to the parent."""
    storage = Storage(str(tmp_path / "lake"))
    with Stream(storage, "train.r") as stream:
        for step in range(60):
            transaction = stream.begin()
            value = np.full((300, 300), step, np.float32)
            rows = [TensorRow({"name": f"w{i}"}, Tensor.of(value + i / 8)) for i in range(3)]
            write_tensors(transaction, "weights", {"run": "r", "step": step}, rows)
            transaction.commit()
    sql = "SELECT step, name, unnest(value[:2000]) AS v FROM weights"
    found = untrusted.run(Snapshot.take(storage), sql)
    assert found.num_rows == 60 * 3 * 2000
    wanted = sum(step + i / 8 for step in range(60) for i in range(3)) * 2000
    assert sum(found["v"].to_pylist()) == wanted


def test_no_rows_keep_their_columns(snapshot: Snapshot) -> None:
    found = untrusted.run(snapshot, "SELECT run, step FROM weights WHERE false")
    assert (found.num_rows, found.column_names) == (0, ["run", "step"])


def test_spilling_works_and_leaves_nothing(
    snapshot: Snapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    sql = "SELECT count(*) FROM (SELECT md5(range::VARCHAR) m FROM range(3000000) ORDER BY m)"
    found = untrusted.run(snapshot, sql, memory_limit="150MB")
    assert found.column(0).to_pylist() == [3_000_000]
    assert not list(tmp_path.iterdir())


# What is no SELECT, what hides in one, what leads out of the lake, and what would never end. LAKE
# and FILE stand for the lake's folder and one of its files, OUT for the folder around it.
NO_SELECT = [
    "COPY (SELECT 1) TO 'OUT/new.csv'",
    "COPY weights FROM 'OUT/secret.csv'",
    "ATTACH 'OUT/new.duckdb' AS other",
    "INSTALL httpfs",
    "LOAD httpfs",
    "SET enable_external_access = true",
    "SET lock_configuration = false",
    "RESET enable_external_access",
    "PRAGMA enable_profiling",
    "PRAGMA database_list",
    "CALL pragma_version()",
    "CALL enable_logging(storage = 'file', storage_path = 'OUT')",
    "EXPORT DATABASE 'OUT/new'",
    "IMPORT DATABASE 'OUT'",
    "CREATE TABLE t AS SELECT 1",
    "CREATE OR REPLACE VIEW weights AS SELECT 1",
    "CREATE OR REPLACE MACRO gini(x) AS 0.0",
    "CREATE MACRO main.mean(x) AS 0",
    "CREATE SECRET s (TYPE s3, KEY_ID 'a', SECRET 'b')",
    "DROP VIEW weights",
    "INSERT INTO files VALUES (1)",
    "UPDATE files SET rows = 0",
    "DELETE FROM files",
    "MERGE INTO files USING runs ON true WHEN MATCHED THEN DELETE",
    "PREPARE p AS SELECT 1",
    "EXECUTE p",
    "EXPLAIN ANALYZE COPY (SELECT 1) TO 'OUT/new.csv'",
    "EXPLAIN SELECT 1",
    "BEGIN TRANSACTION",
    "CHECKPOINT",
    "VACUUM",
    "USE memory",
    "SELECT 1; SELECT 2",
    "SELECT 1; COPY (SELECT 1) TO 'OUT/new.csv'",
    "PIVOT weights ON name USING count(*)",
    "",
    ";",
    "-- nothing",
    "SELEC 1",
    "SELECT 1 \x00; COPY (SELECT 1) TO 'OUT/new.csv'",
]
WRITES_IN_A_SELECT = [
    "WITH a AS (COPY (SELECT 1) TO 'FILE' (USE_TMP_FILE false)) SELECT 1",
    "WITH a AS (COPY (SELECT 1) TO 'picosnap://PATH' (USE_TMP_FILE false)) SELECT 1",
    "WITH a AS (COPY (SELECT 1) TO 'OUT/new.csv') SELECT 1",
    "WITH a AS (INSERT INTO files SELECT * FROM files RETURNING *) SELECT * FROM a",
    "WITH a AS (DELETE FROM weights RETURNING *) SELECT * FROM a",
    "WITH a AS (UPDATE weights SET step = 0 RETURNING *) SELECT * FROM a",
    "SELECT * FROM (WITH a AS (COPY (SELECT 1) TO 'OUT/new.csv') SELECT 1)",
    "SELECT * FROM query('COPY (SELECT 1) TO ''OUT/new.csv''')",
    "SELECT * FROM query('WITH a AS (COPY (SELECT 1) TO ''OUT/n.csv'') SELECT 1')",
    "SELECT * FROM enable_logging(storage = 'file', storage_path = 'OUT')",
    "SELECT * FROM enable_profiling(save_location = 'OUT/profile')",
    "SELECT * FROM add_grammar_extension('x')",
]
READS_OUTSIDE = [
    "SELECT * FROM read_text('OUT/secret.txt')",
    "SELECT * FROM read_blob('OUT/secret.txt')",
    "SELECT * FROM read_csv('OUT/secret.csv')",
    "SELECT * FROM read_json('OUT/secret.csv')",
    "SELECT * FROM read_parquet('OUT/secret.parquet')",
    "SELECT * FROM read_duckdb('OUT/secret.parquet')",
    "SELECT * FROM parquet_metadata('OUT/secret.parquet')",
    "SELECT * FROM parquet_kv_metadata('OUT/secret.parquet')",
    "SELECT * FROM sniff_csv('OUT/secret.csv')",
    "SELECT * FROM glob('OUT/*')",
    "SELECT * FROM glob('LAKE/**')",
    "SELECT * FROM 'OUT/secret.parquet'",
    "SELECT * FROM 'secret.csv'",
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_text('LAKE/../secret.txt')",
    "SELECT * FROM read_text('picosnap://../secret.txt')",
    "SELECT * FROM read_text('picosnap://PATH/../../../../secret.txt')",
    "SELECT * FROM read_text('picosnap:///etc/passwd')",
    "SELECT * FROM read_text('file://OUT/secret.txt')",
    "SELECT * FROM read_parquet('FILE')",
    "SELECT * FROM read_parquet('https://127.0.0.1:9/x.parquet')",
    "SELECT * FROM read_parquet('s3://bucket/x.parquet')",
    "SELECT * FROM secret_rows",
    "SELECT * FROM SECRET",
    "SELECT getenv('PICO_SECRET')",
    "SELECT * FROM query_table('secret_rows')",
    "SELECT * FROM python_arrow_scan(1, 2, 3)",
    "SELECT * FROM python_map_function((SELECT 1))",
]
BOMBS = [
    "SELECT repeat('x', 1000000000000)",
    "SELECT list(range) FROM range(100000000000)",
    "SELECT string_agg(repeat('x', 1000), '') FROM range(100000000)",
    "SELECT range(0, 10000000000)",
    "SELECT * FROM range(10000000000)",
    "SELECT repeat('x', 1000000) FROM range(100000)",
    "SELECT [range(1000000)::VARCHAR] FROM range(100000)",
    f"SELECT {'(' * 50000}1{')' * 50000}",
    f"SELECT {'+'.join(['1'] * 50000)}",
    f"SELECT {'[' * 900}1{']' * 900}",
]
ENDLESS = [
    "WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT max(n) FROM t",
    "SELECT count(*) FROM range(100000000000) a, range(100000000000) b",
    "SELECT count(*) FROM range(1000000) a JOIN range(1000000) b ON a.range < b.range * random()",
    "SELECT regexp_matches(repeat('a', 1000000 + i), '(a*)*b') FROM range(10000) AS t(i)",
]


def filled(sql: str, place: Path, snapshot: Snapshot) -> str:
    path = snapshot.files("weights")[0].path
    words = {"LAKE": place / "lake", "FILE": place / "lake" / path, "PATH": path, "OUT": place}
    for word, value in words.items():
        sql = sql.replace(word, str(value)) if word != "OUT" else sql.replace("OUT/", f"{value}/")
    return sql.replace("'OUT'", f"'{place}'")


@pytest.fixture(scope="module")
def locked(snapshot: Snapshot) -> Iterator[duckdb.DuckDBPyConnection]:
    """The session of the child, in this process: its attackers can be counted by the hundred."""
    files = untrusted._Files(snapshot)

    def read(path: str, start: int, stop: int) -> bytes:
        asked = json.dumps({"path": path, "start": start, "stop": stop})
        return files.read(asked.encode())[1]

    served = confined._Served(snapshot.storage.url, {}, io.BytesIO(), io.BytesIO())
    served._ask = read
    connection = session.connect(Snapshot(served, snapshot.all_files()))
    entries = [{"path": entry.path} for entry in snapshot.all_files()]
    task = {"entries": entries, "folder": "", "temp_limit": "0KB"}
    confined._lock_up(connection, task)
    yield connection
    connection.close()


def test_nothing_is_written_and_nothing_outside_read(
    place: Path, snapshot: Snapshot, locked: duckdb.DuckDBPyConnection, unharmed: None
) -> None:
    """Each attack twice: as the check sees it, and past the check, against the locked session."""
    attacks = [filled(sql, place, snapshot) for sql in (*WRITES_IN_A_SELECT, *READS_OUTSIDE)]
    for sql in attacks:
        with pytest.raises(QueryError) as caught:
            confined.check(locked, sql)
            statements.fetch(statements.query(locked, sql))
        assert str(caught.value).isprintable()
        assert SECRET not in str(caught.value)
        assert "Traceback" not in str(caught.value)
    for sql in attacks:
        if " INTO files" not in sql:  # it goes into memory, and needs the check to be refused
            with pytest.raises(QueryError):
                statements.fetch(statements.query(locked, sql))
    figures.note("attacks", kind="write or read outside", tried=len(attacks), survived=len(attacks))


@pytest.mark.parametrize("sql", [WRITES_IN_A_SELECT[0], READS_OUTSIDE[0]], ids=["write", "read"])
def test_the_child_is_locked_too(sql: str, place: Path, snapshot: Snapshot, unharmed: None) -> None:
    assert "died" not in refusal(snapshot, filled(sql, place, snapshot))


def test_a_path_that_may_be_read_might_be_written(tmp_path: Path, snapshot: Snapshot) -> None:
    """Why the check looks into WITH, and why the child's files are read-only by themselves."""
    target = tmp_path / "victim.parquet"
    target.write_bytes(b"x" * 1000)
    connection = duckdb.connect()
    connection.execute(f"SET allowed_paths = ['{target}']")
    connection.execute("SET enable_external_access = false")
    attack = f"WITH a AS (COPY (SELECT 1) TO '{target}' (USE_TMP_FILE false)) SELECT 1"
    assert connection.extract_statements(attack)[0].type == duckdb.StatementType.SELECT
    connection.execute(attack).fetchall()
    assert target.stat().st_size < 1000
    with pytest.raises(QueryError, match="this one holds COPY"):
        confined.check(connection, attack)


def test_what_is_no_select_is_refused(place: Path, snapshot: Snapshot) -> None:
    connection = session.connect(snapshot)
    for sql in NO_SELECT:
        with pytest.raises(QueryError) as caught:
            confined.check(connection, filled(sql, place, snapshot))
        assert str(caught.value).isprintable()
    figures.note("attacks", kind="no SELECT", tried=len(NO_SELECT), survived=len(NO_SELECT))


def test_the_check_stands_before_the_statement(
    place: Path, snapshot: Snapshot, unharmed: None
) -> None:
    message = refusal(snapshot, f"COPY (SELECT 1) TO '{place}/new.csv'")
    assert message == "an untrusted query is a SELECT statement, not COPY"
    message = refusal(snapshot, "SELECT 1; SELECT 2")
    assert message == "an untrusted query is one SELECT statement, not 2 statements"


def marked(attacks: list[str], quick: int) -> list[Any]:
    """The attacks as parameters, all but the first few slow: each costs a process."""
    return [
        pytest.param(sql, id=str(n), marks=[pytest.mark.slow] if n >= quick else [])
        for n, sql in enumerate(attacks)
    ]


@pytest.mark.parametrize("sql", marked(BOMBS, 2))
def test_a_bomb_is_a_clear_error(sql: str, snapshot: Snapshot, unharmed: None) -> None:
    refusal(snapshot, sql, seconds=20, memory_limit="300MB")
    figures.note("attacks", kind="memory and result bombs", tried=1, survived=1)


@pytest.mark.parametrize("sql", marked(ENDLESS, 1))
def test_an_endless_query_is_stopped(sql: str, snapshot: Snapshot, unharmed: None) -> None:
    assert "ran longer than 1 s" in refusal(snapshot, sql, seconds=1)
    figures.note("attacks", kind="endless queries", tried=1, survived=1)


def test_a_tensor_function_that_never_ends_is_killed(tmp_path: Path) -> None:
    """An interrupt cannot reach into a singular value decomposition; the end of the process can."""
    storage = Storage(str(tmp_path / "lake"))
    big = np.random.default_rng(0).standard_normal((3000, 3000), np.float32)
    with Stream(storage, "train.r") as stream:
        transaction = stream.begin()
        rows = [TensorRow({"name": f"w{i}"}, Tensor.of(big * i)) for i in range(1, 4)]
        write_tensors(transaction, "weights", {"run": "r", "step": 0}, rows)
        transaction.commit()
    sql = "SELECT sum(effective_rank(tensor)) FROM weights"
    assert "ran longer than 1 s" in refusal(Snapshot.take(storage), sql, 1, "2GB")


def test_a_child_that_dies_is_one_line(snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untrusted, "_START", "import os, sys; sys.path; os.abort()")
    assert "process died (SIGABRT)" in refusal(snapshot, "SELECT 1")


def test_the_child_gets_no_environment_and_no_files(
    place: Path, snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What a compromised child could tell: it is started without variables, in an empty folder."""
    told = tmp_path / "told"
    spy = f"import os; open({str(told)!r}, 'w').write(repr((dict(os.environ), os.listdir('.'))))"
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setattr(untrusted, "_START", f"import sys; sys.argv; {spy}")
    refusal(snapshot, "SELECT 1")
    assert SECRET not in told.read_text()
    assert told.read_text().endswith(", [])")


def test_the_parent_serves_the_files_of_the_snapshot_alone(snapshot: Snapshot) -> None:
    files = untrusted._Files(snapshot)
    entry = snapshot.all_files()[0]

    def ask(path: str, start: int, stop: int) -> tuple[str, bytes]:
        return files.read(json.dumps({"path": path, "start": start, "stop": stop}).encode())

    assert ask(entry.path, 0, 4) == ("D", b"PAR1")
    for path, start, stop in [
        ("../secret.txt", 0, 4),
        ("/etc/passwd", 0, 4),
        (entry.path, 0, 99_999_999_999),
        (entry.path, -9, 4),
        (entry.path, 4, 0),
    ]:
        assert ask(path, start, stop)[0] == "E"
    for nonsense in (b"[]", b"nonsense", b"{}", b"\xff"):
        assert files.read(nonsense)[0] == "E"


def test_a_symbolic_link_inside_the_lake_is_not_followed(tmp_path: Path) -> None:
    storage = lake.write_lake(Storage(str(tmp_path / "lake")))
    entry = Snapshot.take(storage).files("scalars")[0]
    outside = tmp_path / "outside.parquet"
    (tmp_path / "lake" / entry.path).rename(outside)
    (tmp_path / "lake" / entry.path).symlink_to(outside)
    snapshot = Snapshot.take(storage)
    assert "symbolic link" in refusal(snapshot, "SELECT * FROM scalars")
    for read in (
        lambda: snapshot.read("scalars"),
        lambda: session.connect(snapshot).sql("FROM scalars").fetchall(),
        lambda: pico.Lake(storage.url).scan("scalars").collect(),
        lambda: storage.read(entry.path),
    ):
        with pytest.raises(Exception, match="symbolic link"):
            read()
    figures.note("attacks", kind="symbolic links", tried=5, survived=5)


def test_a_damaged_file_spoils_only_its_table(tmp_path: Path) -> None:
    storage = lake.write_lake(Storage(str(tmp_path / "lake")))
    snapshot = Snapshot.take(storage)
    files = snapshot.files("scalars")
    (tmp_path / "lake" / files[0].path).write_bytes(b"PAR1" + bytes(100) + b"PAR1")
    (tmp_path / "lake" / snapshot.files("batches")[0].path).unlink()
    assert ".parquet" in refusal(snapshot, "SELECT * FROM scalars")
    assert ".parquet" in refusal(snapshot, "SELECT * FROM batches")
    found = untrusted.run(snapshot, "SELECT count(*) AS n FROM weights")
    assert found.to_pydict() == {"n": [24]}


def test_what_may_be_asked_tells_nothing_of_this_machine(
    locked: duckdb.DuckDBPyConnection, snapshot: Snapshot
) -> None:
    told = ""
    for sql in [
        "SELECT * FROM duckdb_logs()",
        "SELECT * FROM duckdb_variables()",
        "SELECT value FROM duckdb_settings() WHERE name IN ('allowed_paths', 'temp_directory')",
        "SELECT * FROM duckdb_databases()",
        "SELECT sql FROM duckdb_views()",
    ]:
        confined.check(locked, sql)
        told += str(statements.query(locked, sql).fetchall())
    assert "picosnap://" in told
    assert str(snapshot.storage.folder) not in told


def test_limits_are_checked(snapshot: Snapshot) -> None:
    for options, message in [
        ({"seconds": 0}, "the time limit must be a number of seconds above 0, not 0"),
        ({"seconds": float("nan")}, "the time limit must be"),
        ({"memory_limit": "lots"}, "'lots' is no size"),
        ({"temp_limit": "-1GB"}, "'-1GB' is no size"),
    ]:
        with pytest.raises(QueryError, match=message):
            untrusted.run(snapshot, "SELECT 1", **options)


@pytest.fixture
def command(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    def run(sql: str, *options: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.stdin", io.StringIO(""))
        code = run_command(["sql", sql, "--lake", str(place / "lake"), "--untrusted", *options])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_the_command_answers(command: Callable[..., tuple[int, str, str]]) -> None:
    code, out, err = command("SELECT count(*) AS n FROM weights", "--format", "csv")
    assert (code, out, err) == (0, "n\n24\n", "")


def test_limits_are_for_untrusted_sql(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = run_command(["sql", "FROM runs", "--lake", str(place / "lake"), "--time-limit", "5"])
    assert (code, capsys.readouterr().err) == (2, "error: --time-limit is for --untrusted SQL\n")


@pytest.mark.parametrize(
    ("sql", "options", "message"),
    [
        ("DROP VIEW weights", (), "an untrusted query is a SELECT statement, not DROP"),
        (ENDLESS[0], ("--time-limit", "0.5"), "the query ran longer than 0.5 s"),
        (BOMBS[1], ("--memory-limit", "100MB"), "Out of Memory Error"),
        ("SELECT error(chr(27) || '[31m' || chr(10) || 'error: x')", (), r"\x1b[31m error: x"),
    ],
)
def test_the_command_fails_in_one_line(
    command: Callable[..., tuple[int, str, str]], sql: str, options: tuple[str, ...], message: str
) -> None:
    code, out, err = command(sql, *options)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err
    assert err.removesuffix("\n").isprintable()


def test_control_characters_of_an_answer_are_spelled(
    snapshot: Snapshot, capsys: pytest.CaptureFixture[str]
) -> None:
    sql = "SELECT chr(27) || '[2J' || chr(10) || chr(155) || chr(8238) AS \"a\x1b]0;b\x07\""
    for format in ("table", "json"):
        output.write(untrusted.run(snapshot, sql), format)
        assert capsys.readouterr().out.replace("\n", "").isprintable()
