"""Sizes at the ends: nothing, one number, more than 2^31 elements, more than the memory there is.

Each works or is a clear error of one line; the large ones are slow, and skip on small machines.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import pico
from pico.errors import QueryError
from pico.lake.codec import Tensor
from pico.lake.commit import Stream
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from pico.lake.table import TensorRow, write_tensors
from pico.metrics import registry
from pico.sql import session, statements, untrusted

GIB = 1 << 30
SHAPES = {"none": (0,), "no rows": (0, 5), "no columns": (5, 0), "number": (), "one": (1, 1, 1)}


def write(storage: Storage, tensors: dict[str, np.ndarray]) -> Storage:
    with Stream(storage, "train.r") as stream:
        transaction = stream.begin()
        rows = [TensorRow({"name": name}, Tensor.of(value)) for name, value in tensors.items()]
        write_tensors(transaction, "weights", {"run": "r", "step": 0}, rows)
        transaction.commit()
    return storage


def free_memory() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0
    found = dict(line.split(":") for line in lines)
    return int(found["MemAvailable"].split()[0]) << 10


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Storage:
    tensors = {name: np.full(shape, 2.5, np.float32) for name, shape in SHAPES.items()}
    tensors["double"] = np.array(0.1)
    return write(Storage(str(tmp_path_factory.mktemp("limits") / "lake")), tensors)


def test_tensors_of_no_elements_and_of_no_dimensions_come_back(small: Storage) -> None:
    found = {
        row.keys["name"]: row.tensor for row in Snapshot.take(small).tensors("weights", "r", 0)
    }
    assert {name: found[name].to_numpy().shape for name in SHAPES} == SHAPES
    assert found["number"].to_numpy() == np.float32(2.5)
    assert found["double"].to_numpy() == np.array(0.1)


def test_all_readers_show_their_shapes(small: Storage) -> None:
    sql = "SELECT name, shape, len(value) AS n FROM weights WHERE name != 'double'"
    wanted = {n: (list(shape), int(np.prod(shape))) for n, shape in SHAPES.items()}
    rows = pico.Lake(small.url).sql(sql).fetchall()
    assert {name: (shape, n) for name, shape, n in rows} == wanted
    frame = pico.Lake(small.url).scan("weights").collect().filter(name="no columns")
    assert frame["shape"].to_list() == [[5, 0]]
    assert frame["value"].to_list() == [[]]


@pytest.mark.parametrize("metric", registry.names())
def test_every_function_has_an_answer_for_them(small: Storage, metric: str) -> None:
    """A number, NaN or NULL as its docstring says, but no error."""
    pair = registry.get(metric).kind == "pair"
    call = f"{metric}(tensor, tensor)" if pair else f"{metric}(tensor)"
    for name in SHAPES:
        sql = f"SELECT {call} FROM weights WHERE name = '{name}'"
        try:
            rows = pico.Lake(small.url).sql(sql).fetchall()
        except Exception as error:  # a metric may refuse a shape, in words of its own
            assert "MetricError" in str(error), (name, error)
        else:
            assert len(rows) == 1


LARGE = (150, 1024, 512)
"""A tensor of 300 MB."""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Storage:
    if free_memory() < 4 * GIB:
        pytest.skip("a tensor of 300 MB needs 4 GB of free memory to be made and read")
    # Few different numbers, so that the file is small and quick to write.
    value = np.tile(np.arange(512, dtype=np.float32), LARGE[0] * LARGE[1]).reshape(LARGE)
    return write(Storage(str(tmp_path_factory.mktemp("large") / "lake")), {"w": value})


ASKED = {
    "len(value)": 78643200,
    "list_sum(value)": 150 * 1024 * 511 * 512 / 2,
    "gini(tensor) > 0": True,
}


@pytest.mark.slow
@pytest.mark.parametrize("call", ASKED)
def test_a_large_tensor_under_a_small_memory_limit(large: Storage, call: str) -> None:
    """DuckDB with 1 GB and a tensor of 300 MB: the answer, or one line that says what lacks."""
    connection = session.connect(Snapshot.take(large), threads=1, memory_limit="1GB")
    try:
        answer = statements.fetch(statements.query(connection, f"SELECT {call} FROM weights"))
    except QueryError as error:
        assert "Out of Memory" in str(error)
        assert "\n" not in str(error)
    else:
        assert answer.column(0).to_pylist() == [ASKED[call]]


CHILD = """
import resource, sys
sys.path[:0] = [{root!r}]
from pico.errors import PicoError
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
snapshot = Snapshot.take(Storage({url!r}))
import pyarrow.dataset
now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + {bytes}, now + {bytes}))
try:
    (row,) = snapshot.tensors("weights", "r", 0)
    print("read", row.tensor.data.size)
except PicoError as error:
    print("refused", error)
except MemoryError:
    print("no memory")
"""


@pytest.mark.slow
@pytest.mark.parametrize(("room", "said"), [(2 * GIB, "read 78643200"), (GIB // 4, "")])
def test_our_reader_takes_a_bounded_multiple_of_a_tensor(
    large: Storage, room: int, said: str
) -> None:
    if not Path("/proc/self/statm").exists():
        pytest.skip("how much address space a process has is read in /proc")
    script = CHILD.format(root=str(Path(pico.__file__).parents[1]), url=large.url, bytes=room)
    environment = {"ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "1", "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr[-500:]
    assert done.stdout.count("\n") == 1
    assert done.stdout.startswith(said or ("refused", "no memory"))


@pytest.mark.slow
def test_more_than_2_to_the_31_elements_in_one_answer(tmp_path: Path) -> None:
    """A column of lists with so many elements in all needs 64-bit offsets on the way to Arrow."""
    n_rows, n_each = 33, 1 << 26
    needed = n_rows * n_each * 2 * 2
    if free_memory() < needed + 4 * GIB:
        pytest.skip(f"an answer of 2^31 elements needs {needed / GIB + 4:.0f} GB of free memory")
    lake = write(Storage(str(tmp_path / "lake")), {"w": np.ones(2, np.float32)})
    connection = session.connect(Snapshot.take(lake), threads=1)
    one = pa.LargeListArray.from_arrays([0, n_each], np.full(n_each, 7, np.uint8))
    connection.register("one", pa.table({"big": one}))
    sql = f"SELECT one.big FROM one, range({n_rows})"
    found = statements.fetch(statements.query(connection, sql))
    assert sum(len(chunk.values) for chunk in found["big"].chunks) > 2**31
    assert pa.types.is_large_list(found.schema.field("big").type)


def test_an_untrusted_answer_beyond_its_limit_is_refused(small: Storage) -> None:
    with pytest.raises(QueryError, match="larger than the memory limit"):
        untrusted.run(
            Snapshot.take(small),
            "SELECT repeat('x', 100000) FROM range(2000)",
            memory_limit="100MB",
        )
