"""Rows that derive from a run's steps, and what becomes of them when steps are withdrawn.

Metrics, spectra, evaluations and scores are written by `derive.<run>.<writer>` streams, many steps
a file. When a run goes back to step s, a row about *state* (weights, optimizer, probe activations,
evaluations, scores) stands as long as its step is at most s; a *batch-caused* row (gradients,
training activations, batches, scalars) only below s, because batch s will be run again. `record`
applies the rule when a run is resumed, `sql` drops the rows of tensors that are no longer live.
A file that loses all its rows goes; one that loses some is written anew without them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pico import schema
from pico.lake.commit import Transaction
from pico.lake.datafile import PartitionFiles
from pico.lake.entries import replacement
from pico.lake.log import Entry, LogReader
from pico.lake.snapshot import partition
from pico.lake.storage import Storage
from pico.lake.table import OpenFile, open_file

_BATCH_CAUSED = ("gradients", "batches", "scalars", "param_groups")
_DECIDING = ("global_step", "table_name", "probe", "ref_run", "ref_step")

Rule = Callable[[pa.Table], pa.Array]
"""Says of each row whether it goes; booleans, none of them NULL."""


def outdated(rows: pa.Table, table: str, run: str, step: int) -> pa.Array:
    """Say of each derived row whether it goes when its run goes back to `step`.

    Args:
        rows: rows of `table`, with those of the columns `deciding(table)`.
        table: a table with `global_step`.
        run: the run that goes back; the one that the rows belong to.
        step: the checkpoint that it goes back to.

    Returns:
        `(rows,)` booleans. A comparison goes as well if what it was compared with goes.
    """
    limit = pc.if_else(_is_batch_caused(rows, table), step - 1, step)
    gone = pc.greater(rows["global_step"], limit)
    if "ref_step" in rows.column_names:
        is_own = pc.fill_null(pc.equal(rows["ref_run"], run), True)
        gone = pc.or_kleene(gone, pc.and_(is_own, pc.greater(rows["ref_step"], limit)))
    return pc.fill_null(gone, False)


def deciding(table: str) -> list[str]:
    """Return the columns of a table that `outdated` looks at."""
    return [name for name in _DECIDING if name in schema.table(table).column_names]


def can_be_outdated(entry: Entry, step: int) -> bool:
    """Say from the log alone whether a file can hold rows that `outdated` would take away."""
    columns = schema.table(entry.table).column_names
    if "global_step" not in columns:
        return False
    return "ref_step" in columns or entry.max_step is None or entry.max_step >= step


def origins(reader: LogReader, run: str, files: Iterable[Entry]) -> dict[str, tuple[str, str]]:
    """Return by path the stream and transaction that first committed what files of a run hold."""
    added = {
        entry.path: (name, entry.txn)
        for name in reader.streams()
        if name == f"train.{run}" or name.startswith(f"derive.{run}.")
        for entry in reader.stream(name)
        if entry.action == "add"
    }
    return {e.path: e.stands_for or added.get(e.path, ("", e.txn)) for e in files}


def n_rows(storage: Storage, entry: Entry, columns: Sequence[str], rule: Rule) -> int:
    """Return for how many rows of a file `rule` holds; it needs the given columns."""
    file = open_file(storage, entry)
    return sum(pc.sum(gone).as_py() or 0 for gone in _judged(file, columns, rule))


def take_away(
    transaction: Transaction,
    entry: Entry,
    origin: tuple[str, str],
    columns: Sequence[str],
    rule: Rule,
    withdraw: bool,
) -> int:
    """Take the rows of a live file away for which `rule` holds; memory stays at a row group.

    Args:
        transaction: the commit that does so.
        entry: the file.
        origin: stream and transaction that its rows came from; what is kept stands for them.
        columns: what `rule` needs of the rows.
        rule: which rows go.
        withdraw: whether the rows are withdrawn with their run's steps; if not, the file is
            replaced, which is void should somebody withdraw it meanwhile.

    Returns:
        How many rows go; with 0 the transaction is as it was.

    Raises:
        CorruptError: if the file is damaged.
    """
    file = open_file(transaction.stream.storage, entry)
    n_gone = n_rows(transaction.stream.storage, entry, columns, rule)
    if not n_gone:
        return 0
    if n_gone < entry.rows:
        path_keys: dict[str, str | int] = dict(partition(entry.path))
        if "step" in path_keys:
            path_keys["step"] = int(path_keys["step"])
        note = replacement(*origin)
        with PartitionFiles(transaction, schema.table(entry.table), path_keys, note) as files:
            for group, gone in enumerate(_judged(file, columns, rule)):
                kept = file.read_row_group(group).filter(pc.invert(gone))
                if kept.num_rows:
                    files.write(kept)
    transaction.take_away([entry], withdraw)
    return n_gone


def _judged(file: OpenFile, columns: Sequence[str], rule: Rule) -> Iterator[pa.Array]:
    for group in range(file.num_row_groups):
        yield rule(file.read_row_group(group, columns))


def _is_batch_caused(rows: pa.Table, table: str) -> pa.Array | pa.Scalar:
    if "table_name" in rows.column_names:
        is_activation = pc.equal(rows["table_name"], "activations")
        is_caused = pc.is_in(rows["table_name"], value_set=pa.array(_BATCH_CAUSED))
        return pc.or_(is_caused, pc.and_(is_activation, pc.is_null(rows["probe"])))
    if table == "activations":
        return pc.is_null(rows["probe"])
    return pa.scalar(table in _BATCH_CAUSED)
