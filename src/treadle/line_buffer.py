"""What a running handler has logged, within bounds, until its worker stores it."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from treadle import codec
from treadle.log_lines import NewLine

MOST_LINES = 1_000
MOST_BYTES = 256 * 1024
LONGEST_LINE = 4 * 1024
"""Lines and bytes that are kept of an attempt, and bytes of a line."""
DROPPED = "{:,} more dropped: of an attempt, 1,000 lines and 256 KiB are kept"


class LineBuffer:
    """What an attempt has logged and its worker has not stored yet. For any thread."""

    def __init__(self) -> None:
        self.dropped = 0
        self._lock = threading.Lock()
        self._lines: list[tuple[int, int, str, str]] = []
        self._kept = self._bytes = 0
        self._told = self._telling = 0
        """How many dropped lines the store knows of, and how many the last look at what is pending had."""

    def add(self, level: str, message: str) -> bool:
        """Whether the line is kept."""
        text = _clipped(codec.clean(message))
        size = len(text.encode())
        with self._lock:
            if self.dropped or self._kept == MOST_LINES or self._bytes + size > MOST_BYTES:
                self.dropped += 1
                return False
            self._kept, self._bytes = self._kept + 1, self._bytes + size
            self._lines.append((self._kept, time.monotonic_ns(), level, text))
            return True

    def pending(self) -> tuple[NewLine, ...]:
        """What is not stored yet. If lines were dropped, the last one says how many."""
        with self._lock:
            now = time.monotonic_ns()
            found = [NewLine(n, (now - at) // 1000, level, message) for n, at, level, message in self._lines]
            self._telling = self.dropped
            if self._telling != self._told:
                found.append(NewLine(self._kept + 1, 0, "WARNING", DROPPED.format(self._telling)))
            return tuple(found)

    def saved(self, lines: Sequence[NewLine]) -> None:
        """What `pending` returned last is stored."""
        with self._lock:
            self._lines = [one for one in self._lines if one[0] > lines[-1].line]
            self._told = self._telling


def _clipped(text: str) -> str:
    if len(text) <= LONGEST_LINE // 4:  # a character has at most four bytes
        return text
    data = text.encode()
    return text if len(data) <= LONGEST_LINE else data[: LONGEST_LINE - 3].decode(errors="ignore") + "…"
