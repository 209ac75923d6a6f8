"""Each way to damage a lake is found, and nothing else is; a sound lake has no finding."""

from __future__ import annotations

import json
import threading
import uuid
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from pico import schema
from pico.errors import NotALakeError, RunNameError
from pico.lake import log, table
from pico.lake.commit import Stream, file_tag
from pico.lake.storage import Storage
from pico.upkeep import verify as module
from pico.upkeep.report import KINDS, Finding, Report
from pico.upkeep.verify import verify
from tests.lake.steps import commit_step, expire
from tests.sql.small_lake import write_lake
from tests.upkeep import lakes
from tests.upkeep.lakes import kinds, live


def test_a_trained_lake_is_sound(lake):
    report = verify(lake, deep=True)
    assert report.findings == ()
    assert report.is_sound
    files = [e for e in lakes.Snapshot.take(lake).all_files()]
    assert report.counts["files"] == len(files)
    assert report.counts["rows"] == sum(entry.rows for entry in files)
    tensors = [e for e in files if schema.table(e.table).kind == "tensor"]
    assert report.counts["tensors"] == sum(entry.rows for entry in tensors)


def test_a_lake_of_any_store_is_sound(storage):
    assert kinds(write_lake(storage), deep=True) == []


def test_progress_reaches_its_end(lake):
    seen: list[tuple[int, int]] = []
    verify(lake, deep=True, progress=lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1][0] == seen[-1][1]


def test_where_there_is_no_lake(storage):
    with pytest.raises(NotALakeError):
        verify(storage)


def test_a_run_alone(lake):
    assert kinds(lake, run="tiny") == []
    lake.put("weights/notes.txt", b"")
    assert kinds(lake, run="tiny") == []
    with pytest.raises(RunNameError, match="tiny"):
        verify(lake, run="tinny")


@pytest.mark.parametrize("name", ["weights", "scalars", "metrics", "sequences", "vocab"])
def test_a_missing_file(lake, name):
    entry = live(lake, name)[-1]
    lake.delete([entry.path])
    (finding,) = verify(lake, deep=True).findings
    assert (finding.kind, finding.path) == ("file.missing", entry.path)


def test_a_truncated_file(lake):
    entry = live(lake, "gradients")[0]
    lake.put(entry.path, lake.read(entry.path)[:-100])
    assert kinds(lake, deep=True) == ["file.size"]


def test_an_empty_file(lake):
    entry = live(lake, "gradients")[0]
    lake.put(entry.path, b"")
    assert kinds(lake) == ["file.size"]


@pytest.mark.parametrize("position", [0, 200, 0.5, -300, -6, -1])
@pytest.mark.parametrize("name", ["weights", "batches"])
def test_a_flipped_bit_in_each_region(lake, name, position):
    entry = live(lake, name)[0]
    at = int(position * entry.bytes) if isinstance(position, float) else position
    lakes.flip(lake, entry.path, at)
    (finding,) = verify(lake, deep=True).findings
    assert (finding.kind, finding.path, finding.run) == ("file.hash", entry.path, "tiny")


def test_a_file_that_is_no_parquet(lake):
    lakes.replace_file(lake, live(lake, "gradients")[0], b"something else")
    assert kinds(lake, deep=True) == ["file.unreadable"]


def test_a_page_whose_checksum_fails_under_a_right_hash(lake):
    entry = live(lake, "batches")[0]
    data = bytearray(lake.read(entry.path))
    data[60] ^= 4
    lakes.replace_file(lake, entry, bytes(data))
    assert kinds(lake, deep=True) == ["file.unreadable"]


def test_another_schema(lake):
    entry = live(lake, "scalars")[0]
    lakes.change_rows(lake, entry, lambda rows: rows.append_column("more", rows["value"]))
    assert kinds(lake) == ["file.schema"]


def test_another_version(lake):
    def newer(rows: pa.Table) -> pa.Table:
        metadata = {**(rows.schema.metadata or {}), b"pico.schema_version": b"99"}
        return rows.replace_schema_metadata(metadata)

    lakes.change_rows(lake, live(lake, "scalars")[0], newer)
    (finding,) = verify(lake, deep=True).findings
    assert finding.kind == "file.schema"
    assert "99" in finding.message


def test_a_version_that_the_log_tells(lake):
    lakes.weights(lake, {step: {"a": [step]} for step in range(3)}, run="other")
    lakes.relog(lake, live(lake, "tensor_stats")[0].path, schema_version=99)
    assert kinds(lake, deep=True) == ["file.schema"]


@pytest.mark.parametrize(
    ("changes", "kind"), [({"rows": 1000}, "file.rows"), ({"max_step": 77}, "file.steps")]
)
def test_a_log_that_says_something_else(lake, changes, kind):
    entry = live(lake, "scalars")[0]
    lakes.relog(lake, entry.path, **changes)
    assert kinds(lake) == [kind]


def test_lost_rows(lake):
    lakes.change_rows(lake, live(lake, "scalars")[0], lambda rows: rows.slice(1))
    assert kinds(lake) == ["file.rows"]


def test_rows_of_another_run(lake):
    entry = live(lake, "scalars")[0]
    lakes.change_rows(lake, entry, lambda r: lakes.set_column(r, "run_id", ["other"] * len(r)))
    assert kinds(lake) == ["file.key"]


def test_a_step_shown_twice(lake):
    entry = live(lake, "scalars")[0]
    rows = table.read(lake, [entry])
    with Stream(lake, "derive.tiny.again") as stream:
        transaction = stream.begin()
        table.write_rows(transaction, "scalars", {"run": "tiny"}, rows)
        transaction.commit()
    (finding,) = verify(lake).findings
    assert finding.kind == "rows.twice"
    assert f"{len(rows)} primary key" in finding.message


def test_keys_are_compared_across_many_files(local, monkeypatch):
    monkeypatch.setattr("pico.upkeep.filecheck._KEYS", 3)
    with Stream(local, "train.r") as stream:
        for step in range(12):
            commit_step(stream, step)
    assert kinds(local) == []
    with Stream(local, "derive.r.again") as stream:
        commit_step(stream, 7)
    assert sorted(kinds(local)) == ["rows.twice", "rows.twice"]


@pytest.fixture
def long_log(local) -> Storage:
    with Stream(local, "train.r") as stream:
        for step in range(40):
            commit_step(stream, step)
    assert kinds(local) == []
    return local


@pytest.mark.parametrize("seqs", [[0], [3, 4, 5], [38]])
def test_a_gap_in_the_log(long_log, seqs):
    long_log.delete([log.commit_path("train.r", seq) for seq in seqs])
    (finding,) = verify(long_log).findings
    assert (finding.kind, finding.path) == ("log.gap", log.commit_path("train.r", seqs[0]))


@pytest.mark.parametrize("seq", [5, 39])
def test_a_damaged_commit(long_log, seq):
    lakes.flip(long_log, log.commit_path("train.r", seq), 50)
    (finding,) = verify(long_log).findings
    assert (finding.kind, finding.path) == ("log.damaged", log.commit_path("train.r", seq))


def test_a_damaged_level_file(long_log):
    path = "_log/train.r/level=1/000000000031.parquet"
    lakes.flip(long_log, path, 50)
    (finding,) = verify(long_log).findings
    assert (finding.kind, finding.path) == ("log.damaged", path)


def test_a_level_file_that_says_something_else(long_log):
    path = "_log/train.r/level=1/000000000031.parquet"
    entries = log.read_file(long_log, path)
    long_log.put(path, log.encode(entries[:-1], {"stream": "train.r"}))
    (finding,) = verify(long_log).findings
    assert (finding.kind, finding.path) == ("log.level", path)


def test_a_level_file_that_is_missing(long_log):
    path = "_log/train.r/level=1/000000000015.parquet"
    long_log.delete([path])
    report = verify(long_log)
    assert [(f.kind, f.path) for f in report.findings] == [("log.level-missing", path)]
    assert report.is_sound


def test_a_log_that_contradicts_itself(local):
    with Stream(local, "train.r") as stream:
        commit_step(stream, 0)
        commit_step(stream, 1)
    first, second = (log.commit_path("train.r", seq) for seq in (0, 1))
    entries = log.read_file(local, first)
    local.put(second, log.encode([*log.read_file(local, second), *entries], {}))
    assert set(kinds(local)) >= {"log.twice"}
    gone = [
        lakes.replace(e, action="remove", path=e.path.replace("run=r", "run=x")) for e in entries
    ]
    local.put(second, log.encode(gone, {}))
    assert "log.unknown" in kinds(local)


def test_an_orphan(lake):
    path = lakes.orphan(lake, "train.tiny", "scalars/run=tiny")
    (finding,) = verify(lake).findings
    assert (finding.kind, finding.path, finding.run) == ("file.uncommitted", path, "tiny")
    assert verify(lake).is_sound


def test_what_a_live_writer_has_begun_is_no_debris(lake):
    with Stream(lake, "train.tiny") as stream:
        transaction = stream.begin()
        _, staged = transaction.create("scalars/run=tiny")
        staged.write(b"PAR1")
        path, sink = transaction.create("scalars/run=tiny")
        sink.finish()
        sink.publish()
        assert any(file.path == path for file in lake.list("scalars"))
        assert kinds(lake) == []
        transaction.drop(path)
        lake.delete([path])


def test_staging_of_a_dead_writer(lake):
    lake.put(f".staging/train.tiny/{uuid.uuid4().hex}/x.parquet.inprogress", b"PAR1")
    assert kinds(lake) == ["file.staged"]


def test_leftovers_of_a_put(lake):
    path = f".staging/put/{uuid.uuid4().hex}.inprogress"
    lake.put(path, b"half")
    assert kinds(lake) == []
    lakes.age(lake, 3600, path)
    assert kinds(lake) == ["file.staged"]


def test_a_writer_that_died(lake):
    with Stream(lake, "derive.tiny.metrics") as stream:
        stream.lease.release = lambda tidy=True: None  # type: ignore[method-assign]
    expire(lake, "derive.tiny.metrics")
    report = verify(lake)
    assert [finding.kind for finding in report.findings] == ["lease.stale"]
    assert report.is_sound
    stream.lease._stop.set()


def test_a_damaged_lease(lake):
    lake.put(lake.list(".leases/train.tiny")[-1].path, b"{")
    assert kinds(lake) == ["lease.damaged"]


_UUID = "0a9022b2-e8bb-416d-ba4f-c49c01d38637"


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("notes.txt", "file.foreign"),
        ("_log/notes.txt", "file.foreign"),
        ("weights/notes.txt", "file.intruder"),
        ("weights/run=tiny/step=0/other.parquet", "file.intruder"),
        (f"weights/run=tiny/step=0/{_UUID}.parquet", "file.intruder"),
        (f"weights/{file_tag('train.tiny')}{_UUID[8:]}.parquet", "file.intruder"),
        ("README.md", None),
    ],
)
def test_foreign_files(lake, path, kind):
    lake.put(path, b"anything")
    assert kinds(lake) == ([kind] if kind else [])


def test_symbolic_links(lake, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (lake.folder / "weights" / "run=other").symlink_to(tmp_path / "elsewhere")
    entry = live(lake, "gradients")[0]
    (tmp_path / "moved").write_bytes(lake.read(entry.path))
    lake.delete([entry.path])
    (lake.folder / entry.path).symlink_to(tmp_path / "moved")
    findings = verify(lake).findings
    assert [finding.kind for finding in findings] == ["file.symlink"] * 2
    assert {finding.path for finding in findings} == {entry.path, "weights/run=other"}


def test_files_taken_away_wait_for_gc(lake):
    lakes.take_away(lake, live(lake, "metrics"), "derive.tiny.metrics")
    report = verify(lake)
    assert [(f.kind, f.run) for f in report.findings] == [("file.removed", "tiny")]
    assert report.is_sound


def test_a_missing_planned_checkpoint(lake):
    gone = live(lake, "checkpoints", steps=[3])
    lakes.take_away(lake, gone, "train.tiny")
    lake.delete([entry.path for entry in gone])
    (finding,) = verify(lake).findings
    assert (finding.kind, finding.run, finding.step) == ("history.missing", "tiny", 3)


def test_the_last_checkpoint_of_a_finished_run_is_planned(lake):
    gone = live(lake, "checkpoints", steps=[6]) + live(lake, "weights", steps=[6])
    gone += live(lake, "optimizer", steps=[6])
    lakes.take_away(lake, gone, "train.tiny")
    lake.delete([entry.path for entry in gone])
    (finding,) = verify(lake).findings
    assert (finding.kind, finding.step) == ("history.missing", 6)


def test_a_checkpoint_that_lacks_weights(lake):
    gone = live(lake, "weights", steps=[3])
    lakes.take_away(lake, gone, "train.tiny")
    lake.delete([entry.path for entry in gone])
    (finding,) = verify(lake).findings
    assert (finding.kind, finding.step) == ("history.incomplete", 3)


def test_checkpoints_that_repeat_the_final_weights(local):
    """The fault of a published suite: some steps hold the weights of the last one."""
    states = {step: {"a": [step], "b": [-step]} for step in (0, 1, 2, 4, 8)}
    states[1] = states[2] = states[8]
    lakes.weights(local, states)
    (finding,) = verify(local).findings
    assert finding.kind == "history.repeated"
    assert "has at steps 1–2 the same weights as at step 8" in finding.message


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        (dict.fromkeys(range(4), 0.1), ["history.repeated"]),
        ({0: 0.0, 1: 0.1, 2: 0.1, 3: 0.1}, []),  # equal at 0 and 1, where the rate was zero
        ({0: 0.0, 1: 0.1}, []),
        ({2: 0.1}, ["history.repeated"]),
    ],
)
def test_a_learning_rate_of_zero_explains_equal_states(local, rates, expected):
    states = {step: {"a": [max(step, 1)], "b": [2 + max(step, 1)]} for step in range(4)}
    lakes.weights(local, states, rates)
    assert kinds(local) == expected


def test_a_trained_tensor_that_did_not_change(local):
    states = {step: {"a": [step], "b": [5 if step else 0]} for step in range(4)}
    lakes.weights(local, states, dict.fromkeys(range(4), 0.1))
    findings = verify(local).findings
    assert [(f.kind, f.step) for f in findings] == [
        ("history.unchanged", 1),
        ("history.unchanged", 2),
    ]
    assert all("b of run 'r'" in finding.message for finding in findings)


def test_a_wrong_content_hash_is_found_deep_down(lake):
    entry = live(lake, "gradients", steps=[2])[0]

    def change(rows: pa.Table) -> pa.Table:
        hashes = rows["content_hash"].to_pylist()
        return lakes.set_column(rows, "content_hash", ["0" * 32, *hashes[1:]])

    lakes.change_rows(lake, entry, change)
    assert kinds(lake) == []
    (finding,) = verify(lake, deep=True).findings
    assert (finding.kind, finding.step, finding.path) == ("tensor.hash", 2, entry.path)


@pytest.mark.parametrize("column", ["frobenius_norm", "mean", "numel", "nonfinite", "content_hash"])
def test_wrong_statistics_are_found_deep_down(lake, column):
    def change(rows: pa.Table) -> pa.Table:
        values = rows[column].to_pylist()
        stored = rows["content_hash"].to_pylist()
        at = next(index for index, digest in enumerate(stored) if digest is not None)
        values[at] = "1" * 32 if column == "content_hash" else values[at] + 1
        return lakes.set_column(rows, column, values)

    lakes.change_rows(lake, live(lake, "tensor_stats", steps=[1])[0], change)
    assert kinds(lake) == []
    assert kinds(lake, deep=True) == ["tensor.stats"]


def test_tied_and_frozen_parameters_are_no_fault(local):
    torch = pytest.importorskip("torch")
    from pico.record.recorder import Recorder

    model = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(3)))
    model[1].weight = model[0].weight
    model[2].weight.requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    torch.manual_seed(0)
    with Recorder(local.url, "r", model, optimizer, {"checkpoints": True}) as recorder:
        for _ in range(3):
            model(torch.randn(5, 3)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            recorder.step()
    assert kinds(local, deep=True) == []


def test_buffers_are_not_trained(local):
    """A mask that stands in every checkpoint is the same at all of them."""
    torch = pytest.importorskip("torch")
    from pico.record.recorder import Recorder

    model = torch.nn.Linear(3, 3)
    model.register_buffer("mask", torch.tril(torch.ones(3, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Recorder(local.url, "r", model, optimizer, {"checkpoints": True}) as recorder:
        for _ in range(2):
            model(torch.ones(5, 3)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            recorder.step()
    stored = live(local, "weights")
    assert "mask" in table.read(local, stored)["name"].to_pylist()
    assert kinds(local, deep=True) == []


def test_nothing_is_found_while_a_writer_works(local):
    done = threading.Event()

    def write() -> None:
        with Stream(local, "train.r") as stream:
            for step in range(60):
                commit_step(stream, step)
        done.set()

    with Stream(local, "train.r") as stream:
        commit_step(stream, 1000)
    thread = threading.Thread(target=write)
    thread.start()
    reports = []
    while not done.is_set():
        reports.append(verify(local, deep=True))
    thread.join()
    assert len(reports) > 1
    assert [str(finding) for report in reports for finding in report.findings] == []
    assert kinds(local) == []


def test_files_withdrawn_and_collected_meanwhile_are_no_fault(local, monkeypatch):
    """What a resumed run and gc take away between the listing and the look is no missing file."""
    with Stream(local, "train.r") as stream:
        commit_step(stream, 0)
        commit_step(stream, 1)
    check = module.filecheck.check
    gone = live(local, "scalars", steps=[1])

    def meanwhile(storage, entry, listed, deep):
        if gone[0].path in {file.path for file in local.list("scalars")}:
            lakes.take_away(local, gone, "train.r", withdraw=True)
            local.delete([gone[0].path])
        return check(storage, entry, None, deep)

    monkeypatch.setattr(module.filecheck, "check", meanwhile)
    monkeypatch.setattr(module, "_READERS", 1)
    assert kinds(local) == []


def test_a_report_says_it_in_lines_and_rows(lake):
    lake.put("notes.txt", b"")
    entry = live(lake, "gradients")[0]
    lake.delete([entry.path])
    report = verify(lake)
    lines = str(report).splitlines()
    assert lines[0].startswith("DAMAGED") and "file.missing" in lines[0]
    assert lines[1].startswith("error file.missing") and entry.path in lines[1]
    assert lines[2].startswith("warning file.foreign")
    rows = report.rows()
    assert [row["severity"] for row in rows] == ["error", "warning"]
    assert json.loads(json.dumps(rows)) == rows


def test_every_kind_has_a_severity_and_a_meaning():
    assert {severity for severity, _ in KINDS.values()} == {"error", "warning"}
    assert Report((Finding("file.foreign", "x"),), {}).is_sound
    assert not Report((Finding("file.hash", "x"),), {}).is_sound
    source = "".join(p.read_text() for p in Path(module.__file__).parent.glob("*.py"))
    assert [kind for kind in KINDS if source.count(f'"{kind}"') < 2] == []
    assert np.isfinite(len(KINDS))
