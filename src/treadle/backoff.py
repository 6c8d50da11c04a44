"""Backoff: how long to wait after a failure. Pure functions of the number of failures."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence

from treadle import clock
from treadle.errors import BadOption

Backoff = Callable[[int], float]
"""Given the failures so far (the first is 1), the seconds to wait before the next attempt."""


def exponential(base: float = 1, cap: float = 600, *, jitter: float = 0) -> Backoff:
    """`min(cap, base·2^(n-1))` seconds. `jitter=0.2` varies that by up to 20% either way."""
    if base < 0 or cap < 0:
        raise BadOption("exponential", (base, cap), "use 0 seconds or more for base and cap")
    if not 0 <= jitter <= 1:
        raise BadOption("jitter", jitter, "use a share of the delay, from 0 to 1")

    def delay(failures: int) -> float:
        # 2.0**1024 overflows; no cap is that large, so the exponent may stop earlier.
        exact = min(cap, base * 2.0 ** min(failures - 1, 512))
        return exact * random.uniform(1 - jitter, 1 + jitter) if jitter else exact

    return delay


def fixed(seconds: float) -> Backoff:
    """The same delay every time."""
    if seconds < 0:
        raise BadOption("fixed", seconds, "use 0 seconds or more")
    return lambda failures: seconds


def listed(delays: Sequence[float]) -> Backoff:
    """The nth delay after the nth failure. After the list, the last one repeats."""
    steps = tuple(delays)
    if not steps or not all(isinstance(step, (int, float)) and step >= 0 for step in steps):
        raise BadOption("backoff", delays, "use a list of at least one delay, each 0 seconds or more")
    return lambda failures: steps[min(failures, len(steps)) - 1]


DEFAULT = exponential(base=5, cap=600, jitter=0.1)
LONGEST = 10**9
"""Seconds, about thirty years."""


def backoff_delay(policy: Backoff, failures: int) -> int:
    """The policy's delay in microseconds. If the policy raises or returns nonsense, the job is retried anyway."""
    try:
        return clock.seconds(min(max(0.0, policy(failures)), LONGEST))
    except Exception:
        logging.getLogger("treadle").exception("a backoff policy failed; the default policy is used")
        return clock.seconds(DEFAULT(failures))


def to_backoff(policy: Backoff | Sequence[float] | float | None) -> Backoff:
    """The policy for `@td.job(backoff=…)`: a function, a list of delays, a number of seconds, or None."""
    if policy is None:
        return DEFAULT
    if callable(policy):
        return policy
    if isinstance(policy, (int, float)) and not isinstance(policy, bool):
        return fixed(policy)
    if isinstance(policy, Sequence) and not isinstance(policy, str):
        return listed(policy)
    raise BadOption("backoff", policy, "pass exponential(…), fixed(…), a list of seconds or a function of the failures")
