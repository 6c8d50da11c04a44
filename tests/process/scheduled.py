"""An app with schedules, whose clock runs faster than the real one: the same in all processes of a test."""

from __future__ import annotations

import os
import time

from treadle import Context, Treadle, clock, schedule

SPEED = "TREADLE_TEST_SPEED"
"""The start in microseconds, and how many times as fast: `1790000000000000 10`."""
NAMES = tuple(f"each-second-{n}" for n in range(5))


def fast() -> int:
    start, _, times = os.environ.get(SPEED, "0 1").partition(" ")
    return int(start) + (time.time_ns() // 1000 - int(start)) * int(times)


td = Treadle(clock=fast if SPEED in os.environ else clock.now)


@td.job
async def beat(ctx: Context) -> None: ...


schedule.MOST_MISSED = 3_600  # a busy machine may stand still for a while, which is an outage for a fast clock

for name in NAMES:
    beat.schedule(name, every=1, missed="all", overlap="allow")
