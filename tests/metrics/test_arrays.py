"""The door: what comes in, in which library it is computed, and what is refused."""

import subprocess
import sys

import numpy as np
import pytest

from pico.errors import MetricError
from pico.metrics import arrays


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "int64", "bool", ">f4"])
def test_numpy_types_widen_exactly(dtype):
    array = np.asarray([[0, 1], [1, 0]]).astype(dtype)
    _, x = arrays.as_float64(array)
    assert x.dtype == np.float64
    np.testing.assert_array_equal(x, array.astype(np.float64))


def test_a_float64_array_is_not_copied():
    array = np.ones((3, 4))
    _, x = arrays.as_float64(array)
    assert np.shares_memory(x, array)


@pytest.mark.parametrize("bad", [np.ones(3, np.complex64), ["1.5"], [object()], [None]])
def test_what_is_no_real_number_is_refused(bad):
    with pytest.raises(MetricError):
        arrays.as_float64(bad)


@pytest.mark.parametrize("name", ["bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"])
def test_narrow_torch_types_widen_exactly(name):
    torch = pytest.importorskip("torch")
    tensor = torch.asarray([0.5, -1.75, 448.0, 0.0]).to(getattr(torch, name))
    _, x = arrays.as_float64(tensor)
    np.testing.assert_array_equal(x, tensor.to(torch.float64).numpy())


def test_a_tensor_that_requires_grad_is_taken_without_a_warning():
    torch = pytest.importorskip("torch")
    parameter = torch.nn.Parameter(torch.ones(2, 2))
    xp, x = arrays.as_float64(parameter)
    assert isinstance(x, np.ndarray)
    assert xp.sum(x) == 4.0


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [("float16", 2**-24), ("float32", 2**-24), ("float64", 2**-53), ("int32", 2**-53)],
)
def test_roundoff_follows_the_stored_type(dtype, expected):
    assert arrays.roundoff(np.ones(2, dtype=dtype)) == expected
    torch = pytest.importorskip("torch")
    assert arrays.roundoff(torch.ones(2, dtype=getattr(torch, dtype))) == expected


def test_roundoff_of_bfloat16_is_that_of_the_lake_which_widens_it():
    torch = pytest.importorskip("torch")
    assert arrays.roundoff(torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16))) == 2**-24
    assert arrays.roundoff([[1.0, 2.0]]) == 2**-53


@pytest.mark.parametrize("magnitude", [1.0, 1.5, 2.0, 1e-300, 5e-324, 1.7e308, 0.1])
def test_power_of_two_is_the_largest_not_above(magnitude):
    power = arrays.power_of_two(magnitude)
    assert power <= magnitude
    assert magnitude / power < 2.0
    assert np.frexp(power)[0] == 0.5


def test_metrics_of_numpy_arrays_load_no_torch():
    code = (
        "import sys, numpy, pico.metrics as m;"
        "m.compute(numpy.eye(3), m.names('tensor') + m.names('spectrum'));"
        "m.cka(numpy.eye(3), numpy.eye(3)); m.spectrum(numpy.eye(3));"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "False", done.stderr
