"""A learning-dynamics warehouse for language models: training history as Parquet, asked in SQL.

    import pico

    lake = pico.Lake.open("demo-lake")
    lake.sql("SELECT step, layer, gini(tensor) FROM weights WHERE component = 'o'").show()
    lake.scan("scalars").collect()

Names are loaded when they are first used: importing `pico` loads neither torch nor a reader.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pico.errors import PicoError

if TYPE_CHECKING:
    from pico import metrics
    from pico.api import Lake, connect, load_model
    from pico.metrics.own import component, metric
    from pico.metrics.plugins import load_plugin
    from pico.record.recorder import Recorder

__version__ = "0.1.0"
__all__ = [
    "Lake",
    "PicoError",
    "Recorder",
    "component",
    "connect",
    "load_model",
    "load_plugin",
    "metric",
    "metrics",
]

_HOMES = {
    "Lake": "pico.api",
    "connect": "pico.api",
    "load_model": "pico.api",
    "load_plugin": "pico.metrics.plugins",
    "component": "pico.metrics.own",
    "metric": "pico.metrics.own",
    "Recorder": "pico.record.recorder",
}
_TRAINING = {"torch": "train", "lightning": "train"}


def __getattr__(name: str) -> Any:
    if name == "metrics":
        return importlib.import_module("pico.metrics")
    if name not in _HOMES:
        raise AttributeError(f"module 'pico' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if error.name in _TRAINING:
            from pico.errors import MissingExtraError

            raise MissingExtraError(str(error.name), _TRAINING[str(error.name)]) from None
        raise


def __dir__() -> list[str]:
    return sorted(__all__)
