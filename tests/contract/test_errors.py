"""Every expected mistake is one line on standard error and exit code 2; a traceback is a bug."""

from __future__ import annotations

import io
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pico.cli import run_command
from pico.lake import log
from pico.lake.storage import Storage
from tests.train import tiny

torch.set_num_threads(1)
Fail = Callable[..., str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("errors")
    tiny.two_runs(folder)
    tiny.write_config(folder / "config.yaml", tiny.config(folder / "text.txt", max_steps=1))
    (folder / "empty.txt").write_text("")
    (folder / "short.txt").write_text("A few words.\n")
    (folder / "broken.yaml").write_text("a: [1\nb: 2\n")
    (folder / "list.yaml").write_text("- 1\n")
    return folder


@pytest.fixture
def fail(made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Fail:
    """Run a command that must fail, in the folder of the fixture; returns its one line."""
    monkeypatch.chdir(made)
    monkeypatch.delenv("PICO_LAKE", raising=False)

    def run(*arguments: str, stdin: str = "") -> str:
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        capsys.readouterr()
        code = run_command(list(arguments))
        out, err = capsys.readouterr()
        assert (code, out) == (2, ""), err
        assert err.startswith("error: ")
        assert err.endswith("\n")
        assert err.count("\n") == 1, err
        assert "Traceback" not in err
        return err.removeprefix("error: ").rstrip("\n")

    return run


SQL = ("sql", "--lake", "lake")
TRAIN = ("train", "config.yaml", "--lake", "new", "--run", "a")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        # configs
        ((*TRAIN, "max_step=3"), "unknown config key 'max_step'. Did you mean 'max_steps'?"),
        ((*TRAIN, "model.n_layer=3"), "unknown config key 'model.n_layer'. Did you mean"),
        ((*TRAIN, "record.weigths=pythia"), "unknown config key 'record.weigths'. Did you mean"),
        ((*TRAIN, "record.weights=pythai"), "record.weights: no schedule 'pythai'. Did you mean"),
        ((*TRAIN, "nonsense"), "override 'nonsense' is not of the form key=value"),
        ((*TRAIN, "max_steps=[1"), "the value of override 'max_steps=[1' is not valid YAML"),
        ((*TRAIN, "max_steps=many"), "max_steps must be"),
        ((*TRAIN, "batch.micro_size=3"), "batch.micro_size 3 does not divide batch.size 8"),
        ((*TRAIN, "model.d_model=25"), "d_model 25 is not a multiple of n_heads 2"),
        (("train", "nanoo", *TRAIN[2:]), "no config file or shipped config 'nanoo'. Did you mean"),
        (("train", "broken.yaml", *TRAIN[2:]), "broken.yaml is not valid YAML"),
        (("train", "list.yaml", *TRAIN[2:]), "list.yaml must hold key: value pairs"),
        # text
        ((*TRAIN, "data.source=empty.txt"), "source 'empty.txt' holds no text"),
        ((*TRAIN, "data.source=absent.txt"), "no text source 'absent.txt'"),
        ((*TRAIN, "data.source=text.tx"), "no text source 'text.tx'. Did you mean 'text.txt'?"),
        ((*TRAIN, "data.seq_len=30000", "model.context=30000"), "seq_len"),
        ((*TRAIN, "data.source=short.txt"), "nothing can be held out of a single document"),
        ((*TRAIN, "data.source=short.txt", "data.heldout_fraction=0"), "seq_len"),
        ((*TRAIN, "data.tokenizer=absent.json"), "absent.json"),
        ((*TRAIN, "data.tokenizer=config.yaml"), "config.yaml"),
        # names of runs
        ((*TRAIN[:-1], "../x"), "'../x' cannot name a run"),
        ((*TRAIN[:-1], "true"), "'true' cannot name a run: readers would take it for a value"),
        ((*TRAIN[:-1], "2024-01-01"), "'2024-01-01' cannot name a run"),
        (
            ("train", "config.yaml", "--lake", "lake", "--run", "first", "--resume", "never"),
            "run 'first' is in ",
        ),
        (
            ("train", "config.yaml", "--lake", "lake", "--run", "FIRST"),
            "run 'FIRST' differs from run 'first' in case only",
        ),
        (
            ("train", "config.yaml", "seeds.data=9", "--lake", "lake", "--run", "first"),
            "run 'first' cannot be resumed with another config",
        ),
        # lakes
        (("runs", "--lake", "absent"), "no lake at"),
        (("runs", "--lake", "."), "no lake at"),
        (("sql", "SELECT 1", "--lake", "config.yaml"), "no lake at"),
        (("train", "config.yaml", "--lake", ".", "--run", "a"), "is not empty and holds no lake"),
        (("runs", "--lake", "nonsense://x"), "nonsense"),
        (("coverage", "frist", "--lake", "lake"), "no run 'frist' in "),
        # SQL
        ((*SQL, "SELEC 1"), "syntax error"),
        ((*SQL, "SELECT nonsense FROM weights"), "nonsense"),
        ((*SQL, "SELECT * FROM wieghts"), "wieghts"),
        ((*SQL, "SELECT ginni(tensor) FROM weights"), "ginni"),
        ((*SQL, "SELECT gini(name) FROM weights"), ""),
        ((*SQL, "SELECT cka(a.tensor, b.tensor) FROM weights a, weights b"), ""),
        ((*SQL, "SELECT error('mine') FROM weights"), "mine"),
        ((*SQL, "SELECT CAST(name AS INTEGER) FROM weights"), "Could not convert"),
        ((*SQL, ""), "there is no SQL statement to run"),
        ((*SQL, "/* nothing */"), "there is no SQL statement to run"),
        ((*SQL, "SELECT 1 AS a, 2 AS a", "--format", "json"), "two columns are named 'a'"),
        ((*SQL, "SELECT 1", "-o", "absent/answer.csv"), "cannot write 'absent/answer.csv'"),
        ((*SQL, "SELECT 1", "--format", "xml"), "xml"),
        # queries
        (("query", "lose", "--lake", "lake"), "no query 'lose'. Did you mean 'loss'?"),
        (("query", "show"), "show which query?"),
        (("query", "show", "lose"), "no query 'lose'. Did you mean 'loss'?"),
        (("query", "loss"), "which lake? name it with --lake or PICO_LAKE"),
        (("query", "loss", "extra", "--lake", "lake"), "unexpected argument 'extra'"),
        (
            ("query", "text_seen", "-p", "run=first", "--lake", "lake"),
            "query text_seen: it needs step",
        ),
        (
            ("query", "text_seen", "-p", "run=first", "-p", "step=ten", "--lake", "lake"),
            "query text_seen: step takes int, not 'ten'",
        ),
        (
            ("query", "loss", "-p", "runn=first", "--lake", "lake"),
            "query loss: it has no parameter 'runn'. Did you mean 'run'?",
        ),
        (("query", "loss", "-p", "run", "--lake", "lake"), "parameter 'run' is not of the form"),
        (("query", "loss", "-p", "run=frist", "--lake", "lake"), "no run 'frist'"),
        # metrics
        (("metrics", "compute", "--metric", "ginni", "--lake", "lake"), "no metric 'ginni'. Did"),
        (("metrics", "compute", "--run", "frist", "--lake", "lake"), "no run 'frist' in "),
        (("metrics", "compute", "--table", "scalars", "--lake", "lake"), "scalars"),
        (("metrics", "compute", "--lake", "absent"), "no lake at"),
        # the command line itself
        (("quary",), "quary"),
        (("sql", "SELECT 1"), "--lake"),
        (("runs",), "--lake"),
        (("runs", "--lake"), "--lake"),
        (("runs", "--lake", "lake", "--nonsense"), "--nonsense"),
        (("runs", "extra", "--lake", "lake"), "extra"),
        (("sql", "--lake", "lake"), "statement"),
        (("train", "config.yaml", "--lake", "lake"), "--run"),
        (("train", "config.yaml", "--lake", "new", "--run", "a", "--resume", "maybe"), "maybe"),
        (("demo", "--steps", "0"), "'--steps': "),
        (("demo", "--steps", "many"), "'--steps': "),
        (("metrics", "nonsense"), "nonsense"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, tuple) else "",
)
def test_one_line_that_says_what(fail: Fail, arguments: tuple[str, ...], message: str) -> None:
    assert message in fail(*arguments)
    assert not list(Path("new").glob("weights/*"))


def test_the_way_out_is_in_the_message(fail: Fail) -> None:
    assert fail("sql", "SELECT 1").endswith("See: pico sql --help")
    assert "pico train or pico demo" in fail("runs", "--lake", "absent")
    assert "List them: pico query list" in fail("query", "zzz")
    assert "pico metrics list" in fail("metrics", "compute", "--metric", "zz", "--lake", "lake")
    every = fail(*TRAIN, "max_step=3", "model.d_mode=2", "optimizer.schedule=lineal")
    assert all(key in every for key in ("max_step", "model.d_mode", "optimizer.schedule"))


def test_no_lake_is_made_by_asking(fail: Fail, made: Path) -> None:
    fail("runs", "--lake", "absent")
    fail("metrics", "compute", "--lake", "absent")
    fail("query", "loss", "-p", "run=a", "--lake", "absent")
    assert not (made / "absent").exists()


@pytest.fixture
def damaged(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made / "lake", tmp_path / "lake")
    return tmp_path / "lake"


def one(folder: Path, pattern: str) -> Path:
    return sorted(folder.glob(pattern))[-1]


@pytest.mark.parametrize("how", ["empty", "cut", "garbage", "missing"])
def test_corrupt_data_files(fail: Fail, damaged: Path, how: str) -> None:
    weights = one(damaged, "weights/run=second/step=6/*.parquet")
    runs = one(damaged, "runs/run=second/*.parquet")
    for path in (weights, runs):
        data = path.read_bytes()
        if how == "missing":
            path.unlink()
        else:
            content = {"empty": b"", "cut": data[: len(data) // 2], "garbage": b"x" * len(data)}
            path.write_bytes(content[how])
    lake = ("--lake", str(damaged))
    assert weights.name in fail("sql", "SELECT sum(value[1]) FROM weights", *lake)
    assert runs.name in fail("runs", *lake)
    assert runs.name in fail("sql", "SELECT * FROM runs", *lake)
    assert runs.name in fail("sql", "SELECT n_params FROM runs WHERE run = 'second'", *lake)
    assert weights.name in fail("metrics", "compute", "--metric", "gini", *lake)
    # the rest of the lake still answers
    assert run_command(["sql", "SELECT count(*) FROM scalars", *lake]) == 0


def test_damaged_pages(fail: Fail, damaged: Path) -> None:
    path = one(damaged, "weights/run=second/step=6/*.parquet")
    data = bytearray(path.read_bytes())
    middle = len(data) // 3
    data[middle : middle + 3000] = bytes(byte ^ 0xFF for byte in data[middle : middle + 3000])
    path.write_bytes(data)
    lake = ("--lake", str(damaged))
    assert path.name in fail("metrics", "compute", "--metric", "gini", "--run", "second", *lake)


@pytest.mark.parametrize("content", [b"", b"garbage", b"PAR1PAR1"])
def test_corrupt_log(fail: Fail, damaged: Path, content: bytes) -> None:
    path = one(damaged, "_log/train.first/*.parquet")
    path.write_bytes(content)
    assert path.name in fail("runs", "--lake", str(damaged))
    assert path.name in fail("sql", "SELECT 1", "--lake", str(damaged))


def test_a_hole_in_the_log(fail: Fail, damaged: Path) -> None:
    paths = sorted(damaged.glob("_log/train.first/*.parquet"))
    paths[len(paths) // 2].unlink()
    assert "missing" in fail("runs", "--lake", str(damaged))


@pytest.mark.parametrize("table", ["runs", "weights"])
def test_wrong_schema_version(fail: Fail, damaged: Path, table: str) -> None:
    """A later pico wrote some files of one table; this one says so, and reads the others."""
    storage = Storage(str(damaged))
    for path in sorted(damaged.glob("_log/*/*.parquet")):
        number = int(re.match(r"\d+", path.stem)[0])  # type: ignore[index]
        if "-" in path.stem:
            path.unlink()  # a consolidated stretch; its commits stand as well
            continue
        commit = log.read_commit(storage, path.parent.name, number)
        entries = [
            replace(entry, schema_version=2) if entry.table == table else entry
            for entry in commit.entries
        ]
        stored = {"txn": commit.txn, "stream": path.parent.name, "epoch": "1"}
        path.write_bytes(log.encode(entries, stored))
    lake = ("--lake", str(damaged))
    message = f"has schema version 2 of table {table}; this pico reads version 1"
    for what in ("*", "count(*)", "run"):
        assert message in fail("sql", f"SELECT {what} FROM {table}", *lake)
        assert message in fail("sql", f"SELECT {what} FROM {table} WHERE run = 'first'", *lake)
    if table == "runs":
        assert message in fail("runs", *lake)
    else:
        assert message in fail("metrics", "compute", "--metric", "gini", *lake)
    assert run_command(["sql", "SELECT count(*) FROM scalars", *lake]) == 0


def test_the_version_is_told(capsys):
    assert run_command(["--version"]) == 0
    assert capsys.readouterr().out.startswith("pico 0.")
