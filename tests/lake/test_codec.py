import math
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pico.errors import CorruptError, SchemaError
from pico.lake import codec
from pico.lake.codec import Tensor

DTYPES = sorted(codec._STORAGE)
SMALL_FLOATS = {"bfloat16": 16, "float16": 16, "float8_e4m3fn": 8, "float8_e5m2": 8}


def every_code(dtype: str) -> Tensor:
    n_codes = 1 << SMALL_FLOATS[dtype]
    return Tensor(dtype, (n_codes,), np.arange(n_codes).astype(codec.storage(dtype)))


def round_trip(tensor: Tensor, part_limit: int | None = None) -> Tensor:
    parts = list(codec.encode(tensor, part_limit))
    assert [part.part for part in parts] == list(range(len(parts)))
    assert {part.n_parts for part in parts} == {len(parts)}
    return codec.decode(
        parts[0].dtype, parts[0].shape, [p.value for p in parts], [p.raw for p in parts]
    )


def assert_identical(one: Tensor, other: Tensor) -> None:
    assert (one.dtype, one.shape) == (other.dtype, other.shape)
    assert one.data.dtype == other.data.dtype
    assert one.data.tobytes() == other.data.tobytes()
    assert one.content_hash == other.content_hash


@st.composite
def tensors(draw) -> Tensor:
    """Any bytes at all as a tensor: every NaN payload is among them."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5))
    kind = codec.storage(dtype)
    n_bytes = math.prod(shape) * kind.itemsize
    data = np.frombuffer(draw(st.binary(min_size=n_bytes, max_size=n_bytes)), np.uint8)
    if dtype == "bool":
        data = data % 2
    return Tensor(dtype, shape, data.view(kind))


@given(tensors())
def test_any_bytes_come_back(tensor):
    assert_identical(round_trip(tensor), tensor)


@given(tensors(), st.integers(1, 30))
def test_parts_rebuild_the_tensor(tensor, limit):
    if tensor.data.size > limit and tensor.data.size // tensor.shape[0] > limit:
        with pytest.raises(SchemaError, match="exceeds the limit"):
            list(codec.encode(tensor, limit))
        return
    parts = list(codec.encode(tensor, limit))
    assert all(part.value is None or part.value.size <= limit for part in parts)
    assert_identical(round_trip(tensor, limit), tensor)


@pytest.mark.parametrize("dtype", SMALL_FLOATS)
def test_every_code_comes_back(dtype):
    assert_identical(round_trip(every_code(dtype)), every_code(dtype))


@pytest.mark.parametrize("dtype", SMALL_FLOATS)
def test_every_code_is_widened_as_torch_does(dtype):
    torch = pytest.importorskip("torch")
    tensor = every_code(dtype)
    signed = torch.int16 if SMALL_FLOATS[dtype] == 16 else torch.int8
    codes = torch.from_numpy(tensor.data.view(f"i{SMALL_FLOATS[dtype] // 8}"))
    expected = codes.view(signed).view(getattr(torch, dtype)).float().numpy()
    (part,) = codec.encode(tensor)
    nan = np.isnan(expected)
    assert np.array_equal(np.isnan(part.value), nan)
    assert (
        nan.sum() == {"bfloat16": 254, "float16": 2046, "float8_e4m3fn": 2, "float8_e5m2": 6}[dtype]
    )
    assert np.array_equal(part.value.view(np.uint32)[~nan], expected.view(np.uint32)[~nan])
    assert part.raw is None


@pytest.mark.parametrize("dtype", SMALL_FLOATS)
def test_nan_payloads_stay_apart(dtype):
    (part,) = codec.encode(every_code(dtype))
    assert np.unique(part.value.view(np.uint32)).size == 1 << SMALL_FLOATS[dtype]


FLOAT32_BITS = {
    "quiet NaN": 0x7FC00001,
    "signalling NaN": 0x7F800001,
    "negative NaN": 0xFFABCDEF,
    "infinity": 0x7F800000,
    "-infinity": 0xFF800000,
    "-0.0": 0x80000000,
    "smallest denormal": 0x00000001,
    "largest denormal": 0x007FFFFF,
}


@pytest.mark.parametrize("bits", FLOAT32_BITS.values(), ids=FLOAT32_BITS)
def test_float32_is_stored_as_it_is(bits):
    tensor = Tensor("float32", (), np.array([bits], np.uint32).view(np.float32))
    (part,) = codec.encode(tensor)
    assert (part.value.view(np.uint32)[0], part.raw) == (bits, None)
    assert_identical(round_trip(tensor), tensor)


@pytest.mark.parametrize(
    ("array", "has_raw"),
    [
        (np.array([1.5, np.nan, -0.0, 1e300]), True),
        (np.array([1 << 24, -(1 << 24)], np.int64), False),
        (np.array([(1 << 24) + 1], np.int32), True),
        (np.array([-(1 << 24) - 1], np.int64), True),
        (np.array([0, 2**64 - 1], np.uint64), True),
        (np.array([0, 7], np.uint64), False),
        (np.array([-(2**63), 2**63 - 1]), True),
        (np.array([], np.int64), False),
        (np.array([], np.float64), True),
        (np.array([65535], np.uint16), False),
        (np.array([-128, 127], np.int8), False),
        (np.array([True, False]), False),
    ],
    ids=lambda item: str(item),
)
def test_raw_bytes_only_where_float32_is_not_exact(array, has_raw):
    (part,) = codec.encode(Tensor.of(array))
    assert (part.raw is not None) == has_raw
    with np.errstate(over="ignore"):
        assert np.array_equal(part.value, array.astype(np.float32), equal_nan=True)
    if has_raw:
        assert part.raw == array.tobytes()
    back = round_trip(Tensor.of(array)).to_numpy()
    assert back.dtype == array.dtype
    assert back.tobytes() == array.tobytes()


def test_complex_numbers_have_raw_bytes_alone():
    array = np.array([[1 + 2j, complex(np.nan, -0.0)]], np.complex64)
    (part,) = codec.encode(Tensor.of(array))
    assert part.value is None
    assert round_trip(Tensor.of(array)).to_numpy().tobytes() == array.tobytes()


def test_a_tensor_of_numpy_ignores_memory_order_and_byte_order():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    plain = Tensor.of(array)
    for other in (np.asfortranarray(array), array.astype(">f4"), np.repeat(array, 2, 1)[:, ::2]):
        assert_identical(Tensor.of(other), plain)
    assert Tensor.of(np.float32(3)).shape == ()


def test_the_hash_is_the_same_everywhere():
    program = (
        "import numpy as np; from pico.lake.codec import Tensor; "
        "print(Tensor.of(np.arange(6, dtype=np.float32).reshape(2, 3)).content_hash)"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.strip()
    tensor = Tensor.of(np.arange(6, dtype=np.float32).reshape(2, 3))
    plain = xxhash.xxh3_128_hexdigest(b"float32[2, 3]" + tensor.data.tobytes())
    assert found == tensor.content_hash == plain == "809507b88b2b8fec790fe62abb4c5872"
    shape = tuple(np.array([2, 3]))
    assert Tensor("float32", shape, tensor.data).content_hash == tensor.content_hash


def test_the_hash_covers_type_shape_and_bytes():
    zeros = np.zeros(4, np.uint32)
    hashes = [
        Tensor("uint32", (4,), zeros),
        Tensor("float32", (4,), zeros.view(np.float32)),
        Tensor("uint32", (2, 2), zeros),
        Tensor("uint32", (4,), np.array([0, 0, 0, 1], np.uint32)),
    ]
    assert len({tensor.content_hash for tensor in hashes}) == len(hashes)


@pytest.mark.parametrize(
    ("dtype", "shape", "value", "raw"),
    [
        ("float32", [3], [1.0, 2.0], None),
        ("float32", [-1, -2], [1.0, 2.0], None),
        ("float32", [0, -1], [], None),
        ("float32", [2**31 - 1] * 4, [1.0], None),
        ("float32", [2**16, 2**16, 2**16, 2**16], [], None),  # the product is 2^64
        ("float32", [1], None, None),
        ("float64", [1], [1.0], b"\0" * 7),
        ("float64", [2], [1.0], b"\0" * 8),
        ("float8_e4m3fn", [1], [1000.0], None),
        ("float8_e5m2", [1], [np.nan], None),  # float32's own NaN is none of the codes
        ("complex64", [1], None, b"\0" * 4),
    ],
)
def test_hostile_columns_are_corrupt(dtype, shape, value, raw):
    value = None if value is None else np.array(value, np.float32)
    if dtype == "float8_e5m2":
        value = np.array([0x7FC00001], np.uint32).view(np.float32)
    with pytest.raises(CorruptError) as caught:
        codec.decode(dtype, shape, [value], [raw])
    assert "\n" not in str(caught.value)


def test_damaged_integers_are_left_to_the_hash():
    value = np.array([np.nan, 1e30], np.float32)
    assert codec.decode("int32", [2], [value], [None]).data.size == 2


@pytest.mark.parametrize(
    "tensor",
    [
        Tensor("float32", (3,), np.zeros(2, np.float32)),
        Tensor("bfloat16", (2,), np.zeros(2, np.float32)),
        Tensor("float16", (1,), np.zeros(1, np.float16)),
    ],
)
def test_a_tensor_that_lies_about_itself_is_refused(tensor):
    with pytest.raises(SchemaError, match="are no"):
        list(codec.encode(tensor))


@pytest.mark.parametrize("dtype", ["float128", "bfloat", "", "object"])
def test_unknown_types_are_refused(dtype):
    with pytest.raises(SchemaError, match="stores no tensors of type"):
        codec.decode(dtype, [0], [np.zeros(0, np.float32)], [None])


@pytest.mark.parametrize("array", [np.array(["a"]), np.array([None]), np.zeros(1, "M8[s]")])
def test_arrays_that_are_no_tensors_are_refused(array):
    with pytest.raises(SchemaError, match="stores no tensors of type"):
        Tensor.of(array)


def test_small_floats_come_as_float32_arrays():
    halves = Tensor("float16", (2, 1), np.array([1.5, -2.0], np.float16).view(np.uint16))
    assert halves.to_numpy().dtype == np.float32
    assert halves.to_numpy().tolist() == [[1.5], [-2.0]]
    assert Tensor.of(np.array([True, False])).to_numpy().dtype == np.bool_


def test_float32_is_not_copied():
    tensor = Tensor.of(np.zeros((1024, 4096), np.float32))
    tracemalloc.start()
    try:
        (part,) = codec.encode(tensor)
        assert round_trip(tensor).data.nbytes == tensor.data.nbytes
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert np.shares_memory(part.value, tensor.data)
    assert peak < tensor.data.nbytes / 8
