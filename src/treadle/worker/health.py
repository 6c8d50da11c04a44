"""Probes of a worker: /livez, /readyz and /metrics, without the `web` extra.

A thread serves them, so that a handler that blocks the event loop shows: the loop notes each second that it had its
turn, and the thread looks how long ago that was. Under a supervisor, each worker process writes a report each second,
and the supervisor serves them all: it answers even if a process is frozen.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from treadle.json_types import decoder
from treadle.outcome import Outcome
from treadle.prometheus import MEDIA, Histogram, family, histograms
from treadle.worker.health_server import Answer, HealthServer, parse

if TYPE_CHECKING:
    from treadle.worker.inflight import RunningAttempt
    from treadle.worker.worker import Worker

VARIABLE = "TREADLE_HEALTH_REPORT"
BLOCKED = 10.0
"""Seconds without a turn after which an event loop counts as blocked. A probe that comes every second sees it within
two seconds more."""
EVERY = 1.0
"""Seconds between two turns of the event loop, and between two reports."""


class TypeMetrics(msgspec.Struct):
    """The attempts of a type in one process, since it started."""

    outcomes: dict[str, int] = {}
    duration: Histogram = msgspec.field(default_factory=Histogram)
    pickup: Histogram = msgspec.field(default_factory=Histogram)


class Report(msgspec.Struct, kw_only=True):
    """What a worker process says of itself."""

    turn_at: float
    """When its event loop last had its turn, by `time.monotonic()`, which all processes of a machine share."""
    unready: str
    """Why it takes no jobs; '' if it does."""
    slots: int
    busy: int
    types: dict[str, TypeMetrics]


Reports = Sequence[Report | None]
"""One for each process; None: it is starting, or has stopped."""


# What the reports say


def not_live(reports: Reports) -> list[str]:
    """What is wrong with processes that should be restarted. A failing job is not."""
    waits = [(n, time.monotonic() - report.turn_at) for n, report in enumerate(reports, 1) if report is not None]
    return [f"process {n}: its event loop has been blocked for {s:.0f} s" for n, s in waits if s > BLOCKED]


def not_ready(reports: Reports) -> list[str]:
    reasons = [
        (n, "it has not registered" if report is None else report.unready) for n, report in enumerate(reports, 1)
    ]
    return [*(f"process {n}: {reason}" for n, reason in reasons if reason), *not_live(reports)]


def metrics(reports: Reports) -> str:
    found = [({"process": str(n)}, report) for n, report in enumerate(reports, 1) if report is not None]
    types = [({**process, "type": type}, of) for process, r in found for type, of in sorted(r.types.items())]
    outcomes = [({**labels, "outcome": kind}, n) for labels, of in types for kind, n in sorted(of.outcomes.items())]
    blocked = [(process, max(0.0, time.monotonic() - r.turn_at - 2 * EVERY)) for process, r in found]
    name = "treadle_process"
    return "".join(
        [
            family(f"{name}_attempts_total", "counter", "Attempts that ended, by outcome.", outcomes),
            histograms(f"{name}_duration_seconds", "Seconds in handlers.", [(ls, of.duration) for ls, of in types]),
            histograms(
                f"{name}_pickup_seconds", "Seconds from being due to the claim.", [(ls, of.pickup) for ls, of in types]
            ),
            family(
                f"{name}_slots", "gauge", "Jobs that the process may run at once.", [(p, r.slots) for p, r in found]
            ),
            family(f"{name}_slots_busy", "gauge", "Slots in use.", [(p, r.busy) for p, r in found]),
            family(f"{name}_ready", "gauge", "1 if it takes jobs.", [(p, not r.unready) for p, r in found]),
            family(f"{name}_blocked_seconds", "gauge", "How long its event loop has been blocked.", blocked),
        ]
    )


def answer(path: str, reports: Reports) -> Answer | None:
    """The response to a request; None if there is no such path."""
    if path == "/metrics":
        return Answer(200, metrics(reports), MEDIA)
    check = {"/livez": not_live, "/readyz": not_ready}.get(path)
    if check is None:
        return None
    problems = check(reports)
    return Answer(503 if problems else 200, "\n".join(problems or ["ok"]) + "\n")


# In a worker process


class Health:
    """Watches the event loop of one worker, and counts its attempts. Reports go to `report_to`, or to a port."""

    def __init__(self, *, address: str | None = None, report_to: ReportFile | None = None) -> None:
        self._server = None if address is None else HealthServer(parse(address), self._answer)
        self._report_to = report_to
        self._types: dict[str, TypeMetrics] = {}
        self._turn_at = 0.0
        self._stopping = threading.Event()

    def start(self, worker: Worker) -> None:
        """The worker has registered."""
        self._worker, self._turn_at = worker, time.monotonic()
        self._turns = asyncio.get_running_loop().create_task(self._take_turns())
        if self._server is not None:
            self._server.start()
        self._writing = threading.Thread(target=self._write_reports, name="treadle-health", daemon=True)
        self._writing.start()

    def stop(self) -> None:
        self._stopping.set()
        self._turns.cancel()
        self._writing.join(EVERY)
        if self._server is not None:
            self._server.stop()

    def ended(self, attempt: RunningAttempt, outcome: Outcome) -> None:
        """Count an attempt. On the event loop: the other threads read a copy."""
        claimed = attempt.run.claimed
        of = self._types.get(claimed.type)
        if of is None:
            of = self._types[claimed.type] = TypeMetrics(outcomes={})
        kind = outcome.kind.value
        of.outcomes[kind] = of.outcomes.get(kind, 0) + 1
        of.pickup.observe(max(0, claimed.started_at - claimed.run_at) / 1e6)
        if attempt.started_at is not None:
            of.duration.observe(time.monotonic() - attempt.started_at)

    def report(self) -> Report:
        worker, attempts = self._worker, self._worker._attempts
        busy, slots = len(attempts.running) + len(attempts.given_up), worker.concurrency
        return Report(turn_at=self._turn_at, unready=_unready(worker), slots=slots, busy=busy, types=self._types.copy())

    def _answer(self, path: str) -> Answer | None:
        return answer(path, [self.report()])

    async def _take_turns(self) -> None:
        while True:
            self._turn_at = time.monotonic()
            await asyncio.sleep(EVERY)

    def _write_reports(self) -> None:
        """Until the worker has stopped. Then there is no report: a loop that has ended is not a blocked one."""
        if (file := self._report_to) is None:
            return
        file.write(self.report())
        while not self._stopping.wait(EVERY):
            file.write(self.report())
        file.clear()


def _unready(worker: Worker) -> str:
    """Why it takes no jobs now; '' if it does."""
    if worker._stopping or worker._wanted_no_more:
        return "it is stopping"
    return "it is quiet" if worker._quiet else worker._heartbeat.trouble


class ReportFile:
    """A file without a name: a worker process writes its newest report, and its supervisor reads it."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._newest: Report | None = None

    @classmethod
    def create(cls) -> ReportFile:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
        os.set_inheritable(fd, True)
        return cls(fd)

    @classmethod
    def inherited(cls) -> ReportFile | None:
        """The file that a supervisor gave to this process, if it wants reports."""
        given = os.environ.pop(VARIABLE, None)
        if given is None:
            return None
        os.set_inheritable(int(given), False)
        return cls(int(given))

    def write(self, report: Report) -> None:
        text = msgspec.json.encode(report)
        os.pwrite(self.fd, len(text).to_bytes(8) + text, 0)

    def read(self) -> Report | None:
        """The newest report, or the one before while it is being written; None if there is none yet."""
        length = int.from_bytes(os.pread(self.fd, 8, 0))
        if not length:
            self._newest = None
        with suppress(msgspec.MsgspecError):
            self._newest = decoder(Report)(os.pread(self.fd, length, 8))
        return self._newest

    def clear(self) -> None:
        """Forget the process that has ended, or is about to."""
        os.ftruncate(self.fd, 0)
        self._newest = None
