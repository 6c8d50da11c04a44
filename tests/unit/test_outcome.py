"""How an attempt ended, and what follows from it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle import codec
from treadle.backoff import LONGEST, exponential, fixed
from treadle.clock import SECOND
from treadle.errors import BadOption
from treadle.job import ClaimedJob, Status, Suspicion
from treadle.outcome import (
    CANCELLED,
    COMPLETED,
    RELEASED,
    Crash,
    Fail,
    OutcomeKind,
    Retry,
    Snooze,
    StopReason,
    TimedOut,
    after_crash,
    after_stop,
    decide,
)


def claimed(attempt=1, max_attempts=3, snoozes=0, suspicion=Suspicion.NONE):
    return ClaimedJob(
        "id", 7, 0, "noop", "default", "", "", "{}", attempt, max_attempts, snoozes, suspicion, 0, 0, None, 0
    )


def raised(error):
    """The error with a traceback, as one that was really raised has."""
    try:
        raise error
    except BaseException as caught:
        return caught


@pytest.mark.parametrize(
    ("kind", "final"),
    [
        (OutcomeKind.COMPLETED, Status.COMPLETED),
        (OutcomeKind.FAILED, Status.FAILED),
        (OutcomeKind.CANCELLED, Status.CANCELLED),
        (OutcomeKind.RETRIED, None),
        (OutcomeKind.SNOOZED, None),
        (OutcomeKind.RELEASED, None),
    ],
)
def test_each_kind_says_whether_it_is_final(kind, final):
    assert final == kind.final


def test_only_an_attempt_that_ended_by_itself_is_charged():
    assert [1, 0, 0] == [COMPLETED.charged, RELEASED.charged, CANCELLED.charged]


def test_an_error_is_retried_after_the_backoff_for_the_failures_so_far():
    outcome = decide(claimed(attempt=2), ValueError("no"), exponential(base=30, cap=600))

    assert (OutcomeKind.RETRIED, 60 * SECOND, "ValueError: no", 1) == (
        outcome.kind,
        outcome.delay,
        outcome.error,
        outcome.charged,
    )


def test_an_error_in_the_last_attempt_fails_the_job():
    outcome = decide(claimed(attempt=3, max_attempts=3), ValueError("no"), fixed(1))

    assert (OutcomeKind.FAILED, "ValueError: no") == (outcome.kind, outcome.error)


def test_a_job_with_one_attempt_is_never_retried():
    assert OutcomeKind.FAILED == decide(claimed(max_attempts=1), Retry("again"), fixed(1)).kind


def test_fail_ends_the_job_with_attempts_left():
    outcome = decide(claimed(), Fail("no such podcast"), fixed(1))

    assert (OutcomeKind.FAILED, "no such podcast") == (outcome.kind, outcome.error)


def test_retry_says_when():
    outcome = decide(claimed(), Retry("rate limited", delay=90), fixed(1))

    assert (OutcomeKind.RETRIED, 90 * SECOND, "rate limited") == (outcome.kind, outcome.delay, outcome.error)


def test_retry_without_a_delay_uses_the_backoff():
    assert 5 * SECOND == decide(claimed(), Retry(), fixed(5)).delay
    assert 0 == decide(claimed(), Retry(delay=0), fixed(5)).delay


def test_a_delay_below_zero_is_now():
    assert 0 == decide(claimed(), ValueError(), lambda failures: -5).delay


@pytest.mark.parametrize("seconds", [float("inf"), 1e300, 1e15, float("nan")])
def test_a_delay_beyond_all_dates_is_clipped(seconds):
    """A number that no database can store would prevent the worker from settling anything."""
    delay = decide(claimed(), ValueError(), lambda failures: seconds).delay

    assert 0 <= delay <= LONGEST * SECOND


@pytest.mark.parametrize("seconds", [float("inf"), 1e15, float("nan"), -1])
@pytest.mark.parametrize("make", [Snooze, lambda seconds: Retry(delay=seconds)], ids=["Snooze", "Retry"])
def test_an_invalid_delay_is_refused_where_it_is_written(make, seconds):
    with pytest.raises(BadOption, match="a delay is 0 seconds or more, and finite"):
        make(seconds)


def test_a_backoff_that_raises_does_not_cost_the_job_its_retry():
    outcome = decide(claimed(), ValueError(), lambda failures: 1 / 0)

    assert OutcomeKind.RETRIED == outcome.kind
    assert outcome.delay > 0


def test_a_snooze_costs_no_attempt():
    outcome = decide(claimed(attempt=3, max_attempts=3), Snooze(20), fixed(1))

    assert (OutcomeKind.SNOOZED, 20 * SECOND, 0, None) == (outcome.kind, outcome.delay, outcome.charged, outcome.error)


def test_after_its_last_snooze_a_job_fails():
    outcomes = [decide(claimed(snoozes=n), Snooze(20, at_most=3), fixed(1)) for n in range(4)]

    assert [OutcomeKind.SNOOZED] * 3 + [OutcomeKind.FAILED] == [outcome.kind for outcome in outcomes]
    assert "still not ready after 3 snoozes" == outcomes[-1].error


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no"), "ValueError: no"),
        (ValueError(), "ValueError"),
        (KeyError("id"), "KeyError: 'id'"),
        (Crash("the process died"), "the process died"),
        (TimedOut.after(300), "timed out after 300 s"),
        (Fail(), "Fail"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
    ],
)
def test_an_error_is_one_line(error, text):
    assert text == decide(claimed(), error, fixed(1)).error


def test_the_traceback_shows_where_the_error_was_raised():
    outcome = decide(claimed(), raised(ValueError("no")), fixed(1))

    assert "in raised" in outcome.traceback
    assert outcome.traceback.rstrip().endswith("ValueError: no")
    assert None is decide(claimed(), ValueError("no"), fixed(1)).traceback


class Unprintable(Exception):
    def __init__(self, why):
        self.why = why

    def __str__(self):
        raise self.why("not even this")

    __repr__ = __str__


@pytest.mark.parametrize("why", [RuntimeError, SystemExit])
def test_an_error_that_cannot_be_printed_is_still_an_error(why):
    outcome = decide(claimed(), raised(Unprintable(why)), fixed(1))

    assert "Unprintable: <unprintable>" == outcome.error
    assert "in raised" in outcome.traceback


@given(st.text(st.characters()))
def test_every_error_text_can_be_stored(message):
    outcome = decide(claimed(), raised(ValueError(message)), fixed(1))

    for text in (outcome.error, outcome.traceback):
        assert "\0" not in text
        assert codec.decode(codec.encode(text)) == text


def test_a_very_long_error_text_is_clipped():
    outcome = decide(claimed(), raised(ValueError("x" * 1_000_000)), fixed(1))

    assert codec.MAX_ERROR + 1 == len(outcome.error) == len(outcome.traceback)


# Crashes


def test_a_job_that_ran_alone_is_guilty_and_charged():
    outcome = after_crash(claimed(), "died", alone=True)

    assert (OutcomeKind.RETRIED, Suspicion.GUILTY, 1, "died") == (
        outcome.kind,
        outcome.suspicion,
        outcome.charged,
        outcome.error,
    )


def test_one_of_several_running_jobs_is_suspected_and_not_charged():
    outcome = after_crash(claimed(attempt=3, max_attempts=3), "died", alone=False)

    assert (OutcomeKind.RETRIED, Suspicion.SUSPECTED, 0) == (outcome.kind, outcome.suspicion, outcome.charged)


@pytest.mark.parametrize("alone", [True, False])
def test_a_suspect_that_crashes_again_is_charged_for_both_crashes(alone):
    outcome = after_crash(claimed(attempt=1, max_attempts=3, suspicion=Suspicion.SUSPECTED), "died", alone=alone)

    assert (OutcomeKind.RETRIED, Suspicion.GUILTY, 2) == (outcome.kind, outcome.suspicion, outcome.charged)


@pytest.mark.parametrize(("attempt", "kind"), [(1, OutcomeKind.RETRIED), (2, OutcomeKind.FAILED)])
def test_both_crashes_count_towards_the_last_attempt(attempt, kind):
    suspect = claimed(attempt=attempt, max_attempts=3, suspicion=Suspicion.SUSPECTED)

    assert kind == after_crash(suspect, "died", alone=True).kind


@pytest.mark.parametrize("alone", [True, False])
def test_a_job_known_to_crash_is_charged_once_for_each_crash(alone):
    outcome = after_crash(claimed(attempt=3, max_attempts=3, suspicion=Suspicion.GUILTY), "died", alone=alone)

    assert (OutcomeKind.FAILED, 1) == (outcome.kind, outcome.charged)


@pytest.mark.parametrize("suspicion", list(Suspicion))
def test_a_crash_from_outside_costs_an_attempt_and_changes_no_suspicion(suspicion):
    outcome = after_crash(claimed(suspicion=suspicion), "killed", alone=False, outside=True)

    assert (OutcomeKind.RETRIED, None, 1) == (outcome.kind, outcome.suspicion, outcome.charged)


@given(st.integers(1, 10), st.lists(st.booleans(), min_size=30))
def test_a_job_that_crashes_does_not_loop_forever(max_attempts, company):
    """Whatever runs at the same time, it fails after at most two crashes per attempt."""
    attempts, suspicion = 0, Suspicion.NONE
    crashes = 0
    for alone in company:
        crashes += 1
        outcome = after_crash(claimed(attempts + 1, max_attempts, suspicion=suspicion), "died", alone=alone)
        attempts += outcome.charged
        suspicion = outcome.suspicion
        if outcome.kind is OutcomeKind.FAILED:
            break

    assert OutcomeKind.FAILED == outcome.kind
    assert crashes <= max_attempts + 1


# Stops


def test_an_attempt_that_was_stopped_has_the_outcome_of_the_reason():
    assert CANCELLED == after_stop(claimed(), StopReason.CANCELLED, None, fixed(1))
    assert RELEASED == after_stop(claimed(), StopReason.RELEASED, None, fixed(1))
    assert after_stop(claimed(), StopReason.LOST, None, fixed(1)) is None
    timed_out = after_stop(claimed(), StopReason.TIMED_OUT, 2, fixed(1))
    assert (timed_out.kind, timed_out.error, timed_out.delay) == (OutcomeKind.RETRIED, "timed out after 2 s", SECOND)
