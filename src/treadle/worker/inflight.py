"""What a worker has in flight: every attempt, from its claim until its outcome is committed.

`Attempts` is the worker's own table of them, and the queue in which outcomes wait for the settler. `Inflight` is memory
that outlives the worker: when a process dies, its supervisor reads there which leases to charge. Writing every start to
the database would cost a commit each.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import mmap
import os
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from treadle import clock
from treadle.context import Run
from treadle.job import ClaimedJob, Progress
from treadle.line_buffer import LineBuffer
from treadle.log_lines import NewLine
from treadle.outcome import RELEASED, UNSTARTED, UNSUCCESSFUL, Outcome, OutcomeKind, Retry, StopReason, after_stop
from treadle.redact import Redactor
from treadle.registry import JobType
from treadle.units import format_microseconds, plural
from treadle.worker.parts import Parts

if TYPE_CHECKING:
    from treadle.worker.health import Health

log = logging.getLogger("treadle")
outcomes_log = logging.getLogger("treadle.jobs")
"""How attempts end. Tools that learn of failures in another way can ignore it."""

EndedAttempt = tuple[ClaimedJob, Outcome | None]
"""An attempt that has ended, and how. None: the job is no longer this worker's to settle."""

_HEADER = 4096
VARIABLE = "TREADLE_INFLIGHT"


class RunningAttempt(msgspec.Struct, eq=False):
    """One attempt in a slot."""

    run: Run
    job_type: JobType
    claimed_at: float = 0.0
    """By `time.monotonic()`."""
    kill: Callable[[], object] | None = None
    """Ends the handler by force, where that is possible: not in a thread."""
    started_at: float | None = None
    """When the handler started, by `time.monotonic()`: its timeout counts from then on, and so does its duration."""
    ended: bool = False
    timer: asyncio.TimerHandle | None = None
    saved: Progress | None = None
    """The progress that was stored last."""

    def time_left(self, timeout: float) -> float:
        """Seconds until its timeout. An attempt that waits for its child or for a slot still has all of them."""
        return timeout if self.started_at is None else self.started_at + timeout - time.monotonic()

    def stop(self, reason: StopReason) -> None:
        """End the handler, or at least set its stop flag. What it does not finish has the outcome of the reason."""
        if self.ended or self.run.stop_reason is not None:
            return
        self.run.stop_reason = reason
        if (kill := self.kill) is not None:  # the thread of the slot may clear it at this moment
            kill()

    def stopped(self) -> Outcome | None:
        """The outcome of an attempt that was stopped; None if the job is no longer this worker's to settle."""
        reason, job_type = self.run.stop_reason, self.job_type
        if reason is None:
            return None
        outcome = after_stop(self.run.claimed, reason, job_type.timeout, job_type.backoff)
        waits = self.started_at is None and self.kill is None  # for a thread, a child or its turn on the loop
        return UNSTARTED if outcome is RELEASED and waits else outcome


class Attempts:
    """The attempts of a worker: running, then ended, then settled.

    The executor adds to `running`. A slot calls `end` or `end_from_thread`. The settler awaits `ended`, commits what it
    returns, and calls `settled`. Each end and each settle sets `changed`.
    """

    def __init__(
        self, cells: Inflight, outcomes: dict[OutcomeKind, int], parts: Parts, health: Health | None = None
    ) -> None:
        self.running: dict[int, RunningAttempt] = {}
        """By lease number."""
        self.timed: dict[int, RunningAttempt] = {}
        """Those with a timeout, by lease number, until they are settled."""
        self.given_up: set[int] = set()
        """Attempts that timed out in a thread, or whose lease a failover lost. Their slots are still taken."""
        self.unsettled = 0
        """The number of outcomes that are not committed yet."""
        self.ended_total = 0
        self.on_room: Callable[[], None] | None = None
        """Called when a slot or a cell may be free, while claimed jobs wait for one."""
        self.claiming = False
        """Whether there may be leases that are not in `running` yet."""
        self.changed, self._any_ended = asyncio.Event(), asyncio.Event()
        self._awaited = False
        self.cells, self._outcomes, self._parts, self.health = cells, outcomes, parts, health
        self._loop = asyncio.get_running_loop()
        self._from_threads: deque[tuple[RunningAttempt, Outcome | None]] = deque()
        self._collecting = False
        self._ended: list[EndedAttempt] = []
        self._settling: list[EndedAttempt] = []
        self._aside: list[EndedAttempt] = []
        self.raised: dict[int, BaseException] = {}
        """What the handlers raised whose outcomes are not settled yet, by lease number: for hooks."""
        self.joined: dict[int, RunningAttempt] = {}
        """Those that a transaction of the user completes, by lease number: the settle learns if it was committed."""
        self._reports_all = health is not None or log.isEnabledFor(logging.INFO)

    @property
    def none_left(self) -> bool:
        return not self.running and not self.unsettled

    @property
    def numbers(self) -> set[int]:
        """The leases that this worker knows of."""
        return {*self.running, *(claimed.number for claimed, _ in (*self._settling, *self._aside, *self._ended))}

    def stop(self, reason: StopReason, numbers: Iterable[int]) -> None:
        """Stop the attempts with these lease numbers, if they still run."""
        for number in list(numbers):
            if (attempt := self.running.get(number)) is not None:
                attempt.stop(reason)

    def described(self) -> str:
        """What runs: `2 jobs: resize 0199…, mail 0199…`."""
        some = [f"{one.run.claimed.type} {one.run.claimed.id}" for one in islice(self.running.values(), 5)]
        more = len(self.running) - len(some)
        return f"{plural(len(self.running), 'job')}: {', '.join(some)}{f' and {more} more' if more else ''}"

    def give_up_all(self) -> None:
        """Wait for nothing that still runs. A thread cannot be stopped, but its job can be released."""
        for attempt in list(self.running.values()):
            self.end(attempt, attempt.stopped())

    def give_up_stale(self, number: int) -> None:
        """The database has issued the number of an attempt that still runs: a failover has lost that lease."""
        self.running[number].stop(StopReason.LOST)
        self.given_up.add(number)
        self.timed.pop(number, None)
        self.cells.end([number])

    def new_progress(self) -> list[tuple[ClaimedJob, Progress]]:
        """What handlers have reported since the last call."""
        found: list[tuple[ClaimedJob, Progress]] = []
        for attempt in self.running.values():
            progress = attempt.run.progress
            if progress is not None and progress is not attempt.saved:
                attempt.saved = progress
                found.append((attempt.run.claimed, progress))
        return found

    def new_lines(self) -> list[tuple[ClaimedJob, LineBuffer, tuple[NewLine, ...]]]:
        """What handlers have logged, and is not stored yet."""
        runs = [(attempt.run.claimed, attempt.run.lines) for attempt in self.running.values()]
        found = [(claimed, buffer, buffer.pending()) for claimed, buffer in runs if buffer is not None]
        return [one for one in found if one[2]]

    def time_left(self) -> list[tuple[ClaimedJob, int]]:
        """Microseconds until the timeout of each attempt that has one, for the heartbeat. For any thread: `copy` is
        atomic. A suspect, or a job of a child, has no deadline before its handler starts."""
        found: list[tuple[ClaimedJob, int]] = []
        for attempt in self.timed.copy().values():
            claimed, timeout = attempt.run.claimed, attempt.job_type.timeout
            if timeout is not None and (attempt.started_at is not None or claimed.deadline is not None):
                found.append((claimed, clock.seconds(attempt.time_left(timeout))))
        return found

    def end(self, attempt: RunningAttempt, outcome: Outcome | None) -> None:
        """The attempt has ended with this outcome, unless it was given up before. For the event loop only."""
        attempt.ended = True
        claimed = attempt.run.claimed
        if self.running.get(claimed.number) is not attempt:
            self.given_up.discard(claimed.number)
        else:
            del self.running[claimed.number]
            outcome = None if attempt.run.stop_reason is StopReason.LOST else outcome
            if attempt.run.lines is not None and outcome is not None:
                outcome = attempt.run.with_logs(outcome)
            if attempt.timer is not None:
                attempt.timer.cancel()
            if not self._ended:
                self._any_ended.set()  # first: outcomes go before the claim that fills their slots
            self._ended.append((claimed, outcome))
            self.unsettled += 1
            self.ended_total += 1
            if outcome is not None and outcome.otherwise is not None:
                self.joined[claimed.number] = attempt
            elif outcome is not None:
                self._outcomes[outcome.kind] += 1
                if self._reports_all or outcome.kind is not OutcomeKind.COMPLETED:
                    self._report(attempt, outcome)
        if self._awaited:  # to ask costs less than to set what is set
            self._awaited = False
            self.changed.set()
        if self.on_room is not None:
            self.on_room()

    def report_joined(self, written: Iterable[tuple[ClaimedJob, Outcome]]) -> None:
        """Count and log those of `joined` that a settle has written."""
        for claimed, outcome in written:
            if (attempt := self.joined.pop(claimed.number, None)) is not None:
                self._outcomes[outcome.kind] += 1
                self._report(attempt, outcome)

    def _report(self, attempt: RunningAttempt, outcome: Outcome) -> None:
        run = attempt.run
        if self.health is not None:
            self.health.ended(attempt, outcome)
        error, run.error = run.error, None  # its traceback refers to the run
        log_outcome(run.claimed, outcome, run.redactor, error)
        if error is not None and outcome.kind in UNSUCCESSFUL:
            self.raised[run.claimed.number] = error

    def end_from_thread(self, attempt: RunningAttempt, outcome: Outcome | None) -> None:
        """`end`, from any thread: one call of the event loop serves all that have ended by then."""
        self._from_threads.append((attempt, outcome))
        if not self._collecting:
            self._collecting = True
            self._loop.call_soon_threadsafe(self._collect)

    def _collect(self) -> None:
        self._collecting = False
        try:
            while self._from_threads:
                self.end(*self._from_threads.popleft())
        except Exception as error:  # the event loop calls this: nobody else would notice
            self._parts.fail("the collecting of outcomes", error)

    async def ended(self) -> Sequence[EndedAttempt]:
        """All attempts that have ended, as soon as there is one. They count as unsettled until `settled` is called."""
        if not self._settling:  # else a settler failed, and this is another one
            await self._any_ended.wait()
            self._any_ended.clear()
            self._settling, self._ended = self._ended, []
        return self._settling

    def settled(self, aside: Sequence[ClaimedJob] = (), pause: float = 0.0) -> None:
        """Nothing more can be done for what `ended` returned: it is committed, or it cannot be. Those set `aside` are
        settled again after a pause."""
        numbers = {claimed.number for claimed, _ in self._settling}
        if aside:
            numbers -= {claimed.number for claimed in aside}
            self._aside += [one for one in self._settling if one[0].number not in numbers]
            self._loop.call_later(pause, self._settle_again)
        self.cells.end(numbers)
        for known in (self.raised, self.joined, self.timed):
            for number in numbers & known.keys() if known else ():
                del known[number]
        self._settling = []
        self.unsettled = len(self._ended) + len(self._aside)
        self.changed.set()
        if self.on_room is not None:
            self.on_room()

    def _settle_again(self) -> None:
        self._ended, self._aside = [*self._ended, *self._aside], []
        self._any_ended.set()

    async def all_ended(self, seconds: float, hurry: asyncio.Event | None = None) -> None:
        await self._until(lambda: not self.running or (hurry is not None and hurry.is_set()), seconds)

    async def all_settled(self, seconds: float, settler: asyncio.Task[None]) -> None:
        """Wait until every outcome is committed, for at most this many seconds, or until the settler ends."""
        await self._until(lambda: not self.unsettled or settler.done(), seconds)
        if self.unsettled:
            log.error("%s could not be stored in time: the jobs run again", plural(self.unsettled, "outcome"))

    async def _until(self, over: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not over() and (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.change(), min(0.2, left))

    async def change(self) -> None:
        """Wait for the next change. Each waiter checks what it waits for first, so several can share one event."""
        self.changed.clear()
        self._awaited = True
        await self.changed.wait()


def log_outcome(claimed: ClaimedJob, outcome: Outcome, redactor: Redactor, raised: BaseException | None = None) -> None:
    """How an attempt ended: one line, and the traceback of a failure, unless it was a `Retry`."""
    job, error = (claimed.id, claimed.type), redactor.text(outcome.error or "")
    if outcome.kind not in UNSUCCESSFUL:
        outcomes_log.info("job %s (%s) %s", *job, outcome.kind, extra=claimed.about)
        return
    about: dict[str, object] = {**claimed.about}
    if not isinstance(raised, Retry):  # `logs.make_safe` prints the text: what a child raised stays there
        about["traceback"] = redactor.text(outcome.traceback or "")
    exc_info = None if isinstance(raised, Retry) else raised
    if outcome.kind is OutcomeKind.RETRIED:
        wait = format_microseconds(outcome.delay)
        outcomes_log.warning("job %s (%s) retrying in %s: %s", *job, wait, error, exc_info=exc_info, extra=about)
    else:
        tries = plural(claimed.attempt, "attempt")
        outcomes_log.error("job %s (%s) failed after %s: %s", *job, tries, error, exc_info=exc_info, extra=about)


class CellOwner(NamedTuple):
    """The worker that writes into the cells, and its database: a supervisor needs none of the user's code."""

    worker: str
    url: str


class Inflight:
    """A cell per lease: its number (negative: started in a child of its own), or 0 if the cell is free.

    A lease keeps its cell until its outcome is committed, not just until its handler has ended: what a handler leaves
    behind can still kill the process. A worker has at most twice its `concurrency` running and unsettled.
    """

    def __init__(self, fd: int, cells: int, supervisor: int | None = None, *, has_predecessor: bool = False) -> None:
        self.fd = fd
        self.supervisor = supervisor
        self.has_predecessor = has_predecessor
        """Whether a worker has run under this supervisor before: then the store can be used, sooner or later."""
        self._map = mmap.mmap(fd, _HEADER + 8 * cells)
        self._cells = memoryview(self._map)[_HEADER:].cast("q")
        self._free = list(range(cells))
        self._cell_of: dict[int, int] = {}

    @classmethod
    def create(cls, cells: int) -> Inflight:
        """New cells, in a file without a name that child processes can inherit."""
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
        os.ftruncate(fd, _HEADER + 8 * cells)
        os.set_inheritable(fd, True)
        return cls(fd, cells)

    @classmethod
    def inherited(cls) -> Inflight | None:
        """The cells that a supervisor gave to this process, if one did."""
        given = os.environ.pop(VARIABLE, None)
        if given is None:
            return None
        fd, supervisor, has_predecessor = map(int, given.split(":"))
        os.set_inheritable(fd, False)
        return cls(fd, (os.fstat(fd).st_size - _HEADER) // 8, supervisor, has_predecessor=bool(has_predecessor))

    def for_child(self, *, has_predecessor: bool) -> str:
        """What `inherited` reads in the child. It names the parent: a child that asks later may have another one."""
        return f"{self.fd}:{os.getpid()}:{int(has_predecessor)}"

    def sign(self, owner: CellOwner) -> None:
        self._map[:_HEADER] = msgspec.json.encode(owner).ljust(_HEADER, b"\0")

    def owner(self) -> CellOwner | None:
        data = self._map[:_HEADER].rstrip(b"\0")
        try:
            return msgspec.json.decode(data, type=CellOwner) if data else None
        except msgspec.MsgspecError:  # it died while it signed, before it could claim
            return None

    def start(self, number: int, *, apart: bool = False) -> None:
        """Note that a lease is started, in this process or `apart` from it. May be called from any thread."""
        self._cell_of[number] = cell = self._free.pop()
        self._cells[cell] = -number if apart else number

    def end(self, numbers: Iterable[int]) -> None:
        """Charge no job for these leases any more. They may never have started, or have ended before."""
        for number in numbers:
            cell = self._cell_of.pop(number, None)
            if cell is not None:
                self._cells[cell] = 0
                self._free.append(cell)

    def started(self, *, apart: bool) -> list[int]:
        """The leases that were started and are not settled: with those in children if `apart`, else without them."""
        return [abs(number) for number in self._cells if number > 0 or (apart and number)]

    def clear(self) -> None:
        """Free all cells, also those of attempts that were given up and never settled. None are left if it is closed: a
        worker may leave the database after its stop."""
        if self._map.closed:
            return
        self._map[:] = bytes(len(self._map))
        self._free, self._cell_of = list(range(len(self._cells))), {}

    def close(self) -> None:
        self._cells.release()
        self._map.close()
        os.close(self.fd)
