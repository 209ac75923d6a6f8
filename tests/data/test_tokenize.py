"""Tokenizers: nothing lost, the same in every process, and bad files named."""

import doctest
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("tokenizers", reason="needs the extra 'train'")

from pico.data import tokenize
from pico.data.tokenize import END_OF_TEXT, Tokenizer, load, train
from pico.errors import ConfigError, DataError, MissingExtraError
from pico.lake.names import check_name

TEXTS = [Path(module.__file__).read_text("utf-8") for module in (json, doctest, subprocess)]
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)
SPELLS_IT = "a document that spells <|endoftext|> and </s> is text"


@pytest.fixture(scope="module")
def trained():
    return train(TEXTS, 600)


@pytest.fixture(scope="module")
def neox(shared):
    path = shared / "data" / "tokenizer" / "20B_tokenizer.json"
    if not path.is_file():
        pytest.skip("../shared has no 20B_tokenizer.json")
    return load(path)


def test_trained(trained):
    assert trained.vocab_size == 600
    assert trained.end_of_text == 0
    assert trained.name == check_name(trained.name)
    assert trained.name.startswith("bpe-600-")
    ids = trained.encode_batch(TEXTS)
    assert [trained.decode(one) for one in ids] == TEXTS
    assert sum(map(len, ids)) < 0.6 * sum(map(len, TEXTS))


@given(text=ANY_TEXT)
def test_nothing_is_lost(trained, text):
    ids = trained.encode_batch([text])[0]
    assert trained.decode(ids) == text
    by_id = trained.token_bytes()
    assert b"".join(by_id[i] for i in ids) == text.encode()


@pytest.mark.parametrize("text", ["", SPELLS_IT, "\0\x7f\xad\r\n", "日本語 \U0001f600", " \t  x "])
def test_odd_texts(trained, text):
    ids = trained.encode_batch([text])[0]
    assert trained.decode(ids) == text
    assert trained.end_of_text not in ids


def test_every_byte_has_a_token(trained):
    by_id = trained.token_bytes()
    assert len(by_id) == trained.vocab_size
    assert {bytes([byte]) for byte in range(256)} <= set(by_id)
    assert by_id[trained.end_of_text] == b"<|endoftext|>"
    assert len(set(by_id)) == len(by_id)


def test_decode_spells_the_end_of_text_out(trained):
    ids = trained.encode_batch(["x"])[0]
    assert trained.decode([*ids, trained.end_of_text, *ids]) == "x<|endoftext|>x"


def test_decode_of_a_cut_character(trained):
    euro = next(i for i, token in enumerate(trained.token_bytes()) if token == b"\xe2")
    assert trained.decode([euro]) == "\ufffd"


def test_training_is_the_same_in_every_process(trained):
    code = (
        "import sys; from pico.data.tokenize import train\n"
        "sys.stdout.buffer.write(train(sys.stdin.buffer.read().decode().split('\\0'), 600)"
        ".to_json().encode())"
    )
    for threads, hashes in (("1", "1"), ("3", "2")):
        environment = os.environ | {"RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": hashes}
        done = subprocess.run(
            [sys.executable, "-c", code],
            input="\0".join(TEXTS).encode(),
            capture_output=True,
            check=True,
            env=environment,
        )
        assert done.stdout.decode() == trained.to_json()


def test_other_texts_have_another_name(trained):
    assert train(TEXTS[:1], 600).name != trained.name


def test_short_text_gives_a_smaller_vocabulary():
    small = train(["ab"], 5000)
    assert 257 < small.vocab_size < 300
    assert train([], 5000).vocab_size == 257


def test_training_reads_an_iterator_once(trained):
    assert train(iter(TEXTS), 600).to_json() == trained.to_json()


@pytest.mark.parametrize("vocab_size", [0, -1, 256])
def test_vocab_size_too_small(vocab_size):
    with pytest.raises(ConfigError, match=f"vocab_size must be at least 257, not {vocab_size}"):
        train(TEXTS, vocab_size)


def test_json_round_trip(trained, tmp_path):
    again = Tokenizer.from_json(trained.to_json())
    assert (again.name, again.to_json()) == (trained.name, trained.to_json())
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(json.loads(trained.to_json()), indent=2))
    assert load(path).name == trained.name


def test_stream_equals_batch(trained, monkeypatch):
    monkeypatch.setattr(tokenize, "_BATCH", 1000)
    texts = [SPELLS_IT * (i % 50) for i in range(200)]
    assert list(trained.encode_stream(iter(texts))) == trained.encode_batch(texts)


def test_stream_does_not_read_ahead_of_its_batch(trained, monkeypatch):
    monkeypatch.setattr(tokenize, "_BATCH", 10)
    taken = []
    stream = trained.encode_stream(taken.append(i) or "0123456789" for i in range(100))
    next(stream)
    assert taken == [0]


def test_neox(neox):
    assert (neox.vocab_size, neox.end_of_text) == (50277, 0)
    assert neox.name == check_name(neox.name)
    by_id = neox.token_bytes()
    for text in (*TEXTS, SPELLS_IT, "tabs\t\t and             spaces, 日本語"):
        ids = neox.encode_batch([text])[0]
        assert neox.decode(ids) == text
        assert b"".join(by_id[i] for i in ids) == text.encode()
        assert neox.end_of_text not in ids


def changed(trained, **changes):
    layout = json.loads(trained.to_json())
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(layout[key], dict):
            layout[key] |= value
        else:
            layout[key] = value
    return json.dumps(layout)


def test_a_file_that_truncates_pads_drops_or_begins_does_not(trained):
    text = changed(
        trained,
        truncation={"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        padding={
            "strategy": {"Fixed": 5000},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "<|endoftext|>",
        },
        post_processor={
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "pair": [
                {"Sequence": {"id": "A", "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 1}},
            ],
            "special_tokens": {
                "<|endoftext|>": {
                    "id": "<|endoftext|>",
                    "ids": [0],
                    "tokens": ["<|endoftext|>"],
                }
            },
        },
        model={"dropout": 0.5},
    )
    texts = [*TEXTS, "short"]
    assert Tokenizer(text).encode_batch(texts) == trained.encode_batch(texts)


@pytest.mark.parametrize("name", END_OF_TEXT)
def test_end_of_text_is_found_under_its_usual_names(trained, name):
    added = {**json.loads(trained.to_json())["added_tokens"][0], "content": name}
    vocab = json.loads(trained.to_json())["model"]["vocab"]
    del vocab["<|endoftext|>"]
    text = changed(trained, added_tokens=[added], model={"vocab": {name: 0, **vocab}})
    assert Tokenizer(text).end_of_text == 0


def test_sentencepiece_like_tokens():
    vocab = {"</s>": 0, "▁a": 1, "<0x0A>": 2, "b": 5}
    text = json.dumps(
        {
            "version": "1.0",
            "added_tokens": [],
            "normalizer": None,
            "pre_tokenizer": None,
            "model": {"type": "BPE", "vocab": vocab, "merges": [], "byte_fallback": True},
        }
    )
    found = Tokenizer(text)
    assert found.token_bytes() == [b"</s>", b" a", b"\n", b"", b"", b"b"]
    assert found.vocab_size == 6


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"\xff\xfe", "is not UTF-8"),
        (b"[]", "has no 'model'"),
        (b'{"vocab": {"a": 0}}', "has no 'model'"),
        (b'{"model": {"type": "BPE", "vocab": {}, "merges": []}}', "has an empty vocabulary"),
        (
            b'{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}',
            "has no end-of-text token",
        ),
        (b'{"model": {"type": "Nothing"}}', "is no tokenizer: "),
        (b'{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}', "is no tokenizer"),
    ],
)
def test_bad_files_are_named(tmp_path, content, message):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"tokenizer.json {message}"):
        load(path)


@pytest.mark.parametrize("path", ["nowhere.json", ".", "a\0b"])
def test_missing_files_are_named(path):
    with pytest.raises(DataError, match="cannot read tokenizer file"):
        load(path)


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'pico-lake\[train\]'"):
        train(TEXTS, 600)


def test_importing_the_module_imports_no_tokenizers():
    code = "import sys, pico.data.tokenize; sys.exit('tokenizers' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_examples_in_the_docstrings():
    assert doctest.testmod(tokenize).failed == 0
