"""Metrics and components of a user's own: what they get, what they may return, what is refused."""

import math
import sys

import duckdb
import numpy as np
import pytest

import pico
from pico.errors import MetricError
from pico.metrics import components, compute, get, names, own, registry
from pico.sql import functions

pytestmark = pytest.mark.usefixtures("fresh")


def test_one_tensor():
    @pico.metric
    def mean_square(tensor):
        """Mean of the squares.

        More of it.
        """
        return np.mean(np.square(tensor))

    assert mean_square(np.asarray([3.0, 4.0])) == 12.5  # the decorator leaves the function alone
    assert compute([[3.0, 4.0]], ["mean_square", "gini"])["mean_square"] == 12.5
    metric = get("mean_square")
    assert (metric.kind, metric.version, metric.summary) == ("tensor", 1, "Mean of the squares.")
    assert not metric.needs_matrix and not metric.on_request
    assert "mean_square" in names("tensor")


def test_matrices_spectra_and_pairs(monkeypatch):
    @pico.metric(of="matrix", version=7)
    def corner(matrix):
        return matrix[0, 0]

    @pico.metric(of="spectrum")
    def second_value(singular_values):
        return singular_values[1]

    @pico.metric
    def gap(x, y, *, scale=1.0, k=2):
        return scale * (x - y).max() + k

    @pico.metric(of="matrix")
    def apart(x, y):
        return 0

    calls = []
    spectra = registry.spectra
    monkeypatch.setattr(registry, "spectra", lambda x: calls.append(1) or spectra(x))
    values = compute(np.diag([5.0, 3.0, 4.0]), ["corner", "second_value", "per", "spectral_norm"])
    assert (values["corner"], values["second_value"], len(calls)) == (5.0, 4.0, 1)
    assert get("corner").needs_matrix and get("corner").version == 7
    assert (get("gap").kind, get("gap").arguments) == ("pair", {"scale": 1.0, "k": 2})
    assert get("gap").function(np.ones(2), np.zeros(2), scale=3.0) == 5.0
    assert not get("gap").needs_matrix and get("apart").needs_matrix


def test_arrays_are_float64_in_host_memory_and_cannot_be_written_to():
    seen = []

    @pico.metric
    def look(tensor):
        seen.append(tensor)
        return 0

    @pico.metric
    def write(tensor):
        tensor[0] = 1.0
        return 0

    torch = pytest.importorskip("torch")
    for array in (np.ones(2, np.float32), torch.ones(2, dtype=torch.bfloat16), [1, 1]):
        compute(array, ["look"])
        assert isinstance(seen[-1], np.ndarray) and seen[-1].dtype == np.float64
    given = np.zeros(3)
    with pytest.raises(
        MetricError, match=r"metric 'write' failed .*\(3,\): ValueError: .*read-only"
    ):
        compute(given, ["write"])
    assert given.flags.writeable and not given.any()


@pytest.mark.parametrize(
    "value", [1, 2.5, np.float32(3), np.asarray(4.0), True, math.nan, math.inf]
)
def test_numbers(value):
    @pico.metric
    def given_back(tensor):
        return value

    found = compute([1.0], ["given_back"])["given_back"]
    assert type(found) is float
    np.testing.assert_equal(found, float(value))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "None"),
        ("text", "'text'"),
        (1j, "1j"),
        (np.ones(2), r"a ndarray of shape \(2,\) and type float64"),
        ([1.0], r"\[1.0\]"),
        ("x\n" * 100, "a str"),
    ],
)
def test_what_is_no_number_is_told(value, shown):
    @pico.metric
    def odd(tensor):
        return value

    with pytest.raises(MetricError, match=rf"^metric 'odd' returned {shown}, not a number$"):
        compute([1.0], ["odd"])


@pytest.mark.parametrize("error", [ZeroDivisionError("two\nlines"), SystemExit(3), KeyError("k")])
def test_an_exception_names_the_metric_in_one_line(error):
    @pico.metric
    def failing(x, y):
        raise error

    with pytest.raises(MetricError) as caught:
        get("failing").function(np.ones((2, 3)), np.ones(2))
    message = str(caught.value)
    wanted = "metric 'failing' failed for a tensor of shape (2, 3) and (2,): "
    assert message.startswith(wanted + type(error).__name__) and "\n" not in message


def test_an_error_of_pico_is_passed_on():
    @pico.metric
    def uses_per(tensor):
        return pico.metrics.per(tensor)

    with pytest.raises(MetricError, match="need a matrix"):
        compute([1.0], ["uses_per"])


def defined(name, version=1, of="tensor", function=lambda tensor: 0.0):
    function.__name__ = name
    return pico.metric(of=of, version=version)(function)


@pytest.mark.parametrize("name", [row["name"] for row in functions.functions()])
def test_no_function_of_sql_here_can_be_replaced(name):
    for decorator in (pico.metric, pico.component):
        with pytest.raises(MetricError, match=f"{name!r} is registered already; choose another"):
            function = lambda tensor: tensor  # noqa: E731
            function.__name__ = name
            decorator(function)


@pytest.mark.parametrize("name", ["kurtosis", "mean", "concat", "entropy", "sum", "read_parquet"])
def test_functions_of_duckdb_cannot_be_replaced(name):
    rows = duckdb.sql(f"FROM duckdb_functions() WHERE function_name = '{name}'").fetchall()
    assert rows
    with pytest.raises(
        MetricError, match=rf"^metric '{name}' has a name that DuckDB's SQL has for"
    ):
        defined(name)


@pytest.mark.parametrize("name", ["select", "Big", "_hidden", "a-b", "2d", "<lambda>", "ä"])
def test_names_that_sql_does_not_take_are_refused(name):
    with pytest.raises(MetricError, match=r"choose another|needs another name"):
        defined(name)
    assert name not in names()


def test_duplicates_are_refused_across_metrics_and_components():
    defined("mine")
    with pytest.raises(MetricError, match="metric 'mine' is registered already"):
        defined("mine", version=2)
    with pytest.raises(MetricError, match="component 'mine' is registered already"):

        @pico.component
        def mine(tensor):
            return tensor

    assert get("mine").version == 1


def test_a_cell_of_a_notebook_may_be_run_again(monkeypatch):
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    for version in (1, 2):
        function = lambda tensor: 0.0  # noqa: E731
        function.__module__ = "__main__"
        defined("mine", version, function=function)
    assert get("mine").version == 2


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda: 0, "takes 0 tensors"),
        (lambda a, b, c: 0, "takes 3 tensors"),
        (lambda a, b, k=1: 0, "has the parameter k=1; after the tensors come numbers by keyword"),
        (lambda a, b, *, k: 0, "has the parameter k;"),
        (lambda a, b, *, k="x": 0, "has the parameter k='x'"),
        (lambda a, b, *, k=True: 0, "has the parameter k=True"),
        (lambda *a: 0, r"has the parameter \*a"),
        (lambda a, *, k=1: 0, "takes one tensor and more"),
    ],
)
def test_parameters_that_are_refused(function, message):
    with pytest.raises(MetricError, match=message):
        defined("mine", function=function)
    assert "mine" not in names()


def test_versions_and_words_that_are_refused():
    for version in (0, -1, True, 1.5, "2", 2**31):
        with pytest.raises(MetricError, match="give a whole number > 0"):
            defined("mine", version=version)
    with pytest.raises(MetricError, match="is of 'vector'; of is 'tensor', 'matrix' or"):
        defined("mine", of="vector")
    with pytest.raises(MetricError, match="is of one spectrum and takes two arrays"):
        defined("mine", of="spectrum", function=lambda x, y: 0)


def test_components():
    @pico.component(version=3)
    def low_rank(weight, k: int = 1):
        """Keep the leading part."""
        u, s, v = np.linalg.svd(weight)
        return (u[:, :k] * s[:k]) @ v[:k]

    item = components.get("low_rank")
    assert (item.tensors, item.version, item.returns) == (("weight",), 3, "tensor")
    found = item.function(np.diag([3.0, 2.0]), 1)
    np.testing.assert_allclose(found, [[3.0, 0.0], [0.0, 0.0]], atol=1e-12)
    with pytest.raises(MetricError, match=r"component 'low_rank' failed .*\(3,\): LinAlgError: "):
        item.function(np.ones(3), 1)


@pytest.mark.parametrize(
    ("value", "shown"), [(None, "None"), ("abc", "'abc'"), (1j, "1j"), ([[1], [1, 2]], r"\[\[1\]")]
)
def test_what_is_no_tensor_is_told(value, shown):
    @pico.component
    def odd(tensor):
        return value

    with pytest.raises(MetricError, match=rf"^component 'odd' returned {shown}.*, not a tensor"):
        components.get("odd").function(np.ones(2))


def test_forget_takes_only_what_is_ones_own():
    defined("mine")
    own.forget({"mine", "gini", "reshape"})
    assert "mine" not in names() and "gini" in names() and "reshape" in components.names()
