"""One page that tells how runs went: HTML with figures inside, and nothing fetched from anywhere.

`pico.evaluate.story` gathers what it shows. Everything that comes from a lake is escaped; a figure
is an SVG with letters as outlines, so that it looks the same everywhere. Readable on a phone, in
the dark and on paper.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_STYLE = """
:root { color-scheme: light dark; --ink: #1c1e21; --paper: #fdfdfc; --soft: #6b7078;
  --line: #dcdee2; --card: #fff; --accent: #0072b2; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e7e9; --paper: #15171a; --soft: #9aa0a8;
  --line: #33373d; --card: #fff; --accent: #56b4e9; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 68rem; background: var(--paper);
  color: var(--ink); font: 16px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.4rem 0 .4rem; padding-top: .6rem;
  border-top: 1px solid var(--line); }
p, figcaption, td, th, li { overflow-wrap: anywhere; }
p.lead, figcaption, .note { color: var(--soft); }
nav { display: flex; flex-wrap: wrap; gap: .2rem .9rem; font-size: .9rem; margin: 1rem 0; }
a { color: var(--accent); text-decoration: none; } a:hover { text-decoration: underline; }
figure { margin: .8rem 0 1.4rem; background: var(--card); border: 1px solid var(--line);
  border-radius: 8px; padding: .6rem; }
section > figure { max-width: 36rem; }
figure svg { display: block; width: 100%; height: auto; }
figcaption { font-size: .88rem; padding: .4rem .2rem 0; color: #5a5f66; }
.grid { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 27rem), 1fr));
  gap: 0 1rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums;
  min-width: 50%; }
th, td { text-align: left; padding: .25rem .7rem .25rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
th:first-child, td:first-child { overflow-wrap: normal; white-space: nowrap; }
th + th, td + td { min-width: 5.5rem; }
td.number { text-align: right; white-space: nowrap; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; font: .85rem/1.45 ui-monospace, monospace;
  border-left: 3px solid var(--line); padding-left: .8rem; margin: .4rem 0 1rem; }
figure details { padding: .3rem .2rem 0; color: #1c1e21; --line: #dcdee2; --soft: #5a5f66; }
details summary { cursor: pointer; color: var(--soft); font-size: .88rem; }
@media print { body { max-width: none; } figure { break-inside: avoid; } nav { display: none; } }
"""


@dataclass
class Picture:
    """A figure and what it shows."""

    svg: str
    caption: str
    """One or two sentences; also what a screen reader says."""
    numbers: Sequence[Mapping[str, Any]] = ()
    """Some of what is drawn, as a table that is folded away."""
    numbers_title: str = ""


@dataclass
class Section:
    """A part of the page."""

    title: str
    lead: str = ""
    """What to look for."""
    pictures: list[Picture] = field(default_factory=list)
    table: Sequence[Mapping[str, Any]] = ()
    more: Sequence[Mapping[str, Any]] = ()
    """A table that is folded away."""
    texts: Sequence[tuple[str, str]] = ()
    """Heading and text of each sample."""
    note: str = ""
    """What is missing, and how to record it."""


def render(title: str, lead: str, sections: Sequence[Section]) -> str:
    """Return the page.

    Args:
        title: of the page.
        lead: a sentence below it.
        sections: from top to bottom; one without anything to show says why in its note.
    """
    links = "".join(
        f'<a href="#s{n}">{_text(section.title)}</a>' for n, section in enumerate(sections)
    )
    body = "".join(_section(n, section) for n, section in enumerate(sections))
    return _page(
        title,
        f'<h1>{_text(title)}</h1><p class="lead">{_text(lead)}</p><nav>{links}</nav>{body}',
    )


def single(title: str, svg: str) -> str:
    """Return a page with one figure, which holds its title itself."""
    return _page(title or "pico", _figure(Picture(svg, title), is_alone=True))


def _page(title: str, body: str) -> str:
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">"
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head>"
        f"<body>{body}</body></html>\n"
    )


def _section(number: int, section: Section) -> str:
    parts = [f'<section id="s{number}"><h2>{_text(section.title)}</h2>']
    if section.lead:
        parts.append(f"<p>{_text(section.lead)}</p>")
    if section.pictures:
        figures = "".join(map(_figure, section.pictures))
        parts.append(f'<div class="grid">{figures}</div>' if len(section.pictures) > 1 else figures)
    if section.table:
        parts.append(_table(section.table))
    parts.append(_folded(f"{len(section.more)} more", section.more))
    for heading, text in section.texts:
        parts.append(f"<p><strong>{_text(heading)}</strong></p><pre>{_text(text)}</pre>")
    if section.note:
        parts.append(f'<p class="note">{_text(section.note)}</p>')
    return "".join([*parts, "</section>"])


def _figure(picture: Picture, is_alone: bool = False) -> str:
    label = f'<svg role="img" aria-label="{_text(picture.caption)}" '
    drawn = picture.svg.replace("<svg ", label, 1)
    caption = "" if is_alone else f"<figcaption>{_text(picture.caption)}</figcaption>"
    folded = _folded(picture.numbers_title, picture.numbers)
    return f"<figure>{drawn}{caption}{folded}</figure>"


def _folded(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return ""
    return f"<details><summary>{_text(title)}</summary>{_table(rows)}</details>"


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    names = list(rows[0])
    head = "".join(f'<th scope="col">{_text(name)}</th>' for name in names)
    lines = "".join(
        "<tr>" + "".join(_cell(row.get(name)) for name in names) + "</tr>" for row in rows
    )
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
    )


def _cell(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return f"<td>{_text('' if value is None else str(value))}</td>"  # settings are text
    shown = f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
    return f'<td class="number">{shown}</td>'


def _text(text: str) -> str:
    """Escape what comes from a lake; characters that no page may hold become U+FFFD."""
    kept = "".join(c if c in "\t\n\r" or ord(c) >= 32 else "\ufffd" for c in text)
    return html.escape(kept.encode("utf-8", "replace").decode(), quote=True)
