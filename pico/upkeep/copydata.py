"""Which files of data sets, vocabularies and probes a copied run needs that the target lacks.

`copy` asks. A name that both lakes have must mean the same in both: data sets are compared by
fingerprint, probes by the hash of their input, vocabularies token by token.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

import pyarrow.compute as pc

from pico.errors import DataError
from pico.lake import table
from pico.lake.log import Entry
from pico.lake.snapshot import Snapshot, partition
from pico.upkeep import usage
from pico.upkeep.copyplan import Group, History


def plan(source: History, target: History, runs: Collection[str]) -> list[Group]:
    """Return one commit per stream of data, with the files that the target lacks.

    Raises:
        DataError: listing all names that mean something else in the target.
    """
    used = usage.used(source.snapshot, runs)
    there = usage.known(target.snapshot)
    problems: list[str] = []
    present = {
        ("dataset", name)
        for name in used.datasets & there.datasets
        if _is_same_dataset(source.snapshot, target.snapshot, name, problems)
    } | {
        ("tokenizer", name)
        for name in used.tokenizers & there.tokenizers
        if _is_same_vocabulary(source.snapshot, target.snapshot, name, problems)
    }
    groups: dict[str, Group] = {}
    for path, entry in source.live.items():
        key, name = next(iter(partition(path).items()), ("", ""))
        if name not in (used.datasets if key == "dataset" else used.tokenizers):
            continue
        if key not in ("dataset", "tokenizer"):
            continue
        if entry.table == "probes":
            if _has_probe(source.snapshot, target.snapshot, entry, problems):
                continue
        elif (key, name) in present:
            continue
        stream = source.place(path)[0]
        if not stream.startswith("data."):
            stream = f"data.{name}"
        groups.setdefault(stream, Group(stream)).add.append(entry)
    if problems:
        raise DataError(
            f"{target.storage.url} has other data under the same name: {'; '.join(problems)}; "
            "copy the runs into another lake, or without their data sets; nothing was written"
        )
    return [groups[stream] for stream in sorted(groups)]


def named(group: Group) -> set[str]:
    """Return the data sets and tokenizers of which a commit brings files."""
    return {name for entry in group.add for name in partition(entry.path).values()}


def _is_same_dataset(source: Snapshot, target: Snapshot, name: str, problems: list[str]) -> bool:
    """Whether the target has the data set; one that has nothing but probes there is lacking."""
    ours, theirs = (_fingerprints(snapshot, name) for snapshot in (source, target))
    if theirs and ours != theirs:
        problems.append(f"data set {name!r} has another fingerprint")
    return bool(theirs)


def _fingerprints(snapshot: Snapshot, name: str) -> set[str]:
    rows = snapshot.read(
        "datasets", ["dataset_id", "fingerprint"], filter=pc.field("dataset_id") == name
    )
    return set(rows["fingerprint"].to_pylist())


def _is_same_vocabulary(source: Snapshot, target: Snapshot, name: str, problems: list[str]) -> bool:
    ours, theirs = (_tokens(snapshot, name) for snapshot in (source, target))
    if ours != theirs:
        problems.append(f"tokenizer {name!r} has another vocabulary")
    return True


def _tokens(snapshot: Snapshot, name: str) -> list[tuple[object, ...]]:
    columns = ["tokenizer_id", "token_id", "bytes"]
    rows = snapshot.read("vocab", columns, filter=pc.field("tokenizer_id") == name)
    return sorted(zip(*(rows[column].to_pylist() for column in columns[1:]), strict=True))


def _has_probe(source: Snapshot, target: Snapshot, entry: Entry, problems: list[str]) -> bool:
    """Whether the target has the probes of a file already."""
    columns = ["dataset_id", "probe", "input_hash"]
    ours = _hashes(table.read(source.storage, [entry], columns).to_pylist())
    theirs = _hashes(target.read("probes", columns).to_pylist())
    for key in ours.keys() & theirs.keys():
        if ours[key] != theirs[key]:
            problems.append(f"probe {key[1]!r} of data set {key[0]!r} is another input")
    return ours.keys() <= theirs.keys()


def _hashes(rows: list[dict[str, str]]) -> dict[tuple[str, str], set[str]]:
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for row in rows:
        found[row["dataset_id"], row["probe"]].add(row["input_hash"])
    return found
