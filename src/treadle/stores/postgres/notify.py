"""When a commit sends a notification. Each takes a lock that all commits of the server share, so they have a budget.

The notification that uses the budget up says so (`LAST`): listeners then look by themselves for a while. A commit may
send none only if it ends in that time: a notification counts from the moment before its own commit, and a commit that
took longer than that time is followed by a notification.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from itertools import islice
from typing import NamedTuple

CHANNEL = "treadle"
LAST = "\n"
"""Ends the text of a notification after which commits may send none. It begins with the name of a queue."""
BURST = 10.0
"""Notifications that a process may send at once."""
PER_SECOND = 20.0
"""Notifications that it may send for a long time."""
LOOK_AGAIN = (0.005, 0.015, 0.03, 1 / PER_SECOND + 0.005)
"""Seconds after the last notification at which there may be a commit without one."""


class Notices(NamedTuple):
    """The notifications that a commit sends, and when that was decided."""

    texts: Sequence[str]
    at: float


class Budget:
    """The notifications that this process may send. Threads that use it at once may send a few too many."""

    def __init__(self) -> None:
        self._left, self._at = BURST, time.monotonic()
        self._looked_until = 0.0
        """Until then listeners look by themselves."""
        self._took = 0.0
        """Seconds that the commit of the last notification took, and the next commit may take."""

    def notices(self, queues: Collection[str]) -> Notices:
        """What a commit for these queues is to send: nothing if listeners look by themselves when it is done."""
        now = time.monotonic()
        if not queues or now + self._took < self._looked_until:
            return Notices((), now)
        left = max(1, int(self._left_at(now)))
        texts = list(islice(queues, left))
        if len(texts) == left:
            texts[-1] += LAST
        return Notices(texts, now)

    def sent(self, notices: Notices) -> None:
        """They are committed."""
        now = time.monotonic()
        self._left, self._at = max(0.0, self._left_at(now) - len(notices.texts)), now
        if any(text.endswith(LAST) for text in notices.texts):
            self._looked_until = max(self._looked_until, notices.at + 1 / PER_SECOND)
            self._took = now - notices.at

    def is_late(self) -> bool:
        """Whether what is committed without a notification by now may be missed."""
        return time.monotonic() > self._looked_until

    def _left_at(self, now: float) -> float:
        return min(BURST, self._left + (now - self._at) * PER_SECOND)


def looks_after(text: str) -> tuple[float, ...]:
    """When to look for jobs after a notification, in seconds."""
    return (0.0, *LOOK_AGAIN) if text.endswith(LAST) else (0.0,)
