"""Untyped mappings, as YAML gives them, into frozen dataclasses, every problem noted.

`config` calls `build` and `apply_override`. A problem is a sentence that names the dotted key; the
caller raises them all at once, so that nobody mends a config one error at a time.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal

import yaml

from pico.errors import ConfigError, did_you_mean

_MOST_VALUES = 100_000


class _BoundedLoader(yaml.SafeLoader):
    """Refuses a document whose aliases, followed, are endless or more than a config can need."""

    def get_single_node(self) -> Any:
        node = super().get_single_node()
        if node is not None and _n_values(node, {}) > _MOST_VALUES:
            raise yaml.YAMLError(f"it stands for more than {_MOST_VALUES} values")
        return node


def load_yaml(text: str) -> Any:
    """Return what a YAML document of plain values holds.

    Raises:
        yaml.YAMLError, ValueError, RecursionError: for text that is no such document.
    """
    loader = _BoundedLoader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def _n_values(node: yaml.Node, known: dict[int, float]) -> float:
    """Count the values of a node, an alias as what it stands for; infinite if it holds itself."""
    if id(node) not in known:
        known[id(node)] = math.inf  # as long as its parts are counted
        parts = node.value if isinstance(node, yaml.CollectionNode) else []
        inner = [item for part in parts for item in (part if isinstance(part, tuple) else [part])]
        known[id(node)] = 1 + sum(_n_values(item, known) for item in inner)
    return known[id(node)]


def apply_override(mapping: dict[str, Any], override: str) -> None:
    """Put `key.inner=value` into nested mappings, in place; the value is YAML.

    >>> mapping = {"seeds": {"init": 0}}
    >>> apply_override(mapping, "seeds.init=7")
    >>> mapping
    {'seeds': {'init': 7}}
    """
    key, separator, text = override.partition("=")
    if not separator or not key:
        raise ConfigError(f"override {override!r} is not of the form key=value")
    try:
        value = load_yaml(text)
    except (yaml.YAMLError, ValueError, RecursionError):
        raise ConfigError(f"the value of override {override!r} is not valid YAML") from None
    *parents, last = key.split(".")
    for parent in parents:
        inner = mapping.get(parent)
        inner = dict(inner) if isinstance(inner, Mapping) else {}
        mapping[parent] = inner
        mapping = inner
    mapping[last] = value


def build(cls: type, mapping: Any, path: str, problems: list[str]) -> Any:
    """Build dataclass `cls` from a mapping, nested ones included.

    Args:
        cls: a dataclass; its `__post_init__` may raise `ConfigError`.
        mapping: keys and values; None stands for no keys.
        path: the dotted key of the mapping, for the problems.
        problems: gets a sentence per problem.

    Returns:
        The instance, or None where it could not be made.
    """
    if mapping is None:
        mapping = {}
    if not isinstance(mapping, Mapping):
        problems.append(f"{path or 'the config'} must be a mapping, not {mapping!r}")
        return None
    hints = typing.get_type_hints(cls)
    names = [item.name for item in dataclasses.fields(cls)]
    before = len(problems)
    values: dict[str, Any] = {}
    for key, value in mapping.items():
        where = f"{path}.{key}" if path else str(key)
        if key not in names:
            problems.append(f"unknown config key {where!r}.{did_you_mean(str(key), names)}")
        else:
            values[key] = _convert(hints[key], value, where, problems)
    if len(problems) > before:
        return None
    try:
        return cls(**values)
    except ConfigError as error:
        problems.append(str(error))
        return None


def _convert(hint: Any, value: Any, where: str, problems: list[str]) -> Any:
    """Check `value` against a field's type; ints pass as floats, numeric strings as floats."""
    if dataclasses.is_dataclass(hint):
        return build(typing.cast(type, hint), value, where, problems)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        hint = next(item for item in arguments if item is not type(None))
        return _convert(hint, value, where, problems)
    if origin is Literal:
        if value not in arguments:
            known = ", ".join(map(str, arguments))
            problems.append(
                f"{where} must be one of {known}, not {value!r}."
                f"{did_you_mean(str(value), map(str, arguments))}"
            )
        return value
    if origin is tuple:
        if not isinstance(value, (list, tuple)) or len(value) != len(arguments):
            problems.append(f"{where} must be a list of {len(arguments)} numbers, not {value!r}")
            return value
        return tuple(
            _convert(item, part, where, problems)
            for item, part in zip(arguments, value, strict=True)
        )
    if origin is not None:
        if value is not None and not isinstance(value, Mapping):
            problems.append(f"{where} must be a mapping, not {value!r}")
        return value or {}
    if hint is float:
        try:  # YAML 1.1 reads 3e-4 as a string
            if not isinstance(value, bool) and math.isfinite(float(value)):
                return float(value)
        except (TypeError, ValueError, OverflowError):
            pass
        problems.append(f"{where} must be a finite number, not {value!r}")
        return value
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        problems.append(f"{where} must be of type {hint.__name__}, not {value!r}")
    return value
