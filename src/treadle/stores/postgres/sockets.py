"""Waiting for sockets: by poll, and where there is none, as on Windows, by select, which takes no large numbers."""

from __future__ import annotations

import select
from collections.abc import Collection


def readable(sockets: Collection[int], seconds: float) -> Collection[int]:
    """Those of which something can be read, after at most so many seconds."""
    if not hasattr(select, "poll"):
        return select.select(sockets, (), (), seconds)[0]
    ready = select.poll()
    for socket in sockets:
        ready.register(socket, select.POLLIN)
    return [socket for socket, _ in ready.poll(seconds * 1000)]
