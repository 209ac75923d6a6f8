"""The registry of components: functions of tensors that give a tensor, such as a head's circuit.

Called by `pico.sql` (an SQL function and a Polars expression for each). A component takes one or
more tensors and then numbers or words; it is known by its name, which no metric has.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

from pico.errors import MetricError, did_you_mean
from pico.metrics import registry

Returns: TypeAlias = Literal["tensor", "number", "vector", "matrix"]
_F = TypeVar("_F", bound=Callable[..., Any])

_COMPONENTS: dict[str, Component] = {}
_KINDS = {"bool": "bool", "float": "float", "int": "int", "str": "str", "Sequence[int]": "int list"}
_KINDS["list[int]"] = "int list"


@dataclass(frozen=True)
class Argument:
    """An argument of a component that is no tensor."""

    name: str
    """Its name, in Python and in SQL."""

    kind: str
    """`bool`, `float`, `int`, `str` or `int list`."""

    default: Any = inspect.Parameter.empty
    """What stands for it when it is left out, or `inspect.Parameter.empty` if it cannot be."""

    @property
    def is_optional(self) -> bool:
        """Whether it can be left out."""
        return self.default is not inspect.Parameter.empty


@dataclass(frozen=True)
class Component:
    """One component, as the registry holds it."""

    name: str
    """The name in SQL and in Polars."""

    function: Callable[..., Any]
    """Of the tensors and then the arguments, all by position."""

    tensors: tuple[str, ...]
    """Names of the parameters that are tensors; they come first."""

    arguments: tuple[Argument, ...]
    """The others; those that can be left out come last."""

    returns: Returns
    """`tensor`, or a `number`, or a `vector` or `matrix` of float64 numbers."""

    version: int
    """Raised when the numbers change."""

    summary: str
    """The first line of the documentation."""

    @property
    def n_required(self) -> int:
        """Number of arguments that cannot be left out."""
        return sum(not argument.is_optional for argument in self.arguments)


def register(returns: Returns = "tensor") -> Callable[[_F], _F]:
    """Return a decorator that registers a function of tensors under its own name.

    Args:
        returns: what the function gives.
    """

    def decorate(function: _F) -> _F:
        add(of_function(function, returns))
        return function

    return decorate


def of_function(
    function: Callable[..., Any], returns: Returns = "tensor", version: int = 1
) -> Component:
    """Return the component that a function's signature describes.

    A parameter is an argument if it is annotated or has a default as a bool, float, int, str or
    list of int, and a tensor otherwise.

    Args:
        function: whose name, parameters and documentation count.
        returns: what it gives.
        version: of its numbers.

    Raises:
        MetricError: It takes no tensor, a tensor follows an argument, or it takes `*args`.
    """
    name = function.__name__
    tensors: list[str] = []
    arguments: list[Argument] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            raise MetricError(
                f"component {name!r} takes {parameter}, and SQL hands over by position; give it "
                "parameters without *"
            )
        kind = _kind(parameter)
        if kind is not None:
            arguments.append(Argument(parameter.name, kind, parameter.default))
        elif arguments or parameter.default is not parameter.empty:
            raise MetricError(
                f"component {name!r} takes the tensor {parameter.name!r} after an argument or with "
                "a default; tensors come first"
            )
        else:
            tensors.append(parameter.name)
    if not tensors:
        raise MetricError(f"component {name!r} takes no tensor; its first parameter must be one")
    summary = registry.first_line(function)
    return Component(name, function, tuple(tensors), tuple(arguments), returns, version, summary)


def names() -> tuple[str, ...]:
    """Return the names of all components, in alphabetical order."""
    registry.load_waiting()
    return tuple(sorted(_COMPONENTS))


def get(name: str) -> Component:
    """Return the component of that name.

    Raises:
        MetricError: There is none; the message names the nearest.
    """
    registry.load_waiting()
    if name not in _COMPONENTS:
        hint = did_you_mean(name, _COMPONENTS)
        raise MetricError(f"no component {name!r}.{hint} List them: pico functions")
    return _COMPONENTS[name]


def add(component: Component) -> None:
    """Register a component.

    Raises:
        MetricError: There is one of that name.
    """
    if component.name in _COMPONENTS:
        raise MetricError(f"component {component.name!r} is registered already; rename one")
    _COMPONENTS[component.name] = component


def knows(name: str) -> bool:
    """Tell whether a component of that name is registered, without loading what waits."""
    return name in _COMPONENTS


def remove(name: str) -> None:
    """Forget a component, if there is one of that name."""
    _COMPONENTS.pop(name, None)


def _kind(parameter: inspect.Parameter) -> str | None:
    """Return the kind of an argument; None for a tensor."""
    annotation: Any = parameter.annotation
    if annotation is parameter.empty:
        return _KINDS.get(type(parameter.default).__name__)
    if not isinstance(annotation, str):
        annotation = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    return _KINDS.get(annotation.removeprefix("collections.abc.").removeprefix("typing."))
