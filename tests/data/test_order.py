"""The order of the training sequences: published answers, permutations, independence of the cut."""

import doctest
import subprocess
import sys
import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pico.data import order
from pico.data.order import SHUFFLED, VECTORS, VERSIONS, sequence_ids
from pico.errors import ConfigError, DataError


@pytest.mark.parametrize("vector", VECTORS)
def test_published_vectors(vector):
    assert sequence_ids(*vector[:5]) == list(vector.ids)


def test_mixer_is_splitmix64():
    # The first outputs that splitmix64's authors' C code gives for seeds 0 and 1234567.
    assert [order._draw(0, k) for k in range(3)] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]
    assert [order._draw(1234567, k) for k in range(2)] == [6457827717110365317, 3203168211198807973]


def reference(seed, positions, n):
    """`feistel-v1` from the text of its specification, over whole arrays of unsigned integers."""
    u = np.uint64

    def mix(z):
        z = (z ^ (z >> u(30))) * u(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> u(27))) * u(0x94D049BB133111EB)
        return z ^ (z >> u(31))

    def draw(state, k):  # k: an array, or an int
        if isinstance(k, np.ndarray):
            return mix(state + (k + u(1)) * u(0x9E3779B97F4A7C15))
        return mix(state + u((k + 1) * 0x9E3779B97F4A7C15 % 2**64))

    bits = (n - 1).bit_length()
    wide_low, wide_high = bits // 2, bits - bits // 2
    epoch = np.array([p // n for p in positions], dtype=np.uint64)
    x = np.array([p % n for p in positions], dtype=np.uint64)
    state = draw(draw(np.full(len(x), seed, dtype=np.uint64), 0), epoch)
    walking = np.ones(len(x), dtype=bool)
    while walking.any():
        high, low = x >> u(wide_low), x % u(2**wide_low)
        for r in range(24 if bits <= 8 else 8):
            key = draw(state, r)
            if r % 2 == 0:
                high = high ^ (mix(low ^ key) % u(2**wide_high))
            else:
                low = low ^ (mix(high ^ key) % u(2**wide_low))
        x = np.where(walking, high * u(2**wide_low) + low, x)
        walking = x >= n
    return x.tolist()


@given(
    seed=st.integers(0, 2**64 - 1),
    step=st.integers(0, 2**40),
    batch_size=st.integers(1, 64),
    n=st.one_of(st.integers(1, 300), st.integers(1, 2**63)),
)
def test_equals_the_specification(seed, step, batch_size, n):
    positions = range(step * batch_size, (step + 1) * batch_size)
    assert sequence_ids(SHUFFLED, seed, step, batch_size, n) == reference(seed, positions, n)


@given(n=st.integers(1, 3000), seed=st.integers(0, 2**64 - 1), epoch=st.integers(0, 2**40))
def test_every_epoch_is_a_permutation(n, seed, epoch):
    assert sorted(sequence_ids(SHUFFLED, seed, epoch, n, n)) == list(range(n))


@pytest.mark.parametrize("n", range(1, 70))
def test_small_data_sets_are_permuted(n):
    assert sorted(sequence_ids(SHUFFLED, 5, 3, n, n)) == list(range(n))


@given(
    name=st.sampled_from(VERSIONS),
    n=st.integers(1, 200),
    batch_size=st.integers(1, 50),
    n_epochs=st.integers(1, 4),
)
def test_nothing_lost_or_doubled_where_batches_straddle_epochs(name, n, batch_size, n_epochs):
    n_steps = -(-n * n_epochs // batch_size)
    seen = [i for step in range(n_steps) for i in sequence_ids(name, 9, step, batch_size, n)]
    for epoch in range(n_epochs):
        assert sorted(seen[epoch * n : (epoch + 1) * n]) == list(range(n))


@given(
    seed=st.integers(0, 2**32),
    step=st.integers(0, 1000),
    micro=st.integers(1, 8),
    parts=st.integers(1, 8),
    n=st.integers(1, 100),
)
def test_any_cut_of_the_batch_agrees_with_the_whole(seed, step, micro, parts, n):
    whole = sequence_ids(SHUFFLED, seed, step, micro * parts, n)
    # The same stretch of positions, asked for in smaller batches.
    cut = [sequence_ids(SHUFFLED, seed, step * parts + part, micro, n) for part in range(parts)]
    assert [i for ids in cut for i in ids] == whole


def test_epochs_and_seeds_differ():
    n = 1000
    orders = [sequence_ids(SHUFFLED, seed, epoch, n, n) for seed in range(4) for epoch in range(4)]
    for i, one in enumerate(orders):
        for other in orders[:i]:
            fixed = sum(a == b for a, b in zip(one, other, strict=True))
            assert fixed < 10  # 1 is expected of unrelated permutations


def test_permutations_of_five_are_equally_frequent():
    counts = Counter(tuple(sequence_ids(SHUFFLED, seed, 0, 5, 5)) for seed in range(12_000))
    expected = 100
    chi_squared = sum((count - expected) ** 2 / expected for count in counts.values())
    assert len(counts) == 120
    assert chi_squared < 119 + 5 * (2 * 119) ** 0.5


def test_shuffled_positions_do_not_correlate():
    n = 20_000
    ids = np.array(sequence_ids(SHUFFLED, 0, 0, n, n))
    assert abs(np.corrcoef(ids, np.arange(n))[0, 1]) < 5 / n**0.5
    assert abs(np.corrcoef(ids[1:], ids[:-1])[0, 1]) < 5 / n**0.5
    assert abs(np.corrcoef(ids[1:] % 2, ids[:-1] % 2)[0, 1]) < 5 / n**0.5


def test_memory_and_time_do_not_grow_with_the_data_set():
    start = time.perf_counter()
    ids = sequence_ids(SHUFFLED, 0, 2**40, 1024, 2**62 + 1)
    assert time.perf_counter() - start < 1.0
    assert len(set(ids)) == 1024
    assert all(0 <= i < 2**62 + 1 for i in ids)


def test_sequential():
    assert sequence_ids("sequential-v1", 123, 3, 4, 5) == [2, 3, 4, 0]


def test_batch_larger_than_the_data_set():
    ids = sequence_ids(SHUFFLED, 0, 0, 7, 3)
    assert sorted(ids[:3]) == sorted(ids[3:6]) == [0, 1, 2]


def test_numpy_integers_do_not_overflow():
    big = np.int64(2**40)
    assert sequence_ids(SHUFFLED, np.uint32(3), big, np.int32(4), np.int64(2**62)) == (
        sequence_ids(SHUFFLED, 3, 2**40, 4, 2**62)
    )


def test_another_process_agrees():
    code = "from pico.data.order import *; print(sequence_ids(SHUFFLED, 1, 2, 5, 100), end='')"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == str(sequence_ids(SHUFFLED, 1, 2, 5, 100))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("feistel", 0, 0, 1, 1), ConfigError, "Did you mean 'feistel-v1'"),
        (("", 0, 0, 1, 1), ConfigError, "no order ''. Known: feistel-v1"),
        ((SHUFFLED, -1, 0, 1, 1), ConfigError, "seed must be at least 0, not -1"),
        ((SHUFFLED, 2**64, 0, 1, 1), ConfigError, "below 2\\^64"),
        ((SHUFFLED, 0, -3, 1, 1), ConfigError, "step must be at least 0, not -3"),
        ((SHUFFLED, 0, 1.5, 1, 1), ConfigError, "step must be an integer, not 1.5"),
        ((SHUFFLED, 0, 0, 0, 1), ConfigError, "batch_size must be at least 1, not 0"),
        ((SHUFFLED, 0, 0, 1, 2.0), DataError, "n_sequences must be an integer, not 2.0"),
        ((SHUFFLED, 0, 0, 1, 0), DataError, "n_sequences must be at least 1, not 0"),
        ((SHUFFLED, 0, 0, 1, 2**63 + 1), DataError, "at most 2\\^63, not 9223372036854775809"),
    ],
)
def test_bad_arguments(arguments, error, message):
    with pytest.raises(error, match=message):
        sequence_ids(*arguments)


def test_examples_in_the_docstrings():
    assert doctest.testmod(order).failed == 0
