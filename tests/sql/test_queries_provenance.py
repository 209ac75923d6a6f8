"""The queries about what a run was shown and when, on rows checked by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pico.cli import run_command
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from pico.sql import library, session, statements
from tests.sql import demo_lake
from tests.sql.demo_lake import N_SEQUENCES, RUNS, sequence, shown

# Sequences hold 7 tokens to learn from; a step shows two of them, 24 make an epoch of 12 steps.
RE = "\nimport re\né\n?"  # ends inside a character
OS = "\nimport os\né\n?"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Storage:
    return demo_lake.write(Storage(str(tmp_path_factory.mktemp("provenance") / "lake")))


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Storage]:
    """A function that makes a lake of runs, each with its own arguments."""

    def make(**runs: dict[str, Any]) -> Storage:
        storage = Storage(str(tmp_path / "lake"))
        demo_lake.write_data(storage)
        for run, options in runs.items():
            demo_lake.write_run(storage, run, {}, **options)
        return storage

    return make


def ask(storage: Storage, name: str, **parameters: str) -> list[dict[str, Any]]:
    connection = session.connect(Snapshot.take(storage), threads=1)
    relation = library.run(connection, library.get_query(name), parameters)
    found: list[dict[str, Any]] = statements.fetch(relation).to_pylist()
    return found


def test_text_between_steps(lake: Storage) -> None:
    found = ask(lake, "text_between_steps", run="seed-0", first_step="4", last_step="6")
    assert [tuple(row.values()) for row in found] == [
        (4, 0, 0, 0, "text", 8, 8.0, RE),
        (4, 0, 0, 1, "text", 9, 9.0, OS),
        (5, 0, 0, 0, "text", 10, 10.0, RE),
        (5, 0, 0, 1, "text", 11, 11.0, RE),
    ]
    nothing = ask(lake, "text_between_steps", run="seed-0", first_step="4", last_step="4")
    assert nothing == []
    (one, two) = ask(lake, "text_between_steps", run="seed-0", first_step="4", last_step="5")
    assert [one["text"], two["text"]] == [
        row["text"] for row in ask(lake, "text_seen", run="seed-0", step="4")
    ]


def test_a_data_set_outside_the_lake_has_ids_and_no_text(write: Callable[..., Storage]) -> None:
    storage = write(away={"dataset": "elsewhere"})
    found = ask(storage, "text_between_steps", run="away", first_step="0", last_step="1")
    assert [(row["dataset"], row["sequence_id"], row["text"]) for row in found] == [
        ("elsewhere", 0, None),
        ("elsewhere", 1, None),
    ]
    corpus = ask(storage, "corpus_by_step", run="away")
    assert len(corpus) == 32
    assert {(row["text"], row["tokens"], row["documents"]) for row in corpus} == {
        (None, None, None)
    }


def test_first_exposure(lake: Storage) -> None:
    found = ask(lake, "first_exposure", text="import os")
    assert [row.pop("run") for row in found] == list(RUNS)
    # sequence 5 at places 5 and 29, sequence 9 at place 9
    expected = {
        "step": 2,
        "dataset": "text",
        "sequence_id": 5,
        "n_sequences": 2,
        "n_exposures": 3,
        "excerpt": OS,
    }
    assert found == [expected, expected]
    (row,) = ask(lake, "first_exposure", text="é\n", run="seed-1")
    assert (row["step"], row["n_sequences"], row["n_exposures"]) == (0, 24, 32)


def test_first_exposure_of_what_was_never_shown(write: Callable[..., Storage]) -> None:
    storage = write(never={"order": lambda place: 0}, late={"order": lambda place: 5 * (place > 6)})
    found = ask(storage, "first_exposure", text="import os")
    rows = [(row["run"], row["step"], row["n_exposures"], row["excerpt"]) for row in found]
    assert rows == [("late", 3, 25, OS), ("never", None, 0, None)]
    for text in ("%", "_", "import.os", "IMPORT OS", "'"):  # the string itself, no pattern
        assert {row["step"] for row in ask(storage, "first_exposure", text=text)} == {None}


def test_sequence_exposures(lake: Storage) -> None:
    found = ask(lake, "sequence_exposures", run="seed-0")
    assert len(found) == N_SEQUENCES
    rows = [tuple(row.values()) for row in found]
    assert rows[:3] == [
        ("text", 0, 2, 0, 12, 12),
        ("text", 1, 2, 0, 12, 12),
        ("text", 2, 2, 1, 13, 13),
    ]
    assert rows[8:10] == [("text", 8, 1, 4, None, 4), ("text", 9, 1, 4, None, 4)]
    repeated = ask(lake, "sequence_exposures", run="seed-0", min_exposures="2")
    assert [row["sequence_id"] for row in repeated] == list(range(8))


def test_a_sequence_that_a_step_shows_twice(write: Callable[..., Storage]) -> None:
    storage = write(same={"order": lambda place: 3})
    (row,) = ask(storage, "sequence_exposures", run="same")
    assert tuple(row.values()) == ("text", 3, 32, 0, 0, 15)


def swapped(place: int) -> int:
    """The order with the sequences at places 21 and 22 exchanged."""
    return shown({21: 22, 22: 21}.get(place, place))


@pytest.mark.parametrize(
    ("tokens", "compared"),
    [("153", (True, 147, 21, 0)), ("154", (False, 154, 22, 1)), ("161", (False, 161, 23, 2))],
)
def test_order_equality_up_to_a_token(
    write: Callable[..., Storage], tokens: str, compared: tuple[Any, ...]
) -> None:
    storage = write(one={}, two={"order": swapped})
    (row,) = ask(storage, "order_equality", run="one", other="two", tokens=tokens)
    assert tuple(row.values())[:4] == compared
    where = (147, 10, 10, "text", 21, "text", 22)
    assert tuple(row.values())[4:] == (where if not compared[0] else (None,) * 7)


def test_order_equality_of_all_that_both_have_seen(lake: Storage) -> None:
    (row,) = ask(lake, "order_equality", run="seed-0", other="seed-1")
    assert tuple(row.values()) == (True, 32 * 7, 32, 0, *(None,) * 7)
    (row,) = ask(lake, "order_equality", run="seed-0", other="seed-0", tokens="6")
    assert tuple(row.values())[:4] == (None, None, 0, 0)  # not one sequence


def test_batch_sizes_may_differ(write: Callable[..., Storage]) -> None:
    storage = write(one={}, four={"batch_size": 4}, other={"batch_size": 4, "order": swapped})
    (row,) = ask(storage, "order_equality", run="one", other="four")
    assert tuple(row.values())[:4] == (True, 32 * 7, 32, 0)
    (row,) = ask(storage, "order_equality", run="one", other="other")
    assert (row["is_equal"], row["step"], row["other_step"]) == (False, 10, 5)


def test_ranks_are_slices_of_a_step(
    write: Callable[..., Storage], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = write(one={})
    rows = demo_lake._rows

    def on_two_ranks(transaction: Any, table: str, keys: Any, **columns: Any) -> None:
        if table == "batches":
            columns = {key: values[::-1] for key, values in columns.items()}
            columns |= {"rank": columns["position"], "position": columns["rank"]}
        rows(transaction, table, keys, **columns)

    monkeypatch.setattr(demo_lake, "_rows", on_two_ranks)
    demo_lake.write_run(storage, "two", {})
    (row,) = ask(storage, "order_equality", run="one", other="two")
    assert tuple(row.values())[:4] == (True, 32 * 7, 32, 0)


def test_a_run_that_began_elsewhere_is_compared_from_there(
    write: Callable[..., Storage], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = write(parent={})
    rows = demo_lake._rows

    def from_step_8(transaction: Any, table: str, keys: Any, **columns: Any) -> None:
        if table == "batches":
            columns = {key: values[16:] for key, values in columns.items()}
        rows(transaction, table, keys, **columns)

    monkeypatch.setattr(demo_lake, "_rows", from_step_8)
    demo_lake.write_run(storage, "child", {}, order=swapped)
    (row,) = ask(storage, "order_equality", run="parent", other="child")
    assert tuple(row.values())[:6] == (False, 16 * 7, 16, 2, 147, 10)


def test_equal_ids_of_other_data_are_not_equal(write: Callable[..., Storage]) -> None:
    storage = write(one={}, two={"dataset": "elsewhere"})
    (row,) = ask(storage, "order_equality", run="one", other="two")
    assert (row["is_equal"], row["n_different"], row["first_token"]) == (False, 32, 0)
    assert (row["dataset"], row["other_dataset"]) == ("text", "elsewhere")


def test_corpus_by_step(lake: Storage) -> None:
    found = ask(lake, "corpus_by_step", run="seed-1")
    assert [(row["step"], row["position"], row["sequence_id"]) for row in found] == [
        (place // 2, place % 2, shown(place)) for place in range(32)
    ]
    assert all(row["tokens"] == sequence(row["sequence_id"]) for row in found)
    assert [row["text"] for row in found[8:10]] == [RE, OS]
    assert found[11]["documents"] == ["a.py", "b.py"]
    assert found[12]["documents"] == ["b.py"]
    assert {(row["run"], row["dataset"], row["origin"]) for row in found} == {
        ("seed-1", "text", "library")
    }


def test_the_corpus_is_exported_as_its_example_says(
    lake: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = library.get_query("corpus_by_step").example.split()
    assert run_command([*words[1:], "--lake", lake.url]) == 0
    exported = pq.read_table(tmp_path / "corpus.parquet")
    assert exported.to_pylist() == ask(lake, "corpus_by_step", run="seed-0")
