"""From text to a data set: reused when it fits, refused when it does not, held out for good."""

from __future__ import annotations

import dataclasses
import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pico.config import DataConfig
from pico.data import corpus
from pico.data.loader import SequenceReader
from pico.errors import DataError, RunNameError
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from tests.train import tiny


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_text(tmp_path_factory.mktemp("corpus") / "play.txt")


def config(text: Path, **changes: Any) -> DataConfig:
    made = DataConfig(str(text), vocab_size=300, seq_len=16, heldout_fraction=0.1)
    return dataclasses.replace(made, **changes)


@pytest.fixture(scope="module")
def made(text: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Storage, corpus.Corpus]:
    storage = Storage(str(tmp_path_factory.mktemp("made") / "lake"))
    return storage, corpus.prepare(storage, config(text))


def tokens(storage: Storage, dataset: str) -> np.ndarray:
    reader = SequenceReader(Snapshot.take(storage), dataset)
    return reader.rows(range(reader.n_sequences))


def datasets(storage: Storage) -> list[dict[str, Any]]:
    return Snapshot.take(storage).read("datasets").to_pylist()


def log_files(storage: Storage) -> int:
    return len(storage.list("_log"))


def test_the_same_settings_are_used_again(made: tuple[Storage, corpus.Corpus], text: Path) -> None:
    storage, first = made
    assert (first.dataset, first.heldout, first.is_new) == ("play", "play.heldout", True)
    before = log_files(storage)
    again = corpus.prepare(storage, config(text))
    assert (again.dataset, again.heldout, again.is_new) == ("play", "play.heldout", False)
    assert again.tokenizer.name == first.tokenizer.name
    assert again.tokenizer.to_json() == first.tokenizer.to_json()
    assert log_files(storage) == before


def test_the_same_text_elsewhere_gives_the_same_bytes(
    made: tuple[Storage, corpus.Corpus], text: Path, tmp_path: Path
) -> None:
    storage, first = made
    copied = tmp_path / "play.txt"
    copied.write_bytes(text.read_bytes())
    other = Storage(str(tmp_path / "lake"))
    second = corpus.prepare(other, config(copied))
    assert second.tokenizer.name == first.tokenizer.name
    for name in ("play", "play.heldout"):
        assert (tokens(storage, name) == tokens(other, name)).all()
    fingerprints = [
        sorted((row["dataset_id"], row["fingerprint"]) for row in datasets(at))
        for at in (storage, other)
    ]
    assert fingerprints[0] == fingerprints[1]
    assert fingerprints[0][0][1] != fingerprints[0][1][1]


@pytest.mark.parametrize(
    "change", [{"vocab_size": 290}, {"seq_len": 8}, {"heldout_fraction": 0.2}, {"max_bytes": 20000}]
)
def test_other_settings_get_a_name_of_their_own(
    text: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    storage = Storage(str(tmp_path / "lake"))
    corpus.prepare(storage, config(text))
    other = corpus.prepare(storage, config(text, **change))
    assert other.is_new
    assert other.dataset.startswith("play-")
    assert len(other.dataset) == len("play-") + 8
    again = corpus.prepare(storage, config(text, **change))
    assert (again.dataset, again.is_new) == (other.dataset, False)
    assert corpus.prepare(storage, config(text)).dataset == "play"


def test_a_given_name_is_never_used_for_something_else(text: Path, tmp_path: Path) -> None:
    storage = Storage(str(tmp_path / "lake"))
    assert corpus.prepare(storage, config(text, name="mine")).dataset == "mine"
    assert not corpus.prepare(storage, config(text, name="mine")).is_new
    with pytest.raises(DataError, match="data set 'mine' is in the lake with other text") as caught:
        corpus.prepare(storage, config(text, name="mine", seq_len=8))
    assert "\n" not in str(caught.value)
    # the same settings under another name: a data set of its own
    assert corpus.prepare(storage, config(text, name="yours")).is_new


def test_held_out_documents_never_meet_training(made: tuple[Storage, corpus.Corpus]) -> None:
    storage, _ = made
    documents = Snapshot.take(storage).read("documents").to_pylist()
    uris = {
        name: {d["uri"] for d in documents if d["dataset_id"] == name}
        for name in ("play", "play.heldout")
    }
    assert not uris["play"] & uris["play.heldout"]
    n = {name: len(found) for name, found in uris.items()}
    share = n["play.heldout"] / sum(n.values())
    assert 0.02 < share < 0.3


def test_sequences_are_the_documents_and_nothing_else(
    made: tuple[Storage, corpus.Corpus], text: Path
) -> None:
    """Decoded again, the two parts are the text, piece by piece."""
    storage, found = made
    whole = text.read_text("utf-8")
    documents = Snapshot.take(storage).read("documents").to_pylist()
    end = found.tokenizer.decode([found.tokenizer.end_of_text])
    for name in ("play", "play.heldout"):
        mine = sorted((d for d in documents if d["dataset_id"] == name), key=lambda d: d["doc_id"])
        pieces = []
        for document in mine:
            start, stop = map(int, document["uri"].split("#char=")[1].split(","))
            pieces.append(whole[start:stop])
        ids = tokens(storage, name)
        # neighbouring rows share a token: a row's last is the next one's first, or it does not
        stream = found.tokenizer.decode(_unpacked(ids).tolist())
        assert stream.replace(end, "") in "".join(pieces)
        assert len(stream.replace(end, "")) > 0.95 * len("".join(pieces))
        lengths = found.tokenizer.encode_batch(pieces)
        assert [d["n_tokens"] for d in mine] == [len(one) for one in lengths]


def _unpacked(ids: np.ndarray) -> np.ndarray:
    """Undo the packing: rows of seq_len + 1 ids follow each other, overlapping or not."""
    if (ids[:-1, -1] == ids[1:, 0]).all():
        return np.concatenate([ids[:, :-1].reshape(-1), ids[-1, -1:]])
    return ids.reshape(-1)


def test_vocabulary_counts_are_those_of_the_training_rows(
    made: tuple[Storage, corpus.Corpus],
) -> None:
    storage, found = made
    rows = Snapshot.take(storage).read("vocab").sort_by("token_id").to_pylist()
    assert [row["token_id"] for row in rows] == list(range(found.tokenizer.vocab_size))
    assert {row["tokenizer_id"] for row in rows} == {found.tokenizer.name}
    ids = _unpacked(tokens(storage, "play"))
    counts = np.bincount(ids, minlength=len(rows))
    differing = {
        row["token_id"]: (row["count"], counts[row["token_id"]])
        for row in rows
        if row["count"] != counts[row["token_id"]]
    }
    assert not differing
    assert [row["bytes"] for row in rows] == found.tokenizer.token_bytes()


def test_the_tokenizer_comes_back_from_the_lake(made: tuple[Storage, corpus.Corpus]) -> None:
    storage, found = made
    for name in ("play", "play.heldout"):
        back = corpus.tokenizer_of(Snapshot.take(storage), name)
        assert back.to_json() == found.tokenizer.to_json()
    with pytest.raises(DataError, match="data set 'plya' keeps no tokenizer"):
        corpus.tokenizer_of(Snapshot.take(storage), "plya")


def test_a_given_tokenizer_is_used(
    made: tuple[Storage, corpus.Corpus], text: Path, tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.json").write_text(made[1].tokenizer.to_json(), encoding="utf-8")
    storage = Storage(str(tmp_path / "lake"))
    found = corpus.prepare(
        storage, config(text, tokenizer=str(tmp_path / "tokenizer.json"), vocab_size=999)
    )
    assert found.tokenizer.name == made[1].tokenizer.name
    assert (tokens(storage, "play") == tokens(made[0], "play")).all()
    other_size = config(text, tokenizer=str(tmp_path / "tokenizer.json"), vocab_size=777)
    assert not corpus.prepare(storage, other_size).is_new  # without effect


def test_nothing_held_out(text: Path, tmp_path: Path) -> None:
    storage = Storage(str(tmp_path / "lake"))
    found = corpus.prepare(storage, config(text, heldout_fraction=0.0))
    assert found.heldout is None
    assert {row["dataset_id"] for row in datasets(storage)} == {"play"}


def test_progress_is_told(text: Path, tmp_path: Path) -> None:
    told: list[str] = []
    storage = Storage(str(tmp_path / "lake"))
    corpus.prepare(storage, config(text), lambda message, done, total: told.append(message))
    assert told[:2] == ["reading text", "training the tokenizer"]


@pytest.mark.parametrize(
    ("content", "change", "message"),
    [
        ("", {}, "holds no text"),
        ("  \n\n ", {}, "holds no text"),
        ("A word.\n", {"seq_len": 500, "heldout_fraction": 0.0}, "seq_len"),
        (None, {"seq_len": 30_000}, "seq_len"),
        (None, {"heldout_fraction": 0.001, "seq_len": 2000}, "held-out part is too small"),
        (None, {"source": "absent.txt"}, "no text source 'absent.txt'"),
    ],
)
def test_text_that_cannot_be_used(
    text: Path, tmp_path: Path, content: str | None, change: dict[str, Any], message: str
) -> None:
    source = text
    if content is not None:
        source = tmp_path / "source.txt"
        source.write_text(content, encoding="utf-8")
    storage = Storage(str(tmp_path / "lake"))
    with pytest.raises(DataError, match=message) as caught:
        corpus.prepare(storage, config(source, **change))
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "lake").rglob("*.parquet"))  # nothing is left behind
    assert not list((tmp_path / "lake").rglob("*.inprogress"))


@pytest.mark.parametrize("name", ["true", "../x", "", "2024"])
def test_names_that_name_no_data_set(text: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(RunNameError, match="cannot name a data set"):
        corpus.prepare(Storage(str(tmp_path / "lake")), config(text, name=name))


def test_after_a_failure_the_name_is_free(text: Path, tmp_path: Path) -> None:
    storage = Storage(str(tmp_path / "lake"))
    with pytest.raises(DataError):
        corpus.prepare(storage, config(text, name="mine", seq_len=30_000))
    assert corpus.prepare(storage, config(text, name="mine")).is_new


def _prepare(url: str, source: str, barrier: Any, answers: Any) -> None:
    barrier.wait(60)
    found = corpus.prepare(Storage(url), config(Path(source)))
    answers.put((found.dataset, found.is_new))


def test_two_processes_make_it_once(text: Path, tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    barrier, answers = spawn.Barrier(2), spawn.Queue()
    arguments = (str(tmp_path / "lake"), str(text), barrier, answers)
    workers = [spawn.Process(target=_prepare, args=arguments) for _ in range(2)]
    for worker in workers:
        worker.start()
    found = [answers.get(timeout=90) for _ in workers]
    for worker in workers:
        worker.join(30)
        assert worker.exitcode == 0
    assert sorted(found) == [("play", False), ("play", True)]
    rows = datasets(Storage(str(tmp_path / "lake")))
    assert sorted(row["dataset_id"] for row in rows) == ["play", "play.heldout"]
