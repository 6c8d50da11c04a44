"""Workers that are stopped while other tests run, so that their minute of sleep costs no extra time."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import psutil

from tests.eventually import eventually
from tests.process.handlers import td, waits_at_a_gate, waits_at_a_gate_in_a_thread
from tests.process.harness import Place
from treadle import Job


class Sleepers(NamedTuple):
    place: Place
    jobs: list[Job]
    supervisors: list[subprocess.Popen[bytes]]
    beats: dict[str, int]
    """How often each worker had beaten when it was stopped."""
    everybody: list[psutil.Process]
    since: float
    guarding: subprocess.Popen[bytes]

    def wake_after(self, seconds: float) -> None:
        """Resume them when they have been stopped for this long."""
        time.sleep(max(0.0, self.since + seconds - time.monotonic()))
        for process in self.everybody:
            process.resume()
        self.guarding.kill()


@contextmanager
def asleep(place: Place) -> Generator[Sleepers]:
    """Two supervisors with two busy workers each, all of them stopped."""
    handlers = waits_at_a_gate, waits_at_a_gate_in_a_thread
    jobs = td.enqueue_many([handler.request(gate="morning") for handler in handlers for _ in range(20)])
    supervisors = [place.worker(processes=2, concurrency=10) for _ in range(2)]
    eventually(lambda: len(place.runs()) == len(jobs))
    beats = {row.id: row.beats for row in td.workers()}
    everybody = place.processes()
    with guard(everybody) as guarding:
        try:
            for process in everybody:
                process.suspend()
            yield Sleepers(place, jobs, supervisors, beats, everybody, time.monotonic(), guarding)
        finally:
            guarding.kill()


def guard(processes: Sequence[psutil.Process]) -> subprocess.Popen[bytes]:
    """A stopped process cannot notice that the tests have ended. This one does, however they end: its input closes.

    It has to end before they do, because other processes may get their pids.
    """
    command = ["sh", "-c", 'cat; kill -9 "$@"', "sh", *(str(process.pid) for process in processes)]
    null = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=null, stderr=null, start_new_session=True)
