"""What the lake has of a run's probes already, and so what a probing has left to do.

`probe.run` asks it, step by step and probe by probe. It reads key columns, a file at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from pico.errors import RecordError
from pico.lake import table
from pico.lake.snapshot import Snapshot
from pico.record.hooks import Positions
from pico.record.probes import Probe


@dataclass(frozen=True)
class Wants:
    """What is asked about each probe at each step."""

    token_scores: bool = True
    layer_scores: bool = False
    """Whether tokens are scored after each block as well."""
    attention: bool = False
    sites: tuple[str, ...] = ()
    """Sites whose activations are stored."""
    positions: Positions = "all"
    stored: frozenset[tuple[str, int | None]] = frozenset()
    """Sites and layers of them that are there already."""

    @property
    def is_nothing(self) -> bool:
        """Whether nothing is asked."""
        return not (self.token_scores or self.layer_scores or self.attention or self.sites)


class Present:
    """What is there of a run at some steps."""

    def __init__(self, snapshot: Snapshot, run: str, steps: Collection[int], wants: Wants) -> None:
        """Look at what the tables have of it."""
        self._run, self._wants = run, wants

        def keys(name: str, *columns: str) -> Iterator[pa.Table]:
            for entry in snapshot.files(name, [run], steps):
                rows = table.read(snapshot.storage, [entry], ["global_step", "probe", *columns])
                yield rows.group_by(rows.column_names).aggregate([])

        self._tokens: set[tuple[int, str]] = set()
        self._layers: set[tuple[int, str]] = set()
        if wants.token_scores:
            for found in keys("token_scores", "layer"):
                for step, probe, layer in _tuples(found):
                    (self._tokens if layer is None else self._layers).add((step, probe))
        self._heads: set[tuple[int, str]] = set()
        if wants.attention:
            for found in keys("metrics", "site"):
                self._heads |= {(s, p) for s, p, site in _tuples(found) if site == "attention"}
        self._sites: dict[tuple[int, str, str], dict[int | None, list[int] | None]] = {}
        for entry in snapshot.files("activations", [run], steps) if wants.sites else ():
            columns = ["global_step", "probe", "site", "layer", "positions"]
            for row in _tuples(table.read(snapshot.storage, [entry], columns)):
                self._sites.setdefault(row[:3], {})[row[3]] = row[4]
        rows = snapshot.read("runs", ["n_layers"], [run]).to_pylist() if wants.sites else []
        self._n_layers = rows[0]["n_layers"] if rows else None

    def missing(self, step: int, probe: Probe) -> Wants:
        """Return what is asked and not there.

        Raises:
            RecordError: if activations are there, but not at all positions that are asked for.
        """
        at, wants = (step, probe.name), self._wants
        there = {site: self._sites.get((*at, site), {}) for site in wants.sites}
        for site, of_layers in there.items():
            self._check_positions(step, probe, site, of_layers.values())
        return replace(
            wants,
            token_scores=wants.token_scores and at not in self._tokens,
            layer_scores=wants.layer_scores and at not in self._layers,
            attention=wants.attention and at not in self._heads,
            sites=tuple(site for site, of in there.items() if not self._is_whole(of)),
            stored=frozenset((site, layer) for site, of in there.items() for layer in of),
        )

    def _is_whole(self, of_layers: Collection[int | None]) -> bool:
        return None in of_layers or bool(self._n_layers and len(of_layers) >= self._n_layers)

    def _check_positions(
        self, step: int, probe: Probe, site: str, stored: Collection[Sequence[int] | None]
    ) -> None:
        n = probe.tokens.shape[1]
        needed = {n - 1} if self._wants.positions == "last" else set(range(n))
        for positions in stored:
            if positions is not None and needed - set(positions):
                raise RecordError(
                    f"run {self._run!r} has {site} of probe {probe.name!r} at step {step} for "
                    f"{len(positions)} of {n} positions; give --positions last if that one is "
                    "enough, or a probe of another name"
                )


def _tuples(rows: pa.Table) -> Iterator[tuple[Any, ...]]:
    return zip(*(rows[name].to_pylist() for name in rows.column_names), strict=True)
