"""Computes the numbers of an analysis: reads the tensors of a step, makes circuits, measures.

`analysis` calls it, a step at a time. Tensors of the step and of the reference are read once; all
metrics of one thing share what they need, and an OV circuit's spectrum comes from its thin factors:
spectral metrics count the values that such a product can have, d_head of a circuit.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from pico.errors import CorruptError, MetricError
from pico.importers.analysis_plan import Measured, Part, Value
from pico.lake.snapshot import Snapshot
from pico.metrics import arrays, circuit_spectra, circuits, registry

Array = npt.NDArray[Any]


class Calculator:
    """Reads and measures; the tensors of reference steps stay in memory."""

    def __init__(self, snapshot: Snapshot, run: str) -> None:
        """Start with nothing read."""
        self._snapshot, self._run = snapshot, run
        self._references: dict[Part, Array] = {}

    def values(self, wanted: Sequence[Value]) -> dict[Value, float | str]:
        """Return the numbers of one step, or why there is none.

        Args:
            wanted: numbers of things of one step.

        Raises:
            CorruptError: if a file is missing or damaged.
        """
        references = [item.reference for item in wanted if item.reference is not None]
        self._references |= self._read(_parts(references) - self._references.keys())
        read = {**self._references, **self._read(_parts(item.of for item in wanted))}
        found: dict[Value, float | str] = {}
        groups: dict[tuple[Measured, Measured | None], list[Value]] = {}
        for item in wanted:
            groups.setdefault((item.of, item.reference), []).append(item)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            things, others = zip(*groups, strict=True)
            lists = list(groups.values())
            answers = pool.map(self._measures, things, others, lists, repeat(read))
            for items, answer in zip(lists, answers, strict=True):
                found |= zip(items, answer, strict=True)
        return found

    def _measures(
        self,
        thing: Measured,
        other: Measured | None,
        items: Sequence[Value],
        read: dict[Part, Array],
    ) -> list[float | str]:
        """Return the numbers of one thing, or why there is none."""
        if other is not None:
            inputs = {part.input_hash for part in (thing.parts[0], other.parts[0])}
            if len(inputs) > 1:
                return ["activations of different inputs cannot be compared"] * len(items)
            x, y = array_of(thing, read), array_of(other, read)
            return [
                _attempt(lambda n=item.metric: registry.get(n).function(x, y)) for item in items
            ]
        parts = [read[part] for part in thing.parts]
        spectral = {item.metric for item in items if registry.get(item.metric).kind == "spectrum"}
        answers: dict[str, float | str] = {}
        if thing.form in ("ov_circuit", "ov_gradient_pico") and spectral:
            values = circuit_spectra.ov_spectrum(*_factors(thing, parts), 1, 1, 0)
            for name in spectral:
                metric = registry.get(name)
                answers[name] = metric.of_spectrum(values, arrays.roundoff(parts[0]))
        rest = [item.metric for item in items if item.metric not in answers]
        if rest:
            answers |= _all_or_each(array_of(thing, read), rest)
        return [answers[item.metric] for item in items]

    def _read(self, parts: Iterable[Part]) -> dict[Part, Array]:
        """Read tensors, verified, each file opened once."""
        wanted = {(part.table, *part.identity): part for part in parts}
        found: dict[Part, Array] = {}
        for table, step in sorted({(part.table, part.step) for part in wanted.values()}):

            def keep(keys: Any, table: str = table) -> bool:
                return (table, *_identity(keys)) in wanted

            for row in self._snapshot.tensors(table, self._run, step, keep):
                part = wanted[table, *_identity(row.keys)]
                found[part] = row.tensor.to_numpy()
        lacking = next((part for part in wanted.values() if part not in found), None)
        if lacking is not None:
            raise CorruptError(f"tensor {lacking.name!r} is gone from {lacking.table}")
        return found


def array_of(thing: Measured, read: dict[Part, Array]) -> Array:
    """Return the array that a thing is, made from the tensors of its parts.

    An OV circuit's activation is what a head writes for the value at each sample, (samples,
    d_model).
    """
    parts = [read[part] for part in thing.parts]
    if thing.is_scrambled:
        parts[0] = _scrambled(parts[0], thing.parts[0].sub_batch or 1)
    if thing.form == "tensor":
        return parts[0]
    n_heads, n_kv_heads, head = thing.n_heads, thing.n_kv_heads, thing.head or 0
    if thing.form == "ov_gradient_pico":
        v_grad, o_grad, v, o = parts
        made = circuits.ov_gradient_pico(v, o, v_grad, o_grad, n_heads, n_kv_heads, head)
        return np.asarray(made)
    v, o = parts
    if thing.form == "ov_circuit":
        return np.asarray(circuits.ov_circuit(v, o, n_heads, n_kv_heads, head))
    if thing.form == "vo_product":
        return np.asarray(circuits.vo_product(v, o, n_heads, n_kv_heads, head))
    d_head = o.shape[1] // n_heads
    group = head * n_kv_heads // n_heads
    mine = v[:, group * d_head : (group + 1) * d_head].astype(np.float64)
    return np.asarray(mine @ o[:, head * d_head : (head + 1) * d_head].astype(np.float64).T)


def _factors(thing: Measured, parts: Sequence[Array]) -> tuple[Array, Array]:
    """Return the thin factors of a head's circuit, or of its gradient, as value and output.

    The gradient is a sum of two products, so its factors are those of both side by side; it has
    2 · d_head singular values other than 0.
    """
    *gradients, v, o = parts
    d_head = o.shape[1] // thing.n_heads
    head = thing.head or 0
    group = head * thing.n_kv_heads // thing.n_heads
    rows = slice(group * d_head, (group + 1) * d_head)
    columns = slice(head * d_head, (head + 1) * d_head)
    if not gradients:
        return v[rows], o[:, columns]
    v_grad, o_grad = gradients
    return (
        np.concatenate([v[rows], v_grad[rows]]),
        np.concatenate([o_grad[:, columns], o[:, columns]], axis=1),
    )


def _scrambled(activations: Array, sub_batch: int) -> Array:
    """Return activations (samples, features) as pico-train stores those of one device."""
    pieces = [
        activations[start : start + sub_batch].T.reshape(-1, activations.shape[1])
        for start in range(0, len(activations), sub_batch)
    ]
    return np.concatenate(pieces) if pieces else activations


def _all_or_each(array: Array, names: Sequence[str]) -> dict[str, float | str]:
    """Compute several metrics at once; where one is not defined, each by itself."""
    try:
        return dict(registry.compute(array, names))
    except MetricError:
        each = {name: _attempt(lambda n=name: registry.compute(array, [n])[n]) for name in names}
        return each


def _attempt(compute: Any) -> float | str:
    try:
        return float(compute())
    except MetricError as error:
        return str(error)


def _parts(things: Iterable[Measured]) -> set[Part]:
    return {part for thing in things for part in thing.parts}


def _identity(keys: Any) -> tuple[Any, ...]:
    return (keys["global_step"], keys["name"], *(keys.get(n) for n in ("site", "stage", "probe")))
