"""The page: whole, escaped, without anything that it would fetch."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from pico.report import page
from pico.report.page import Picture, Section

HOSTILE = "<script>alert('x')</script>\"&\x00\ud800"
SVG = '<svg width="10" height="10"><path d="M0 0L1 1"/></svg>'


def whole() -> str:
    return page.render(
        HOSTILE,
        HOSTILE,
        [
            Section(
                HOSTILE,
                HOSTILE,
                [Picture(SVG, HOSTILE, [{HOSTILE: HOSTILE}], HOSTILE)],
                [{HOSTILE: HOSTILE, "n": 12345}],
            ),
            Section("Two", pictures=[Picture(SVG, "a"), Picture(SVG, "b")], more=[{"k": 0.5}]),
            Section("Texts", texts=[(HOSTILE, HOSTILE)], note=HOSTILE),
        ],
    )


class Tags(HTMLParser):
    """The elements of a page, and whether each is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.stack: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)
        if tag not in ("meta", "path"):
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag


def test_everything_is_escaped_and_closed() -> None:
    text = whole()
    tags = Tags()
    tags.feed(text)
    assert tags.stack == []
    assert "script" not in tags.seen and "alert('x')" not in text
    assert text.count("&lt;script&gt;") >= 12
    assert (tags.seen.count("svg"), tags.seen.count("figure")) == (3, 3)
    assert "12,345" in text and "1 more" in text
    text.encode("utf-8")


def test_nothing_is_fetched() -> None:
    text = whole()
    assert not re.search(r"""(src|href)=["'](?!#)""", text)
    assert "default-src 'none'" in text and "@import" not in text and "url(" not in text


def test_sections_are_linked_from_the_top() -> None:
    text = whole()
    assert re.findall(r'href="#(s\d)"', text) == re.findall(r'<section id="(s\d)"', text)


def test_pictures_have_words() -> None:
    text = whole()
    assert text.count('role="img" aria-label=') == text.count("<figcaption>") == 3
