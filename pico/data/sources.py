"""Reads text sources as documents.

Called by the loader, once for each pass over the text: for the split, the tokenizer, the encoding.
A source is `stdlib`, the path of a text file, of a folder, or of a `.jsonl` file. `documents`
promises the same documents in the same order whenever the bytes are the same, streams them, and
drops nothing in silence: what it skips or repairs is counted in `Documents.report`.

    source       one document is                                  uri                    origin
    stdlib       a `.py` file of Python's standard library        asyncio/queues.py      asyncio
    folder       a file whose name fits `TEXT_FILE`, or JSONL     chapter/one.txt        chapter
    text file    a piece of it, ended by a blank line             play.txt#char=0,4321   play.txt
    JSONL file   a line's field `text`                            rows.jsonl#line=7      rows.jsonl

A `uri` is relative to the source and never holds a path of this machine; `origin` is the first
folder below the source, or the source's own name. Line numbers count from 1, characters from 0.

Text files. UTF-8, a byte-order mark removed, line ends kept as they are. A byte that is not UTF-8
becomes U+FFFD and is counted. A file with a NUL in its first 8 KiB is binary and is skipped and
counted. A text file given as the source is cut into pieces, so that there is something to hold out;
so are files over 1 MiB in a folder. A piece ends after the first blank line behind 4,096 characters
(fewer for files under 256 KiB), without one at a line's end; the pieces together are the file.
"""

from __future__ import annotations

import json
import os
import re
import sysconfig
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO, cast

import xxhash

from pico.errors import ConfigError, DataError, RunNameError, did_you_mean
from pico.lake.names import check_name

__all__ = ["TEXT_FILE", "Document", "Documents", "Report", "default_name", "documents"]

TEXT_FILE: Final = re.compile(
    r"[^.].*\.(txt|text|md|markdown|rst|tex|org|html|jsonl|py|pyi|c|h|cc|cpp|hpp|java|js|ts|go|rs|rb|sh"
    r"|sql|r|jl|lua|hs|scala|kt|swift)",
    re.IGNORECASE | re.DOTALL,
)
"""Names of the files that a folder source reads."""

_SPLIT_ABOVE: Final = 1 << 20  # bytes; a longer file of a folder is cut like a single file
_PIECE: Final = (256, 4096)  # least characters of a piece, for the smallest and for large files
_NOT_STDLIB: Final = re.compile(
    r"(test|tests|idle_test|site-packages|dist-packages|__pycache__|config-.*|_sysconfigdata.*)"
)  # tests, other packages, and what `configure` generated with paths of the build machine
_SURROGATES: Final = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Document:
    """One text, and where in the source it stands."""

    uri: str
    """Path relative to the source, with `#char=START,END` or `#line=N` for a part of a file."""
    origin: str
    """First folder below the source, or the source's own name."""
    text: str
    """The text, with at least one character."""


@dataclass
class Report:
    """What reading a source came across; complete once its documents are exhausted."""

    n_documents: int = 0
    """Documents returned."""
    n_bytes: int = 0
    """UTF-8 bytes of their texts."""
    n_replaced: int = 0
    """Bytes that were not UTF-8, and lone surrogates in JSON, replaced by U+FFFD."""
    n_empty: int = 0
    """Files and JSONL lines skipped because they hold no character."""
    n_binary: int = 0
    """Files skipped because they are binary."""
    n_other: int = 0
    """Files skipped because of their suffix; also files, and folders, that begin with a dot."""
    stopped: bool = False
    """Whether reading stopped at `max_bytes`, before the source's end."""

    def summary(self) -> str:
        """Return the report as one line.

        >>> Report(n_documents=2, n_bytes=1_500_000, n_binary=1).summary()
        '2 documents, 1.5 MB; skipped: 1 binary'
        """
        line = f"{self.n_documents:,} documents, {self.n_bytes / 1e6:,.1f} MB"
        if self.stopped:
            line += " (stopped at max_bytes)"
        skipped = {
            "empty": self.n_empty,
            "binary": self.n_binary,
            "of other suffixes": self.n_other,
        }
        if any(skipped.values()):
            counted = (f"{count:,} {kind}" for kind, count in skipped.items() if count)
            line += f"; skipped: {', '.join(counted)}"
        if self.n_replaced:
            line += f"; {self.n_replaced:,} bytes were not UTF-8 and became U+FFFD"
        return line


class Documents(Iterator[Document]):
    """The documents of a source, read as they are asked for; `report` counts as they pass."""

    def __init__(self, source: str, max_bytes: int | None = None) -> None:
        """Prepare to read a source; `documents` says how."""
        if max_bytes is not None and max_bytes < 1:
            raise ConfigError(f"max_bytes must be at least 1, not {max_bytes}; null reads all")
        self.report = Report()
        self._reader = self._read(source, max_bytes)

    def __next__(self) -> Document:
        """Return the next document."""
        return next(self._reader)

    def _read(self, source: str, max_bytes: int | None) -> Iterator[Document]:
        report, blank = self.report, True
        try:
            for found in _find(source, max_bytes, report):
                text, n_replaced = _SURROGATES.subn("\ufffd", found.text)
                encoded = text.encode()
                if max_bytes is not None and report.n_bytes + len(encoded) > max_bytes:
                    report.stopped = True
                    encoded = encoded[: max_bytes - report.n_bytes]
                    text = encoded.decode(errors="ignore")  # drops a character cut in two
                    encoded = text.encode()
                if text:
                    report.n_documents += 1
                    report.n_bytes += len(encoded)
                    report.n_replaced += n_replaced
                    blank = blank and text.isspace()
                    yield Document(_valid(found.uri), _valid(found.origin), text)
                elif not report.stopped:
                    report.n_empty += 1
                if report.stopped:
                    break
        except OSError as error:
            raise DataError(f"cannot read {error.filename or source}: {error.strerror}") from None
        if blank:
            raise DataError(
                f"source {source!r} holds no text ({report.summary()}). Give a text file, "
                "a folder of text files, a .jsonl file, or stdlib"
            )


def documents(source: str, max_bytes: int | None = None) -> Documents:
    """Read a source's documents, in an order that depends on nothing but the source.

    Args:
        source: `stdlib`, or the path of a text file, a folder or a `.jsonl` file. A folder called
            `stdlib` is `./stdlib`.
        max_bytes: stop after this many bytes of text (UTF-8); the last document is cut to fit.

    Returns:
        An iterator with a `report`. Each call starts a new pass.

    Raises:
        ConfigError: `max_bytes` is below 1.
        DataError: (while iterating) no such source, a file that cannot be read, a JSONL line
            without text, or, after the last document, a source without any text.

    Example:
        >>> first = next(documents("stdlib"))
        >>> first.uri, first.origin
        ('__future__.py', 'stdlib')
    """
    return Documents(source, max_bytes)


def default_name(source: str) -> str:
    """Return a data-set name made from a source, fit for the path key `dataset=`.

    A letter, then letters, digits, `.`, `_` and `-`, at most 128 in all, and no word that readers
    turn into another type. What does not fit becomes `-`.

    Example:
        >>> default_name("corpora/tiny shakespeare.txt"), default_name("2024.jsonl")
        ('tiny-shakespeare', 'data-2024')
    """
    path = Path(os.path.expanduser(source))
    is_folder = path.name in ("", "..") or os.path.isdir(path)
    own = _folder_name(path) if is_folder else path.stem
    ascii_only = unicodedata.normalize("NFKD", own).encode("ascii", "ignore").decode()
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", ascii_only).strip("-.")
    if not name:
        name = f"data-{xxhash.xxh32_hexdigest(own.encode(errors='replace'))}"
    try:
        return check_name(name[:128], "data set")
    except RunNameError:
        return check_name(f"data-{name}"[:128], "data set")


def _find(source: str, max_bytes: int | None, report: Report) -> Iterator[Document]:
    """Yield the source's documents; bytes that are not UTF-8 still stand as surrogates."""
    path = Path(os.path.expanduser(source))
    if source == "stdlib":
        root = Path(sysconfig.get_path("stdlib"))
        files = [] if not root.is_dir() else list(_walk(root, report, _NOT_STDLIB))
        if not files:
            raise DataError("this Python has no source of its standard library; name a text file")
        for file in files:
            yield from _read_file(file, _uri(file, root), "stdlib", None, report)
    elif source and os.path.isdir(path):
        for file in _walk(path, report):
            size = file.stat().st_size
            piece = _piece(size) if size > _SPLIT_ABOVE else None
            yield from _read_file(file, _uri(file, path), _folder_name(path), piece, report)
    elif os.path.isfile(path):
        size = path.stat().st_size
        piece = _piece(size if max_bytes is None else min(size, max_bytes))
        yield from _read_file(path, path.name, path.name, piece, report)
    else:
        beside = os.listdir(path.parent) if os.path.isdir(path.parent) else []
        near = did_you_mean(path.name, ["stdlib", "induction", *beside])
        raise DataError(
            f"no text source {source!r}.{near} Give stdlib, or the local path of a text file, "
            "a folder or a .jsonl file"
        )


def _walk(root: Path, report: Report, excluded: re.Pattern[str] | None = None) -> Iterator[Path]:
    """Yield the text files below `root` in sorted order: a folder's files, then its folders."""

    def refuse(error: OSError) -> None:
        raise error

    for folder, folders, names in os.walk(root, onerror=refuse):
        if excluded is None:
            kept = [name for name in folders if not name.startswith(".")]
            wanted = [name for name in names if TEXT_FILE.fullmatch(name)]
        else:
            kept = [name for name in folders if not excluded.fullmatch(name)]
            wanted = [n for n in names if n.endswith(".py") and not excluded.fullmatch(n)]
        wanted = [name for name in wanted if os.path.isfile(os.path.join(folder, name))]
        if excluded is None:
            report.n_other += len(folders) - len(kept) + len(names) - len(wanted)
        folders[:] = sorted(kept)
        yield from (Path(folder, name) for name in sorted(wanted))


def _folder_name(path: Path) -> str:
    return os.path.basename(os.path.realpath(path))


def _uri(file: Path, root: Path) -> str:
    return file.relative_to(root).as_posix()


def _valid(name: str) -> str:
    """Return a file's name with what is not UTF-8 in it replaced."""
    return _SURROGATES.sub("\ufffd", name)


def _piece(size: int) -> int:
    """Return the least characters of a piece: about 64 pieces, until a piece has 4,096."""
    return min(max(size // 64, _PIECE[0]), _PIECE[1])


def _read_file(
    file: Path, uri: str, source_name: str, piece: int | None, report: Report
) -> Iterator[Document]:
    """Yield a file's documents: JSONL lines, pieces, or (`piece` None) the file as a whole."""
    origin = uri.split("/")[0] if "/" in uri else source_name
    with file.open("rb") as stream:
        head = stream.read(8192)
    if not head or b"\0" in head:
        report.n_empty += not head
        report.n_binary += b"\0" in head
        return
    is_jsonl = file.suffix.lower() == ".jsonl"
    # An escaped byte is one surrogate, so that replaced bytes can be counted exactly.
    with file.open(
        encoding="utf-8-sig", errors="surrogateescape", newline="\n" if is_jsonl else ""
    ) as lines:
        if is_jsonl:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    where = f"{uri}#line={number}"
                    yield Document(where, origin, _json_text(line, f"{uri}, line {number}"))
                else:
                    report.n_empty += 1
        elif piece is None:
            yield Document(uri, origin, lines.read())
        else:
            start = 0
            for text in _pieces(lines, piece):
                yield Document(f"{uri}#char={start},{start + len(text)}", origin, text)
                start += len(text)


def _pieces(stream: TextIO, least: int) -> Iterator[str]:
    """Cut a text after blank lines, or after four times `least` characters at a line's end.

    A line longer than that is cut anywhere, so that a file of one line needs no more memory.
    """
    lines: list[str] = []
    length = 0
    while line := stream.readline(4 * least):
        lines.append(line)
        length += len(line)
        if length >= 4 * least or (length >= least and line.isspace()):
            yield "".join(lines)
            lines, length = [], 0
    if lines:
        yield "".join(lines)


def _json_text(line: str, where: str) -> str:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else error
        raise DataError(f"{where} is not JSON: {reason}") from None
    if not isinstance(row, dict):
        raise DataError(f"{where} must be an object with a field 'text', not {line.strip()[:40]!r}")
    if not isinstance(row.get("text"), str):
        held = f"it holds {row['text']!r}" if "text" in row else f"its fields: {list(row)}"
        raise DataError(f"{where} must have a string in its field 'text'; {held}"[:300])
    return cast(str, row["text"])
