"""Celery on Redis."""

# It runs in the environment of the peers.
# pyright: reportMissingImports=false
# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

from typing import Any

from celery import Celery

from bench.peers.programs.program import QueueProgram, main, stamp

PREFETCH = 100


def _noop(n: int) -> None:
    stamp()


class CeleryProgram(QueueProgram):
    package = "celery"
    settings = f"prefork with one child, worker_prefetch_multiplier={PREFETCH}, no results, acknowledged before it runs"

    def __init__(self, url: str, kind: str) -> None:
        super().__init__(url, kind)
        self.app = Celery("bench", broker=url)
        self.app.conf.update(
            worker_prefetch_multiplier=PREFETCH, task_ignore_result=True, broker_connection_retry_on_startup=True
        )
        self.noop: Any = self.app.task(name="noop")(_noop)

    async def enqueue(self, n: int) -> None:
        self.noop.delay(n)

    def work(self) -> None:
        self.app.worker_main(["worker", "--pool=prefork", "--concurrency=1", "--loglevel=ERROR"])


if __name__ == "__main__":
    main(CeleryProgram)
