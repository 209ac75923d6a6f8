"""Seeded damage: the same seed gives the same mutated bytes, so that a case can be repeated.

`damaged` knows bytes, and where the footer of a Parquet file is; `rewritten` knows the tree of a
JSON or YAML document. Each applies one to three mutations.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import yaml

Random = np.random.Generator
_SPECIAL = (0, 1, 0x7F, 0x80, 0xFF)
_VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**63, -(2**64), 10**400, 0.5, 1e308, float("nan"),
    float("inf"), "", "x", "\x1b[31m", "\u202e", "\ud7ff", "0" * 3000, "../..", "list<float32>",
    [], [None], [[]], {}, {"name": None}, "2024-13-45", "null", "~",
)  # fmt: skip


def damaged(data: bytes, random: Random, other: bytes = b"") -> bytes:
    """Return damaged bytes.

    Args:
        data: a whole file.
        random: decides.
        other: another file, of which pieces may be put in.
    """
    for _ in range(int(random.integers(1, 4))):
        action = _ACTIONS[random.integers(len(_ACTIONS))]
        data = action(data, random, other or data)
    return data


def _place(data: bytes, random: Random) -> int:
    """Choose a place; every second time in what may be the footer of a Parquet file."""
    if len(data) > 12 and data[-4:] == b"PAR1" and random.random() < 0.5:
        length = struct.unpack("<I", data[-8:-4])[0]
        start = len(data) - 8 - length
        if 0 <= start < len(data):
            return int(random.integers(start, len(data)))
    return int(random.integers(max(len(data), 1)))


def _flip(data: bytes, random: Random, _: bytes) -> bytes:
    if not data:
        return data
    changed = bytearray(data)
    for _n in range(int(random.integers(1, 5))):
        changed[_place(data, random)] ^= 1 << int(random.integers(8))
    return bytes(changed)


def _set(data: bytes, random: Random, _: bytes) -> bytes:
    if not data:
        return data
    changed = bytearray(data)
    changed[_place(data, random)] = _SPECIAL[random.integers(len(_SPECIAL))]
    return bytes(changed)


def _truncate(data: bytes, random: Random, _: bytes) -> bytes:
    return data[: _place(data, random)]


def _splice(data: bytes, random: Random, other: bytes) -> bytes:
    at, start = _place(data, random), _place(other, random)
    piece = other[start : start + int(random.integers(1, 400))]
    return data[:at] + piece + data[at + len(piece) :]


def _insert(data: bytes, random: Random, other: bytes) -> bytes:
    at, start = _place(data, random), _place(other, random)
    return data[:at] + other[start : start + int(random.integers(1, 100))] + data[at:]


def _cut(data: bytes, random: Random, _: bytes) -> bytes:
    at = _place(data, random)
    return data[:at] + data[at + int(random.integers(1, 100)) :]


def _double(data: bytes, random: Random, _: bytes) -> bytes:
    at = _place(data, random)
    end = at + int(random.integers(1, 200))
    return data[:end] + data[at:]


def _zero(data: bytes, random: Random, _: bytes) -> bytes:
    at = _place(data, random)
    length = min(int(random.integers(1, 300)), len(data) - at)
    return data[:at] + bytes(length) + data[at + length :]


def _length(data: bytes, random: Random, _: bytes) -> bytes:
    """Say another length of the footer of a Parquet file; of other files, flip something."""
    if len(data) < 12 or data[-4:] != b"PAR1":
        return _flip(data, random, b"")
    length = struct.unpack("<I", data[-8:-4])[0]
    choices = (0, 1, length - 1, length + 1, length * 2, len(data), 2**31 - 1, 2**31, 2**32 - 1)
    wrong = choices[random.integers(len(choices))] % 2**32
    return data[:-8] + struct.pack("<I", wrong) + data[-4:]


_ACTIONS: tuple[Callable[[bytes, Random, bytes], bytes], ...] = (
    _flip, _flip, _flip, _set, _set, _truncate, _splice, _insert, _cut, _double, _zero, _length,
)  # fmt: skip


def rewritten(data: bytes, random: Random, language: str) -> bytes:
    """Return a JSON or YAML document with other values, keys or shape; or damaged bytes."""
    if random.random() < 0.4:
        return damaged(data, random)
    read, write = (json.loads, json.dumps) if language == "json" else (yaml.safe_load, _yaml)
    tree = read(data)
    for _ in range(int(random.integers(1, 4))):
        tree = _changed(tree, random)
    if random.random() < 0.02:
        depth = int(random.integers(50, 100_000))
        return b"[" * depth if random.random() < 0.5 else b'{"a":' * depth
    if language == "yaml" and random.random() < 0.03:
        return _laughs(random)
    return str(write(tree)).encode(errors="replace")


def _yaml(tree: Any) -> str:
    return str(yaml.safe_dump(tree, allow_unicode=True))


def _laughs(random: Random) -> bytes:
    """Return a document of a few lines that means billions of words."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    depth = int(random.integers(2, 20))
    for level in range(1, depth):
        inner = ", ".join([f"*a{level - 1}"] * 10)
        lines.append(f"a{level}: &a{level} [{inner}]")
    key = ("model", "seeds", "data", "max_steps", "record", "optimizer")[random.integers(6)]
    return "\n".join([*lines, f"{key}: *a{depth - 1}"]).encode()


def _changed(tree: Any, random: Random) -> Any:
    """Change one place of a tree."""
    if isinstance(tree, dict) and tree and random.random() < 0.85:
        key = list(tree)[random.integers(len(tree))]
        what = random.random()
        if what < 0.6:
            return {**tree, key: _changed(tree[key], random)}
        if what < 0.75:
            return {k: v for k, v in tree.items() if k != key}
        if what < 0.9:
            word = f"{key}x" if random.random() < 0.5 else str(_value(random))[:40]
            return {(word if k == key else k): v for k, v in tree.items()}
        return {**tree, str(_value(random))[:40]: _value(random)}
    if isinstance(tree, list) and tree and random.random() < 0.85:
        place = int(random.integers(len(tree)))
        what = random.random()
        if what < 0.6:
            return [*tree[:place], _changed(tree[place], random), *tree[place + 1 :]]
        if what < 0.8:
            return tree[:place] + tree[place + 1 :]
        return [*tree[:place], tree[place], *tree[place:]]
    return _value(random)


def _value(random: Random) -> Any:
    return _VALUES[random.integers(len(_VALUES))]
