"""PgQueuer on PostgreSQL, with asyncpg and uvloop."""

# It runs in the environment of the peers.
# pyright: reportMissingImports=false
# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from bench.peers.programs.program import QueueProgram, main, stamp

BATCH = 500


async def _noop(job: Job) -> None:
    stamp()


class PgQueuerProgram(QueueProgram):
    package = "pgqueuer"
    settings = f"batch_size={BATCH} (its default is 10), asyncpg, uvloop"
    has_loop = True

    async def prepare(self) -> None:
        self.queries = Queries(AsyncpgDriver(await asyncpg.connect(self.url)))
        await self.queries.install()

    async def enqueue(self, n: int) -> None:
        await self.queries.enqueue("noop", b'{"n":%d}' % n)

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        await self.queries.enqueue(["noop"] * len(numbers), [b'{"n":%d}' % n for n in numbers], [0] * len(numbers))

    def work(self) -> None:
        uvloop.run(self._work())

    async def _work(self) -> None:
        queue = PgQueuer.from_asyncpg_connection(await asyncpg.connect(self.url))
        queue.entrypoint("noop")(_noop)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, queue.shutdown.set)
        await queue.run(batch_size=BATCH)


if __name__ == "__main__":
    uvloop.install()  # for the producer; the worker runs its own
    main(PgQueuerProgram)
