"""Fixtures of the tests of metrics."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from pico.metrics import components, own, plugins, registry


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Registries of the test's own: what it adds is gone afterwards."""
    monkeypatch.setattr(registry, "_METRICS", dict(registry._METRICS))
    monkeypatch.setattr(registry, "_WAITING", list(registry._WAITING))
    monkeypatch.setattr(components, "_COMPONENTS", dict(components._COMPONENTS))
    monkeypatch.setattr(own, "_own", set(own._own))
    monkeypatch.setattr(plugins, "_files", dict(plugins._files))
    monkeypatch.setattr(plugins, "_is_forbidden", plugins._is_forbidden)
    modules = set(sys.modules)
    yield
    for name in set(sys.modules) - modules:
        if name.startswith("pico_plugin_"):
            del sys.modules[name]
