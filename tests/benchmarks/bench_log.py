"""Open a run with 10,000 commits and commit to it, against the same with 100 commits.

    python -m tests.benchmarks.bench_log [PAIRS]

Only the log is there, as the lake's own functions write it: no data file is opened. To open means
to take a snapshot with nothing in memory, to look whether it has the run, and to ask for the
weights of one step. The cost of a commit is the mean over 256 commits in a row, so that every
level file that they complete is in it.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pico.lake import entries, log
from pico.lake.commit import Stream
from pico.lake.log import Entry
from pico.lake.snapshot import Snapshot
from tests.benchmarks import measure
from tests.benchmarks.measure import Line, Result
from tests.lake.counting import CountingStorage

FEW, MANY = 100, 10_000
WINDOW = log.FANOUT**2
"""Commits in a row of which the mean is taken."""
RUN = "pico-tiny"
STREAM = f"train.{RUN}"
TABLES = ("batches", "scalars", "tensor_stats", "weights")


def commit_entries(step: int) -> list[Entry]:
    """Return what a commit adds: four files, one of them a step's weights."""
    txn, made = uuid.uuid4().hex, []
    for table in TABLES:
        folder = f"{table}/run={RUN}" + (f"/step={step}" if table == "weights" else "")
        path = f"{folder}/{uuid.uuid4()}.parquet"
        made.append(Entry("add", table, path, 64, 1 << 20, uuid.uuid4().hex, 1, step, step, txn))
    return made


def fill(folder: Path, n_commits: int, whole: bool = True) -> CountingStorage:
    """Write the log of a run with so many commits.

    Args:
        folder: a new lake.
        n_commits: commits, with the level files that they complete.
        whole: else files that neither a reader nor the next commits read are left without bytes.
    """
    rows = entries.to_rows(entry for step in range(n_commits) for entry in commit_entries(step))
    files = {log.commit_path(STREAM, seq): range(seq, seq + 1) for seq in range(n_commits)}
    for level in range(1, 4):
        width = log.FANOUT**level
        for last in range(width - 1, n_commits, width):
            path = f"{log.ROOT}/{STREAM}/level={level}/{last:012d}.parquet"
            files[path] = range(last - width + 1, last + 1)
    needed, recent = set(log.cover(files)), n_commits - n_commits % WINDOW
    for path, held in files.items():
        data = b""
        if whole or path in needed or held.start >= recent:
            first, last = held.start * len(TABLES), held.stop * len(TABLES)
            data = log.encode(rows.slice(first, last - first), {"stream": STREAM})
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    return CountingStorage(str(folder))


def open_run(storage: CountingStorage, step: int) -> list[Entry]:
    """Return the files of a step's weights, with nothing known beforehand."""
    snapshot = Snapshot.take(storage)
    snapshot.check_run(RUN)
    return snapshot.files("weights", [RUN], [step])


def commit(stream: Stream, step: int) -> None:
    """Commit four files that are noted but not written."""
    transaction = stream.begin()
    for entry in commit_entries(step):
        transaction.add(entry)
    transaction.commit()


def run(pairs: int = 9, few: int = FEW, many: int = MANY, window: int = WINDOW) -> Result:
    """Return times and counts of opening and of committing."""
    result = Result(f"(f) A run with {many:,} commits against one with {few:,}")
    with _lakes(few, many) as (small, large):
        _time_opening(result, small, large, few, many, pairs)
        _time_commits(result, small, large, few, many, window)
    return result


@contextmanager
def _lakes(few: int, many: int) -> Iterator[tuple[CountingStorage, CountingStorage]]:
    with tempfile.TemporaryDirectory() as folder:
        yield fill(Path(folder, "few"), few), fill(Path(folder, "many"), many)


def _time_opening(
    result: Result,
    small: CountingStorage,
    large: CountingStorage,
    few: int,
    many: int,
    pairs: int,
) -> None:
    rivals = {
        "few": lambda: measure.timed(lambda: open_run(small, few // 2)),
        "many": lambda: measure.timed(lambda: open_run(large, many // 2)),
    }
    found = measure.alternate(rivals, pairs)
    for turn in (*found["few"], *found["many"]):
        if [entry.table for entry in turn[1]] != ["weights"]:
            raise AssertionError("a step's weights are one file")
    times = {name: [seconds for seconds, _ in turns] for name, turns in found.items()}
    ratios = [many / few for few, many in zip(times["few"], times["many"], strict=True)]
    ratio = statistics.median(ratios)
    result.lines.append(
        Line(
            f"open a run with {many:,} commits",
            measure.seconds(times["many"]),
            f"with {few:,}",
            measure.seconds(times["few"]),
            f"{ratio:.2f}x ({min(ratios):.2f}-{max(ratios):.2f})",
            "<= 3x",
            ratio <= 3,
        )
    )
    counts = []
    for storage, n_commits in ((small, few), (large, many)):
        storage.reset()
        open_run(storage, n_commits // 2)
        counts.append((storage.counts["read"], _told(storage)))
    result.lines.append(
        Line(
            "objects read to open it",
            peer=f"with {few:,}: {counts[0][0]}",
            figure=f"{counts[1][0]}",
            target="<= 200",
            met=counts[1][0] <= 200,
        )
    )
    result.notes.append(f"To open: {counts[1][1]}; with {few:,} commits {counts[0][1]}.")


def _time_commits(
    result: Result,
    small: CountingStorage,
    large: CountingStorage,
    few: int,
    many: int,
    window: int,
) -> None:
    """Commit to both in turns: a disk that grows slower does so for both."""
    times: dict[str, list[float]] = {"few": [], "many": []}
    with Stream(small, STREAM) as at_few, Stream(large, STREAM) as at_many:
        small.reset(), large.reset()
        for n in range(window):
            turns = [("few", at_few, few + n), ("many", at_many, many + n)]
            for name, stream, step in turns if n % 2 else reversed(turns):
                start = time.perf_counter()
                commit(stream, step)
                times[name].append(time.perf_counter() - start)
        counts = [storage.n_operations / window for storage in (small, large)]
        told = [_told(storage) for storage in (small, large)]
    cost = {name: statistics.fmean(values) for name, values in times.items()}
    ratio = cost["many"] / cost["few"]
    result.lines.append(
        Line(
            f"a commit after {many:,}, mean of {window}",
            f"{cost['many'] * 1e3:.2f} ms (median {statistics.median(times['many']) * 1e3:.2f})",
            f"after {few:,}",
            f"{cost['few'] * 1e3:.2f} ms (median {statistics.median(times['few']) * 1e3:.2f})",
            f"{ratio:.2f}x",
            "<= 2x",
            ratio <= 2,
        )
    )
    result.lines.append(
        Line(
            "storage operations of a commit",
            peer=f"after {few:,}: {counts[0]:.2f}",
            figure=f"{counts[1]:.2f}",
            target=f"<= {2 * counts[0]:.2f}",
            met=counts[1] <= 2 * counts[0],
        )
    )
    result.notes.append(f"{window} commits after {many:,}: {told[1]}; after {few:,}: {told[0]}.")


def _told(storage: CountingStorage) -> str:
    told = ", ".join(f"{n} {name}" for name, n in sorted(storage.counts.items()))
    return f"{told} ({storage.n_bytes_read / 2**20:.2f} MiB read)"


def main() -> None:
    """Run and print."""
    start = time.perf_counter()
    measure.show(run(measure.pairs_asked()))
    print(f"  ({time.perf_counter() - start:.0f} s in all)")


if __name__ == "__main__":
    main()
