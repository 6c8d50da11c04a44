"""Leases by hand: `td.claim` returns them, and you settle each one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from treadle import clock, codec
from treadle.backoff import DEFAULT, Backoff
from treadle.clock import Duration, in_seconds
from treadle.errors import BadOption, LeaseLost, StoreBusy
from treadle.hooks import NOTHING_RAISED, Hooks, Raised, dispatch_now
from treadle.job import ClaimedJob, Job
from treadle.outcome import RELEASED, Fail, Outcome, OutcomeKind, Retry, Snooze, decide
from treadle.results import WithTwins, twin

if TYPE_CHECKING:
    from treadle.stores.base import Engine

PAUSE, PATIENCE = 0.05, 10.0
"""Seconds until a settle that was set aside is repeated, and after which it raises StoreBusy."""


class Lease(WithTwins):
    """A job that is yours until its deadline. Settle it with `complete`, `fail`, `snooze` or `release`."""

    def __init__(
        self,
        job: Job,
        claimed: ClaimedJob,
        store: Engine,
        hooks: Hooks,
        backoff: Backoff = DEFAULT,
        to_thread: Callable[..., Coroutine[Any, Any, Any]] = asyncio.to_thread,
    ) -> None:
        self.job = job
        self._claimed = claimed
        self._store = store
        self._hooks = hooks
        self._backoff = backoff
        self._to_thread = to_thread

    @property
    def number(self) -> int:
        """The lease number: no two leases ever share one."""
        return self._claimed.number

    @property
    def deadline(self) -> float:
        """When another worker may take the job, in seconds as `time.time()` counts them."""
        return (self._claimed.deadline or 0) / clock.SECOND

    def complete(self, result: Any = None) -> None:
        """The work is done. Raises LeaseLost if the job is no longer yours."""
        self._settle(Outcome(OutcomeKind.COMPLETED, result=codec.result_to_json(result, self._claimed.type)))

    def fail(self, error: BaseException | str, *, retry_in: Duration | None = None) -> None:
        """The attempt failed. While attempts are left, the job is retried after `retry_in` seconds, or after its type's
        backoff. `fail(Fail(…))` ends it at once."""
        if retry_in is not None and in_seconds(retry_in) < 0:
            raise BadOption("retry_in", retry_in, "seconds from now, 0 or more")
        if isinstance(error, str):
            error = Retry(error, delay=retry_in)
        elif retry_in is not None and not isinstance(error, Fail):
            error = Retry(f"{type(error).__name__}: {error}", delay=retry_in).with_traceback(error.__traceback__)
        self._settle(decide(self._claimed, error, self._backoff), {self._claimed.number: error})

    def snooze(self, seconds: Duration, *, at_most: int | None = None) -> None:
        """Run it again later, without using up an attempt."""
        self._settle(decide(self._claimed, Snooze(seconds, at_most=at_most), self._backoff))

    def release(self) -> None:
        """Give it back as it was, without using up an attempt."""
        self._settle(RELEASED)

    def extend(self, seconds: Duration) -> None:
        """Move the deadline to `seconds` from now. Raises LeaseLost if the job is no longer yours."""
        if in_seconds(seconds) <= 0:
            raise BadOption("extend", seconds, "seconds from now, more than 0")
        self._claimed = self._store.extend(self._claimed, clock.seconds(seconds))

    acomplete = twin(complete)
    afail = twin(fail)
    asnooze = twin(snooze)
    arelease = twin(release)
    aextend = twin(extend)

    def _settle(self, outcome: Outcome, raised: Raised = NOTHING_RAISED) -> None:
        settled = self._store.settle([(self._claimed, outcome)])
        deadline = time.monotonic() + PATIENCE
        while settled.set_aside:  # a transaction has locked its dedupe key
            if time.monotonic() > deadline:
                raise StoreBusy(self._store.where, PATIENCE)
            time.sleep(PAUSE)
            settled = self._store.settle([(self._claimed, outcome)])
        if settled.lost:
            raise LeaseLost(self._claimed.id, self._claimed.number)
        dispatch_now(self._hooks, self._hooks.ended(settled.written, settled.at, "", raised))
