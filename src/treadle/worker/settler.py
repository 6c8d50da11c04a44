"""Settles what has ended, together: as soon as the last batch is committed, with what piled up meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from treadle.errors import StoreBusy, StoreUnusable
from treadle.job import ClaimedJob
from treadle.outcome import Fail, Outcome, decide
from treadle.worker.log import job_ref, log

if TYPE_CHECKING:
    from treadle.stores.base import Settled, Store

Ended = tuple[ClaimedJob, Outcome]

PAUSE = 0.5
"""Seconds to wait before a store that could not be used is tried again."""


class Settler:
    """Outcomes on their way into the database.

    `written` is told of each commit; `settled` of each batch, when nothing more can be done for it.
    """

    def __init__(
        self, store: Store, written: Callable[[Settled], None], settled: Callable[[Sequence[Ended]], None]
    ) -> None:
        self.thread = ThreadPoolExecutor(1, "treadle-settle")
        self._store = store
        self._written = written
        self._settled = settled
        self._waiting: list[Ended] = []
        self._settling: Sequence[Ended] = ()
        self._more = asyncio.Event()
        self._none_left = asyncio.Event()

    def add(self, claimed: ClaimedJob, outcome: Outcome) -> None:
        self._waiting.append((claimed, outcome))
        self._more.set()

    def __len__(self) -> int:
        """How many outcomes are not committed yet."""
        return len(self._waiting) + len(self._settling)

    @property
    def numbers(self) -> set[int]:
        """The leases whose outcome is not committed yet."""
        return {claimed.number for claimed, _ in (*self._settling, *self._waiting)}

    async def none_left(self) -> None:
        while len(self):
            self._none_left.clear()
            await self._none_left.wait()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._more.wait()
            self._more.clear()
            while self._waiting:
                self._settling, self._waiting = self._waiting, []
                try:
                    await self._settle(self._settling)
                except Exception:
                    log.exception("%d outcomes could not be settled; their jobs will be rescued", len(self._settling))
                batch, self._settling = self._settling, ()
                self._settled(batch)
                await asyncio.sleep(0)  # a claim that waited for this goes first: what it brings runs during the next
            self._none_left.set()

    async def _settle(self, ended: Sequence[Ended]) -> None:
        try:
            settled = await self._write(ended)
        except Exception as error:
            if len(ended) > 1:  # one of them is the culprit, and fails alone
                for one in ended:
                    await self._settle([one])
                return
            settled = await self._write([_failed(ended[0][0], error)])
        self._written(settled)
        for claimed in settled.lost:
            log.warning("job %s (%s): the lease was lost, its outcome was not written", *job_ref(claimed))

    async def _write(self, ended: Sequence[Ended]) -> Settled:
        """Settle, however long the store cannot be used: an outcome is kept until it is written."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                return await loop.run_in_executor(self.thread, self._store.settle, ended)
            except (StoreBusy, StoreUnusable) as error:
                log.warning("%d outcomes are waiting to be settled: %s", len(ended), error)
                await asyncio.sleep(PAUSE)


def _failed(claimed: ClaimedJob, error: Exception) -> Ended:
    log.error("job %s (%s) could not be settled", *job_ref(claimed), exc_info=error)
    fail = Fail(f"its outcome could not be stored: {type(error).__name__}: {error}")
    return claimed, decide(claimed, fail, lambda _: 0)
