"""Time as whole microseconds."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from treadle import clock

moments = st.datetimes(timezones=st.just(UTC))


@given(moments)
def test_a_time_round_trips_to_the_microsecond(moment):
    assert moment == clock.to_datetime(clock.from_datetime(moment))


@given(moments, moments)
def test_order_is_kept(one, other):
    assert (one < other) == (clock.from_datetime(one) < clock.from_datetime(other))


def test_a_time_is_the_same_in_every_zone():
    moment = datetime(2026, 3, 1, 12, tzinfo=timezone(timedelta(hours=5, minutes=30)))

    assert clock.from_datetime(moment.astimezone(UTC)) == clock.from_datetime(moment)


def test_a_naive_time_is_local_time():
    moment = datetime(2026, 3, 1, 12)

    assert int(moment.timestamp() * 1_000_000) == clock.from_datetime(moment)


def test_seconds_are_a_million_microseconds():
    assert (1_500_000, 0) == (clock.seconds(1.5), clock.seconds(0))


@given(st.timedeltas())
def test_a_timedelta_is_exact_to_the_microsecond(duration):
    assert duration == timedelta(microseconds=clock.seconds(duration))


def test_seconds_that_a_float_has_not_exactly_become_the_nearest_microsecond():
    assert (8_200_000, 290_000) == (clock.seconds(8.2), clock.seconds(0.29))


def test_now_is_now():
    before = time.time_ns() // 1000

    assert before <= clock.now() <= time.time_ns() // 1000
