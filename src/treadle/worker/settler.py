"""Settles the attempts that have ended, all that have piled up since the last commit in one batch."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import cast

from treadle.errors import JobNotFound, SchemaTooNew, SchemaTooOld, StoreBusy, StoreUnusable
from treadle.hooks import HookDispatcher
from treadle.job import ClaimedJob
from treadle.outcome import NOT_COMMITTED, Fail, Outcome, decide
from treadle.stores.base import Engine
from treadle.stores.rows import Settled
from treadle.worker.inflight import Attempts
from treadle.worker.runner import warn_of_late_error

log = logging.getLogger("treadle")

PAUSE = 0.5
"""Seconds to wait before a store that could not be used is tried again."""

NOT_ABOUT_AN_OUTCOME: tuple[type[Exception], ...] = (StoreBusy, StoreUnusable, SchemaTooNew, SchemaTooOld)
NOT_ABOUT_AN_OUTCOME += (JobNotFound,)  # the holder of a follow-up's key was deleted just after it was found
NOT_ABOUT_AN_OUTCOME += (MemoryError, OSError, RuntimeError)  # this machine's: memory, files, threads
"""Errors for which no job fails: they pass."""

Settling = Sequence[tuple[ClaimedJob, Outcome]]


class Settler:
    """Takes the attempts that have ended from `attempts` and commits them. Sets `committed` after each batch."""

    def __init__(self, store: Engine, attempts: Attempts, hooks: HookDispatcher, committed: asyncio.Event) -> None:
        self.thread = ThreadPoolExecutor(1, "treadle-settle")
        self._store = store
        self._attempts = attempts
        self._hooks = hooks
        self._committed = committed
        self._waiting: set[int] = set()
        """Leases that had to wait for a transaction: each is logged once."""

    async def run(self) -> None:
        while True:
            ended = await self._attempts.ended()
            aside: Sequence[ClaimedJob] = ()
            if outcomes := [one for one in ended if one[1] is not None and not one[1].written]:
                aside = await self._settle(cast(Settling, outcomes))
            if self._hooks.hooks.any:  # an outcome that `ctx.transaction()` has written has its event too
                self._hooks.ended([(claimed, o) for claimed, o in ended if o is not None and o.written], None)
            self._attempts.settled(aside, PAUSE)
            self._committed.set()
            await asyncio.sleep(0)  # a claim that waited for this goes first: what it brings runs during the next batch

    async def _settle(self, outcomes: Settling) -> list[ClaimedJob]:
        """Write the outcomes together, or one by one if one of them cannot be written. Return what has to wait, because
        a transaction has locked its dedupe key."""
        try:
            settled = await self._write(outcomes)
        except Exception as error:
            if len(outcomes) > 1:
                return [claimed for one in outcomes for claimed in await self._settle([one])]
            settled = await self._fail(outcomes[0][0], error)
        if self._attempts.joined:
            self._warn_of_late_errors(settled)
            self._attempts.report_joined(settled.written)
        if self._hooks.hooks.any:
            self._hooks.ended(settled.written, settled.at, self._attempts.raised)
        for claimed in settled.lost:
            text = "job %s (%s): the lease was lost, its outcome was not written"
            log.warning(text, claimed.id, claimed.type, extra=claimed.about)
        if self._waiting:
            self._waiting.difference_update(claimed.number for claimed, _ in settled.written)
        for claimed, outcome in settled.set_aside:
            self._say_once_that_it_waits(claimed, outcome)
        return [claimed for claimed, _ in settled.set_aside]

    def _warn_of_late_errors(self, settled: Settled) -> None:
        """Of what handlers raised after the commit of a transaction that has completed their jobs."""
        for claimed, outcome in settled.written:
            attempt, late = self._attempts.joined.get(claimed.number), outcome.otherwise
            if attempt is not None and late is not None and late.error != NOT_COMMITTED:
                warn_of_late_error(attempt.run, late.error or late.kind)

    def _say_once_that_it_waits(self, claimed: ClaimedJob, outcome: Outcome) -> None:
        if claimed.number in self._waiting:
            return
        self._waiting.add(claimed.number)
        level, problem = logging.INFO, "a transaction has locked its dedupe key, its outcome waits"
        if outcome.otherwise is not None:
            level = logging.WARNING
            problem = "the transaction that was passed to ctx.complete() is still open; commit it or close it"
        log.log(level, "job %s (%s): %s", claimed.id, claimed.type, problem, extra=claimed.about)

    async def _write(self, outcomes: Settling) -> Settled:
        """Settle, however long that is not possible: an outcome is kept until it is written. Raises only what is about
        one of the outcomes."""
        while True:
            try:
                return await asyncio.get_running_loop().run_in_executor(self.thread, self._store.settle, outcomes)
            except NOT_ABOUT_AN_OUTCOME as error:
                log.warning("%d outcomes are waiting to be settled: %s", len(outcomes), str(error) or repr(error))
                await asyncio.sleep(PAUSE)

    async def _fail(self, claimed: ClaimedJob, error: Exception) -> Settled:
        log.error("job %s (%s) could not be settled", claimed.id, claimed.type, exc_info=error, extra=claimed.about)
        fail = Fail(f"its outcome could not be stored: {type(error).__name__}: {error}")
        try:
            return await self._write([(claimed, decide(claimed, fail, lambda _: 0))])
        except Exception:
            text = "job %s (%s) could not be failed either; it will be released"
            log.exception(text, claimed.id, claimed.type, extra=claimed.about)
            return Settled(at=0)
