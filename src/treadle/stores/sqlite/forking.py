"""A fork must find no connection open.

SQLite keeps its locks in a list of the process's own. A child inherits that list, but not the locks: it would believe
that it holds them, the last of its family to close the file would delete the log under it, and what it has committed
would be gone. (Tried: two answered enqueues lost.) So everything is closed before a fork, and opened again after it,
on either side, when it is next used.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol


class Forkable(Protocol):
    pid: int

    def pause(self) -> None:
        """Close what is idle, wait for what is not, and let nobody begin until `resume`."""

    def resume(self) -> None: ...


_all: weakref.WeakSet[Forkable] = weakref.WeakSet()
_paused: list[Forkable] = []
_one_at_a_time = threading.Lock()


def watch(database: Forkable) -> None:
    """Pause this one around every fork."""
    _all.add(database)


def _before() -> None:
    _one_at_a_time.acquire()
    for database in list(_all):
        if database.pid == os.getpid():
            database.pause()
            _paused.append(database)


def _after() -> None:
    while _paused:
        _paused.pop().resume()
    _one_at_a_time.release()


os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after)
