"""Metrics of the tensors that a model has just now, whether they are stored or not.

`Capture` copies with `Measurer.take`; `Recorder` asks `Measurer.rows` for rows of the `metrics`
table. They are those that `pico metrics compute` would make of the stored tensor: same keys, same
content hash, same metric version, same value, so that it finds them and computes nothing. What
lies in host memory is measured by the writer's thread, from the copy, while training goes on; what
lies on another device is measured there, by the training thread, before the loop changes it (there
the last bits of a value may differ: another library adds in another order).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from pico import metrics as tensor_metrics
from pico.errors import MetricError, PicoError, one_line
from pico.lake import codec
from pico.lake.table import TensorRow
from pico.metrics import registry
from pico.record.due import Wanted
from pico.record.tensors import gathered, to_host

_KEYS = ("name", "layer", "component", "param", "site", "state", "stage", "probe")
_HOST = ("cpu", "mps")  # mps has no float64, so its tensors are measured from the copy


@dataclass(frozen=True)
class Taken(TensorRow):
    """A copied tensor, and what is wanted of it."""

    wanted: Wanted = field(default_factory=Wanted)
    measured: tuple[str, Mapping[str, float]] | None = None
    """Its content hash and its metrics, where they were computed on the tensor's own device."""


class Measurer:
    """Computes the metrics that are asked of a run's tensors."""

    def __init__(self) -> None:
        """Start with nothing computed."""
        self.seconds = 0.0
        """Time spent on computing so far."""
        self._before: dict[Hashable, tuple[str, dict[str, float]]] = {}

    def take(
        self, table: str, keys: Mapping[str, Any], tensor: torch.Tensor, wanted: Wanted
    ) -> Taken:
        """Copy a tensor to host memory, bit for bit; measure it now if it lies elsewhere."""
        whole = gathered(tensor)
        copied = to_host(whole)
        measured = None
        if wanted.metrics and not _lies_on_host(whole):
            measured = self._measure(table, keys, wanted.metrics, copied, whole)
        return Taken(keys, copied, wanted, measured)

    def rows(self, table: str, taken: Sequence[Taken]) -> list[dict[str, Any]]:
        """Return the `metrics` rows of tensors; run and step are for the caller to fill in.

        Raises:
            MetricError: for a metric that fails, naming the tensor.
        """
        rows = []
        for row in taken:
            if not row.wanted.metrics:
                continue
            measured = row.measured
            if measured is None:
                array = row.tensor.to_numpy()
                measured = self._measure(table, row.keys, row.wanted.metrics, row.tensor, array)
            content_hash, values = measured
            keys = {key: row.keys.get(key) for key in _KEYS}
            rows += [
                {
                    "table_name": table,
                    **keys,
                    "metric": name,
                    "value": value,
                    "tensor_hash": content_hash,
                    "metric_version": registry.get(name).version,
                }
                for name, value in values.items()
            ]
        return rows

    def _measure(
        self,
        table: str,
        keys: Mapping[str, Any],
        names: Collection[str],
        copied: codec.Tensor,
        array: Any,
    ) -> tuple[str, dict[str, float]]:
        """Return hash and metrics of an array; those of a tensor that has not changed are known."""
        began = time.perf_counter()
        identity = (table, *(keys.get(key) for key in _KEYS))
        content_hash = copied.content_hash
        known_hash, known = self._before.get(identity, ("", {}))
        if known_hash != content_hash:
            known = {}
        defined = [name for name in sorted(names) if _is_defined(name, copied)]
        missing = [name for name in defined if name not in known]
        try:
            known = {**known, **tensor_metrics.compute(array, missing)} if missing else known
        except PicoError:
            raise
        except Exception as error:
            raise MetricError(
                f"a metric of {', '.join(missing)} fails for {keys['name']!r} of {table}: "
                f"{one_line(error)}; leave it out of record.metrics"
            ) from error
        self._before[identity] = (content_hash, known)
        self.seconds += time.perf_counter() - began
        return content_hash, {name: known[name] for name in defined}


def _is_defined(name: str, tensor: codec.Tensor) -> bool:
    """Say whether a metric is defined for a tensor, by the rule of `pico metrics compute`."""
    if tensor.dtype.startswith("complex"):
        return False
    return len(tensor.shape) >= 2 or not registry.get(name).needs_matrix


def _lies_on_host(tensor: torch.Tensor) -> bool:
    return tensor.device.type in _HOST
