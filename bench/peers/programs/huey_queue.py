"""Huey on SQLite."""

# It runs in the environment of the peers.
# pyright: reportMissingImports=false
# mypy: disable-error-code="import-not-found,import-untyped"

from __future__ import annotations

from typing import Any

from huey import SqliteHuey

from bench.peers.programs.program import QueueProgram, main, stamp


def _noop(n: int) -> None:
    stamp()


class HueyProgram(QueueProgram):
    package = "huey"
    settings = "SqliteHuey(fsync=True, results=False), WAL; one thread; it has no bulk call, so it enqueues one by one"

    def __init__(self, url: str, kind: str) -> None:
        super().__init__(url, kind)
        self.huey = SqliteHuey(filename=url.removeprefix("sqlite:///"), fsync=True, results=False)
        self.noop: Any = self.huey.task()(_noop)

    async def enqueue(self, n: int) -> None:
        self.noop(n)

    def work(self) -> None:
        self.huey.create_consumer(workers=1, worker_type="thread", graceful_signal="TERM").run()


if __name__ == "__main__":
    main(HueyProgram)
