"""Probes stored checkpoints: tables filled afterwards, as training itself would have.

`Lake.probe` calls `run`. Checkpoints become live models one after another; what is missing at a
step is computed and committed in one commit, so that a kill loses at most that step and a second
call computes only what is missing. Rows go into `derive.<run>.probe`, so that the run may train on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from torch import nn

from pico.errors import RecordError
from pico.evaluate import load
from pico.evaluate.present import Present, Wants
from pico.lake.commit import Stream, Transaction
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from pico.lake.table import write_rows, write_tensors
from pico.record import heads, hooks, passes, probes, rows, scores
from pico.record.hooks import TapPoint
from pico.record.probes import Probe

Models: TypeAlias = Callable[[Snapshot, int], nn.Module]
"""Gives the model of a step."""
Progress: TypeAlias = Callable[[int, int], None]


@dataclass
class Probed:
    """What a call has done."""

    run: str
    steps: list[int] = field(default_factory=list)
    """Steps at which something was missing and is there now."""
    present: int = 0
    """Steps that had everything."""
    written: dict[str, int] = field(default_factory=dict)
    """Rows by table."""

    def __str__(self) -> str:
        """Say it in one line."""
        made = ", ".join(f"{n:,} rows of {table}" for table, n in self.written.items() if n)
        told = f"{self.run}: {len(self.steps)} steps probed" + (f", {made}" if made else "")
        return told + (f"; {self.present} steps had everything" if self.present else "")


def run(
    storage: Storage,
    run: str,
    steps: Sequence[int],
    asked: Sequence[Probe],
    wants: Wants,
    models: Models | None = None,
    progress: Progress | None = None,
) -> Probed:
    """Probe a run's checkpoints.

    Args:
        storage: the lake's place.
        run: name of the run.
        steps: at which weights are stored.
        asked: the probes.
        wants: what is asked about each.
        models: gives the model of a step; by default what the lake has stored there.
        progress: called with the steps done and the steps to do.

    Raises:
        LeaseError: if another process is probing the run.
        RecordError: for scores or sites that the model does not have.
    """
    live = models or (lambda snapshot, step: load.load_model(snapshot, run, step))
    done = Probed(run)
    for probe in asked:
        probes.store(storage, probe)
    with Stream(storage, f"derive.{run}.probe") as stream:
        there = Present(Snapshot.take(storage), run, steps, wants)
        asked_at = {
            step: [(probe, there.missing(step, probe)) for probe in asked] for step in steps
        }
        missing = {
            step: [(probe, left) for probe, left in of_step if not left.is_nothing]
            for step, of_step in asked_at.items()
        }
        work = [(step, lacking) for step, lacking in missing.items() if lacking]
        done.present = len(missing) - len(work)
        for number, (step, lacking) in enumerate(work):
            if progress is not None:
                progress(number, len(work))
            before = Snapshot.take(storage)
            model = live(before, step)
            parts = [_Part(model, run, step, probe, left) for probe, left in lacking]
            _commit(stream, before, run, step, parts, done)
        if progress is not None and work:
            progress(len(work), len(work))
    return done


def _commit(
    stream: Stream, before: Snapshot, run: str, step: int, parts: Sequence[_Part], done: Probed
) -> None:
    """Write a step's parts in one commit, as long as the weights that were probed stand."""
    probed = _weights(before, run, step)
    changed = RecordError(
        f"run {run!r} was changed at step {step} while it was probed; probe it again"
    )
    transaction = stream.begin()
    for part in parts:
        part.write(transaction, done.written)
    if _weights(Snapshot.take(stream.storage), run, step) != probed:
        raise changed
    transaction.commit()
    if _weights(Snapshot.take(stream.storage), run, step) != probed:  # it went back meanwhile
        _undo(stream, transaction.id)
        raise changed
    done.steps.append(step)


def _weights(snapshot: Snapshot, run: str, step: int) -> set[tuple[str, str]]:
    """Return which weights stand at a step, whatever files they lie in."""
    found = snapshot.read("weights", ["name", "content_hash"], [run], [step])
    return set(zip(found["name"].to_pylist(), found["content_hash"].to_pylist(), strict=True))


def _undo(stream: Stream, txn: str) -> None:
    """Withdraw what a transaction committed."""
    live = Snapshot.take(stream.storage).all_files()
    undo = stream.begin()
    undo.take_away([entry for entry in live if entry.txn == txn], withdraw=True)
    undo.commit()


def check(model: nn.Module, wants: Wants) -> list[TapPoint]:
    """Return the points of a model that are recorded, if it can give all that is asked.

    Raises:
        RecordError: for scores or sites that it does not have.
    """
    scores.check(model, wants.attention, wants.layer_scores)
    return [TapPoint(p, wants.positions) for p in hooks.resolve(model, wants.sites, None)]


class _Part:
    """What one probe says of one model."""

    def __init__(self, model: nn.Module, run: str, step: int, probe: Probe, wants: Wants) -> None:
        self._run, self._step, self._probe, self._wants = run, step, probe, wants
        self._model = model
        self._points = [
            tap
            for tap in check(model, wants)
            if (tap.point.site, tap.point.layer) not in wants.stored
        ]

    def write(self, transaction: Transaction, written: dict[str, int]) -> None:
        """Compute and write it; sequences are scored as they are written."""
        if self._wants.token_scores or self._wants.layer_scores:
            counter = _Counter(self._token_rows())
            write_rows(transaction, "token_scores", {"run": self._run}, counter)
            _count(written, "token_scores", counter.n)
        buffer = rows.RowBuffer(self._run)
        if self._wants.attention:
            of_heads = heads.head_scores(self._model, self._probe)
            buffer.add("metrics", self._step, of_heads)
            _count(written, "metrics", len(of_heads))
        if self._points:
            tensors = passes.activations(self._model, self._probe, self._points)
            where: dict[str, Any] = {"run": self._run, "step": self._step}
            write_tensors(transaction, "activations", where, tensors)
            stats = [rows.stats_row("activations", row, stored=True) for row in tensors]
            buffer.add("tensor_stats", self._step, stats)
            _count(written, "activations", len(tensors))
        rows.write(transaction, self._run, buffer.take())

    def _token_rows(self) -> Iterator[pa.Table]:
        wants = self._wants
        of = scores.token_scores(
            self._model, self._probe, self._run, self._step, wants.layer_scores
        )
        for table in of:
            yield table if wants.token_scores else table.filter(pc.is_valid(table["layer"]))


class _Counter:
    """Tables, and how many rows went through."""

    def __init__(self, tables: Iterator[pa.Table]) -> None:
        self._tables, self.n = tables, 0

    def __iter__(self) -> Iterator[pa.Table]:
        for table in self._tables:
            self.n += table.num_rows
            yield table


def _count(written: dict[str, int], table: str, n: int) -> None:
    written[table] = written.get(table, 0) + n


def choose_steps(known: Sequence[int], text: str) -> list[int]:
    """Return the steps that a text names: `all`, `last`, numbers, or ranges `0:300` (both ends).

    Raises:
        RecordError: for another text, or a number at which nothing is stored.
    """
    if not known:
        raise RecordError("the run has no stored weights to probe")
    chosen: set[int] = set()
    for part in text.split(","):
        word = part.strip()
        low, colon, high = word.partition(":")
        if word == "all":
            chosen |= set(known)
        elif word == "last":
            chosen.add(known[-1])
        elif colon and all(not end or end.isdecimal() for end in (low, high)):
            chosen |= {s for s in known if int(low or 0) <= s <= int(high or known[-1])}
        elif word.isdecimal():
            if int(word) not in known:
                near = sorted(sorted(known, key=lambda s: abs(s - int(word)))[:5])
                raise RecordError(
                    f"no weights at step {word}; the nearest are {', '.join(map(str, near))}"
                )
            chosen.add(int(word))
        else:
            raise RecordError(f"steps are all, last, numbers, or ranges as 0:300, not {word!r}")
    if not chosen:
        raise RecordError(
            f"no weights at steps {text}; there are some at {known[0]} to {known[-1]}"
        )
    return sorted(chosen)
