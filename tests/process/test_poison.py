"""Jobs that kill their process, among innocent ones: each fails, with the reason, and no other job does."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.eventually import eventually
from tests.process.handlers import LEAVERS, dose_async, dose_process, dose_thread, td, within_eight_seconds
from tests.process.harness import Place, end
from treadle import Job, Status

REASONS = {
    "exit 1": "exited with 1",
    "exit 0": "exited with 0",
    "exit 75": "exited with 75",
    "segfault": "was killed by SIGSEGV",
    "memory": "MemoryError",
    "all memory": "was killed by SIGKILL",
}

KINDS = ["exit 1", "exit 0", "segfault", "memory", "exit 75"]
DOSES = [dose_async, dose_thread, dose_process]


def check(place: Place, jobs: list[Job], poisons: list[str]) -> None:
    """Each poison job ran exactly twice and failed for its reason; all others completed."""
    runs = Counter(run.id for run in place.runs())
    print(f"{sum(runs.values())} runs of {len(jobs)} jobs")
    for job, poison in zip(jobs, poisons, strict=True):
        ended = td.get(job.id)
        assert ended is not None
        if poison:
            assert ended.status == Status.FAILED, td.attempts(job.id)
            assert runs[job.id] == 2, td.attempts(job.id)
            assert REASONS[poison] in str(ended.error)
        else:
            assert ended.status == Status.COMPLETED, td.attempts(job.id)


def all_ended(place: Place, jobs: list[Job]) -> bool:
    return place.count("completed") + place.count("failed") == len(jobs)


@pytest.mark.parametrize("dose", DOSES, ids=lambda dose: dose.job_type.name)
def test_each_poison_job_fails_after_exactly_its_attempts_and_no_other_job_fails(place: Place, dose: Any) -> None:
    poisons = [kind if i == 3 else "" for kind in KINDS for i in range(21)]
    jobs = td.enqueue_many([dose.request(poison=poison) for poison in poisons])
    supervisor = place.worker(processes=1, concurrency=10, beat=1.0)
    eventually(lambda: all_ended(place, jobs), within=300)
    assert end(supervisor) == 0
    check(place, jobs, poisons)


def test_a_suspect_is_not_charged_for_the_next_poison(place: Place) -> None:
    """It runs in its own process by then, so it cannot have killed the worker."""
    poisons = ["", "", "", "", "exit 1", "exit 1", "exit 1"]
    slow = [dose_async.request(poison="", seconds=1.0) for _ in range(4)]
    one_after_the_other = [dose_async.using(delay=i).request(poison="exit 1") for i in range(3)]
    jobs = td.enqueue_many(slow + one_after_the_other)
    supervisor = place.worker(processes=1, concurrency=10, beat=1.0)
    eventually(lambda: all_ended(place, jobs), within=300)
    assert end(supervisor) == 0
    check(place, jobs, poisons)


@pytest.mark.sqlite_only  # it tests the worker, independent of the store, and takes as long as the others together
@pytest.mark.parametrize("leaver", LEAVERS, ids=lambda leaver: leaver.job_type.name)
def test_a_job_is_charged_for_what_it_leaves_behind(place: Place, leaver: Any) -> None:
    """Each time, the process dies after the handler has returned and before its outcome is committed."""
    poison = leaver.enqueue()
    innocents = td.enqueue_many([dose_async.request(poison="", seconds=0) for _ in range(5)])
    supervisor = place.worker(processes=1, concurrency=10, beat=1.0)

    def runs() -> int:
        return sum(run.id == poison.id for run in place.runs())

    eventually(lambda: all_ended(place, [poison, *innocents]) or runs() > poison.max_attempts)
    assert end(supervisor) == 0
    ended = td.get(poison.id)
    assert ended is not None
    assert (ended.status, ended.attempts, runs()) == (Status.FAILED, 3, 3), td.attempts(poison.id)
    assert all("its worker exited with 7" in str(attempt.error) for attempt in td.attempts(poison.id))
    assert place.count("completed") == len(innocents)


@pytest.fixture
def little_memory() -> Iterator[Path]:
    """A control group whose processes the kernel kills when they use more than 300 MB."""
    group = Path(f"/sys/fs/cgroup/memory/treadle-test-{os.getpid()}")
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text("300M")
    except OSError as error:
        pytest.skip(f"the kernel's own kill needs a memory control group that we may write to: {error}")
    yield group
    eventually(lambda: not (group / "cgroup.procs").read_text())
    group.rmdir()


@pytest.mark.sqlite_only
@pytest.mark.parametrize("dose", DOSES, ids=lambda dose: dose.job_type.name)
def test_a_job_that_uses_all_memory_is_found_and_fails(little_memory: Path, place: Place, dose: Any) -> None:
    """One such job, and not two: a job in a child dies with its worker, and would run again after the other's crash."""
    poisons = ["all memory" if i == 3 else "" for i in range(22)]
    supervisor = place.worker(processes=1, concurrency=4, beat=1.0)
    (little_memory / "cgroup.procs").write_text(str(supervisor.pid))  # its children will be in it too
    jobs = td.enqueue_many([dose.request(poison=poison) for poison in poisons])
    eventually(lambda: all_ended(place, jobs), within=300)
    assert end(supervisor) == 0
    check(place, jobs, poisons)


@pytest.mark.sqlite_only
def test_a_suspect_that_waits_for_its_turn_does_not_time_out(place: Place) -> None:
    """Suspects run a few at a time. The timeout of each starts when it does."""
    poisons = ["exit 1"] + [""] * 15
    jobs = td.enqueue_many([within_eight_seconds.request(poison=poison) for poison in poisons])
    supervisor = place.worker(processes=1, concurrency=16, beat=1.0)
    eventually(lambda: all_ended(place, jobs), within=300)
    assert end(supervisor) == 0
    check(place, jobs, poisons)
    errors = {attempt.error for job in jobs for attempt in td.attempts(job.id)}
    assert not any("timed out" in str(error) or "stuck" in str(error) for error in errors), errors
