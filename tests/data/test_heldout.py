"""The held-out part: decided by content, stable, and never empty when it was asked for."""

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pico.data import heldout
from pico.data.heldout import heldout_threshold, is_heldout, split
from pico.data.sources import Document
from pico.errors import ConfigError, DataError


def made_of(texts):
    return [Document(f"{i}.txt", "test", text) for i, text in enumerate(texts)]


@given(
    texts=st.lists(st.text(min_size=1, max_size=5), min_size=2, max_size=30),
    fraction=st.floats(0, 1, exclude_max=True),
)
def test_both_sides_have_a_document_and_none_is_lost(texts, fraction):
    given_documents = made_of(texts)
    if fraction > 0 and len(set(texts)) == 1:
        with pytest.raises(DataError, match="nothing can be held out"):
            split(given_documents, fraction)
        return
    training, held = split(given_documents, fraction)
    assert training
    assert bool(held) == (fraction > 0)
    assert sorted(training + held, key=given_documents.index) == given_documents
    assert not {one.text for one in training} & {one.text for one in held}


def test_share_is_about_the_fraction():
    many = made_of(f"document {i}" for i in range(20_000))
    for fraction in (0.02, 0.1, 0.5, 0.9):
        share = len(split(many, fraction)[1]) / len(many)
        assert abs(share - fraction) < 4 * (fraction * (1 - fraction) / len(many)) ** 0.5


def test_documents_stay_on_their_side_when_others_come():
    many = made_of(f"document {i}" for i in range(3000))
    small, large = split(many[:1000], 0.1)[1], split(many, 0.1)[1]
    assert small == [one for one in large if int(one.uri.removesuffix(".txt")) < 1000]


def test_it_is_the_text_that_decides():
    one, other = Document("a", "x", "same"), Document("b", "y", "same")
    threshold = heldout_threshold([one, Document("c", "z", "different")], 0.5)
    assert is_heldout(one, threshold) == is_heldout(other, threshold)


def test_a_known_threshold():
    # 2 percent of 2^64: a new version that moves it would mix held-out text into training.
    assert heldout_threshold(made_of(f"{i}" for i in range(1000)), 0.02) == 368934881474191040


@pytest.mark.parametrize("fraction", [-0.1, 1.0, float("nan")])
def test_bad_fraction(fraction):
    with pytest.raises(ConfigError, match=r"heldout_fraction must lie in \[0, 1\)"):
        heldout_threshold([], fraction)


@pytest.mark.parametrize("texts", [[], ["one"]])
def test_too_few_documents(texts):
    with pytest.raises(DataError, match="set heldout_fraction to 0"):
        heldout_threshold(made_of(texts), 0.1)


def test_examples_in_the_docstrings():
    assert doctest.testmod(heldout).failed == 0
