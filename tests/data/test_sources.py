"""Text sources: every kind, what is skipped or repaired, and errors that say where."""

import doctest
import json
import os
import sysconfig
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pico.data import sources
from pico.data.sources import default_name, documents
from pico.errors import ConfigError, DataError
from pico.lake.names import check_name


def read(source, max_bytes=None):
    found = documents(str(source), max_bytes)
    return list(found), found.report


@pytest.fixture(scope="module")
def stdlib():
    return read("stdlib")


def test_stdlib_is_large_and_free_of_tests_and_other_packages(stdlib):
    found, report = stdlib
    assert len(found) == report.n_documents > 300
    assert report.n_bytes == sum(len(one.text.encode()) for one in found) > 5_000_000
    for one in found:
        parts = one.uri.split("/")
        assert not {"test", "tests", "idle_test", "site-packages"} & set(parts)
        assert one.uri.endswith(".py") and not os.path.isabs(one.uri)
    assert len({one.uri for one in found}) == len(found)


def test_stdlib_texts_are_the_files(stdlib):
    by_uri = {one.uri: one for one in stdlib[0]}
    assert by_uri["asyncio/queues.py"].origin == "asyncio"
    assert by_uri["json/decoder.py"].text == Path(json.decoder.__file__).read_text("utf-8")
    assert by_uri["argparse.py"].origin == "stdlib"


def test_stdlib_holds_no_path_of_this_machine(stdlib):
    root = sysconfig.get_path("stdlib")
    assert not any(root in one.text or root in one.uri for one in stdlib[0])


def test_a_second_pass_gives_the_same(stdlib):
    assert read("stdlib")[0] == stdlib[0]


def test_python_without_source(monkeypatch, tmp_path):
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path / "python311.zip"))
    with pytest.raises(DataError, match="no source of its standard library"):
        read("stdlib")


def test_folder(tmp_path):
    (tmp_path / "b" / "c").mkdir(parents=True)
    (tmp_path / "a.txt").write_text("at the top")
    (tmp_path / "b" / "z.md").write_text("in b")
    (tmp_path / "b" / "c" / "x.PY").write_text("in c")
    (tmp_path / "rows.jsonl").write_text('{"text": "row"}\n')
    found, report = read(tmp_path)
    assert [(one.uri, one.origin, one.text) for one in found] == [
        ("a.txt", tmp_path.name, "at the top"),
        ("rows.jsonl#line=1", tmp_path.name, "row"),
        ("b/z.md", "b", "in b"),
        ("b/c/x.PY", "b", "in c"),
    ]
    assert report.n_other == report.n_binary == report.n_empty == report.n_replaced == 0


def test_what_a_folder_skips_is_counted(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "b.txt").write_bytes(b"PNG\0\1\2")
    (tmp_path / "c.txt").write_text("")
    (tmp_path / "d.bin").write_bytes(b"\0")
    (tmp_path / ".hidden.txt").write_text("hidden")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "e.txt").write_text("hidden")
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere.txt")
    found, report = read(tmp_path)
    assert [one.uri for one in found] == ["a.txt"]
    assert (report.n_binary, report.n_empty, report.n_other) == (1, 1, 4)
    assert report.summary().endswith("skipped: 1 empty, 1 binary, 4 of other suffixes")


@pytest.mark.parametrize("files", [{}, {"a.txt": b""}, {"a.txt": b"\0"}, {"a.bin": b"text"}])
def test_folder_without_text(tmp_path, files):
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=r"holds no text \(0 documents"):
        read(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\n \n\t", b"\xef\xbb\xbf", b"\0\0"])
def test_file_without_text(tmp_path, content):
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(DataError, match=r"a.txt' holds no text"):
        read(tmp_path / "a.txt")


@pytest.mark.parametrize(
    "source", ["", "nowhere.txt", "s3://bucket/text", "a\0b", "a" * 300, "~nobody-here/x"]
)
def test_missing_source(source):
    with pytest.raises(DataError, match="no text source"):
        read(source)


def test_missing_source_names_the_nearest(tmp_path):
    (tmp_path / "corpus.txt").write_text("text")
    with pytest.raises(DataError, match=r"Did you mean 'corpus.txt'"):
        read(tmp_path / "corpsu.txt")
    with pytest.raises(DataError, match="Did you mean 'stdlib'"):
        read("stdlb")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file(tmp_path):
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "a.txt").chmod(0)
    with pytest.raises(DataError, match=r"cannot read .*a.txt: Permission denied"):
        read(tmp_path)


def test_a_file_that_vanishes_while_reading(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("text")
    monkeypatch.setattr(sources, "_walk", lambda *arguments: [tmp_path / "b.txt"])
    with pytest.raises(DataError, match=r"cannot read .*b.txt: No such file"):
        read(tmp_path)


def test_bytes_that_are_not_utf8_are_replaced_and_counted(tmp_path):
    (tmp_path / "latin.txt").write_bytes("café \ufffd".encode("latin-1", "ignore") + b"\xff ok")
    found, report = read(tmp_path / "latin.txt")
    assert found[0].text == "caf\ufffd \ufffd ok"
    assert report.n_replaced == 2
    assert "2 bytes were not UTF-8" in report.summary()


def test_a_replacement_character_in_the_text_is_not_counted(tmp_path):
    (tmp_path / "a.txt").write_text("genuine \ufffd", encoding="utf-8")
    assert read(tmp_path / "a.txt")[1].n_replaced == 0


def test_line_ends_stay_and_a_byte_order_mark_goes(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\rthree\n")
    assert "".join(one.text for one in read(tmp_path / "a.txt")[0]) == "one\r\ntwo\rthree\n"


def test_file_names_that_are_not_utf8(tmp_path):
    with open(os.path.join(os.fsencode(tmp_path), b"\xff.txt"), "w") as file:
        file.write("text")
    assert read(tmp_path)[0][0].uri == "\ufffd.txt"


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_text_file_is_cut_after_blank_lines(tmp_path, end):
    paragraphs = [f"paragraph {i} " + "word " * (i % 40) + 2 * end for i in range(500)]
    (tmp_path / "a.txt").write_text("".join(paragraphs), newline="")
    found, report = read(tmp_path / "a.txt")
    assert "".join(one.text for one in found) == "".join(paragraphs)
    assert 20 < len(found) == report.n_documents < 100
    assert all(one.text.endswith(2 * end) and one.text.startswith("para") for one in found)
    whole = "".join(paragraphs)
    for one in found:
        start, stop = map(int, one.uri.removeprefix("a.txt#char=").split(","))
        assert whole[start:stop] == one.text


@given(text=st.text(alphabet=st.sampled_from("ab\n\r é\ufffd"), max_size=6000))
def test_pieces_are_the_file(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("pieces") / "a.txt"
    path.write_bytes(("x" + text).encode())
    assert "".join(one.text for one in read(path)[0]) == "x" + text


def test_text_without_line_ends_is_cut_too(tmp_path):
    (tmp_path / "a.txt").write_text("é" * 20_000)
    found, _ = read(tmp_path / "a.txt")
    assert "".join(one.text for one in found) == "é" * 20_000
    assert len(found) > 5


def test_a_long_file_of_a_folder_is_cut_and_a_short_one_is_not(tmp_path):
    (tmp_path / "long.txt").write_text("a line of text\n\n" * 70_000)
    (tmp_path / "short.txt").write_text("a line of text\n\n" * 7_000)
    found, _ = read(tmp_path)
    assert sum(one.uri.startswith("long.txt#char=") for one in found) > 100
    assert [one.uri for one in found if one.uri.startswith("short")] == ["short.txt"]


@pytest.mark.parametrize("max_bytes", [1, 2, 3, 10, 999, 1000])
def test_max_bytes_is_exact_up_to_a_character(tmp_path, max_bytes):
    (tmp_path / "a.txt").write_text("aé" * 200, encoding="utf-8")
    (tmp_path / "b.txt").write_text("b" * 400)
    found, report = read(tmp_path, max_bytes)
    size = sum(len(one.text.encode()) for one in found)
    assert max_bytes - 1 <= size == report.n_bytes <= max_bytes or size == 1000
    assert report.stopped == (max_bytes < 1000)


def test_max_bytes_below_one():
    with pytest.raises(ConfigError, match="max_bytes must be at least 1, not 0"):
        documents("stdlib", 0)


def write_rows(path, *lines):
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_jsonl(tmp_path):
    path = write_rows(
        tmp_path / "r.jsonl",
        '{"text": "one\\nline", "id": 3}',
        "",
        '{"text": ""}',
        '{"text": "a \\ud83d\\ude00 and half: \\ud83d"}\r',
    )
    found, report = read(path)
    assert [(one.uri, one.text) for one in found] == [
        ("r.jsonl#line=1", "one\nline"),
        ("r.jsonl#line=4", "a \U0001f600 and half: \ufffd"),
    ]
    assert (report.n_empty, report.n_replaced) == (2, 1)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "open', r"r.jsonl, line 2 is not JSON: Unterminated string"),
        ("[" * 100_000, r"r.jsonl, line 2 is not JSON"),
        ('["text"]', r"r.jsonl, line 2 must be an object with a field 'text', not"),
        ('{"body": "x"}', r"r.jsonl, line 2 must have .* field 'text'; its fields: \['body'\]"),
        ('{"text": 7}', r"r.jsonl, line 2 must have a string in its field 'text'; it holds 7"),
        ('{"text": null}', r"line 2 .*it holds None"),
    ],
)
def test_bad_jsonl_names_the_line(tmp_path, line, message):
    path = write_rows(tmp_path / "r.jsonl", '{"text": "fine"}', line)
    with pytest.raises(DataError, match=message):
        read(path)


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("stdlib", "stdlib"),
        ("corpora/tiny shakespeare.v2.txt", "tiny-shakespeare.v2"),
        ("Café.jsonl", "Cafe"),
        ("2024-01-01.txt", "data-2024-01-01"),
        ("true.txt", "data-true"),
        ("May-2024.txt", "data-May-2024"),
        ("../x", "x"),
        ("日本語.txt", "data-"),
        ("a" * 300, "a" * 128),
        ("/", "data-"),
    ],
)
def test_default_name(source, name):
    found = default_name(source)
    assert found == name or (name == "data-" and found.startswith(name))
    check_name(found)


@given(st.text(min_size=1, max_size=50).filter(lambda text: "\0" not in text))
def test_default_name_is_always_valid(source):
    check_name(default_name(source))


def test_default_name_of_a_folder(tmp_path, monkeypatch):
    (tmp_path / "texts.v1").mkdir()
    assert default_name(str(tmp_path / "texts.v1")) == "texts.v1"
    monkeypatch.chdir(tmp_path / "texts.v1")
    assert default_name(".") == "texts.v1"


def test_examples_in_the_docstrings():
    assert doctest.testmod(sources).failed == 0
