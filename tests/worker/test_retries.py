"""Retries, snoozes and failures, on a clock that the test moves."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest

from tests.worker.helpers import now, place
from treadle import Context, Fail, Retry, Snooze, Status, Treadle, exponential, fixed
from treadle.errors import BadOption
from treadle.redact import merged
from treadle.settings import redactor_for
from treadle.testing import ManualClock, drain


def waits(td: Treadle, clock: ManualClock, job: Any) -> list[float]:
    """Run a job to its end. Returns the seconds that it waited before each further run."""
    seconds: list[float] = []
    drain(td, raising=False)
    while not (found := now(td, job)).status.is_final:
        seconds.append((found.run_at - clock.now()).total_seconds())
        clock.advance(seconds[-1])
        drain(td, raising=False)
    return seconds


@pytest.mark.parametrize(
    ("backoff", "expected"),
    [
        (exponential(base=30, cap=100), [30, 60, 100, 100]),
        (fixed(7), [7, 7, 7, 7]),
        (2.5, [2.5, 2.5, 2.5, 2.5]),
        ([1, 5, 9], [1, 5, 9, 9]),
        (lambda failures: failures * 10, [10, 20, 30, 40]),
        (0, [0, 0, 0, 0]),
    ],
    ids=["exponential", "fixed", "a number", "a list", "a function", "none"],
)
def test_a_failing_job_is_retried_by_its_backoff_until_no_attempt_is_left(
    timed: Treadle, treadle_clock: ManualClock, backoff: Any, expected: list[float]
) -> None:
    attempts: list[int] = []

    @timed.job(max_attempts=5, backoff=backoff)
    def bad(ctx: Context) -> None:
        attempts.append(ctx.attempt)
        raise ValueError(f"attempt {ctx.attempt}")

    job = bad.enqueue()
    waited = waits(timed, treadle_clock, job)
    assert waited == [seconds for seconds in expected if seconds]  # the same drain runs jobs that are due at once
    assert attempts == [1, 2, 3, 4, 5]
    assert (*place(timed, job), now(timed, job).error) == (Status.FAILED, 5, "ValueError: attempt 5")
    history = timed.attempts(job.id)
    assert [(a.attempt, a.outcome) for a in history] == [(n, "retried") for n in (1, 2, 3, 4)] + [(5, "failed")]
    assert len({a.lease for a in history}) == 5


def test_the_default_backoff_starts_at_five_seconds_and_doubles(timed: Treadle, treadle_clock: ManualClock) -> None:
    @timed.job(max_attempts=4)
    def bad() -> None:
        raise ValueError

    assert waits(timed, treadle_clock, bad.enqueue()) == [pytest.approx(s, rel=0.1) for s in (5, 10, 20)]


def test_a_job_that_succeeds_at_last_keeps_the_history_of_its_failures(
    timed: Treadle, treadle_clock: ManualClock
) -> None:
    @timed.job(backoff=1)
    def flaky(ctx: Context) -> str:
        if ctx.attempt < 3:
            raise ConnectionError("no answer")
        return "done"

    job = flaky.enqueue()
    assert waits(timed, treadle_clock, job) == [1, 1]
    done = now(timed, job)
    assert (done.status, done.attempts, done.result, done.error) == (Status.COMPLETED, 3, "done", None)
    assert [a.error for a in timed.attempts(job.id)] == ["ConnectionError: no answer"] * 2


def test_a_retrying_job_shows_its_last_error_while_it_waits(timed: Treadle) -> None:
    @timed.job(backoff=60)
    def bad() -> None:
        raise ValueError("not today")

    job = bad.enqueue()
    drain(timed, raising=False)
    assert (*place(timed, job), now(timed, job).error) == (Status.PENDING, 1, "ValueError: not today")


def test_a_backoff_function_that_raises_does_not_stop_the_worker(timed: Treadle) -> None:
    def broken(failures: int) -> float:
        raise ZeroDivisionError

    @timed.job(max_attempts=2, backoff=broken)
    def bad() -> None:
        raise ValueError("not today")

    @timed.job
    def good() -> None: ...

    job, other = bad.enqueue(), good.enqueue()
    drain(timed, raising=False)
    assert place(timed, other) == (Status.COMPLETED, 1)
    assert now(timed, job).attempts == 1


@pytest.mark.parametrize("answer", [-5, float("nan"), float("inf"), "soon", None])
def test_a_backoff_function_that_returns_an_invalid_value_does_not_stop_the_worker(timed: Treadle, answer: Any) -> None:
    @timed.job(max_attempts=2, backoff=lambda failures: answer)
    def bad() -> None:
        raise ValueError("not today")

    @timed.job
    def good() -> None: ...

    job, other = bad.enqueue(), good.enqueue()
    drain(timed, raising=False)
    assert place(timed, other) == (Status.COMPLETED, 1)
    assert now(timed, job).attempts >= 1


def test_max_attempts_of_an_enqueue_wins_over_that_of_the_type(timed: Treadle) -> None:
    @timed.job(max_attempts=5, backoff=0)
    def bad() -> None:
        raise ValueError

    job = bad.using(max_attempts=2).enqueue()
    drain(timed, raising=False)
    assert place(timed, job) == (Status.FAILED, 2)


def test_a_snooze_costs_no_attempt(timed: Treadle, treadle_clock: ManualClock) -> None:
    seen: list[tuple[int, int]] = []

    @timed.job(max_attempts=1)
    def poll(ctx: Context) -> None:
        seen.append((ctx.attempt, ctx.snoozes))
        if ctx.snoozes < 3:
            raise Snooze(20)

    job = poll.enqueue()
    drain(timed)
    assert place(timed, job) == (Status.PENDING, 0)
    assert now(timed, job).run_at == treadle_clock.now() + timedelta(seconds=20)
    assert waits(timed, treadle_clock, job) == [20, 20, 20]
    assert seen == [(1, 0), (1, 1), (1, 2), (1, 3)]
    assert place(timed, job) == (Status.COMPLETED, 1)
    assert timed.attempts(job.id) == []


def test_after_at_most_snoozes_the_job_has_failed(timed: Treadle, treadle_clock: ManualClock) -> None:
    @timed.job
    async def poll() -> None:
        raise Snooze(20, at_most=3)

    job = poll.enqueue()
    assert waits(timed, treadle_clock, job) == [20, 20, 20]
    assert (now(timed, job).status, now(timed, job).error) == (Status.FAILED, "still not ready after 3 snoozes")


def test_a_snooze_keeps_the_count_of_earlier_failures(timed: Treadle, treadle_clock: ManualClock) -> None:
    turns = iter([ValueError("first"), Snooze(5), ValueError("second")])

    @timed.job(max_attempts=2, backoff=1)
    def mixed() -> None:
        raise next(turns)

    job = mixed.enqueue()
    assert waits(timed, treadle_clock, job) == [1, 5]
    assert (*place(timed, job), now(timed, job).error) == (Status.FAILED, 2, "ValueError: second")


def test_retry_with_a_delay_wins_over_the_backoff(timed: Treadle, treadle_clock: ManualClock) -> None:
    @timed.job(max_attempts=3, backoff=5)
    def ask(ctx: Context) -> None:
        raise Retry("the server says so", delay=90) if ctx.attempt == 1 else Retry

    job = ask.enqueue()
    assert waits(timed, treadle_clock, job) == [90, 5]
    assert [a.error for a in timed.attempts(job.id)] == ["the server says so", "retry requested", "retry requested"]
    assert now(timed, job).status is Status.FAILED


def test_fail_ends_the_job_at_once(timed: Treadle) -> None:
    @timed.job(max_attempts=5)
    def hopeless() -> None:
        raise Fail("no such video")

    job = hopeless.enqueue()
    drain(timed, raising=False)
    assert (*place(timed, job), now(timed, job).error) == (Status.FAILED, 1, "no such video")


def test_a_failed_job_stays_failed_until_a_manual_retry_which_gives_it_all_its_attempts(
    timed: Treadle, treadle_clock: ManualClock
) -> None:
    runs: list[int] = []

    @timed.job(max_attempts=2, backoff=0)
    def bad(ctx: Context) -> None:
        runs.append(ctx.attempt)
        raise ValueError

    job = bad.enqueue()
    drain(timed, raising=False)
    treadle_clock.advance(timedelta(days=30))
    drain(timed)
    assert runs == [1, 2]
    retried = timed.retry(job.id)
    assert (retried.status, retried.attempts) == (Status.PENDING, 0)
    drain(timed, raising=False)
    assert runs == [1, 2, 1, 2]


@pytest.mark.parametrize("bad", [lambda: Snooze(-1), lambda: exponential(base=-1), lambda: fixed(-1)])
def test_a_negative_delay_is_refused_where_it_is_written(bad: Callable[[], object]) -> None:
    with pytest.raises(BadOption, match="0"):
        bad()


@pytest.mark.parametrize("delays", [[], [1, -1]])
def test_a_list_of_delays_is_checked_where_it_is_written(td: Treadle, delays: Sequence[float]) -> None:
    with pytest.raises(BadOption, match="at least one delay, each 0 seconds or more"):
        td.job(type="x", backoff=delays)(lambda: None)


@pytest.mark.parametrize(("most", "spent"), [(1, "1 attempt"), (2, "2 attempts")])
def test_the_log_says_after_how_many_attempts_a_job_failed(
    timed: Treadle, caplog: pytest.LogCaptureFixture, most: int, spent: str
) -> None:
    @timed.job(max_attempts=most, backoff=0)
    def fails() -> None:
        raise ValueError("no")

    fails.enqueue()
    drain(timed, raising=False)

    assert f"failed after {spent}: ValueError: no" in caplog.text


@pytest.fixture
def plain_log() -> Iterator[io.StringIO]:
    """What a handler of the app's own writes, with a formatter of its own."""
    handler = logging.StreamHandler(io.StringIO())
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logging.getLogger("treadle").addHandler(handler)
    yield handler.stream
    logging.getLogger("treadle").removeHandler(handler)


def test_the_text_of_an_error_cannot_forge_a_line_of_the_log(timed: Treadle, plain_log: io.StringIO) -> None:
    @timed.job(max_attempts=2, backoff=0)
    def fails() -> None:
        raise ValueError("no\nERROR job 7 (pay) failed: forged\x1b[2K\r")

    fails.enqueue()
    drain(timed, raising=False)

    lines = plain_log.getvalue().removesuffix("\n").split("\n")
    retrying, failed = [line for line in lines if not line.startswith("  ")]  # the others are of the tracebacks
    assert retrying.startswith("WARNING")
    assert all(line.isprintable() for line in lines)
    assert r"failed after 2 attempts: ValueError: no\nERROR job 7 (pay) failed: forged\x1b[2K\r" in failed


@pytest.mark.parametrize(
    ("redact", "logged"),
    [
        (True, "iban=DE00 password=•••"),
        (["iban"], "iban=••• password=•••"),
        (False, "iban=DE00 password=hunter2"),
    ],
    ids=str,
)
def test_the_app_decides_what_the_log_hides(
    td: Treadle, caplog: pytest.LogCaptureFixture, redact: Any, logged: str
) -> None:
    td.redactor = redactor_for(redact)

    @td.job(max_attempts=1)
    def fails() -> None:
        raise Fail("iban=DE00 password=hunter2")

    @td.job(max_attempts=1)
    def ends(ctx: Context) -> None:
        with ctx.transaction():
            pass
        raise Fail("iban=DE00 password=hunter2")

    fails.enqueue()
    ends.enqueue()
    drain(td, raising=False)

    assert f"failed after 1 attempt: {logged}" in caplog.text
    assert f"raised after its transaction had completed it: {logged}" in caplog.text
    published = merged(policy.redact for policy in td.store.policies().values())
    assert published.text("iban=DE00 password=hunter2") == logged
