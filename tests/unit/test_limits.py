"""Limits and rates: what they allow, and what they refuse."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle import Limit, Rate
from treadle.clock import SECOND
from treadle.errors import BadOption
from treadle.limits import KeyUse, LimitChange, Limits, LimitState, checked_limits, key_parked_for, parked_for

NOW = 1_800_000_000 * SECOND
RATES = st.builds(Rate, st.integers(1, 1_000), st.floats(0.01, 1e5), st.integers(1, 100))
STEPS = st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 50)), max_size=60)
"""Time that passes, in thousandths of what one start costs, and how many jobs wait."""


@given(RATES, STEPS)
def test_no_window_has_more_starts_than_the_count_and_the_burst(rate: Rate, steps: list[tuple[int, int]]) -> None:
    now, full_at, starts = NOW, 0, list[int]()
    for thousandths, waiting in steps:
        now += int(thousandths * rate.per * SECOND / rate.count / 1_000)
        started = min(waiting, rate.tokens(full_at, now))
        full_at = rate.spend(full_at, now, started) if started else full_at
        starts += [now] * started
    window = rate.per * SECOND
    assert all(sum(at <= other < at + window for other in starts) <= rate.count + rate.burst for at in starts)


@given(RATES, st.integers(0, 200))
def test_the_next_start_is_neither_too_early_nor_too_late(rate: Rate, started: int) -> None:
    full_at = rate.spend(0, NOW, min(started, rate.burst))
    at = rate.next_at(full_at, NOW)
    assert rate.tokens(full_at, at) >= 1
    assert at == NOW or rate.tokens(full_at, at - 1) == 0


@given(RATES)
def test_a_bucket_fills_to_the_burst_and_no_further(rate: Rate) -> None:
    assert rate.burst == rate.tokens(0, NOW) == rate.tokens(rate.spend(0, NOW, rate.burst), NOW + 10**18)
    assert rate.tokens(rate.spend(0, NOW, rate.burst), NOW) == 0
    assert rate.tokens(rate.spend(rate.spend(0, NOW, 1), 0, -1), NOW) == rate.burst


def test_the_default_burst_is_a_tenth_and_at_least_one() -> None:
    assert (1, 50) == (Rate(3).burst, Rate(500, per=60).burst)
    assert Rate(10, per=timedelta(minutes=1)) == Rate(10, per=60.0)
    assert "500 in 60 s, burst 50" == str(Rate(500, per=60))


@pytest.mark.parametrize(
    "bad",
    [
        lambda: Rate(0),
        lambda: Rate(1.5),  # type: ignore[arg-type]
        lambda: Rate(1, per=0),
        lambda: Rate(1, per="minute"),  # type: ignore[arg-type]
        lambda: Rate(1, per=float("nan")),
        lambda: Rate(1, per=True),
        lambda: Rate(1, per=10**9),
        lambda: Rate(1, burst=-1),
        lambda: Rate(1_000_000, per=1),
        lambda: Limit("", 1),
        lambda: Limit("a\nb", 1),
        lambda: Limit("x" * 201, 1),
        lambda: Limit(7, 1),  # type: ignore[arg-type]
        lambda: Limit("api"),
        lambda: Limit("api", 0),
        lambda: Limit("api", True),
        lambda: Limit("api", rate=500),  # type: ignore[arg-type]
        lambda: Limit("api", 1, per="type"),
        lambda: Limit("api", 1, per="payload"),
        lambda: Limit("api", 1, per="payload."),
        lambda: Limit("api", 1, per="payload.items.0"),
        lambda: Limit("api", 1, per=""),
        lambda: checked_limits(Limit("api", 1)),
        lambda: checked_limits("api"),
        lambda: checked_limits(["api"]),
        lambda: checked_limits([Limit("type:mail", 1)]),
        lambda: checked_limits([Limit("api", 1), Limit("api", 2)]),
    ],
)
def test_bad_limits_are_refused(bad: Any) -> None:
    with pytest.raises(BadOption):
        bad()


def test_a_change_wins_and_one_of_a_key_wins_over_one_for_all() -> None:
    rate = Rate(5)
    declared = {"mail": [Limit("api", 2, rate, per="tenant")]}
    changes = [LimitChange(name="api", concurrency=3), LimitChange(name="api", key="acme", rate=Rate(7))]
    limits = Limits(declared, changes)
    assert (3, rate) == limits.bounds(("api", "umbrella"))
    assert (3, Rate(7)) == limits.bounds(("api", "acme"))
    assert (2, rate) == Limits(declared).bounds(("api", "acme"))
    assert limits.of_type("mail") is None
    assert Limits({}, [LimitChange(name="type:mail", concurrency=4)]).of_type("mail") == 4


def test_places_and_the_next_one() -> None:
    slow = Rate(1, per=10, burst=1)
    assert KeyUse(running=3).places((2, None), NOW) == 0
    assert KeyUse(running=3).next_at((2, slow), NOW) is None, "a job has to end first"
    assert KeyUse(held_until=NOW + 5).places((None, None), NOW) == 0
    assert KeyUse(held_until=NOW + 5).next_at((None, None), NOW) == NOW + 5
    spent = KeyUse(full_at=slow.spend(0, NOW, 1), held_until=NOW + 5)
    assert (0, NOW + 10 * SECOND) == (spent.places((2, slow), NOW), spent.next_at((2, slow), NOW))


def test_how_many_run_beyond_a_limit() -> None:
    assert 2 == LimitState(name="api", concurrency=3, running=5).over
    assert 0 == LimitState(name="api", concurrency=3, running=5, per="tenant").over, "of all keys together"
    assert 2 == LimitState(name="api", key="acme", concurrency=3, running=5, per="tenant").over
    assert 0 == LimitState(name="api", running=5).over


@pytest.mark.parametrize("key", [("api", ""), ("api", "acme"), ("a:b", "c\x1fd")])
def test_what_a_row_is_parked_for_can_be_read_again(key: tuple[str, str]) -> None:
    assert key == key_parked_for(parked_for(key))
