"""How often a caller that waits for SQLite's lock checks whether it is free."""

from __future__ import annotations

from itertools import pairwise

from treadle.stores.sqlite.connection import FIRST_PAUSE, LONGEST_PAUSE, next_pause
from treadle.stores.transaction import BUSY_SECONDS


def pauses() -> list[tuple[float, float]]:
    """Each check of a caller that waits as long as possible: after how many seconds, and the pause that follows."""
    looks, waited, pause = [], 0.0, FIRST_PAUSE
    while waited < BUSY_SECONDS:
        waited += pause
        pause = next_pause(pause, waited)
        looks.append((waited, pause))
    return looks


def test_during_the_first_second_a_waiting_caller_checks_less_and_less_often() -> None:
    young = [pause for waited, pause in pauses() if waited < 1]
    assert all(before <= after for before, after in pairwise(young))
    assert young[-1] == LONGEST_PAUSE


def test_a_caller_that_has_waited_for_seconds_checks_more_often_than_later_callers() -> None:
    old = [pause for waited, pause in pauses() if waited >= 1]
    assert all(before > after for before, after in pairwise(old))
    assert old[-1] < LONGEST_PAUSE / 9


def test_a_long_wait_makes_few_checks() -> None:
    assert len(pauses()) < 10_000
