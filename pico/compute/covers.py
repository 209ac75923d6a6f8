"""Notes in the log of what has been computed in full, so that asking again reads nothing else.

The last commit of a computation notes which metrics of which tensors of its run are all kept now.
A note counts as long as the run's tensor files, those of the reference, and the files of kept
values that were taken away are the same as when it was made; a note that does not count costs a
look at the keys. `materialize` calls `found` and `note`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import xxhash

from pico.compute.asked import Label
from pico.compute.missing import Question, Work
from pico.compute.summary import Summary
from pico.lake.log import Entry
from pico.lake.snapshot import Snapshot, partition

_COVERS = "covers"


@dataclass(frozen=True)
class State:
    """What a run's notes depend on; made once a snapshot."""

    snapshot: Snapshot
    taken_away: dict[str, list[str]]
    """Files of kept values that were taken away, by run."""

    @classmethod
    def of(cls, snapshot: Snapshot) -> State:
        """Look at the log alone."""
        gone: dict[str, list[str]] = {}
        for entry in snapshot.taken_away():
            if entry.table == "metrics":
                gone.setdefault(partition(entry.path).get("run", ""), []).append(entry.path)
        return cls(snapshot, gone)

    def digest(self, question: Question) -> str:
        """Return a hash of the names of all files that the answer to a question depends on."""
        files = self.snapshot.files(question.table, [question.run])
        paths = [*_paths(files), "", *sorted(self.taken_away.get(question.run, []))]
        if question.reference is not None:
            other, step = question.reference.run, question.reference.step
            assert other is not None and step != "last"
            steps = None if step is None else [step]
            paths += ["", *_paths(self.snapshot.files(question.table, [other], steps))]
        return xxhash.xxh3_128_hexdigest("\n".join(paths).encode())


def found(state: State, question: Question) -> Summary | None:
    """Return what is there and not defined, if notes in the log say that nothing is missing."""
    notes: dict[Label, tuple[int, int]] = {}
    digest = None
    for entry in state.snapshot.files("metrics", [question.run]):
        noted = _read(entry)
        if noted is None or noted["of"] != _of(question):
            continue
        digest = digest or state.digest(question)
        if noted["state"] == digest:
            notes |= {(name, args, v): (p, s) for name, args, v, p, s in noted["metrics"]}
    if not set(question.labels) <= notes.keys():
        return None
    counts = [notes[label] for label in question.labels]
    return Summary(present=sum(p for p, _ in counts), skipped=sum(s for _, s in counts))


def note(state: State, work: Work) -> str:
    """Return the `extra` of a file of kept values after which a run lacks nothing that was asked.

    Args:
        state: of the snapshot that `work` was planned with.
        work: all of it is kept once the file's commit is made.
    """
    added = work.lacks.sum(axis=0).tolist()
    metrics = [
        [*label, present + new, skipped]
        for label, present, new, skipped in zip(
            work.question.labels, work.present, added, work.skipped, strict=True
        )
    ]
    noted = {
        "of": _of(work.question),
        "state": state.digest(work.question),
        "metrics": metrics,
    }
    return json.dumps({_COVERS: noted})


def _of(question: Question) -> list[Any]:
    reference = question.reference
    return [question.table, *((reference.run, reference.step) if reference else (None, None))]


def _paths(files: Iterable[Entry]) -> list[str]:
    return sorted(entry.path for entry in files)


def _read(entry: Entry) -> dict[str, Any] | None:
    """Return a file's note; None without one, or if it cannot be understood."""
    if entry.extra is None or f'"{_COVERS}"' not in entry.extra:
        return None
    try:
        noted = json.loads(entry.extra)[_COVERS]
        is_note = isinstance(noted["of"], list) and isinstance(noted["state"], str)
        for name, args, version, present, skipped in noted["metrics"]:
            is_note &= isinstance(name, str) and isinstance(args, str | None)
            is_note &= all(isinstance(n, int) for n in (version, present, skipped))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return noted if is_note else None
