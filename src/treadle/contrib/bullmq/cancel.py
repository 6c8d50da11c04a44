"""Cancels jobs of BullMQ, which has no word for that: one that waits is removed, and one that runs is asked to stop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

ASKED_SECONDS = 7 * 86_400
"""How long a request is kept: its worker may have died, and the next one has to learn of it."""


async def cancel(redis: Any, queue: Any, id: str) -> bool:
    """False if it has ended, or there is none."""
    stored, ended = await redis.hmget(queue.toKey(id), "timestamp", "finishedOn")
    if stored is None or ended is not None:
        return False
    removed = await queue.remove(id, {"removeChildren": False})
    if removed == 0:  # a worker holds its lock
        await redis.set(_request(queue, id), 1, ex=ASKED_SECONDS)
    return bool(removed >= 0)


async def asked(redis: Any, backend: Any, ids: Sequence[str]) -> list[str]:
    """Those of the running jobs that are to stop."""
    found = await redis.mget([_request(backend, id) for id in ids]) if ids else []
    return [id for id, request in zip(ids, found, strict=True) if request is not None]


async def forget(redis: Any, backend: Any, id: str) -> None:
    """It is cancelled. If somebody retries it, it runs."""
    await redis.delete(_request(backend, id))


def _request(of: Any, id: str) -> str:
    return f"{of.toKey(id)}:treadle-cancel"
