"""Readers of the values in a `record` mapping: words, numbers, flags, schedules with options.

`plan` and `probeplan` call them; `where` is the place in the config, for messages. All raise
`ConfigError` for what they cannot read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pico.errors import ConfigError, did_you_mean
from pico.record import schedule
from pico.record.schedule import Schedule


def ends(when: Schedule) -> Schedule:
    """Let a schedule that wants anything want the last step too."""
    return when if when.is_never else when | Schedule(last=True)


def split(spec: Any, options: Sequence[str], where: str) -> tuple[Any, dict[str, Any]]:
    """Part a spec into its schedule and its options: `{every: 50, names: […]}`."""
    if not isinstance(spec, Mapping):
        return spec, {}
    given = {str(key): value for key, value in spec.items()}
    unknown = [key for key in given if key not in (*options, *schedule.KEYS, "schedule")]
    if unknown:
        hint = did_you_mean(unknown[0], [*options, *schedule.KEYS, "schedule"])
        raise ConfigError(f"unknown config key '{where}.{unknown[0]}'.{hint}")
    when = {key: given.pop(key) for key in schedule.KEYS if key in given}
    if when and "schedule" in given:
        raise ConfigError(f"{where}: give either schedule or {', '.join(when)}, not both")
    return given.pop("schedule", when or True), given


def words(spec: Any, known: Sequence[str], what: str, where: str) -> tuple[str, ...]:
    """Read a list of words of which all are known."""
    found = strings(spec, where)
    for word in found:
        if word not in known:
            hint = did_you_mean(word, known)
            raise ConfigError(f"{where}: no {what} {word!r}.{hint} Use {', '.join(known)}")
    return found


def flag(spec: Any, where: str) -> bool:
    """Read true or false."""
    if not isinstance(spec, bool):
        raise ConfigError(f"{where} must be true or false, not {spec!r}")
    return spec


def count(spec: Any, where: str, least: int = 1) -> int:
    """Read a whole number of at least `least`."""
    if not isinstance(spec, int) or isinstance(spec, bool) or spec < least:
        raise ConfigError(f"{where} must be a whole number of at least {least}, not {spec!r}")
    return spec


def strings(spec: Any, where: str) -> tuple[str, ...]:
    """Read a word or a list of words."""
    items = [spec] if isinstance(spec, str) else spec
    if not isinstance(items, Sequence) or not all(isinstance(item, str) for item in items):
        raise ConfigError(f"{where} must be a list of words, not {spec!r}")
    return tuple(items)


def integers(spec: Any, where: str) -> tuple[int, ...]:
    """Read a whole number or a list of them."""
    items = [spec] if isinstance(spec, int) else spec
    whole = isinstance(items, Sequence) and all(
        isinstance(item, int) and not isinstance(item, bool) for item in items
    )
    if not whole:
        raise ConfigError(f"{where} must be a list of whole numbers, not {spec!r}")
    return tuple(items)
