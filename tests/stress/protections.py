"""What keeps a lake whole: each protection, a change that takes it out, the test that must fail.

`mutations` tries them, `tests/lake/test_protocol_facts.py` sees that the places still exist. The
facts are those of the commit protocol; a test that guards more than one stands more than once.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Protection:
    """One protection of the code."""

    fact: str
    file: str
    before: str
    """Text that stands in the file once."""
    after: str
    test: str

    @property
    def change(self) -> str:
        """Words for the change, on one line."""
        first, last = (" ".join(text.split()) for text in (self.before, self.after))
        return f"`{first}` → `{last}`" if last else f"without `{first}`"


_LOCAL, _LEASE, _COMMIT = "pico/lake/local.py", "pico/lake/lease.py", "pico/lake/commit.py"
_STORAGE, _DATAFILE = "pico/lake/storage.py", "pico/lake/datafile.py"
_T_COMMIT, _T_LEASE = "tests/lake/test_commit.py::", "tests/lake/test_lease.py::"
_T_POWER, _T_STORAGE = "tests/stress/test_crash_power.py::", "tests/lake/test_storage.py::"

PROTECTIONS = (
    Protection(
        "put-if-absent is exclusive; a look and then a write (as fsspec creates files) is not",
        _LOCAL,
        "            os.link(staged, final)\n",
        "            if final.exists():\n                raise FileExistsError\n"
        "            os.replace(staged, final)\n",
        "tests/lake/test_races.py::test_of_eight_processes_exactly_one_gets_each_number",
    ),
    Protection(
        "without hard links a lock makes it exclusive",
        _LOCAL,
        "        fcntl.flock(lock, fcntl.LOCK_EX)\n",
        "",
        "tests/lake/test_races.py::test_of_eight_processes_exactly_one_gets_each_number",
    ),
    Protection(
        "a data file is durable before it is named",
        _LOCAL,
        "    os.fsync(file.fileno())\n    file.close()\n",
        "    file.close()\n",
        _T_POWER + "test_a_power_cut_at_some_operations",
    ),
    Protection(
        "the name of a data file is durable before the commit",
        _LOCAL,
        "    os.replace(staged, final)\n    sync_folder(final.parent)\n\n",
        "    os.replace(staged, final)\n\n",
        _T_POWER + "test_a_power_cut_at_some_operations",
    ),
    Protection(
        "a commit is durable before the writer is told",
        _LOCAL,
        "        sync_folder(final.parent)\n        return True\n\n\ndef _put_locked",
        "        return True\n\n\ndef _put_locked",
        _T_POWER + "test_a_power_cut_at_some_operations",
    ),
    Protection(
        "folders that a killed process left are made durable",
        _LOCAL,
        "while folder not in _durable or not folder.exists():",
        "while not folder.exists():",
        _T_POWER + "test_a_power_cut_after_a_kill_between_making_a_folder_and_its_fsync",
    ),
    Protection(
        "a folder that cannot be synced is an error",
        _LOCAL,
        "if error.errno in _DISK_FAILURES:",
        "if False:",
        "tests/lake/test_local.py::test_a_disk_that_fails_to_sync_a_folder_is_an_error",
    ),
    Protection(
        "unfinished files lie outside every table",
        "pico/lake/sink.py",
        'self._staged = staging / f"{final.name}.inprogress"',
        'local.make_folder(final.parent); self._staged = final.parent / f"{final.name}.inprogress"',
        _T_COMMIT + "test_a_commit_shows_all_tables_at_once",
    ),
    Protection(
        "after an exception no truncated file is published",
        _DATAFILE,
        "            if kind is None:\n",
        "            if True:\n",
        "tests/lake/test_table.py::test_a_failing_write_adds_nothing",
    ),
    Protection(
        "the next writer clears what a crash left",
        _COMMIT,
        "                self._clear_debris()\n",
        "",
        "tests/stress/test_crash_kill.py::test_a_kill_at_some_operations",
    ),
    Protection(
        "a predecessor that still lives is fenced by an empty commit",
        _COMMIT,
        "self._publish([], uuid.uuid4().hex)  # fences",
        "pass  # fences",
        _T_COMMIT + "test_a_holder_that_sleeps_through_its_last_check_is_fenced",
    ),
    Protection(
        "a lost answer is resolved by reading the commit back",
        _COMMIT,
        "if self.storage.folder is not None or self._txn_at(seq) != txn:",
        "if True:",
        _T_COMMIT + "test_a_lost_answer_is_a_commit",
    ),
    Protection(
        "a commit that exists already is mine only if the transaction is",
        _COMMIT,
        "if not is_mine and self._txn_at(seq) != txn:",
        "if False:",
        _T_COMMIT + "test_a_holder_that_sleeps_through_its_last_check_is_fenced",
    ),
    Protection(
        "files of a commit of unknown outcome are not deleted",
        _COMMIT,
        "        if self._is_unknown:  # the log",
        "        if False:  # the log",
        _T_COMMIT + "test_a_commit_of_unknown_outcome_is_cleared_by_the_next_holder",
    ),
    Protection(
        "a writer that finds a newer epoch stops",
        _LEASE,
        "if newest and newest[-1] > self.epoch:",
        "if False:",
        "tests/lake/test_races.py::test_a_holder_that_wakes_up_after_a_take_over_stops",
    ),
    Protection(
        "a live writer keeps its stream",
        _LEASE,
        "        and not previous.is_gone()\n",
        "        and False\n",
        _T_LEASE + "test_a_second_writer_learns_who_holds_the_stream",
    ),
    Protection(
        "a wrong clock robs nobody",
        _LEASE,
        "return bool(epochs) and now - written[_path(stream, epochs[-1])] > previous.time_to_live",
        "return time.time() - previous.heartbeat > previous.time_to_live",
        _T_LEASE + "test_a_live_holder_whose_clock_is_wrong_is_not_robbed",
    ),
    Protection(
        "a pid counts on its own machine only",
        _LEASE,
        "return self.machine == _machine() and self.process_start",
        "return self.process_start",
        _T_LEASE + "test_a_pid_of_another_machine_means_nothing",
    ),
    Protection(
        "Ceph says 412 inside EINVAL",
        "pico/lake/objects.py",
        'code in ("PreconditionFailed", "412") or status == 412',
        "False",
        _T_STORAGE + "test_conditional_puts",
    ),
    Protection(
        "a store without conditional PUT is refused",
        _STORAGE,
        'is_exclusive = not self._conditional_put(probe, b"2")',
        "is_exclusive = True",
        _T_STORAGE + "test_a_store_that_ignores_the_condition_is_refused",
    ),
    Protection(
        "listings are never cached",
        _STORAGE,
        "use_listings_cache=False",
        "use_listings_cache=True",
        "tests/lake/test_protocol_facts.py::test_listings_are_not_cached",
    ),
    Protection(
        "credentials inside a URL are refused",
        _STORAGE,
        'if "://" in url and re.match(',
        "if False and re.match(",
        _T_STORAGE + "test_urls_with_credentials_are_refused",
    ),
    Protection(
        "no statistics on float columns: DuckDB would drop NaN rows",
        _DATAFILE,
        "write_statistics=[name for name in STATISTICS if name in types and name not in told]",
        "write_statistics=True",
        "tests/lake/test_datafile.py::test_no_table_has_float_statistics_or_float16",
    ),
    Protection(
        "our sessions look for NaN although statistics exclude them",
        "pico/sql/session.py",
        '"parquet_can_have_nan": "true"',
        '"parquet_can_have_nan": "false"',
        "tests/sql/test_session.py::test_settings",
    ),
    Protection(
        "paths in the log cannot leave the lake",
        "pico/lake/names.py",
        "    if not PATH.fullmatch(path):\n",
        "    if False:\n",
        "tests/lake/test_names.py::test_paths_of_a_hostile_log_are_refused",
    ),
    Protection(
        "a tensor is verified by its content hash",
        "pico/lake/table.py",
        'if verify and tensor.content_hash != first["content_hash"]:',
        "if False:",
        "tests/lake/test_table.py::test_a_wrong_hash_is_found",
    ),
)
