import uuid

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pico.errors import CorruptError, PicoError
from pico.lake import entries, log, snapshot
from pico.lake.commit import Stream
from pico.lake.log import FANOUT, Entry
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from tests.benchmarks import bench_log
from tests.lake.counting import CountingStorage


def entry(number: int, action="add", **changes) -> Entry:
    fields = {
        "action": action,
        "table": "scalars",
        "path": f"scalars/run=r/{number}.parquet",
        "rows": number,
        "bytes": 10,
        "hash": "00",
        "schema_version": 1,
        "min_step": None,
        "max_step": None,
        "txn": "t",
    }
    return Entry(**{**fields, **changes})


def every_file(n_commits: int, stream: str = "s") -> list[str]:
    """All files that a stream of so many commits has."""
    paths = [log.commit_path(stream, seq) for seq in range(n_commits)]
    for level in (1, 2, 3):
        width = FANOUT**level
        paths += [
            f"_log/{stream}/level={level}/{last:012d}.parquet"
            for last in range(width - 1, n_commits, width)
        ]
    return paths


def held(path: str) -> range:
    """The commits that one file holds."""
    last = log.last_seq([path])
    level = int(path.split("level=")[1][0]) if "level=" in path else 0
    return range(last - FANOUT**level + 1, last + 1)


@given(st.integers(0, 5000), st.data())
def test_cover_holds_every_commit_once_whatever_copies_are_missing(n_commits, data):
    paths = every_file(n_commits)
    copies = [path for path in paths if "level=" in path]
    missing = data.draw(st.sets(st.sampled_from(copies))) if copies else set()
    present = data.draw(st.permutations(sorted(set(paths[-400:]) - missing)))
    present += [path for path in paths[:-400] if path not in missing]
    chosen = log.cover(present)
    assert [seq for path in chosen for seq in held(path)] == list(range(n_commits))
    assert log.first_gap(present) == -1
    if not missing:
        digits = sum(int(digit, 16) for digit in f"{n_commits % FANOUT**3:x}")
        assert len(chosen) == digits + n_commits // FANOUT**3


@given(st.integers(2, 600), st.data())
def test_a_lost_commit_is_noticed(n_commits, data):
    lost = data.draw(st.integers(0, n_commits - 2))
    paths = [path for path in every_file(n_commits) if lost not in held(path)]
    gap = log.first_gap(paths)
    assert gap >= 0
    assert lost in range(gap, n_commits)


def commit_entries(storage, n: int, stream: str = "train.r") -> None:
    with Stream(storage, stream) as opened:
        for number in range(n):
            transaction = opened.begin()
            transaction.add(entry(number))
            if number % 5 == 4:
                transaction.take_away([entry(number - 1)], withdraw=number % 2 == 0)
            transaction.commit()


@pytest.fixture(scope="module")
def long_lake(tmp_path_factory):
    """A lake with 290 commits in one stream and a few in another; its data files are absent."""
    storage = Storage(str(tmp_path_factory.mktemp("log") / "lake"))
    commit_entries(storage, 290)
    with Stream(storage, "derive.r.metrics") as stream:
        transaction = stream.begin()
        transaction.add(entry(1000))
        transaction.take_away([entry(0)], withdraw=False)
        transaction.commit()
    return storage


def test_level_files_say_what_the_commits_say(long_lake):
    files = log.listed(long_lake, "train.r")
    assert sorted(files) == sorted(every_file(290, "train.r"))
    consolidated = log.LogReader(long_lake).stream("train.r")
    raw = [e for seq in range(290) for e in log.read_commit(long_lake, "train.r", seq).entries]
    assert consolidated == raw
    assert len(raw) == 290 + 58


def test_a_long_log_opens_with_few_reads(long_lake):
    counting = CountingStorage(long_lake.url)
    reader = log.LogReader(counting)
    reader.entries()
    # 256 + 2 · 16 + 2 commits, and the other stream's one; found by a single listing
    assert counting.counts == {"read": 1 + 2 + 2 + 1, "paths": 1}
    counting.reset()
    reader.entries()
    assert counting.counts == {"paths": 1}


SQL = """
SELECT path FROM read_parquet('{lake}/_log/*/*.parquet')
GROUP BY path HAVING bool_and(action = 'add') ORDER BY path
"""


def test_plain_sql_lists_the_same_files_as_a_snapshot(long_lake):
    with duckdb.connect() as con:
        found = [path for (path,) in con.sql(SQL.format(lake=long_lake.url)).fetchall()]
    live = sorted(e.path for e in Snapshot.take(long_lake).all_files())
    assert found == live
    assert len(live) == 290 - 58 - 1 + 1


def test_the_docstring_of_snapshot_shows_that_sql():
    flat = " ".join(snapshot.__doc__.split())
    assert " ".join(SQL.split()).replace("{lake}", "LAKE") in flat


def test_a_commit_records_who_made_it(storage):
    commit_entries(storage, 1)
    (path,) = log.listed(storage, "train.r")
    metadata = pq.read_schema(pa.BufferReader(storage.read(path))).metadata
    assert metadata[b"pico.table"] == b"log"
    assert metadata[b"pico.stream"] == b"train.r"
    assert metadata[b"pico.epoch"] == b"1"
    commit = log.read_commit(storage, "train.r", 0)
    assert commit.txn == metadata[b"pico.txn"].decode() == commit.entries[0].txn


def test_foreign_files_in_the_log_are_passed_over(local):
    commit_entries(local, 2)
    for name in (".DS_Store", "notes.parquet", "000000000007.parquet.claim", "level=x/0.parquet"):
        local.put(f"_log/train.r/{name}", b"junk")
    assert len(log.LogReader(local).entries()) == 2
    commit_entries(local, 1)
    assert len(log.listed(local, "train.r")) == 3


def test_a_missing_commit_is_an_error_not_a_shorter_history(local):
    commit_entries(local, 5)
    local.delete([log.commit_path("train.r", 2)])
    with pytest.raises(CorruptError, match=r"_log/train.r/000000000002.parquet is missing"):
        Snapshot.take(local)


def test_a_listing_that_overlaps_a_commit_is_repeated(local, monkeypatch):
    commit_entries(local, 4)
    whole = local.paths
    listings = iter([lambda files: [files[0], files[2]], lambda files: files])
    monkeypatch.setattr(local, "paths", lambda prefix: next(listings)(whole(prefix)))
    assert len(log.LogReader(local).stream("train.r")) == 4


random_commits = st.lists(
    st.tuples(
        st.sampled_from(["train.r", "train.rr", "derive.r.metrics", "data.d"]),
        st.lists(st.tuples(st.sampled_from(["add", "remove", "withdraw"]), st.integers(0, 40))),
    ),
    max_size=60,
)


def write(storage, stream: str, seq: int, made: list[Entry]) -> None:
    storage.put(log.commit_path(stream, seq), log.encode(made, {"txn": str(seq)}))
    log.consolidate(storage, stream, seq)


@settings(max_examples=40, deadline=None)
@given(random_commits, st.integers(0, 60), st.randoms())
def test_streams_read_back_as_they_were_written(commits, n_early, random):
    """Against plain lists; with a fan-out of 3, so that a short history has several levels."""
    storage = Storage(f"memory://{uuid.uuid4().hex}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log, "FANOUT", 3)
        early = log.LogReader(storage)
        model: dict[str, list[list[Entry]]] = {}
        for number, (stream, actions) in enumerate(commits):
            made = [entry(n, action, txn=f"t{number}") for action, n in actions]
            model.setdefault(stream, []).append(made)
            write(storage, stream, len(model[stream]) - 1, made)
            if number == n_early:
                early.rows()
        copies = [path for path in storage_paths(storage) if "level=" in path]
        storage.delete(random.sample(copies, len(copies) // 3))
        for reader in (early, log.LogReader(storage)):
            assert reader.streams() == sorted(model)
            flat = {stream: [e for made in each for e in made] for stream, each in model.items()}
            assert reader.entries() == [e for stream in sorted(flat) for e in flat[stream]]
            for stream, each in model.items():
                assert reader.stream(stream) == flat[stream]
                told = [(made[0].txn, made) for made in each if made]
                assert reader.history(stream) == told


def storage_paths(storage) -> list[str]:
    return [file.path for file in storage.list(log.ROOT)]


def test_many_small_files_are_kept_as_one(local):
    for stream in range(70):
        write(local, f"train.r{stream}", 0, [entry(stream)])
    reader = log.LogReader(local)
    assert reader.rows()["path"].num_chunks == 1
    assert reader.stream("train.r7") == [entry(7)]
    write(local, "train.r7", 1, [entry(100)])
    assert [e.rows for e in reader.stream("train.r7")] == [7, 100]
    assert sorted(e.rows for e in reader.entries()) == [*range(70), 100]


def test_ten_thousand_commits_cost_no_more_requests_than_a_hundred(tmp_path):
    costs = {}
    for n_commits in (100, 10_000):
        storage = bench_log.fill(tmp_path / str(n_commits), n_commits, whole=False)
        (file,) = bench_log.open_run(storage, n_commits // 2)
        assert f"step={n_commits // 2}/" in file.path
        assert storage.counts["read"] <= 200
        opening = storage.n_operations
        with Stream(storage, bench_log.STREAM) as stream:
            storage.reset()
            for step in range(n_commits, n_commits + bench_log.WINDOW):
                bench_log.commit(stream, step)
            costs[n_commits] = opening, storage.n_operations
        (file,) = bench_log.open_run(storage, n_commits + bench_log.WINDOW - 1)
    assert costs[10_000][0] <= 3 * costs[100][0]
    assert costs[10_000][1] <= 2 * costs[100][1]
    assert costs[10_000][1] / bench_log.WINDOW < 8


def test_a_level_file_needs_no_listing(long_lake, monkeypatch):
    counting = CountingStorage(long_lake.url)
    path = "_log/train.r/level=1/000000000047.parquet"
    good = long_lake.read(path)
    long_lake.delete([path])
    log.consolidate(counting, "train.r", 47)
    assert counting.counts == {"read": FANOUT, "put_new": 1}
    assert rows_of(long_lake.read(path)) == rows_of(good)


@pytest.mark.parametrize("missing", [[], [1], [0, 1, 5, 15], list(range(16))])
def test_a_level_file_is_made_although_copies_below_are_missing(long_lake, missing):
    path = "_log/train.r/level=2/000000000255.parquet"
    good = long_lake.read(path)
    below = [f"_log/train.r/level=1/{16 * n + 15:012d}.parquet" for n in missing]
    kept = {name: long_lake.read(name) for name in [path, *below]}
    long_lake.delete(kept)
    log.consolidate(long_lake, "train.r", 255)
    assert rows_of(long_lake.read(path)) == rows_of(good)
    for name, data in kept.items():
        long_lake.put(name, data)


def rows_of(data: bytes) -> list[Entry]:
    return entries.from_rows(entries.decode(data, "a log file")[0])


def test_a_gap_is_never_copied_into_a_level_file(local):
    commit_entries(local, 15)
    local.delete([log.commit_path("train.r", 3)])
    log.consolidate(local, "train.r", 15)
    assert not [path for path in log.listed(local, "train.r") if "level=" in path]


def test_a_damaged_copy_says_that_it_can_go(local):
    commit_entries(local, 16)
    path = "_log/train.r/level=1/000000000015.parquet"
    local.put(path, b"junk")
    with pytest.raises(CorruptError, match=rf"{path} cannot be read.*delete it to go on"):
        Snapshot.take(local)
    local.delete([path])
    assert len(log.LogReader(local).entries()) == 19


@pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1PAR1", b"x" * 100])
def test_a_damaged_log_file(local, data):
    commit_entries(local, 1)
    path = local.folder / log.commit_path("train.r", 0)
    path.write_bytes(data)
    with pytest.raises(CorruptError, match=r"log file _log/.* cannot be read") as caught:
        Snapshot.take(local)
    assert "\n" not in str(caught.value)


def test_a_flipped_byte_in_the_log_is_found_or_does_no_harm(local):
    commit_entries(local, 1)
    path = local.folder / log.commit_path("train.r", 0)
    good, intact = path.read_bytes(), log.LogReader(local).entries()
    for place in range(0, len(good), 7):
        bad = bytearray(good)
        bad[place] ^= 1 << place % 8
        path.write_bytes(bad)
        try:
            assert log.LogReader(local).entries() == intact, place
        except PicoError as error:
            assert "\n" not in str(error)
