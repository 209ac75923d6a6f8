import json

import pytest

from tests.stress import figures, mutations, report
from tests.stress.protections import Protection


def test_notes_are_kept_only_when_asked_for(tmp_path, monkeypatch):
    monkeypatch.delenv(figures.FOLDER, raising=False)
    figures.note("races", kind="a", tried=1)
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv(figures.FOLDER, str(tmp_path / "notes"))
    figures.note("races", kind="a", tried=1)
    figures.note("races", kind="b", tried=2)
    assert [note["kind"] for note in figures.noted(tmp_path / "notes")] == ["a", "b"]


def test_counts_of_the_same_words_are_added():
    notes = [
        {"section": "races", "kind": "b|c", "tried": 1000, "survived": 1000},
        {"section": "races", "kind": "a", "tried": 1, "survived": 1},
        {"section": "races", "kind": "b|c", "tried": 234, "survived": 233},
    ]
    text = report.written([*notes, {"section": "mutations", "protection": "p", "fails": "yes"}])
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert rows == [
        "| kind | tried | survived |",
        "| a | 1 | 1 |",
        "| b\\|c | 1,234 | 1,233 |",
        "| protection | fails |",
        "| p | yes |",
    ]
    assert text.count("Nothing was counted.") == len(report.SECTIONS) - 1


@pytest.mark.parametrize(("after", "fails"), [("2", "yes"), ("1  # as before", "no")])
def test_a_mutation_that_no_test_notices_is_told(tmp_path, monkeypatch, after, fails, capsys):
    (tmp_path / "pico").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "pico" / "__init__.py").touch()
    (tmp_path / "pico" / "one.py").write_text("ONE = 1\n")
    (tmp_path / "tests" / "test_one.py").write_text(
        "from pico.one import ONE\ndef test_one():\n    assert ONE == 1\n"
    )
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\nmarkers = ['slow: x']\n")
    guarded = Protection(
        "one is one", "pico/one.py", "1\n", after + "\n", "tests/test_one.py::test_one"
    )
    monkeypatch.setattr(mutations, "ROOT", tmp_path)
    monkeypatch.setattr(mutations, "PROTECTIONS", (guarded,))
    if fails == "no":
        with pytest.raises(AssertionError, match="no test fails without: one is one"):
            mutations.try_all()
    else:
        assert json.dumps(mutations.try_all()).count('"fails": "yes"') == 1
    assert (tmp_path / "pico" / "one.py").read_text() == "ONE = 1\n"
    assert capsys.readouterr().out.startswith(fails)
