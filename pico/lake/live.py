"""Which files of the log count: added, not taken away, and not part of a void replacement.

A commit that replaces files (`remove` entries, and `add` entries that say what they stand for) is
void as a whole when a file that it removes is withdrawn by any commit of any stream, or was itself
added by a void one: then neither its adds nor its removes count. So a resume that withdraws rows
while a compaction merges their files brings nothing back and loses nothing, whichever commits
first, and neither has to wait for the other. `snapshot` calls this. In SQL, without this package:

    WITH RECURSIVE log AS (FROM read_parquet('LAKE/_log/*/*.parquet')),
    replaced AS (
        SELECT txn, path FROM log WHERE action = 'remove' AND txn IN (
            SELECT txn FROM log WHERE action = 'add' AND extra LIKE '%"stands_for"%')),
    void AS (
        SELECT txn FROM replaced WHERE path IN (SELECT path FROM log WHERE action = 'withdraw')
        UNION
        SELECT replaced.txn FROM replaced JOIN log USING (path) JOIN void ON void.txn = log.txn
        WHERE log.action = 'add')
    SELECT path FROM log WHERE action = 'withdraw' OR txn NOT IN (FROM void)
    GROUP BY path HAVING bool_and(action = 'add') ORDER BY path
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from pico.lake import entries


def live(rows: pa.Table) -> pa.ChunkedArray:
    """Say of each row of the log whether it adds a file that counts.

    Args:
        rows: all streams' entries, in any order.

    Returns:
        Booleans, one per row.

    Raises:
        CorruptError: if a note about what a file stands for is damaged, and it matters.
    """
    added = pc.equal(rows["action"], "add")
    if pc.all(added, min_count=0).as_py():
        return added
    away = rows.filter(pc.invert(added)).select(["action", "path", "txn"])
    void = _void(rows, added, away)
    if len(void):
        added = pc.and_(added, pc.invert(_among(rows["txn"], void)))
        is_void = pc.and_(pc.equal(away["action"], "remove"), _among(away["txn"], void))
        away = away.filter(pc.invert(is_void))
    return pc.and_(added, pc.invert(_among(rows["path"], away["path"])))


def _void(rows: pa.Table, added: pa.ChunkedArray, away: pa.Table) -> pa.Array:
    """Return the transactions of all void replacements."""
    nothing = pa.array([], pa.string())
    removes = away.filter(pc.equal(away["action"], "remove"))
    withdrawn = away.filter(pc.equal(away["action"], "withdraw"))["path"]
    hit = removes.filter(_among(removes["path"], withdrawn))
    if not hit.num_rows:
        return nothing
    replacing = _replacing(rows, added)
    removes = removes.filter(_among(removes["txn"], replacing))
    adds = rows.filter(pc.and_(added, _among(rows["txn"], replacing))).select(["path", "txn"])
    void = pc.unique(hit["txn"].filter(_among(hit["txn"], replacing)))
    n_before = 0
    while len(void) > n_before:
        n_before = len(void)
        fallen = adds.filter(_among(adds["txn"], void))["path"]
        further = removes.filter(_among(removes["path"], fallen))["txn"]
        void = pc.unique(pa.concat_arrays([void, *further.chunks]))
    return void


def _replacing(rows: pa.Table, added: pa.ChunkedArray) -> pa.Array:
    """Return the transactions that add files which stand for others."""
    noted = pc.match_substring(rows["extra"], f'"{entries.STANDS_FOR}"')
    found = rows.filter(pc.and_(added, pc.fill_null(noted, False)))
    # A commit writes the same note for all its files, so there are few to parse.
    notes = [note for note in pc.unique(found["extra"]).to_pylist() if entries.origin(note)]
    return pc.unique(found["txn"].filter(_among(found["extra"], pa.array(notes, pa.string()))))


def _among(values: pa.ChunkedArray, wanted: pa.Array | pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.is_in(values, value_set=wanted)
