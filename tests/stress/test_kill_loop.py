import pytest

from tests.stress import kill_loop


@pytest.mark.parametrize("n_kills", [4, pytest.param(200, marks=pytest.mark.slow)])
def test_kills_lose_nothing_and_no_reader_sees_a_part(n_kills):
    tally = kill_loop.kill_loop(n_kills, seed=n_kills)
    print(tally)
    assert (tally.commits_lost, tally.partial_states, tally.reader_errors) == (0, 0, 0)
    assert tally.kills == n_kills
    assert tally.commits_told > n_kills / 4
    assert tally.snapshots_read
    assert tally.sql_reads
    kill_loop.note(tally)
