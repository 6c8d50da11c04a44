"""What many callers need at once: one of them makes it, and all get it."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

T = TypeVar("T")


class _Entry:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.made = self.until = -math.inf
        self.value: Any = None


class Cache:
    """At most `most` values. Keys come from requests and must not pile up: the oldest value makes room."""

    def __init__(self, most: int, served: Callable[[float, float], None] = lambda made, until: None) -> None:
        self._most, self._served = most, served
        self._lock = threading.Lock()
        self._entries: dict[Hashable, _Entry] = {}
        """The oldest first."""

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable, seconds: float, make: Callable[[], T], *, share: float = 1.0) -> T:
        """What `make` returned at most `seconds` ago.

        `share`: the longer it takes, the longer it is kept, so that at most this part of the time goes into making it.
        """
        entry, value = self._entry(key), None
        with entry.lock:
            began = time.monotonic()
            if began <= entry.until:
                self._served(entry.made, entry.until)
                return entry.value  # type: ignore[no-any-return]
            value = make()
            ended = time.monotonic()
            until = ended + max(seconds, (ended - began) / share if share < 1 else 0)
            entry.made, entry.until, entry.value = began, until, value
        self._keep(key, entry)
        return value

    def forget(self, key: Hashable) -> None:
        """It has changed: make it again the next time."""
        with self._lock:
            self._entries.pop(key, None)

    def _entry(self, key: Hashable) -> _Entry:
        with self._lock:
            entry = self._entries.get(key)
            return entry if entry is not None else self._add(key, _Entry())

    def _keep(self, key: Hashable, entry: _Entry) -> None:
        """It is the newest now."""
        with self._lock:
            if self._entries.pop(key, None) is entry:
                self._add(key, entry)

    def _add(self, key: Hashable, entry: _Entry) -> _Entry:
        if len(self._entries) >= self._most:
            del self._entries[next(iter(self._entries))]
        self._entries[key] = entry
        return entry
