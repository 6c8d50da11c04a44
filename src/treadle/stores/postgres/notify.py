"""When a commit sends a notification. Each takes a lock that all commits of the server share, so they have a budget.

The notification that uses the budget up says so (`LAST`): listeners then look by themselves for what is committed
without one, until the budget allows the next.
"""

from __future__ import annotations

import time

CHANNEL = "treadle"
LAST = "\n"
"""Ends the text of a notification after which commits may send none. It begins with the name of a queue."""
BURST = 10.0
"""Notifications that a process may send at once."""
PER_SECOND = 20.0
"""Notifications that it may send for a long time."""
LOOK_AGAIN = (0.005, 0.015, 0.03, 1 / PER_SECOND + 0.005)
"""Seconds after the last notification at which there may be a commit without one."""


class Budget:
    """The notifications that this process may send. Threads that use it at once may send one too many."""

    def __init__(self) -> None:
        self._left, self._at = BURST, time.monotonic()

    def text(self, queue: str) -> str | None:
        """The text of a notification for this queue, or None: send none now."""
        now = time.monotonic()
        left = min(BURST, self._left + (now - self._at) * PER_SECOND)
        self._at, self._left = now, left - 1 if left >= 1 else left
        if left < 1:
            return None
        return queue if left >= 2 else queue + LAST


def looks_after(text: str) -> tuple[float, ...]:
    """When to look for jobs after a notification, in seconds."""
    return (0.0, *LOOK_AGAIN) if text.endswith(LAST) else (0.0,)
