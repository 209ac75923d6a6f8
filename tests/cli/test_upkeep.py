"""The commands of upkeep: what they print, where, and their exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import pico
from pico.cli import run_command
from pico.lake import log
from pico.lake.commit import Stream
from pico.lake.storage import Storage
from tests.lake.steps import commit_step, live_files
from tests.upkeep.lakes import age, live, take_away


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    """Three steps of a run, named by the environment."""
    storage = Storage(str(tmp_path / "lake"))
    with Stream(storage, "train.r") as stream:
        for step in range(3):
            commit_step(stream, step)
    monkeypatch.setenv("PICO_LAKE", storage.url)
    return storage


def test_verify_of_a_sound_lake(lake, capsys):
    assert run_command(["verify", "--deep"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("sound: 1 runs, 3 commits, 6 files") and "3 tensors" in err


def test_verify_shows_a_line_per_finding_and_exits_with_1(lake, capsys):
    entry = live(lake, "scalars")[0]
    lake.delete([entry.path])
    lake.put("notes.txt", b"")
    assert run_command(["verify"]) == 1
    out, err = capsys.readouterr()
    assert "a live file does not exist" in out
    assert f"error file.missing: {entry.path}" in " ".join(out.split())
    assert "warning file.foreign: notes.txt" in " ".join(out.split())
    assert err.startswith("DAMAGED")


def test_warnings_alone_are_no_failure(lake, capsys):
    lake.put("notes.txt", b"")
    assert run_command(["verify"]) == 0
    assert "file.foreign" in capsys.readouterr().out


def test_verify_for_programs(lake, capsys, tmp_path):
    assert run_command(["verify", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    lake.delete([live(lake, "scalars")[0].path])
    assert run_command(["verify", "--format", "json"]) == 1
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["severity"], row["kind"], row["run"]) == ("error", "file.missing", "r")
    out = tmp_path / "findings.parquet"
    assert run_command(["verify", "--format", "parquet", "-o", str(out)]) == 1
    assert pq.read_table(out)["kind"].to_pylist() == ["file.missing"]


def test_verify_looks_at_a_lake_whose_log_is_damaged(lake, capsys):
    lake.delete([log.commit_path("train.r", 1)])
    assert run_command(["runs"]) == 2
    assert run_command(["verify"]) == 1
    assert "log.gap" in capsys.readouterr().out


def test_one_run(lake, capsys):
    lake.delete([live(lake, "scalars")[0].path])
    with Stream(lake, "train.other") as stream:
        transaction = stream.begin()
        from tests.lake.steps import add_step

        add_step(transaction, 0, "other")
        transaction.commit()
    assert run_command(["verify", "--run", "other"]) == 0
    assert run_command(["verify", "--run", "r"]) == 1
    assert run_command(["verify", "--run", "x"]) == 2
    assert "no run 'x'" in capsys.readouterr().err


def test_gc(lake, capsys):
    gone = live(lake, "scalars", steps=[1])
    take_away(lake, gone, "train.r")
    assert run_command(["gc"]) == 0
    assert capsys.readouterr().err == "nothing to delete\n"
    age(lake, 2 * 24 * 3600)
    for options, done in ((["--dry-run"], "would delete"), ([], "deleted")):
        assert run_command(["gc", "--format", "json", *options]) == 0
        out, err = capsys.readouterr()
        rows = {row["path"]: row for row in json.loads(out)}
        assert rows[gone[0].path] == {
            "what": "taken away",
            "path": gone[0].path,
            "bytes": gone[0].bytes,
        }
        assert err.startswith(done)
    assert gone[0].path not in {file.path for file in lake.list("scalars")}
    assert run_command(["gc", "--older-than", "soon"]) == 2
    assert "'soon' is no age" in capsys.readouterr().err


def test_compact(lake, capsys):
    before = live_files(lake)
    assert run_command(["compact", "--dry-run"]) == 0
    assert "would merge 3 files into 1" in capsys.readouterr().err
    assert live_files(lake) == before
    assert run_command(["compact", "--run", "r", "--table", "scalars", "--format", "json"]) == 0
    out, err = capsys.readouterr()
    (row,) = json.loads(out)
    assert (row["table"], row["files"], row["merged_into"]) == ("scalars", 3, 1)
    assert err == "merged 3 files into 1\n"
    assert run_command(["compact"]) == 0
    assert capsys.readouterr().err == "nothing to merge\n"
    assert run_command(["compact", "--table", "weights"]) == 2


def test_migrate(lake, capsys):
    assert run_command(["migrate", "--dry-run"]) == 0
    assert "nothing to migrate" in capsys.readouterr().err


def test_the_methods_do_the_same(lake):
    opened = pico.Lake.open(lake.url)
    seen = []
    assert opened.verify(deep=True, on_progress=lambda *n: seen.append(n)).is_sound
    assert opened.compact(tables=["scalars"], on_progress=lambda *n: seen.append(n)).n_before == 3
    assert opened.gc("0s", dry_run=True).items
    assert opened.gc(0.0).bytes > 0
    assert str(opened.migrate()).startswith("nothing to migrate")
    assert seen[-1] == (3, 3)
    assert opened.verify("r").findings == ()


def test_rm(lake, capsys):
    assert run_command(["rm", "r", "--dry-run"]) == 0
    assert capsys.readouterr().err.startswith("would remove run 'r': 6 files")
    assert live_files(lake)
    assert run_command(["rm", "r"]) == 0
    assert capsys.readouterr().err.startswith("removed run 'r'")
    assert live_files(lake) == []
    assert run_command(["rm", "r"]) == 2


def test_copy(lake, capsys, tmp_path):
    other = str(tmp_path / "other")
    assert run_command(["copy", other, "--run", "r", "--dry-run"]) == 0
    assert not (tmp_path / "other").exists()
    assert run_command(["copy", other, "--run", "r", "--as", "again"]) == 0
    assert pico.Lake.open(other).snapshot().runs() == ["again"]
    assert pico.Lake.open(lake.url).copy(other, "r", dry_run=True)
    assert run_command(["verify", "--deep", "--lake", other]) == 0
    assert run_command(["copy", other, "--run", "x"]) == 2
    assert "no run 'x'" in capsys.readouterr().err
