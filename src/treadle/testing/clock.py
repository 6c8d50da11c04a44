"""A clock that you move."""

from __future__ import annotations

from datetime import datetime, timedelta

from treadle import clock
from treadle.errors import BadOption


class ManualClock:
    """Starts at the real time and stands still until it is moved. Pass it on: `Treadle(url, clock=ManualClock())`.

    It decides when jobs are due. A handler's `timeout` is still real time.
    """

    def __init__(self) -> None:
        self._now = clock.now()

    def __call__(self) -> int:
        """Microseconds since 1970, as stores count."""
        return self._now

    def now(self) -> datetime:
        """The time, as a job's `run_at` and `created_at` tell it."""
        return clock.to_datetime(self._now)

    def advance(self, seconds: float | timedelta) -> datetime:
        """Let time pass at once. The new time."""
        step = seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
        if step < 0:
            raise BadOption("advance", seconds, "time goes forward: 0 seconds or more")
        self._now += clock.seconds(step)
        return self.now()

    def __repr__(self) -> str:
        return f"<ManualClock {self.now().isoformat()}>"
