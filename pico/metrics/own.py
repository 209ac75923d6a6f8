"""Metrics and components of a user's own: `@pico.metric` and `@pico.component`.

`plugins` loads the files and packages in which they stand. Once registered they are like the others
in SQL, in Polars and for `pico metrics`. It promises that a user's function gets float64 arrays in
host memory that it cannot write to, that its name collides with no other and with no function of
DuckDB, and that whatever it does wrong is a `MetricError` of one line that names it.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from numbers import Real
from typing import Any, Literal, TypeAlias, TypeVar, overload

import numpy as np

from pico.errors import MetricError, PicoError, one_line
from pico.metrics import arrays, components, registry

Of: TypeAlias = Literal["tensor", "matrix", "spectrum"]
_F = TypeVar("_F", bound=Callable[..., Any])

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_TAKEN = ("compute", "detokenize", "of", "ov_spectra_of", "qk_spectra_of", "spectrum")
"""Names of SQL and of Polars that are neither metrics nor components."""

_own: set[str] = set()


@overload
def metric(function: _F, /) -> _F: ...
@overload
def metric(*, of: Of = "tensor", version: int = 1) -> Callable[[_F], _F]: ...
def metric(function: Any = None, /, *, of: Of = "tensor", version: int = 1) -> Any:
    """Make a function of one tensor, or of two, a metric under its own name.

    Args:
        function: `f(tensor)`, or `f(x, y)` with further numbers as keyword-only arguments that
            have defaults. It gets float64 numpy arrays and returns a number; several threads may
            call it at once.
        of: `tensor` of any shape; `matrix`, so that vectors give NULL; or `spectrum`, which hands
            over the singular values, descending, and shares them with other metrics.
        version: Stored with every value; raise it when the numbers change, so that values that the
            lake has kept are computed again.

    Returns:
        The function itself.

    Raises:
        MetricError: The name is taken, by DuckDB perhaps, or is none for SQL; or the parameters are
            not as above.
    """
    if function is None:
        return functools.partial(_metric, of=of, version=version)
    return _metric(function, of=of, version=version)


@overload
def component(function: _F, /) -> _F: ...
@overload
def component(*, version: int = 1) -> Callable[[_F], _F]: ...
def component(function: Any = None, /, *, version: int = 1) -> Any:
    """Make a function of tensors that gives a tensor an SQL function under its own name.

    Args:
        function: Of tensors, then of arguments annotated as int, float, str, bool or list[int];
            those with defaults may be left out in SQL. It gets float64 numpy arrays.
        version: Of its numbers.

    Returns:
        The function itself.

    Raises:
        MetricError: The name is taken, by DuckDB perhaps, or is none for SQL; or the parameters are
            not as above.
    """
    if function is None:
        return functools.partial(_component, version=version)
    return _component(function, version=version)


def names() -> frozenset[str]:
    """Return the names of the metrics and components that are users' own."""
    return frozenset(_own)


def forget(names: Iterable[str]) -> None:
    """Take metrics and components of a user's own out again."""
    for name in set(names) & _own:
        registry.remove(name)
        components.remove(name)
        _own.discard(name)


def told(error: BaseException) -> str:
    """Return an error in a few words; with its type if it is not one of ours."""
    text = one_line(error)
    return text if isinstance(error, PicoError) else f"{type(error).__name__}: {text:.300}"


def _metric(function: _F, of: str, version: int) -> _F:
    name = _check("metric", function, version)
    if of not in ("tensor", "matrix", "spectrum"):
        raise MetricError(f"metric {name!r} is of {of!r}; of is 'tensor', 'matrix' or 'spectrum'")
    n_arrays = _count_arrays(name, function)
    if n_arrays == 2 and of == "spectrum":
        raise MetricError(f"metric {name!r} is of one spectrum and takes two arrays")
    kind: registry.Kind = "pair" if n_arrays == 2 else "spectrum" if of == "spectrum" else "tensor"
    called = _guarded("metric", function, n_arrays, lambda value: _as_number(name, value))
    registry.add(
        registry.Metric(
            name,
            called,
            kind,
            version,
            registry.first_line(function),
            any_shape=of == "tensor",
            only_matrices=of == "matrix",
        )
    )
    _own.add(name)
    return function


def _component(function: _F, version: int) -> _F:
    name = _check("component", function, version)
    described = components.of_function(function, "tensor", version)
    called = _guarded(
        "component", function, len(described.tensors), lambda value: _as_tensor(name, value)
    )
    components.add(replace(described, function=called))
    _own.add(name)
    return function


def _check(what: str, function: Callable[..., Any], version: int) -> str:
    """Return the name of a function that may be registered under it."""
    name = getattr(function, "__name__", repr(function))
    if not _NAME.fullmatch(name):
        raise MetricError(
            f"{what} {name!r} needs another name: lower-case letters, digits and underscores"
        )
    if isinstance(version, bool) or not isinstance(version, int) or not 0 < version < 2**31:
        raise MetricError(f"the version of {what} {name!r} is {version!r}; give a whole number > 0")
    if name in _own and function.__module__ == "__main__" and hasattr(sys, "ps1"):
        forget({name})  # defined again at a prompt or in a notebook
    if registry.knows(name) or components.knows(name) or name in _TAKEN:
        raise MetricError(f"{what} {name!r} is registered already; choose another name")
    if name in _names_of_duckdb():
        raise MetricError(
            f"{what} {name!r} has a name that DuckDB's SQL has for its own; choose another"
        )
    return name


def _count_arrays(name: str, function: Callable[..., Any]) -> int:
    """Return how many arrays a metric takes, 1 or 2; its other parameters must be as they may."""
    parameters = inspect.signature(function).parameters.values()
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    n_arrays = 0
    for parameter in parameters:
        if parameter.kind in by_position and parameter.default is parameter.empty:
            n_arrays += 1
        elif parameter.kind is not parameter.KEYWORD_ONLY or type(parameter.default) not in (
            int,
            float,
        ):
            raise MetricError(
                f"metric {name!r} has the parameter {parameter}; after the tensors come numbers "
                "by keyword that have defaults: f(x, y, *, k=8)"
            )
    if n_arrays not in (1, 2):
        raise MetricError(f"metric {name!r} takes {n_arrays} tensors; metrics take one or two")
    if n_arrays == 1 and len(parameters) > 1:
        raise MetricError(
            f"metric {name!r} takes one tensor and more; only those of two tensors do"
        )
    return n_arrays


def _guarded(
    what: str, function: Callable[..., Any], n_arrays: int, convert: Callable[[Any], Any]
) -> Callable[..., Any]:
    """Return what is called in the place of a user's function."""
    name = function.__name__

    @functools.wraps(function)
    def called(*given: Any, **keywords: Any) -> Any:
        tensors = [_read_only(array) for array in given[:n_arrays]]
        try:
            return convert(function(*tensors, *given[n_arrays:], **keywords))
        except PicoError:
            raise
        except (Exception, SystemExit) as error:
            shapes = " and ".join(str(tensor.shape) for tensor in tensors)
            raise MetricError(
                f"{what} {name!r} failed for a tensor of shape {shapes}: {told(error)}"
            ) from error

    return called


def _read_only(array: Any) -> arrays.FloatVector:
    wide = arrays.to_host(arrays.as_float64(array)[1]).view()
    wide.flags.writeable = False
    return wide


def _as_number(name: str, value: Any) -> float:
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if not isinstance(value, (Real, np.bool_)):
        raise MetricError(f"metric {name!r} returned {_shown(value)}, not a number")
    return float(value)


def _as_tensor(name: str, value: Any) -> arrays.FloatVector:
    try:
        return arrays.to_host(arrays.as_float64(value)[1])
    except (MetricError, TypeError, ValueError):
        raise MetricError(
            f"component {name!r} returned {_shown(value)}, not a tensor of real numbers"
        ) from None


def _shown(value: Any) -> str:
    shape = getattr(value, "shape", None)
    if shape is not None:
        return f"a {type(value).__name__} of shape {tuple(shape)} and type {value.dtype}"
    text = one_line(Exception(repr(value)))
    return text if len(text) <= 60 else f"a {type(value).__name__}"


@functools.cache
def _names_of_duckdb() -> frozenset[str]:
    import duckdb  # not at the top: metrics without SQL do not need it

    with duckdb.connect() as connection:
        rows = connection.execute(
            "SELECT function_name FROM duckdb_functions() UNION "
            "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category <> 'unreserved'"
        ).fetchall()
    return frozenset(name.lower() for (name,) in rows)
