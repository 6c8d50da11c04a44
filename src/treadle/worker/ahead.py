"""Jobs that are claimed before a slot is free: the next batch of short jobs is claimed while this one runs.

They are at most 50 ms of work, by how fast slots have become free. Nobody else could start them sooner, but others
would have to wait for what they hold: so they have no limit, no turn and no timeout. What does not start soon after all
is released, and no attempt is used up. So it is if the worker stops, is quiet, or if its event loop is blocked.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable

from treadle.outcome import UNSTARTED, StopReason
from treadle.worker.inflight import Attempts, RunningAttempt
from treadle.worker.parts import Parts

AHEAD = 0.05
"""Seconds of work that may wait."""
LEAST = 10
"""Jobs that must have ended within that time: else a claim takes no time beside theirs."""
MOST = 500
"""Jobs that may wait, however short they are."""
PATIENCE = 2 * AHEAD
"""Seconds after which what still waits is released."""
COOL_DOWN = 1.0
"""Seconds after that in which nothing is claimed ahead. Twice as many each time, until some may wait again: a worker
whose types all have timeouts, limits or turns would claim in vain every second."""
LONGEST_COOL_DOWN = 60.0


class Ahead:
    """Claimed jobs, until they have a slot; and how many to claim."""

    def __init__(
        self,
        attempts: Attempts,
        parts: Parts,
        free: Callable[[], int],
        start: Callable[[list[RunningAttempt]], bool],
        *,
        allowed: bool,
    ) -> None:
        self._attempts, self._parts = attempts, parts
        self._free, self._start = free, start
        self._loop = asyncio.get_running_loop()
        self.waiting: deque[RunningAttempt] = deque()
        """The heartbeat takes from it, too, in another thread: look at a copy."""
        self.is_on = False
        """Whether jobs are claimed ahead: the last claim has left some behind."""
        self._timer: asyncio.TimerHandle | None = None
        self._filling = False
        self._most = 0
        """Jobs that may wait."""
        self._measured_at, self._ended_before = time.monotonic(), 0
        self._not_before = 0.0 if allowed else float("inf")
        self._cool_down = COOL_DOWN

    def room(self, free: int) -> int:
        """The number of jobs to claim: one for each free slot, and what may wait."""
        self._measure()
        room = free + self._most - len(self.waiting)
        # While some wait, a claim can wait until it is worth its round trip.
        return 0 if self.waiting and room < self._most // 2 else room

    def _measure(self) -> None:
        """How many jobs may wait, by how many ended in the last 50 ms."""
        now, ended = time.monotonic(), self._attempts.ended_total
        if (seconds := now - self._measured_at) >= AHEAD:
            pace = int((ended - self._ended_before) / seconds * AHEAD)
            self._most = 0 if pace < LEAST or now < self._not_before else min(pace, MOST)
            self._measured_at, self._ended_before = now, ended

    def add(self, claimed: Iterable[RunningAttempt], *, may_wait: bool) -> bool:
        """Start what has a slot. The rest waits, if it may. False if there can be no slot now."""
        self.waiting.extend(claimed)
        started = self.fill()
        if self.waiting and not (may_wait and all(is_plain(attempt) for attempt in self.waiting.copy())):
            self.release()
        elif self.waiting:
            self._cool_down = COOL_DOWN
            self._timer = self._timer or self._loop.call_later(PATIENCE, self._release_late)
        return started

    def fill(self) -> bool:
        """Start what waits, in slots that are free. If some still wait, each attempt that ends makes room for one."""
        self._filling = False
        started = not self.waiting or self._start(self._take(self._free()))
        self._attempts.on_room = self._fill_soon if self.waiting else None
        return started

    def _fill_soon(self) -> None:
        """For all that end in this turn of the event loop at once."""
        if not self._filling:
            self._filling = True
            self._loop.call_soon(self._parts.call, "the jobs claimed ahead", self.fill)

    def _take(self, most: int) -> list[RunningAttempt]:
        found: list[RunningAttempt] = []
        with contextlib.suppress(IndexError):
            for _ in range(most):
                found.append(self.waiting.popleft())
        return found

    def _release_late(self) -> None:
        self._timer = None
        waiting = self.waiting.copy()
        if waiting and time.monotonic() - waiting[0].claimed_at >= PATIENCE:
            self.release()
        elif waiting:
            self._timer = self._loop.call_later(AHEAD, self._release_late)

    def release(self) -> None:
        self._most, self._not_before = 0, max(self._not_before, time.monotonic() + self._cool_down)
        self._cool_down = min(2 * self._cool_down, LONGEST_COOL_DOWN)
        for attempt in self._take(len(self.waiting)):
            self._attempts.end(attempt, UNSTARTED)

    def give_up(self) -> list[int]:
        """The lease numbers of what waits, which this worker starts no more. For the heartbeat, whose thread runs while
        the event loop is blocked."""
        given_up = self._take(len(self.waiting))
        for attempt in given_up:
            attempt.run.stop_reason = StopReason.LOST
            self._loop.call_soon_threadsafe(self._attempts.end, attempt, None)
        return [attempt.run.claimed.number for attempt in given_up]


def is_plain(attempt: RunningAttempt) -> bool:
    """Whether nobody waits for what the job holds while it waits."""
    claimed, policy = attempt.run.claimed, attempt.job_type.policy
    has_limits = claimed.limited or policy.limits != "[]" or policy.concurrency is not None
    return not (has_limits or policy.fair or claimed.suspicion or attempt.job_type.timeout is not None)
