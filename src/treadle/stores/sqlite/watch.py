"""Noticing the commits of other processes, without asking all the time.

Every commit is written to the write-ahead log, and Linux reports writes to that file. Elsewhere, and where watching
fails, SQLite's own count of commits is polled. Both are hints: a worker that misses one looks by itself soon after.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

_IN_MODIFY, _IN_IGNORED = 0x2, 0x8000
LOOK_EVERY = 0.01
"""Seconds between two looks where there is nothing better: each costs about 60 µs, so that this is 0.6 % of a core."""


class Watch:
    """Waits for commits. One thread waits at a time; `close` wakes it."""

    can_rest = True  # the same event again is no further event, until the first one is read

    def __init__(self, log: Path, changes: Callable[[], int]) -> None:
        self._changes = changes
        self._seen = changes()
        self._is_closed = threading.Event()
        self._closed, self._close = os.pipe()
        self._log = log
        self._events = _watch_file(log)
        self._lost = False
        """Whether the log was deleted, as it is with its last connection: before a fork, all of them are closed."""

    def wait(self, seconds: float) -> bool:
        """Whether there may be a commit since the last call; False after `seconds` without one."""
        if self._lost and self._watch_again():
            return True  # something may have been missed
        events = self.fileno()
        if events is None:
            return self._poll(time.monotonic() + seconds)
        ready = select.poll()
        ready.register(events, select.POLLIN)
        ready.register(self._closed, select.POLLIN)
        for fd, _ in ready.poll(seconds * 1000):
            if fd == events:
                return bool(self.heard())
        return False

    def fileno(self) -> int | None:
        return None if self._lost else self._events

    def heard(self) -> Sequence[float]:
        try:
            events = os.read(-1 if self._events is None else self._events, 1 << 16)
        except BlockingIOError:
            return ()
        self._lost = any(mask & _IN_IGNORED for _, mask, _, _ in struct.iter_unpack("iIII", events))
        return (0.0,)

    def _watch_again(self) -> bool:
        self._changes()  # opens the database, which creates the log
        self._lost = self._events is None or not _add_watch(self._events, self._log)
        return not self._lost

    def check(self) -> None:
        """Writes to a local file are always reported."""

    def _poll(self, deadline: float) -> bool:
        while (now := self._changes()) == self._seen:
            pause = min(LOOK_EVERY, deadline - time.monotonic())
            if pause <= 0 or self._is_closed.wait(pause):  # Windows could not `select` on a pipe
                return False
        self._seen = now
        return True

    def close(self) -> None:
        """End a `wait` that is under way. What it used is freed with this object."""
        self._is_closed.set()
        os.write(self._close, b"!")

    def __del__(self) -> None:
        for fd in (self._closed, self._close, self._events):
            if fd is not None:
                os.close(fd)


def _watch_file(path: Path) -> int | None:
    """A descriptor that becomes readable when the file is written to, or None where that is not possible."""
    if sys.platform != "linux":
        return None
    try:
        fd: int = ctypes.CDLL(None, use_errno=True).inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if fd < 0:
            return None
        if not _add_watch(fd, path):
            os.close(fd)
            return None
        return fd
    except (OSError, AttributeError):
        return None


def _add_watch(fd: int, path: Path) -> bool:
    return bool(ctypes.CDLL(None, use_errno=True).inotify_add_watch(fd, os.fsencode(path), _IN_MODIFY) >= 0)
