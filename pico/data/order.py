"""Which sequences a training step sees: a pure function of integers.

Called by the loader, and by anyone who wants to know what a step saw without reading the lake.
`sequence_ids` promises the same answer on every machine, whatever the size of the model, the
number of ranks, the micro-batch or the number of restarts, because it looks at its arguments and
at nothing else: no state, no generator, no floats. Each epoch holds every sequence once, epochs are
ordered independently, a batch may straddle two epochs, and time and memory are O(batch).

A name in `VERSIONS` never changes its meaning; another algorithm gets another name. `VECTORS`
holds published answers, so that an implementation in another language can be checked.

`sequential-v1`: position p (`step * batch_size + i`) shows sequence p mod n.

`feistel-v1`: sequence π(p mod n), where π permutes [0, n), keyed by the seed and the epoch p div n.
All arithmetic is modulo 2^64:

    mix(z)       = the output function of splitmix64: z ^= z >> 30;  z *= 0xBF58476D1CE4E5B9;
                   z ^= z >> 27;  z *= 0x94D049BB133111EB;  z ^= z >> 31
    draw(s, k)   = mix(s + (k + 1) * 0x9E3779B97F4A7C15), splitmix64's output k from state s
    key[r]       = draw(draw(draw(seed, 0), epoch), r)                 for r = 0, 1, 2, …

    Let b be the number of bits of n - 1. An index x of b bits is cut into a high part of
    b - b div 2 bits and a low part of b div 2 bits. Eight rounds follow, or 24 if b ≤ 8, where a
    round has so few outcomes that eight of them favour some permutations:
        even r:  high ^= mix(low  ^ key[r]), cut to the high part's width
        odd r:   low  ^= mix(high ^ key[r]), cut to the low part's width
    An outcome of n or more is put through all rounds again until it is below n ("cycle walking";
    fewer than two passes are needed on average, as 2^b < 2 n).

Every round undoes itself, so this is a permutation whatever `mix` is; how well it shuffles is what
depends on `mix`. References: Luby and Rackoff 1988 (Feistel permutations); Black and
Rogaway 2002 (arbitrary finite domains); Steele, Lea and Flood 2014 (splitmix64).
"""

from __future__ import annotations

import operator
from typing import Final, NamedTuple

from pico.errors import ConfigError, DataError, did_you_mean

__all__ = ["SHUFFLED", "VECTORS", "VERSIONS", "Vector", "sequence_ids"]

SHUFFLED: Final = "feistel-v1"
"""The shuffled order that new runs use."""

VERSIONS: Final = (SHUFFLED, "sequential-v1")
"""Every order that can be asked for by name."""

_MASK: Final = (1 << 64) - 1
_GAMMA: Final = 0x9E3779B97F4A7C15
_LARGEST: Final = 1 << 63  # sequence ids are stored as INT64


class Vector(NamedTuple):
    """One published answer of `sequence_ids`: its arguments and what it returns."""

    order: str
    seed: int
    step: int
    batch_size: int
    n_sequences: int
    ids: tuple[int, ...]


VECTORS: Final = (
    Vector("sequential-v1", 0, 2, 4, 10, (8, 9, 0, 1)),
    Vector("feistel-v1", 0, 0, 10, 10, (0, 9, 4, 7, 1, 3, 6, 8, 5, 2)),
    Vector("feistel-v1", 42, 1, 6, 10, (1, 9, 4, 7, 0, 8)),
    Vector("feistel-v1", 0, 0, 8, 1000, (911, 371, 103, 914, 626, 606, 395, 633)),
    Vector("feistel-v1", 0, 125, 8, 1000, (437, 40, 362, 384, 268, 452, 90, 991)),
    Vector("feistel-v1", 1, 0, 8, 1000, (781, 465, 756, 204, 196, 363, 478, 608)),
    Vector(
        "feistel-v1",
        18446744073709551615,
        1099511627776,
        4,
        16384000,
        (12390324, 13825255, 10767102, 13866317),
    ),
    Vector(
        "feistel-v1",
        1234,
        143000,
        4,
        9223372036854775808,
        (5442560756500327218, 1144921489683072161, 3876327634262830941, 7843805292139556443),
    ),
    Vector("feistel-v1", 7, 5, 4, 1, (0, 0, 0, 0)),
)
"""Published answers; the third straddles an epoch, the last but one uses the largest data set."""


def sequence_ids(order: str, seed: int, step: int, batch_size: int, n_sequences: int) -> list[int]:
    """Return the ids of the sequences that a step's batch holds, in the order of the batch.

        ids[i] = π(p mod n),  p = step * batch_size + i,  n = n_sequences

    Ranks and micro-batches are slices of this list: how it is cut changes nothing about it.

    Args:
        order: one of `VERSIONS`.
        seed: 0 ≤ seed < 2^64; `sequential-v1` ignores it.
        step: number of optimizer updates already applied, 0 or more.
        batch_size: sequences of one optimizer step, over all ranks and micro-batches.
        n_sequences: sequences in the data set, 1 ≤ n ≤ 2^63.

    Returns:
        `batch_size` ids in [0, n_sequences). A batch larger than the data set repeats ids, each
        epoch complete before the next begins.

    Raises:
        ConfigError: unknown order, or a seed, step or batch size out of range.
        DataError: the data set has no sequence, or more than 2^63.

    Example:
        >>> sequence_ids("sequential-v1", seed=0, step=1, batch_size=4, n_sequences=6)
        [4, 5, 0, 1]
        >>> sorted(sequence_ids("feistel-v1", seed=0, step=0, batch_size=6, n_sequences=6))
        [0, 1, 2, 3, 4, 5]

    References:
        The module's docstring states the algorithms in full.
    """
    if order not in VERSIONS:
        raise ConfigError(
            f"no order {order!r}.{did_you_mean(str(order), VERSIONS)} Known: {', '.join(VERSIONS)}"
        )
    seed, step = _integer("seed", seed, 0), _integer("step", step, 0)
    batch_size = _integer("batch_size", batch_size, 1)
    n = _integer("n_sequences", n_sequences, 1, DataError)
    if seed > _MASK:
        raise ConfigError(f"seed must be below 2^64, not {seed}; keep 64 bits of it")
    if n > _LARGEST:
        raise DataError(f"n_sequences must be at most 2^63, not {n}; ids are stored as INT64")
    first = step * batch_size
    stop = first + batch_size
    ids: list[int] = []
    while first < stop:
        epoch, start = divmod(first, n)
        end = min(n, start + stop - first)
        if order == SHUFFLED:
            ids += _shuffled(seed, epoch, start, end, n)
        else:
            ids += range(start, end)
        first += end - start
    return ids


def _integer(
    name: str, value: int, smallest: int, error: type[ConfigError | DataError] = ConfigError
) -> int:
    """Return `value` as a Python int: numpy's would overflow in silence."""
    try:
        number = operator.index(value)
    except TypeError:
        raise error(f"{name} must be an integer, not {value!r}") from None
    if number < smallest:
        raise error(f"{name} must be at least {smallest}, not {number}")
    return number


def _mix(z: int) -> int:
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK
    return z ^ (z >> 31)


def _draw(state: int, k: int) -> int:
    """Return output k of splitmix64 started from `state`."""
    return _mix((state + (k + 1) * _GAMMA) & _MASK)


def _shuffled(seed: int, epoch: int, start: int, end: int, n: int) -> list[int]:
    """Return π(start) … π(end - 1) of one epoch of `feistel-v1`."""
    state = _draw(_draw(seed, 0), epoch)
    bits = (n - 1).bit_length()
    keys = [_draw(state, r) for r in range(24 if bits <= 8 else 8)]
    pairs = list(zip(keys[0::2], keys[1::2], strict=True))
    width = bits // 2
    low_mask, high_mask = (1 << width) - 1, (1 << (bits - width)) - 1
    ids = []
    for x in range(start, end):
        while True:
            high, low = x >> width, x & low_mask
            for even, odd in pairs:
                high ^= _mix(low ^ even) & high_mask
                low ^= _mix(high ^ odd) & low_mask
            x = high << width | low
            if x < n:
                break
        ids.append(x)
    return ids
