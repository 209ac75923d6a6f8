"""The void rule: against a plain model, in both orders of the race, and in every interleaving."""

from __future__ import annotations

import dataclasses
import json
import uuid

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pico.errors import CorruptError
from pico.lake import entries, live, log, table
from pico.lake.commit import Stream
from pico.lake.entries import Entry, origin, replacement
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from tests.lake import steps

NOTE = replacement("train.r", "t")


def path(name: object) -> str:
    return f"scalars/run=r/{name}.parquet"


def add(name, txn, extra=None) -> Entry:
    return Entry("add", "scalars", path(name), 1, 1, "", 1, None, None, txn, extra)


def away(name, txn, action) -> Entry:
    return Entry(action, "scalars", path(name), 1, 1, "", 1, None, None, txn)


def names(found: list[Entry]) -> list[str]:
    return sorted(entry.path.rpartition("/")[2].removesuffix(".parquet") for entry in found)


def live_names(listed: list[Entry]) -> list[str]:
    return names(Snapshot(Storage("memory://unused"), listed).all_files())


def replace(old: str, new: str, txn: str) -> list[Entry]:
    return [*(away(name, txn, "remove") for name in old), *(add(name, txn, NOTE) for name in new)]


def withdraw(gone: str, txn: str) -> list[Entry]:
    return [away(name, txn, "withdraw") for name in gone]


A_TO_D = [add(name, f"t{name}") for name in "abcd"]


def test_a_replacement_counts_once_its_files_and_not_theirs():
    assert live_names(A_TO_D + replace("ab", "x", "1")) == ["c", "d", "x"]


def test_a_compaction_that_commits_first_does_not_save_withdrawn_rows():
    """The resume saw a and b before x stood for them, and means to keep neither."""
    assert live_names(A_TO_D + replace("ab", "x", "1") + withdraw("ab", "2")) == ["c", "d"]


def test_a_compaction_that_commits_last_does_not_bring_withdrawn_rows_back():
    assert live_names(A_TO_D + withdraw("ab", "2") + replace("ab", "x", "1")) == ["c", "d"]


@pytest.mark.parametrize("compaction_is_first", [True, False])
def test_a_void_compaction_loses_no_rows_that_were_not_withdrawn(compaction_is_first):
    """Only a is withdrawn: b counts again, and so do the files merged in the same commit."""
    both = [replace("ab", "x", "1") + replace("cd", "y", "1"), withdraw("a", "2")]
    first, second = both if compaction_is_first else reversed(both)
    assert live_names(A_TO_D + first + second) == ["b", "c", "d"]


def test_what_replaces_a_void_file_is_void_too():
    merged = replace("ab", "x", "1") + replace("xc", "y", "2") + replace("yd", "z", "3")
    assert live_names(A_TO_D + merged) == ["z"]
    assert live_names(A_TO_D + merged + withdraw("a", "4")) == ["b", "c", "d"]
    assert live_names(withdraw("a", "4") + merged[::-1] + A_TO_D) == ["b", "c", "d"]
    # c is withdrawn: only what contains it falls, x stands.
    assert live_names(A_TO_D + merged + withdraw("c", "4")) == ["d", "x"]


def test_a_file_that_replaces_others_may_be_withdrawn_itself():
    assert live_names(A_TO_D + replace("ab", "x", "1") + withdraw("x", "2")) == ["c", "d"]


def test_a_removal_without_a_replacement_always_counts():
    """As when a run is removed: nothing stands for its files."""
    gone = [away("a", "1", "remove"), add("x", "1", '{"why": "stands_for nothing"}')]
    assert live_names(A_TO_D + gone + withdraw("a", "2")) == ["b", "c", "d", "x"]


def test_a_withdrawal_within_a_void_commit_counts():
    mixed = replace("ab", "x", "1") + withdraw("c", "1")
    assert live_names(A_TO_D + mixed + withdraw("a", "2")) == ["b", "d"]


def test_a_row_wise_withdrawal_is_no_replacement():
    """It keeps its adds whatever else withdraws the file: it removes nothing."""
    kept = [away("a", "1", "withdraw"), add("x", "1", NOTE)]
    assert live_names(A_TO_D + kept + replace("ab", "y", "2")) == ["b", "c", "d", "x"]


def test_what_is_taken_away_includes_the_void():
    snapshot = Snapshot(
        Storage("memory://unused"), A_TO_D + replace("ab", "x", "1") + withdraw("a", "2")
    )
    assert names(snapshot.taken_away()) == ["a", "x"]
    assert {entry.action for entry in snapshot.taken_away()} == {"add"}


def test_what_a_file_stands_for():
    assert add("x", "1", NOTE).stands_for == ("train.r", "t")
    assert add("x", "1").stands_for is None
    assert add("x", "1", '{"n": 1}').stands_for is None
    assert add("x", "1", '{"why": {"stands_for": 1}}').stands_for is None
    assert add("x", "1", 'no JSON, nor does it say "stands_for" of itself'[:9]).stands_for is None


@pytest.mark.parametrize(
    "value", [None, 3, "train.r", [], {}, {"stream": "s"}, {"stream": "s", "txn": 1}, {"txn": ""}]
)
def test_a_damaged_note_is_an_error_where_it_matters(value):
    extra = json.dumps({"stands_for": value})
    with pytest.raises(CorruptError, match=r"what scalars/run=r/x.parquet stands for") as caught:
        origin(extra, path("x"))
    assert "\n" not in str(caught.value)
    bad = [away("a", "1", "remove"), add("x", "1", extra)]
    with pytest.raises(CorruptError):
        live_names(A_TO_D + bad + withdraw("a", "2"))
    with pytest.raises(CorruptError):
        origin('{"stands_for": ' + "[" * 100_000)


def model(listed: list[Entry]) -> set[str]:
    """The rule, word by word and without any cleverness."""
    replacing = {e.txn for e in listed if e.action == "add" and e.stands_for}
    withdrawn = {e.path for e in listed if e.action == "withdraw"}
    void: set[str] = set()
    for _ in listed:
        fallen = withdrawn | {e.path for e in listed if e.action == "add" and e.txn in void}
        void |= {
            e.txn
            for e in listed
            if e.action == "remove" and e.txn in replacing and e.path in fallen
        }
    counting = [e for e in listed if e.action == "withdraw" or e.txn not in void]
    gone = {e.path for e in counting if e.action != "add"}
    return {e.path for e in counting if e.action == "add"} - gone


rows = st.builds(
    lambda action, name, txn, noted: (
        add(name, txn, NOTE if noted else None) if action == "add" else away(name, txn, action)
    ),
    st.sampled_from(["add", "add", "remove", "remove", "withdraw"]),
    st.sampled_from("abcde"),
    st.sampled_from("1234"),
    st.booleans(),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(rows, max_size=25), st.randoms())
def test_the_rule_is_the_model_and_knows_no_order(listed, random):
    expected = model(listed)
    assert {e.path for e in Snapshot(Storage("memory://unused"), listed).all_files()} == expected
    random.shuffle(listed)
    shuffled = entries.to_rows(listed)
    assert set(shuffled.filter(live.live(shuffled))["path"].to_pylist()) == expected


SQL = live.__doc__.split("this package:\n")[1]


@settings(max_examples=30, deadline=None)
@given(st.lists(rows, min_size=1, max_size=20))
def test_the_sql_of_the_docstring_lists_the_live_files(tmp_path_factory, listed):
    folder = tmp_path_factory.mktemp("sql")
    for seq, part in enumerate((listed[:7], listed[7:])):
        stored = folder / log.commit_path("train.r", seq)
        stored.parent.mkdir(parents=True, exist_ok=True)
        stored.write_bytes(log.encode(part, {}))
    with duckdb.connect() as con:
        found = [name for (name,) in con.sql(SQL.replace("LAKE", str(folder))).fetchall()]
    assert found == sorted(model(listed))


class World:
    """A run's log with files of known rows; a row is (segment, number)."""

    def __init__(self) -> None:
        self.log: list[Entry] = []
        self.held: dict[str, frozenset[tuple[int, int]]] = {}
        self.expected: set[tuple[int, int]] = set()
        self.n_rows = 0

    def live(self) -> list[Entry]:
        return Snapshot(Storage("memory://unused"), self.log).all_files()

    def write(self, segment: int) -> None:
        self.n_rows += 1
        entry = add(f"f{uuid.uuid4().hex}", uuid.uuid4().hex)
        self.held[entry.path] = frozenset({(segment, self.n_rows)})
        self.expected.add((segment, self.n_rows))
        self.log.append(entry)

    def resume(self, seen: list[Entry], segment: int) -> None:
        """Withdraw what was seen beyond a segment; merged files never span two."""
        txn = uuid.uuid4().hex
        for entry in seen:
            if min(self.held[entry.path])[0] > segment:
                self.expected -= self.held[entry.path]
                self.log.append(dataclasses.replace(entry, action="withdraw", txn=txn))

    def compact(self, seen: list[Entry], width: int) -> None:
        """Merge, in one commit, up to `width` files of each segment."""
        txn, segments = uuid.uuid4().hex, {}
        for entry in seen:
            segments.setdefault(min(self.held[entry.path])[0], []).append(entry)
        for group in segments.values():
            merged = group[:width]
            if len(merged) < 2:
                continue
            new = add(f"m{uuid.uuid4().hex}", txn, NOTE)
            self.held[new.path] = frozenset().union(*(self.held[e.path] for e in merged))
            self.log.append(new)
            for entry in merged:
                self.log.append(dataclasses.replace(entry, action="remove", txn=txn))


moves = st.one_of(
    st.tuples(st.just("write"), st.integers(0, 3)),
    st.tuples(st.just("resume sees"), st.just(0)),
    st.tuples(st.just("resume commits"), st.integers(0, 3)),
    st.tuples(st.just("compact sees"), st.just(0)),
    st.tuples(st.just("compact commits"), st.integers(2, 4)),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(moves, max_size=40))
def test_no_interleaving_of_a_resume_and_a_compaction_loses_or_repeats_a_row(plan):
    """The trainer resumes and writes, another process compacts; both act on what they saw.

    A trainer writes nothing between its look and its withdrawal; a lease admits one of each.
    """
    world = World()
    for segment in (0, 0, 1, 1, 2, 2, 3, 3):
        world.write(segment)
    seen: dict[str, list[Entry]] = {}
    for move, number in plan:
        who, _, does = move.partition(" ")
        if does == "sees":
            seen[who] = world.live()
            continue
        if does == "commits" and who in seen:
            getattr(world, who)(seen.pop(who), number)
        elif move == "write" and "resume" not in seen:
            world.write(number)
        shown = [row for entry in world.live() for row in sorted(world.held[entry.path])]
        assert sorted(shown) == sorted(world.expected)


def test_a_race_between_two_streams_of_a_lake(storage):
    """The same through streams and files: a step that is withdrawn while it is being merged."""
    with Stream(storage, "train.r") as train, Stream(storage, "derive.r.upkeep") as upkeep:
        for step in (0, 1):
            steps.commit_step(train, step)
        scalars = Snapshot.take(storage).files("scalars")
        resuming = train.begin()
        resuming.take_away([e for e in scalars if e.max_step == 1], withdraw=True)
        merging = upkeep.begin()
        table.write_rows(merging, "scalars", {"run": "r"}, table.read(storage, scalars))
        (merged,) = merging._entries
        note = replacement("train.r", scalars[-1].txn)
        merging._entries = [dataclasses.replace(merged, extra=note)]
        merging.take_away(scalars, withdraw=False)
        merging.commit()
        assert [e.path for e in Snapshot.take(storage).files("scalars")] == [merged.path]
        assert steps.steps(storage)[1] == [0, 1]
        resuming.commit()
    snapshot = Snapshot.take(storage)
    assert snapshot.read("scalars", ["global_step"])["global_step"].to_pylist() == [0]
    assert merged.path in [entry.path for entry in snapshot.taken_away()]
