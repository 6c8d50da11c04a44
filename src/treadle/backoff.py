"""Backoff: how long to wait after a failure. Pure functions of the number of failures."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from datetime import timedelta

from treadle import clock
from treadle.clock import Duration, in_seconds
from treadle.errors import BadOption

Backoff = Callable[[int], Duration]
"""Given the failures so far (the first is 1), the time to wait before the next attempt."""


def exponential(base: Duration = 1, cap: Duration = 600, *, jitter: float = 0) -> Callable[[int], float]:
    """`min(cap, base·2^(n-1))` seconds. `jitter=0.2` varies that by up to 20% either way."""
    base, cap = in_seconds(base), in_seconds(cap)
    if base < 0 or cap < 0:
        raise BadOption("exponential", (base, cap), "use 0 seconds or more for base and cap")
    if not 0 <= jitter <= 1:
        raise BadOption("jitter", jitter, "use a share of the delay, from 0 to 1")

    def delay(failures: int) -> float:
        # 2.0**1024 overflows; no cap is that large, so the exponent may stop earlier.
        exact = min(cap, base * 2.0 ** min(failures - 1, 512))
        return exact * random.uniform(1 - jitter, 1 + jitter) if jitter else exact

    return delay


def fixed(seconds: Duration) -> Callable[[int], float]:
    """The same delay every time."""
    seconds = in_seconds(seconds)
    if seconds < 0:
        raise BadOption("fixed", seconds, "use 0 seconds or more")
    return lambda failures: seconds


def listed(delays: Sequence[Duration]) -> Backoff:
    """The nth delay after the nth failure. After the list, the last one repeats."""
    steps = tuple(map(in_seconds, delays))
    if not steps or not all(isinstance(step, (int, float)) and step >= 0 for step in steps):
        raise BadOption("backoff", delays, "use a list of at least one delay, each 0 seconds or more")
    return lambda failures: steps[min(failures, len(steps)) - 1]


DEFAULT = exponential(base=5, cap=600, jitter=0.1)
LONGEST = 10**9
"""Seconds, about thirty years."""


def backoff_delay(policy: Backoff, failures: int) -> int:
    """The policy's delay in microseconds. If the policy raises or returns nonsense, the job is retried anyway."""
    try:
        return clock.seconds(min(max(0.0, in_seconds(policy(failures))), LONGEST))
    except Exception:
        logging.getLogger("treadle").exception("a backoff policy failed; the default policy is used")
        return clock.seconds(DEFAULT(failures))


def to_backoff(policy: Backoff | Sequence[Duration] | Duration | None) -> Backoff:
    """The policy for `@td.job(backoff=…)`: a function, a list of delays, a number of seconds, or None."""
    if policy is None:
        return DEFAULT
    if callable(policy):
        return policy
    if isinstance(policy, (int, float, timedelta)) and not isinstance(policy, bool):
        return fixed(policy)
    if isinstance(policy, Sequence) and not isinstance(policy, str):
        return listed(policy)
    raise BadOption("backoff", policy, "pass exponential(…), seconds, a list of them, or a function of the failures")
