"""Dramatiq on Redis."""

# It runs in the environment of the peers.
# pyright: reportMissingImports=false
# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

import signal
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from bench.peers.programs.program import QueueProgram, main, stamp

THREADS = 8


def _noop(n: int) -> None:
    stamp()


class DramatiqProgram(QueueProgram):
    package = "dramatiq"
    settings = f"{THREADS} threads, its default"

    def __init__(self, url: str, kind: str) -> None:
        super().__init__(url, kind)
        self.broker = RedisBroker(url=url)
        dramatiq.set_broker(self.broker)
        self.noop: Any = dramatiq.actor(_noop, actor_name="noop")

    async def enqueue(self, n: int) -> None:
        self.noop.send(n)

    def work(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # in all threads, so that sigwait gets it
        worker = dramatiq.Worker(self.broker, worker_threads=THREADS)
        worker.start()
        signal.sigwait([signal.SIGTERM])
        worker.stop()


if __name__ == "__main__":
    main(DramatiqProgram)
