"""Settles the attempts that have ended, all that have piled up since the last commit in one batch."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from treadle.errors import JobNotFound, SchemaTooNew, SchemaTooOld, StoreBusy, StoreUnusable
from treadle.hooks import HookDispatcher
from treadle.job import ClaimedJob
from treadle.outcome import Fail, Outcome, decide
from treadle.stores.base import Engine
from treadle.stores.rows import Settled
from treadle.worker.inflight import Attempts

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

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            ended = await self._attempts.ended()
            aside: Sequence[ClaimedJob] = ()
            if outcomes := [(claimed, o) for claimed, o in ended if o is not None and not o.written]:
                aside = await self._settle(outcomes)
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
        if self._hooks.hooks.any:
            self._hooks.ended(settled.written, settled.at, self._attempts.raised)
        for claimed in settled.lost:
            log.warning("job %s (%s): the lease was lost, its outcome was not written", claimed.id, claimed.type)
        for claimed, _ in settled.set_aside:
            log.info(
                "job %s (%s): a transaction has locked its dedupe key, its outcome waits", claimed.id, claimed.type
            )
        return [claimed for claimed, _ in settled.set_aside]

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
        """Fail the job whose own outcome cannot be stored."""
        log.error("job %s (%s) could not be settled", claimed.id, claimed.type, exc_info=error, extra=claimed.about)
        fail = Fail(f"its outcome could not be stored: {type(error).__name__}: {error}")
        try:
            return await self._write([(claimed, decide(claimed, fail, lambda _: 0))])
        except Exception:
            text = "job %s (%s) could not be failed either; it will be released"
            log.exception(text, claimed.id, claimed.type, extra=claimed.about)
            return Settled(at=0)
