"""Tasks: cut at row groups, small, repeatable; threads that compute with one BLAS thread each."""

from __future__ import annotations

import dataclasses
import pickle
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import threadpoolctl

from pico.compute import missing, tasks
from pico.compute.asked import Reference, choose
from pico.compute.missing import Question
from pico.compute.tasks import Done, Job, Performer, Task, Threads
from pico.errors import CorruptError
from pico.lake.groups import Piece, StoredTensor
from pico.lake.log import Entry
from pico.lake.snapshot import Snapshot
from pico.lake.storage import Storage
from tests.sql import small_lake as lake


def entry(path: str) -> Entry:
    return Entry("add", "weights", path, 1, 1, "", 1, 0, 0, "t")


def job(number: int, group: int, n_bytes: int = 10, n_labels: int = 1, path: str = "a") -> Job:
    tensor = StoredTensor(f"t{number}", (Piece(entry(path), group, number),), "float32", (2,), "h")
    labels = tuple((f"m{n}", None, 1) for n in range(n_labels))
    return Job(f"h{number}", tensor, None, labels, n_bytes)


def cut(*jobs: Job, n_values: int = 1000) -> list[list[str]]:
    return [[job.tensor_hash for job in task.jobs] for task in tasks.cut(jobs, n_values)]


def test_a_row_group_is_never_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "TASK_BYTES", 20)
    assert cut() == []
    assert cut(job(0, 0, 50), job(1, 0, 50), job(2, 0, 50)) == [["h0", "h1", "h2"]]
    assert cut(job(0, 0), job(1, 0), job(2, 1), job(3, 2)) == [["h0", "h1", "h2"], ["h3"]]
    assert cut(job(0, 0, 20), job(1, 0, 20, path="b")) == [["h0"], ["h1"]]


def test_a_task_makes_few_values() -> None:
    assert cut(job(0, 0), job(1, 1), job(2, 2), n_values=2) == [["h0", "h1"], ["h2"]]
    assert cut(job(0, 0, n_labels=5), job(1, 0, n_labels=5), n_values=2) == [["h0", "h1"]]


def test_small_tensors_that_want_the_same_are_computed_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def sizes(*jobs: Job) -> list[int]:
        return [len(stack) for stack in tasks.stacked(jobs)]

    alike = [job(number, number) for number in range(8)]  # of 8 bytes each
    pair = dataclasses.replace(job(9, 9), reference=job(0, 0).tensor)
    monkeypatch.setattr(tasks, "STACK_TENSORS", 3)
    assert sizes() == []
    assert sizes(*alike) == [3, 3, 2]
    assert sizes(alike[0], pair, pair, alike[1]) == [1, 1, 1, 1]
    assert sizes(alike[0], job(9, 9, n_labels=2), alike[1]) == [1, 1, 1]
    monkeypatch.setattr(tasks, "STACK_BYTES", 16)
    assert sizes(*alike) == [2, 2, 2, 2]
    monkeypatch.setattr(tasks, "STACK_BYTES", 1)
    assert sizes(*alike[:2]) == [1, 1]


@pytest.fixture
def storage(tmp_path_factory: pytest.TempPathFactory) -> Storage:
    found = Storage(str(tmp_path_factory.mktemp("tasks") / "lake"))
    lake.write_run(found, "first")
    return found


def planned(storage: Storage, names: str, reference: Reference | None = None) -> list[Task]:
    asked = tuple(choose(names, reference)[0 if reference is None else 1])
    question = Question("first", "weights", asked, reference)
    work = missing.plan(Snapshot.take(storage), question)
    return list(tasks.cut(work.jobs(), 3))


def test_a_task_can_travel_and_be_done_again(storage: Storage) -> None:
    for reference in (None, Reference("first", 0)):
        for task in planned(storage, "gini,per" if reference is None else "cka", reference):
            data = pickle.dumps(task)
            assert len(data) < 1000 * len(task.jobs)
            assert "value" not in repr(task)
            here = Performer(storage)(task)
            there = Performer(pickle.loads(pickle.dumps(storage)))(pickle.loads(data))
            assert here == there == Performer(storage)(task)
            assert [text for text, _ in here] == [job.tensor_hash for job in task.jobs]


def test_threads_have_one_blas_thread_each(storage: Storage) -> None:
    before = {p["filepath"]: p["num_threads"] for p in threadpoolctl.threadpool_info()}
    seen: list[int] = []

    def convert(array: object) -> object:
        seen.extend(
            pool["num_threads"]
            for pool in threadpoolctl.threadpool_info()
            if pool["user_api"] == "blas"
        )
        return array

    todo = planned(storage, "gini")
    assert len(list(Threads(2, convert)(storage, todo))) == len(todo)
    assert seen and set(seen) == {1}
    after = {p["filepath"]: p["num_threads"] for p in threadpoolctl.threadpool_info()}
    assert after == before


def test_tasks_are_taken_only_as_they_can_be_done() -> None:
    taken = 0
    release = threading.Event()

    def endless():  # type: ignore[no-untyped-def]
        nonlocal taken
        while True:
            taken += 1
            yield Task((job(taken, 0),))

    def perform(task: Task) -> Done:
        release.wait(10)
        return [(task.jobs[0].tensor_hash, {})]

    with ThreadPoolExecutor(2) as pool:

        def submit(task: Task) -> Future[Done]:
            return pool.submit(perform, task)

        answers = tasks.spread(endless(), submit, 3)
        threading.Thread(target=lambda: (time.sleep(0.2), release.set())).start()
        first = next(answers)
        assert first[0][0].startswith("h") and taken <= 3
        for _ in range(10):
            next(answers)
        assert taken <= 3 + 11
        answers.close()


def test_a_damaged_tensor_stops_the_work(storage: Storage) -> None:
    (task, *rest) = planned(storage, "gini")
    wrong = StoredTensor("x", task.jobs[0].tensor.pieces, "float32", (3, 3), "0")
    broken = Task((Job("0", wrong, None, task.jobs[0].labels, 1),))
    with pytest.raises(CorruptError, match=r"'x'|cannot fill"):
        list(Threads(2)(storage, [task, broken, *rest]))
