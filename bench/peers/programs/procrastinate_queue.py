"""Procrastinate on PostgreSQL."""

# It runs in the environment of the peers.
# pyright: reportMissingImports=false
# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from procrastinate import App, PsycopgConnector

from bench.peers.programs.program import QueueProgram, main, stamp

SLOTS = 20


async def _noop(n: int) -> None:
    stamp()


class ProcrastinateProgram(QueueProgram):
    package = "procrastinate"
    settings = f"concurrency={SLOTS}, async tasks, LISTEN"
    has_loop = True

    def __init__(self, url: str, kind: str) -> None:
        super().__init__(url, kind)
        self.app = App(connector=PsycopgConnector(conninfo=url))
        self.noop: Any = self.app.task(name="noop")(_noop)

    async def prepare(self) -> None:
        await self.app.open_async()
        await self.app.schema_manager.apply_schema_async()

    async def enqueue(self, n: int) -> None:
        await self.noop.defer_async(n=n)

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        await self.noop.batch_defer_async(*({"n": n} for n in numbers))

    def work(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        async with self.app.open_async():
            await self.app.run_worker_async(concurrency=SLOTS)


if __name__ == "__main__":
    main(ProcrastinateProgram)
