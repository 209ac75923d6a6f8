"""No flipped bit passes `check`, and SQL that verifies never answers from one."""

import numpy as np
import pytest

import pico
from pico.errors import CorruptError
from pico.lake import intact
from pico.lake.snapshot import Snapshot


@pytest.fixture
def entry(storage, commit_weights):
    commit_weights(storage, {"w": np.arange(300, dtype=np.float32)})
    (found,) = Snapshot.take(storage).files("weights")
    return found


def test_what_was_written_is_intact(storage, entry):
    intact.check(storage, [entry])
    assert intact.digest(storage, entry.path) == (entry.bytes, entry.hash)


def test_no_flipped_bit_passes(storage, entry):
    whole = storage.read(entry.path)
    for at in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        storage.put(entry.path, bytes(damaged))
        with pytest.raises(CorruptError, match="is damaged: its bytes"):
            intact.check(storage, [entry])


@pytest.mark.parametrize("end", [0, 10, -1])
def test_no_truncation_passes(storage, entry, end):
    storage.put(entry.path, storage.read(entry.path)[:end])
    with pytest.raises(CorruptError, match=entry.path):
        intact.check(storage, [entry])


def test_a_missing_file_is_named(storage, entry):
    storage.delete([entry.path])
    with pytest.raises(CorruptError, match=f"{entry.path} is missing"):
        intact.check(storage, [entry])


def test_sql_that_verifies_answers_from_no_damaged_file(local, commit_weights):
    for step in (0, 1):
        commit_weights(local, {"w": np.arange(300, dtype=np.float32)}, step=step)
    lake, query = pico.Lake(local.url), "SELECT sum(frobenius_norm(tensor)) FROM weights"
    assert lake.sql(query, verify=True).fetchall() == lake.sql(query).fetchall()
    (entry,) = Snapshot.take(local).files("weights", steps=[1])
    damaged = bytearray(local.read(entry.path))
    damaged[len(damaged) // 4] ^= 1
    local.put(entry.path, bytes(damaged))
    with pytest.raises(CorruptError, match=entry.path):
        lake.sql(query, verify=True)
    lake.connect(steps=0, verify=True).close()  # what the views cannot show is not read
