"""The registry: names, errors, one spectrum for all; and what every public function promises."""

import doctest
import inspect
import math

import numpy as np
import pytest

import pico.metrics
from pico.errors import MetricError
from pico.metrics import arrays, components, compute, get, names
from pico.metrics import registry as registry_module

SINGLE = names("tensor") + names("spectrum")
MATRICES = {
    "random": np.random.default_rng(0).standard_normal((12, 17)),
    "float32": np.random.default_rng(1).standard_normal((30, 8)).astype(np.float32),
    "rank 3, rounded": (
        np.random.default_rng(3).standard_normal((20, 3))
        @ np.random.default_rng(4).standard_normal((3, 20))
    ).astype(np.float32),
    "zeros": np.zeros((5, 4)),
    "constant": np.full((8, 8), 2.5, dtype=np.float32),
    "nan": np.full((3, 3), math.nan),
    "row": np.arange(1.0, 6.0)[None, :],
    "four dimensions": np.random.default_rng(2).standard_normal((4, 3, 2, 2)),
}


def test_names_are_the_public_functions():
    functions = set(pico.metrics.__all__) - {
        "compute",
        "compute_many",
        "get",
        "names",
        "spectra",
        "spectrum",
    }
    assert set(names()) | set(components.names()) == functions
    assert not set(names()) & set(components.names())
    assert names() == tuple(sorted(names()))
    assert sorted(names("tensor") + names("spectrum") + names("pair")) == list(names())


def test_metrics_say_what_they_take_and_which_version_they_are():
    assert {get(name).kind for name in names()} == {"tensor", "spectrum", "pair"}
    assert all(get(name).version == 1 for name in names())
    assert not get("gini").needs_matrix
    assert get("per").needs_matrix
    assert get("cka").needs_matrix
    assert get("per").summary.startswith("Proportional effective rank")


def test_an_unknown_name_is_answered_with_the_nearest():
    message = "no metric 'ginni'. Did you mean 'gini'? List them: pico metrics list"
    with pytest.raises(MetricError) as caught:
        get("ginni")
    assert str(caught.value) == message
    with pytest.raises(MetricError, match=r"^no metric 'xyz'\. List them"):
        compute(np.eye(2), ["gini", "xyz"])


@pytest.mark.parametrize("matrix", MATRICES)
def test_compute_equals_the_single_functions(matrix):
    array = MATRICES[matrix]
    values = compute(array, SINGLE)
    assert list(values) == list(SINGLE)
    for name, value in values.items():
        assert type(value) is float
        np.testing.assert_equal(value, getattr(pico.metrics, name)(array))


def test_compute_takes_one_spectrum_for_all(monkeypatch):
    calls = []
    original = registry_module.spectra
    monkeypatch.setattr(registry_module, "spectra", lambda x: calls.append(1) or original(x))
    compute(np.eye(4), SINGLE)
    assert len(calls) == 1
    compute(np.ones(4), [name for name in names("tensor") if not get(name).needs_matrix])
    assert len(calls) == 1


def test_many_tensors_give_what_each_gives_alone():
    """Wide, tall, of one size and of several, near-singular, zero and not finite in one call."""
    rng = np.random.default_rng(3)
    tensors = [rng.standard_normal(shape) for shape in ((4, 9), (9, 4), (4, 4), (6, 7), (2, 4, 3))]
    singular = np.outer(np.arange(4.0), np.ones(4))
    tensors += [singular, np.zeros((4, 4)), np.full((4, 5), np.nan), np.empty((0, 4))]
    found = registry_module.compute_many(tensors, SINGLE)
    for tensor, values in zip(tensors, found, strict=True):
        alone = compute(tensor, SINGLE)
        for name in SINGLE:
            np.testing.assert_allclose(values[name], alone[name], rtol=1e-12, err_msg=name)
    assert registry_module.compute_many([], SINGLE) == []
    assert registry_module.compute_many([np.eye(2)] * 2, []) == [{}, {}]


def test_compute_edges():
    assert compute(np.eye(2), []) == {}
    assert compute(np.eye(2), "nuclear_norm") == {"nuclear_norm": 2.0}
    assert compute([3.0, -4.0], ["frobenius_norm"]) == {"frobenius_norm": 5.0}
    with pytest.raises(MetricError, match="need a matrix"):
        compute([1.0, 2.0], ["gini", "per"])
    with pytest.raises(MetricError, match=r"call pico.metrics.cka\(x, y\)"):
        compute(np.eye(2), ["gini", "cka"])


@pytest.mark.parametrize("matrix", MATRICES)
@pytest.mark.parametrize("on_host", [True, False])
def test_torch_gives_what_numpy_gives(monkeypatch, matrix, on_host):
    torch = pytest.importorskip("torch")
    array = MATRICES[matrix]
    expected = compute(array, SINGLE)
    tensor = torch.from_numpy(array).requires_grad_()
    if not on_host:
        monkeypatch.setattr(arrays, "_lies_in_host_memory", lambda array: False)
    tolerance = 0.0 if on_host else 1e-10
    for name, value in compute(tensor, SINGLE).items():
        np.testing.assert_allclose(
            value, expected[name], rtol=tolerance, atol=0.0 if on_host else 1e-14, err_msg=name
        )


def test_bfloat16_tensors_are_widened_first():
    torch = pytest.importorskip("torch")
    narrow = torch.randn(20, 9, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    assert compute(narrow, SINGLE) == compute(narrow.float().numpy(), SINGLE)


def test_inputs_are_not_written_to():
    array = np.random.default_rng(0).standard_normal((6, 5))
    array.flags.writeable = False  # as arrays that share memory with a Parquet reader are
    before = array.copy()
    compute(array, SINGLE)
    pico.metrics.cka(array, array)
    np.testing.assert_array_equal(array, before)


def test_a_metric_of_ones_own_joins_and_a_taken_name_is_refused(monkeypatch):
    monkeypatch.setattr(registry_module, "_METRICS", dict(registry_module._METRICS))

    @registry_module.register("tensor", version=3)
    def mean_square(array):
        """Mean of the squares."""
        return float(np.mean(np.square(array)))

    assert compute([[3.0, 4.0]], ["mean_square"]) == {"mean_square": 12.5}
    assert get("mean_square").version == 3
    assert get("mean_square").summary == "Mean of the squares."
    with pytest.raises(MetricError, match="'mean_square' is registered already"):
        registry_module.register("tensor")(mean_square)


@pytest.mark.parametrize("name", pico.metrics.__all__)
def test_every_public_function_is_documented_and_its_examples_run(name):
    function = getattr(pico.metrics, name)
    text = inspect.getdoc(function)
    headings = ["Args:", "Returns:", "Edge cases:", "Example:"]
    positions = [text.find(heading) for heading in headings]
    assert -1 not in positions
    assert positions == sorted(positions)
    module = inspect.getmodule(function)
    tests = doctest.DocTestFinder(recurse=False).find(function, name, globs=dict(vars(module)))
    assert tests[0].examples
    assert doctest.DocTestRunner().run(tests[0]).failed == 0


def test_the_examples_of_the_door_run():
    assert doctest.testmod(arrays).failed == 0
