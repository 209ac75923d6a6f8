"""The source of synthetic sequences, and which of their targets count."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pico import config as configs
from pico import models
from pico.api import Lake
from pico.data import corpus, induction, loader
from pico.errors import ConfigError
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage

CONFIG = {
    "max_steps": 2,
    "data": {
        "source": "induction",
        "vocab_size": 40,
        "seq_len": 24,
        "heldout_fraction": 0.25,
        "induction": {"n_sequences": 64, "seed": 3},
    },
    "model": {"d_model": 16, "n_layers": 1, "n_heads": 2, "n_kv_heads": 1, "context": 24},
    "optimizer": {"lr": 0.0},
    "batch": {"size": 8},
    "evaluate": {"every": 1, "n_sequences": 16},
    "accelerator": "cpu",
    "record": {"batches": True, "checkpoints": {"every": 1}},
}


def test_what_counts_can_be_copied_and_nothing_else() -> None:
    lengths = set()
    for number in range(200):
        tokens, (start, stop) = induction.sequence(1, number, 64, 32)
        assert tokens.dtype == np.int32 and tokens.shape == (33,)
        assert tokens.min() >= 1 and tokens.max() < 64
        assert 8 <= start <= 16 and stop == 32
        lengths.add(start)
        for target in range(start, stop):  # token `target + 1` follows what it followed before
            assert tokens[target + 1] == tokens[target + 1 - start]
            assert tokens[target] == tokens[target - start]
    assert lengths == set(range(8, 17))


def test_a_sequence_depends_on_seed_and_number_alone() -> None:
    one, other = (induction.sequence(5, 9, 64, 32)[0] for _ in range(2))
    np.testing.assert_array_equal(one, other)
    assert (induction.sequence(5, 10, 64, 32)[0] != one).any()
    assert (induction.sequence(6, 9, 64, 32)[0] != one).any()
    # The numbers of a data set must not change when numpy or this code does.
    assert one[:6].tolist() == FIRST


FIRST = [42, 54, 49, 51, 36, 23]


def test_spans_say_which_targets_count() -> None:
    assert induction.spans_of(None, 3).all() and induction.spans_of('{"a": 1}', 3).all()
    found = induction.spans_of(json.dumps({"loss_spans": [[0, 1], [3, 5]]}), 6)
    assert found.tolist() == [True, False, False, True, True, False]


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = Lake(str(tmp_path_factory.mktemp("induction")))
    lake.train(CONFIG, "a")
    return lake


def test_the_lake_holds_the_sequences_their_spans_and_a_vocabulary(lake: Lake) -> None:
    rows = lake.sql(
        "SELECT dataset, sequence_id, tokens, extra FROM sequences ORDER BY dataset, sequence_id"
    ).fetchall()
    assert len(rows) == 64 + 16
    for name, number, tokens, extra in rows:
        first = 64 if name == "induction.heldout" else 0
        expected, span = induction.sequence(3, first + number, 40, 24)
        assert list(tokens) == expected.tolist()
        assert json.loads(extra) == {"loss_spans": [list(span)]}
    vocab = lake.sql("SELECT token_id, text, count FROM vocab ORDER BY token_id").fetchall()
    assert [row[:2] for row in vocab[:3]] == [(0, "<|endoftext|>"), (1, "a"), (2, "b")]
    drawn = np.concatenate([row[2] for row in rows if row[0] == "induction"])
    assert [row[2] for row in vocab] == np.bincount(drawn, minlength=40).tolist()


def test_the_tokenizer_says_and_reads_its_characters(lake: Lake) -> None:
    tokenizer = corpus.tokenizer_of(lake.snapshot(), "induction")
    assert tokenizer.vocab_size == 40 and tokenizer.end_of_text == 0
    assert tokenizer.decode([1, 2, 27, 1]) == "abAa"
    assert tokenizer.encode_batch(["abAa", "é"]) == [[1, 2, 27, 1], []]
    largest = corpus.Tokenizer.from_json(induction.tokenizer_json(16384))
    assert len(set(largest.token_bytes())) == largest.vocab_size == 16384


def test_it_is_made_once_and_another_seed_is_another_data_set(lake: Lake, tmp_path: Path) -> None:
    shutil.copytree(str(lake.storage.folder), tmp_path / "copy")  # the others want theirs as it is
    storage = Lake(str(tmp_path / "copy")).storage
    config = configs.load(CONFIG).data
    assert not corpus.prepare(storage, config).is_new
    other = configs.load(CONFIG, ["data.induction.seed=4"]).data
    made = corpus.prepare(storage, other)
    assert made.is_new and made.dataset != "induction"


def test_losses_are_means_over_the_targets_that_count(lake: Lake) -> None:
    model = models.build(configs.load(CONFIG).model, 40, 0)  # lr 0: every step has these weights
    ids = lake.batch("a", 0)
    stored = lake.sql(
        "SELECT sequence_id, loss FROM batches WHERE step = 0 ORDER BY position"
    ).fetchall()
    drawn = [induction.sequence(3, number, 40, 24) for number, _ in stored]
    np.testing.assert_array_equal(ids, np.stack([tokens for tokens, _ in drawn]))
    each, n_counted = _by_hand(model, drawn)
    np.testing.assert_allclose([loss for _, loss in stored], each, rtol=1e-5)
    assert _scalar(lake, "loss", 0) == pytest.approx(np.average(each, weights=n_counted), rel=1e-5)
    heldout = [induction.sequence(3, 64 + number, 40, 24) for number in range(16)]
    each, n_counted = _by_hand(model, heldout)
    expected = np.average(each, weights=n_counted)
    assert _scalar(lake, "heldout_loss", 0) == pytest.approx(expected, rel=1e-5)


def test_micro_batches_give_the_gradient_of_the_whole(tmp_path: Path) -> None:
    norms = []
    for micro in (8, 2):
        lake = Lake(str(tmp_path / str(micro)))
        lake.train(CONFIG, "a", [f"batch.micro_size={micro}"])
        norms.append((_scalar(lake, "grad_norm", 0), _scalar(lake, "loss", 0)))
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)


def test_token_scores_have_no_loss_where_a_target_does_not_count(lake: Lake) -> None:
    lake.probe("a", steps=[2])
    rows = lake.sql("SELECT sequence_id, position, loss IS NULL FROM token_scores").fetchall()
    assert len(rows) == 8 * 23
    for number, position, is_null in rows:
        start, stop = induction.sequence(3, 64 + number, 40, 24)[1]
        assert is_null == (not start <= position < stop)


def test_text_has_no_mask_and_reads_none(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("\n\n".join(f"line {i} of some text" for i in range(300)), encoding="utf-8")
    storage = Storage(str(tmp_path / "lake"))
    config = configs.load({"data": {"source": str(text), "vocab_size": 260, "seq_len": 8}})
    made = corpus.prepare(storage, config.data)
    reader = loader.SequenceReader(Snapshot.take(storage), made.dataset)
    assert reader.counted([0, 1]) is None


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("data.tokenizer=x.json", "reads no text"),
        ("data.max_bytes=100", "reads no text"),
        ("data.vocab_size=2", "between 3 and 16384"),
        ("data.seq_len=3", "at least 4|between 4 and"),
        ("data.induction.n_sequences=0", "n_sequences must be between 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(override: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        configs.load(CONFIG, [override])


def _by_hand(
    model: torch.nn.Module, drawn: list[tuple[np.ndarray, tuple[int, int]]]
) -> tuple[list[float], list[int]]:
    found = []
    for tokens, (start, stop) in drawn:
        ids = torch.from_numpy(tokens.astype(np.int64))
        with torch.no_grad():
            logits = model(ids[None, :-1])[0]
        found.append(float(F.cross_entropy(logits[start:stop], ids[1:][start:stop])))
    return found, [stop - start for _, (start, stop) in drawn]


def _scalar(lake: Lake, name: str, step: int) -> float:
    relation = lake.sql(f"SELECT value FROM scalars WHERE name = '{name}' AND step = {step}")
    return float(relation.fetchall()[0][0])
