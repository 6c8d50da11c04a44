"""Many processes on one SQLite file."""

from __future__ import annotations

import signal
import time
from collections import Counter

import pytest

from tests.eventually import eventually
from tests.process.handlers import ends_in_a_transaction, slow, slow_async, td
from tests.process.harness import Place, end, size
from tests.process.journal import FOLDER


@pytest.mark.sqlite_only
def test_sixteen_processes_enqueue_and_work_and_no_error_reaches_a_caller(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = size("ONE_FILE_SECONDS", 10)
    td.store.open()
    processes = [place.python("-m", "tests.process.produce_and_work", str(seconds)) for _ in range(16)]
    assert [process.wait(seconds + 300) for process in processes] == [0] * 16
    assert place.log.read_text() == ""

    monkeypatch.setenv(FOLDER, str(place.journals))
    assert td.tick(max_jobs=100_000, max_seconds=60).next_due_at is None  # jobs that the last producer left
    acked = [words[2] for words in place.noted("acked")]
    slowest = sorted(float(words[2]) for words in place.noted("slowest"))
    print(f"{len(acked)} jobs, {len(acked) / seconds:.0f}/s; the slowest enqueue took {slowest[-1]:.2f} s")
    assert Counter(words[2] for words in place.noted("ran")) == Counter(acked)
    assert td.counts() == [{"status": "completed", "count": len(acked)}]
    assert place.sql("SELECT count(*) FROM treadle_attempts") == [(0,)]
    assert td.store.check() == "ok"


@pytest.mark.sqlite_only
def test_no_job_is_rescued_when_all_workers_are_suspended_for_a_while(place: Place) -> None:
    """As when a laptop sleeps: no worker beats for twelve beats, and then all continue."""
    beat = 1.0
    supervisors = [place.worker(processes=2, concurrency=10, beat=beat) for _ in range(2)]
    place.wait_for_workers(4)
    jobs = td.enqueue_many([handler.request(seconds=4) for handler in (slow, slow_async) for _ in range(20)])
    eventually(lambda: len(place.noted("start")) == len(jobs))
    before = {row.id for row in td.workers()}
    assert len(before) == 4

    everybody = place.processes()
    for process in everybody:
        process.suspend()
    try:
        time.sleep(12 * beat)
    finally:
        for process in everybody:
            process.send_signal(signal.SIGCONT)

    eventually(lambda: place.count("completed") == len(jobs))
    assert {row.id for row in td.workers()} == before
    assert len(place.noted("start")) == len(jobs)
    assert place.sql("SELECT * FROM treadle_attempts") == []
    assert [end(supervisor) for supervisor in supervisors] == [0, 0]


def test_many_concurrent_async_transactions_all_end(place: Place) -> None:
    place.sql("CREATE TABLE effects (id TEXT)")
    worker = place.worker(concurrency=50)
    place.wait_for_workers(1)
    jobs = td.enqueue_many([ends_in_a_transaction.request() for _ in range(50)])
    eventually(lambda: place.count("completed") == len(jobs))
    assert sorted(place.sql("SELECT id FROM effects")) == sorted((job.id,) for job in jobs)
    assert place.sql("SELECT * FROM treadle_attempts") == []
    assert end(worker) == 0
