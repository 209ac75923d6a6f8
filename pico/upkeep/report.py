"""What `verify` answers: findings, each with its kind and severity, and counts of what was seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

KINDS: dict[str, tuple[Literal["error", "warning"], str]] = {
    "log.gap": ("error", "a commit is missing although later ones stand"),
    "log.lost": ("error", "commits at the end of a stream are lost, or all of it"),
    "log.damaged": ("error", "a file of the log cannot be read"),
    "log.level": ("error", "a level file says something else than the commits it copies"),
    "log.level-missing": ("warning", "a level file is missing; the log opens slower"),
    "log.twice": ("error", "two commits add the same file"),
    "log.unknown": ("error", "a commit takes away a file that none has added"),
    "lease.damaged": ("error", "a lease file cannot be read, which blocks its stream"),
    "lease.stale": ("warning", "a writer died or was cut off without letting its stream go"),
    "file.missing": ("error", "a live file does not exist"),
    "file.size": ("error", "a live file has not the size that the log says"),
    "file.hash": ("error", "a live file's bytes are not those that were committed"),
    "file.unreadable": ("error", "a live file cannot be opened or read"),
    "file.schema": ("error", "a live file's table, version or columns are not those of the schema"),
    "file.rows": ("error", "a live file has not the rows that the log says"),
    "file.steps": ("error", "a live file has not the steps that the log says"),
    "file.key": ("error", "rows of a live file belong to another run, step or data set"),
    "rows.twice": ("error", "two live rows of a table share the primary key"),
    "file.removed": ("warning", "files that were taken away wait for pico gc; a glob sees them"),
    "file.uncommitted": ("warning", "files of a dead writer that no commit names; pico gc"),
    "file.staged": ("warning", "unfinished files of a dead writer; pico gc"),
    "file.foreign": ("warning", "a file that this package did not write"),
    "file.intruder": ("error", "a foreign file inside a table's folder, where globs read it"),
    "file.symlink": ("error", "a symbolic link inside the lake"),
    "history.missing": ("error", "a planned checkpoint is missing"),
    "history.incomplete": ("error", "a checkpoint lacks weights of a parameter"),
    "history.repeated": ("error", "whole checkpoints of different steps are equal"),
    "history.mixed": ("error", "a checkpoint holds some tensors of another step"),
    "history.unchanged": ("warning", "a trained tensor did not change between steps"),
    "tensor.hash": ("error", "a tensor's bytes do not fit its content hash"),
    "tensor.stats": ("error", "statistics do not fit the tensor that they describe"),
}
"""Every kind of finding: its severity, and what it means."""


@dataclass(frozen=True)
class Finding:
    """One thing that is not as it should be."""

    kind: str
    message: str
    path: str | None = None
    run: str | None = None
    step: int | None = None

    @property
    def severity(self) -> Literal["error", "warning"]:
        """`error`: something recorded is damaged or lacking; `warning`: it can be cleared up."""
        return KINDS[self.kind][0]

    def __str__(self) -> str:
        """Say it in one line."""
        return f"{self.severity} {self.kind}: {self.message}"


@dataclass(frozen=True)
class Report:
    """Everything that `verify` found, and how much it looked at."""

    findings: tuple[Finding, ...]
    counts: Mapping[str, int]

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings of severity `error`."""
        return tuple(item for item in self.findings if item.severity == "error")

    @property
    def is_sound(self) -> bool:
        """Whether there is no error; warnings do not count."""
        return not self.errors

    def rows(self) -> list[dict[str, Any]]:
        """Return the findings as rows, errors first."""
        return [{"severity": item.severity, **asdict(item)} for item in sort(self.findings)]

    def kinds(self) -> list[dict[str, Any]]:
        """Return a row per kind of finding: severity, kind, how many, what it means."""
        counts = Counter(item.kind for item in sort(self.findings))
        return [
            {"severity": KINDS[kind][0], "kind": kind, "findings": n, "meaning": KINDS[kind][1]}
            for kind, n in counts.items()
        ]

    def summary(self) -> str:
        """Say in one line what was looked at and found."""
        seen = ", ".join(f"{number:,} {what}" for what, number in self.counts.items())
        if not self.findings:
            return f"sound: {seen}; nothing found"
        kinds = Counter(item.kind for item in self.findings)
        found = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
        return f"{'sound' if self.is_sound else 'DAMAGED'}: {seen}; found: {found}"

    def __str__(self) -> str:
        """Say everything, a line per finding."""
        return "\n".join([self.summary(), *map(str, sort(self.findings))])


def sort(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings with errors first, then by kind and path."""
    return sorted(findings, key=lambda item: (item.severity, item.kind, item.path or ""))
