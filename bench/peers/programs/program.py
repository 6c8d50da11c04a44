"""What the programs of all Python queues share: roles, commands, and the handler's 16 bytes.

    python -m bench.peers.programs.NAME ROLE URL STAMPS KIND

ROLE is `produce` or `work`; KIND is `async` or `thread`: where the handler runs, for queues that have both. A producer
prepares the queue, prints what it is, then answers each line of input with one line of output, both JSON. A worker
prints a line when it is imported, and works after a line of input until SIGTERM. STAMPS is a file: the handler of every
queue appends the moment at which it ran, in microseconds, as 16 digits.
It imports nothing but the standard library, because most programs run in an environment without treadle.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from importlib.metadata import version
from typing import Any, ClassVar

CHUNK = 1000
"""Jobs in one call of a bulk enqueue."""
GAPS = (0.020, 0.200)
"""Seconds between two jobs of a pickup."""

Command = Callable[[float], Awaitable[Any]]

_stamps = os.open(sys.argv[3], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def stamp() -> None:
    """What every handler does."""
    os.write(_stamps, b"%016d" % (time.time_ns() // 1000))


class QueueProgram(ABC):
    """A queue, as its users use it."""

    package: ClassVar[str]
    settings: ClassVar[str]
    """What differs from its defaults, and what matters of these."""
    has_loop: ClassVar[bool] = False
    """Whether it enqueues from an event loop. Else its calls block."""

    def __init__(self, url: str, kind: str) -> None:
        self.url, self.kind = url, kind

    async def prepare(self) -> None:  # noqa: B027 - most need nothing
        """Make what it needs in an empty database, and connect."""

    @abstractmethod
    async def enqueue(self, n: int) -> None:
        """One job, durable when this returns."""

    async def enqueue_many(self, numbers: Sequence[int]) -> None:
        """As its documentation says for many jobs. Here: it has no such call."""
        for n in numbers:
            await self.enqueue(n)

    @abstractmethod
    def work(self) -> None:
        """Work until SIGTERM."""

    def commands(self) -> dict[str, Command]:
        return {"singly": self._singly, "bulk": self._bulk, "pickup": self._pickup}

    async def _singly(self, seconds: float) -> float:
        """Jobs per second, each enqueued after the one before is durable."""
        count, began = 0, time.perf_counter()
        while (passed := time.perf_counter() - began) < seconds:
            await self.enqueue(count)
            count += 1
        return count / passed

    async def _bulk(self, n: float) -> float:
        """Jobs per second in calls of `CHUNK`."""
        began = time.perf_counter()
        for start in range(0, int(n), CHUNK):
            await self.enqueue_many(range(start, min(int(n), start + CHUNK)))
        return n / (time.perf_counter() - began)

    async def _pickup(self, n: float) -> list[int]:
        """Enqueue at random intervals. When each call returned, in microseconds."""
        returned = []
        for i in range(int(n)):
            time.sleep(random.uniform(*GAPS))  # noqa: ASYNC251 - nothing else runs on this loop
            await self.enqueue(i)
            returned.append(time.time_ns() // 1000)
        return returned


def main(program: type[QueueProgram]) -> None:
    role, url, _, kind = sys.argv[1:]
    queue = program(url, kind)
    if role == "produce":
        _run(_produce(queue), queue.has_loop)
        return
    _say("ready")
    if sys.stdin.readline():
        queue.work()


async def _produce(queue: QueueProgram) -> None:
    await queue.prepare()
    _say({"version": version(queue.package), "settings": queue.settings})
    commands = queue.commands()
    for line in sys.stdin:
        name, amount = json.loads(line)
        _say(await commands[name](amount))


def _run(coroutine: Coroutine[Any, Any, None], has_loop: bool) -> None:
    """Without a loop, where a queue behaves differently in one: its coroutines then never wait."""
    if has_loop:
        asyncio.run(coroutine)
        return
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise RuntimeError("a program without an event loop has waited")


def _say(answer: Any) -> None:
    print(json.dumps(answer), flush=True)
