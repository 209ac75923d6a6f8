"""Turns text into token ids: a byte-level BPE trained here, or a given `tokenizer.json`.

Called by the loader and by whatever decodes ids again (samples, `vocab`). Needs the package
`tokenizers` (extra `train`), imported only when a `Tokenizer` is made. Promises:

- `train` gives the same bytes for the same texts, whatever the machine's number of threads;
- a trained tokenizer loses nothing: `decode(encode(text)) == text` for every text;
- text never yields the end-of-text token, even where the text spells it: it marks documents' ends
  and nothing else. Truncation, padding, added beginnings and BPE dropout that a given file asks
  for are switched off, as they would lose or invent tokens in silence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import xxhash

from pico.errors import ConfigError, DataError, MissingExtraError, one_line

__all__ = ["END_OF_TEXT", "Tokenizer", "load", "train"]

END_OF_TEXT: Final = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]")
"""Names under which the end-of-text token of a given tokenizer is looked for, in this order."""

_SMALLEST: Final = 257  # 256 bytes and the end of text
_BATCH: Final = 1 << 20  # characters encoded at a time, so that a stream of texts stays a stream
_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Tokenizer:
    """A tokenizer and what a data set needs to know of it; `train` and `load` make one."""

    name: str
    """Stable name, `<model>-<size>-<8 hex digits of its content's hash>`: fits `tokenizer=`."""
    vocab_size: int
    """Largest token id plus one: the rows that an embedding needs."""
    end_of_text: int
    """Id of the token that ends every document."""

    def __init__(self, text: str, source: str = "the tokenizer") -> None:
        """Read the text of a `tokenizer.json`; errors call it `source`."""
        layout = _parse(text, source)
        self._json = text
        self._backend = _backend(text, source)
        self._ids: dict[str, int] = self._backend.get_vocab(with_added_tokens=True)
        self._added = {token["content"] for token in layout.get("added_tokens") or ()}
        steps = [layout.get(step) for step in ("normalizer", "pre_tokenizer", "decoder")]
        self._byte_level = '"ByteLevel"' in json.dumps(steps)
        if not self._ids:
            raise DataError(f"{source} has an empty vocabulary; give a trained tokenizer.json")
        known = [self._ids[name] for name in END_OF_TEXT if name in self._ids]
        if not known:
            raise DataError(
                f"{source} has no end-of-text token; add one of {', '.join(END_OF_TEXT)} to its "
                "added_tokens, or give no tokenizer, and one is trained"
            )
        self.end_of_text = known[0]
        self.vocab_size = max(self._ids.values()) + 1
        self.name = f"{_kind(layout)}-{self.vocab_size}-{_digest(layout)}"

    @classmethod
    def from_json(cls, text: str) -> Tokenizer:
        """Return the tokenizer whose `to_json` gave `text`; it has the same name."""
        return cls(text)

    def to_json(self) -> str:
        """Return the text of its `tokenizer.json`, which any Hugging Face tool reads."""
        return self._json

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, on all cores; no end-of-text token among them."""
        encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def encode_stream(self, texts: Iterable[str]) -> Iterator[list[int]]:
        """Yield the token ids of each text in turn, about a million characters at a time."""
        batch: list[str] = []
        length = 0
        for text in texts:
            batch.append(text)
            length += len(text)
            if length >= _BATCH:
                yield from self.encode_batch(batch)
                batch, length = [], 0
        yield from self.encode_batch(batch)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, end-of-text tokens spelled out.

        Bytes that are not UTF-8 (a cut character) become U+FFFD; ids without a token are left out.
        """
        return str(self._backend.decode([int(i) for i in ids], skip_special_tokens=False))

    def token_bytes(self) -> list[bytes]:
        """Return the bytes that each id stands for, `vocab_size` of them.

        Exact for a byte-level tokenizer: joined over `encode(text)` they are the text in UTF-8. For
        other kinds, `▁` is read as a space and `<0xNN>` as a byte, and the rest as it is spelled.
        An id without a token has no bytes.
        """
        found = [b""] * self.vocab_size
        characters = _byte_of_character()
        for token, i in self._ids.items():
            if token in self._added:
                found[i] = token.encode()
            elif self._byte_level and characters.keys() >= set(token):
                found[i] = bytes(characters[character] for character in token)
            elif byte := _BYTE_TOKEN.fullmatch(token):
                found[i] = bytes.fromhex(byte[1])
            else:
                found[i] = token.replace("\u2581", " ").encode()
        return found


def train(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE; the end-of-text token `<|endoftext|>` has id 0.

    Args:
        texts: the training documents, and no held-out ones; read once.
        vocab_size: tokens to aim at, at least 257 (the bytes and the end of text). A short text
            has fewer pairs to merge and gives a smaller vocabulary: see `Tokenizer.vocab_size`.

    Raises:
        ConfigError: `vocab_size` is below 257.
        MissingExtraError: `tokenizers` is not installed.

    Example:
        >>> tokenizer = train(["low lower lowest"] * 9, vocab_size=260)
        >>> tokenizer.decode(tokenizer.encode_batch(["slow 日"])[0]), tokenizer.end_of_text
        ('slow 日', 0)

    References:
        Sennrich, Haddow and Birch 2016 (BPE); Radford et al. 2019 (over bytes).
    """
    if vocab_size < _SMALLEST:
        raise ConfigError(
            f"vocab_size must be at least {_SMALLEST}, not {vocab_size}: "
            "256 bytes and the end of text"
        )
    package = _import()
    byte_level = package.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend = package.Tokenizer(package.models.BPE())
    backend.pre_tokenizer = byte_level
    backend.decoder = package.decoders.ByteLevel()
    trainer = package.trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT[0]],
        initial_alphabet=sorted(byte_level.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(iter(texts), trainer)
    return Tokenizer(backend.to_str())


def load(path: str | Path) -> Tokenizer:
    """Read a `tokenizer.json` as Hugging Face's `tokenizers` writes it.

    Raises:
        DataError: with the file's name: it cannot be read, is no tokenizer, or has no vocabulary or
            end-of-text token.
        MissingExtraError: `tokenizers` is not installed.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise DataError(f"tokenizer file {path} is not UTF-8; give a tokenizer.json") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"cannot read tokenizer file {path}: {reason}") from None
    return Tokenizer(text, f"tokenizer file {path}")


def _import() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise MissingExtraError("tokenizers", "train") from None
    return tokenizers


def _parse(text: str, source: str) -> dict[str, Any]:
    try:
        layout = json.loads(text)
    except (ValueError, RecursionError):
        raise DataError(f"{source} is not JSON; give a tokenizer.json") from None
    if not isinstance(layout, dict) or not isinstance(layout.get("model"), dict):
        raise DataError(f"{source} has no 'model'; give a tokenizer.json of the tokenizers library")
    return layout


def _backend(text: str, source: str) -> Any:
    """Return the library's tokenizer, without what would lose or invent tokens."""
    package = _import()
    try:
        backend = package.Tokenizer.from_str(text)
    except BaseException as error:  # the library raises nothing narrower, and panics beside it
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise DataError(f"{source} is no tokenizer: {one_line(error)}") from None
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = True  # spelled in a text, they are text
    if getattr(backend.model, "dropout", None) is not None:
        backend.model.dropout = None
    return backend


def _kind(layout: dict[str, Any]) -> str:
    return re.sub(r"[^a-z]", "", str(layout["model"].get("type", "")).lower()) or "bpe"


def _digest(layout: dict[str, Any]) -> str:
    """Hash what the file says, not how it is indented, so that a reformatted copy is the same."""
    canonical = json.dumps(layout, sort_keys=True, separators=(",", ":"))
    return xxhash.xxh3_64_hexdigest(canonical.encode())[:8]


def _byte_of_character() -> dict[str, int]:
    """Return GPT-2's map from the characters that byte-level tokens are spelled in to bytes.

    A byte that prints in Latin-1 is spelled as itself, the other 68 as U+0100, U+0101, …
    """
    prints = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in prints]
    spelled = {chr(byte): byte for byte in prints}
    return spelled | {chr(0x100 + i): byte for i, byte in enumerate(others)}
