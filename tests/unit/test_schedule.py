"""When schedules fire: cron in time zones, intervals, missed moments, overlaps and declarations."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle import clock, schedule
from treadle.clock import SECOND
from treadle.declarations import remembered, wins
from treadle.errors import BadOption, UnknownOption
from treadle.ids import id_at, is_id
from treadle.registry import Registry
from treadle.schedule import (
    LATE,
    Admitted,
    Rule,
    admitted,
    checked_rule,
    latest,
    moments_between,
    next_after,
    next_moments,
)

MINUTE, HOUR, DAY = 60 * SECOND, 3600 * SECOND, 86_400 * SECOND
NOON = clock.from_datetime(datetime(2026, 11, 17, 12, tzinfo=UTC))
EVERY_MINUTE = Rule(cron="* * * * *")
EVERY_TEN = Rule(every=10 * SECOND)

FIXED, TWICE, THROUGH = "30 2 * * *", "15,45 2 * * *", "*/30 * * * *"


def due_moments(rule: Rule, missed: str, first: int, now: int) -> list[int]:
    return schedule.due_moments(rule, missed, first, latest(rule, first, now), now)


def on(zone: str, day: str, cron: str) -> list[str]:
    """The moments of one local day, as local times with their offset."""
    midnight = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone))
    end = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone)) + timedelta(days=1)
    found = moments_between(Rule(cron=cron, zone=zone), *map(clock.from_datetime, (midnight, end)), 1000)
    return [clock.to_datetime(at).astimezone(ZoneInfo(zone)).strftime("%H:%M%z") for at in found]


@pytest.mark.parametrize(
    ("zone", "day", "cron", "expected"),
    [
        # A gap: what is inside fires once, at its end.
        ("Europe/Berlin", "2026-03-29", FIXED, ["03:00+0200"]),
        ("Europe/Berlin", "2026-03-29", TWICE, ["03:00+0200"]),
        ("America/New_York", "2026-03-08", FIXED, ["03:00-0400"]),
        ("Australia/Lord_Howe", "2026-10-04", "15 2 * * *", ["02:30+1100"]),
        ("America/Santiago", "2026-09-06", "0 0 * * *", ["01:00-0300"]),
        ("America/Santiago", "2026-09-06", "30 0 * * *", ["01:00-0300"]),
        ("Africa/Cairo", "2026-04-24", "30 0 * * *", ["01:00+0300"]),
        ("Asia/Kolkata", "2026-03-29", FIXED, ["02:30+0530"]),
        # A fold: the first of the two.
        ("Europe/Berlin", "2026-10-25", FIXED, ["02:30+0200"]),
        ("Europe/Berlin", "2026-10-25", TWICE, ["02:15+0200", "02:45+0200"]),
        ("America/New_York", "2026-11-01", "30 1 * * *", ["01:30-0400"]),
        ("Australia/Lord_Howe", "2026-04-05", "45 1 * * *", ["01:45+1100"]),
        ("America/Santiago", "2026-04-04", "30 23 * * *", ["23:30-0300"]),
        ("Africa/Cairo", "2026-10-29", "30 23 * * *", ["23:30+0300"]),
        # Beside them, nothing changes.
        ("Europe/Berlin", "2026-03-29", "0 3 * * *", ["03:00+0200"]),
        ("Europe/Berlin", "2026-10-25", "0 3 * * *", ["03:00+0100"]),
    ],
)
def test_a_fixed_time_fires_once_a_day_in_gaps_and_folds(zone: str, day: str, cron: str, expected: list[str]) -> None:
    assert on(zone, day, cron) == expected


@pytest.mark.parametrize(
    ("zone", "day", "hours"),
    [
        ("Europe/Berlin", "2026-03-29", 23),
        ("Europe/Berlin", "2026-10-25", 25),
        ("America/New_York", "2026-03-08", 23),
        ("America/New_York", "2026-11-01", 25),
        ("Australia/Lord_Howe", "2026-10-04", 23.5),
        ("Australia/Lord_Howe", "2026-04-05", 24.5),
        ("America/Santiago", "2026-09-06", 23),
        ("Africa/Cairo", "2026-04-24", 23),
        ("Asia/Kolkata", "2026-03-29", 24),
    ],
)
def test_every_half_hour_runs_through_gaps_and_folds(zone: str, day: str, hours: float) -> None:
    found = on(zone, day, THROUGH)

    assert len(found) == hours * 2
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("day", ["2026-03-29", "2026-10-25"])
@pytest.mark.parametrize("cron", [FIXED, TWICE, THROUGH, "0 * * * *", "59 1,2,3 * * *"])
def test_the_next_moment_is_the_same_from_wherever_one_looks(day: str, cron: str) -> None:
    rule = Rule(cron=cron, zone="Europe/Berlin")
    start = clock.from_datetime(datetime.fromisoformat(day).replace(tzinfo=UTC)) - 2 * HOUR
    moments = moments_between(rule, start, start + 40 * HOUR, 1000)

    for at in range(start, moments[-1] - 1, 7 * MINUTE + 13):
        assert next_after(rule, at) == min(moment for moment in moments if moment > at)


def test_intervals_are_aligned_to_their_anchor() -> None:
    anchor = datetime(2026, 11, 17, 8, 0, 7, tzinfo=UTC)
    rule = checked_rule(None, timedelta(minutes=15), None, anchor)

    assert clock.to_datetime(next_moments(rule, NOON, 1)[0]) == datetime(2026, 11, 17, 12, 0, 7, tzinfo=UTC)
    assert [at - NOON for at in next_moments(EVERY_TEN, NOON, 3)] == [10 * SECOND, 20 * SECOND, 30 * SECOND]
    assert next_after(EVERY_TEN, NOON - 1) == NOON


def test_ten_moments_come_next() -> None:
    assert len(next_moments(Rule(cron="0 0 29 2 *"), NOON)) == 10


@given(st.sampled_from(["* * * * *", "*/7 * * * *", "0 3 * * *", "0 0 1 * *", "30 2 * * 0"]), st.integers(0, 10**8))
def test_the_latest_moment_is_found_without_walking_there(cron: str, seconds: int) -> None:
    rule = Rule(cron=cron, zone="Europe/Berlin")
    first = next_after(rule, NOON)
    assert first is not None
    now = first + seconds * SECOND

    found = latest(rule, first, now)
    following = next_after(rule, found)

    assert first <= found <= now
    assert following is not None
    assert following > now


def test_once_fires_the_last_of_the_missed_moments() -> None:
    assert due_moments(EVERY_MINUTE, "once", NOON, NOON + 3 * HOUR + 5) == [NOON + 3 * HOUR]
    assert due_moments(EVERY_MINUTE, "once", NOON, NOON + 5) == [NOON]


def test_skip_fires_what_is_not_later_than_a_minute() -> None:
    daily = Rule(cron="0 12 * * *")

    assert due_moments(daily, "skip", NOON, NOON + LATE) == [NOON]
    assert due_moments(daily, "skip", NOON, NOON + LATE + 1) == []
    assert due_moments(EVERY_MINUTE, "skip", NOON, NOON + 3 * HOUR) == [NOON + 3 * HOUR]


def test_all_fires_the_last_hour_and_at_most_a_hundred_moments() -> None:
    now = NOON + 3 * HOUR

    assert due_moments(EVERY_MINUTE, "all", NOON, now) == [now - n * MINUTE for n in range(60, -1, -1)]
    assert due_moments(Rule(every=SECOND), "all", NOON, now) == [now - n * SECOND for n in range(99, -1, -1)]
    assert due_moments(EVERY_TEN, "all", NOON, NOON + 25 * SECOND) == [NOON + n * 10 * SECOND for n in range(3)]
    assert due_moments(Rule(cron="0 12 * * *"), "all", NOON, now) == [NOON]


@pytest.mark.parametrize(
    ("overlap", "waiting", "running", "expected"),
    [
        ("allow", 3, 3, Admitted([1, 2])),
        ("skip", 0, 0, Admitted([1])),
        ("skip", 1, 0, Admitted([])),
        ("skip", 0, 1, Admitted([])),
        ("queue_one", 0, 0, Admitted([1])),
        ("queue_one", 0, 1, Admitted([1])),
        ("queue_one", 1, 1, Admitted([])),
        ("cancel_running", 0, 0, Admitted([2])),
        ("cancel_running", 1, 1, Admitted([2], cancels=True)),
    ],
)
def test_what_jobs_that_have_not_ended_let_through(
    overlap: str, waiting: int, running: int, expected: Admitted
) -> None:
    assert admitted(overlap, [1, 2], waiting, running) == expected


def test_the_newest_declaration_of_a_live_worker_wins() -> None:
    known = {"old": 1, "new": 2}

    assert wins("brand new", "new", known, {"new"})
    assert not wins("old", "new", known, {"old", "new"})  # an old worker restarts during a deployment
    assert wins("old", "new", known, {"old"})  # after a rollback
    assert wins("new", "old", known, {"old", "new"})  # deployed again
    assert not wins("new", "new", known, set())
    assert remembered(known, "old", 3) == known
    assert len(remembered({str(n): n for n in range(100)}, "x", 100)) == 20


def test_an_id_follows_from_its_names_and_its_moment() -> None:
    id = id_at(NOON, "acme", "digest")

    assert is_id(id)
    assert id == id_at(NOON, "acme", "digest")
    assert id[14] == "7"
    assert id[19] in "89ab"
    assert int(id.replace("-", "")[:12], 16) == NOON // 1000
    assert len({id, id_at(NOON + 1, "acme", "digest"), id_at(NOON, "", "digest"), id_at(NOON, "acmedigest", "")}) == 4


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ((None, None, None, None), "cron, every"),
        (("* * * * *", 5, None, None), "cron, every"),
        (("* * * *", None, None, None), "cron"),
        (("* * * * * *", None, None, None), "cron"),
        (("61 * * * *", None, None, None), "cron"),
        (("0 0 31 2 *", None, None, None), "cron"),
        ((5, None, None, None), "cron"),
        (("* * * * *", None, "Europe/Atlantis", None), "zone"),
        (("* * * * *", None, "../etc/passwd", None), "zone"),
        (("* * * * *", None, 5, None), "zone"),
        (("* * * * *", None, "Europe", None), "zone"),
        (("* * * * *", None, None, datetime(2026, 1, 1)), "anchor"),
        ((None, 0.5, None, None), "every"),
        ((None, True, None, None), "every"),
        ((None, float("nan"), None, None), "every"),
        ((None, 5, "Europe/Berlin", None), "zone"),
        ((None, 5, None, "noon"), "anchor"),
    ],
)
def test_a_bad_rule_is_refused_and_named(options: tuple[object, ...], named: str) -> None:
    with pytest.raises(BadOption) as caught:
        checked_rule(*options)
    assert caught.value.option == named


@pytest.mark.parametrize(
    ("option", "error", "text"),
    [
        ({"cron": "0 3 * *"}, BadOption, r"cron='0 3 \* \*': .*; for seconds: "),
        ({"every": 60}, UnknownOption, "unknown option 'every'; .*; it is an option of a schedule: "),
    ],
)
def test_a_job_in_seconds_is_a_schedule(option: dict[str, Any], error: type[Exception], text: str) -> None:
    """The decorator takes cron alone."""
    with pytest.raises(error, match=rf"{text}job\.schedule\('name', every=60\)"):
        Registry().job(**option)(clock.now)
