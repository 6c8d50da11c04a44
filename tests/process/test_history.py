"""The checker works: a correct history passes, and each planted bug is found by the rule that is meant for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.process.history import Ended, History, Lost, Records, breaches
from tests.process.journal import Run

KILLED = "its worker was killed by SIGKILL"


def good() -> History:
    """a: completed at once. b: killed while it ran, then completed. c: killed before it was settled, and ran again.

    c has lost an attempt like b: a process that dies may have been killed by what a handler left behind."""
    runs = [
        Run("a", 1, 10, "10:0", started=100, ended=200),
        Run("b", 1, 10, "10:1", started=110, ended=None),
        Run("c", 1, 10, "10:2", started=120, ended=220),
        Run("b", 2, 11, "11:0", started=400, ended=500),
        Run("c", 2, 11, "11:1", started=410, ended=510),
    ]
    records = Records(
        jobs=["a", "b", "c"],
        waiting=[],
        leased=[],
        ended=[
            Ended("a", 1, "completed", 1, "10:0"),
            Ended("b", 4, "completed", 2, "11:0"),
            Ended("c", 5, "completed", 2, "11:1"),
        ],
        lost=[Lost("b", 2, 1, "retried", KILLED), Lost("c", 3, 1, "retried", KILLED)],
        tallies={"all": 3, "completed": 3},
        runs=5,
        failures=2,
        last_lease=5,
    )
    return History(["a", "b", "c"], runs, {10: 300}, records)


def with_records(h: History, **changes: object) -> History:
    return h._replace(records=h.records._replace(**changes))


def with_run(h: History, index: int, **changes: object) -> History:
    runs = list(h.runs)
    runs[index] = runs[index]._replace(**changes)
    return h._replace(runs=runs)


PLANTED: dict[str, Callable[[History], History]] = {
    "none_lost: a was enqueued, and there is no row of it": lambda h: with_records(
        h, jobs=["b", "c"], ended=h.records.ended[1:]
    ),
    "none_lost: a never ended": lambda h: with_records(h, ended=h.records.ended[1:], waiting=["a"]),
    "none_lost: a is failed": lambda h: with_records(
        h, ended=[h.records.ended[0]._replace(status="failed"), *h.records.ended[1:]]
    ),
    "none_invented: d was never enqueued": lambda h: with_records(h, jobs=[*h.records.jobs, "d"]),
    "none_invented: 10:0 ran d, which was never enqueued": lambda h: with_run(h, 0, id="d"),
    "in_one_place: a is in 2 places": lambda h: with_records(h, waiting=["a"]),
    "in_one_place: a is in 0 places": lambda h: with_records(h, ended=h.records.ended[1:]),
    "ended_by_a_run: a has the result '12:0', and no run of it has that": lambda h: with_records(
        h, ended=[h.records.ended[0]._replace(result="12:0"), *h.records.ended[1:]]
    ),
    "ended_by_a_run: a has the result of 10:0, which never ended": lambda h: with_run(h, 0, ended=None),
    "ended_by_a_run: b ended with 2 attempts, by the run of attempt 1": lambda h: with_run(h, 3, attempt=1),
    # A stale worker's result was accepted: the killed run ended elsewhere, when a later one had the job.
    "every_run_is_recorded: 11:0 of b did not count, and its process was not killed": lambda h: with_records(
        with_run(h, 1, ended=250), ended=[h.records.ended[0], Ended("b", 2, "completed", 1, "10:1"), h.records.ended[2]]
    ),
    "every_run_is_recorded: 10:2 of c went on after its process was killed": lambda h: with_run(
        h, 2, ended=2_000_000_000
    ),
    "every_run_is_recorded: 10:1 of b was killed in attempt 1, and nothing says so": lambda h: with_records(
        h, lost=h.records.lost[1:], runs=4, failures=1
    ),
    "every_run_is_recorded: 10:2 of c was killed in attempt 1, and nothing says so": lambda h: with_records(
        h, lost=h.records.lost[:1], runs=4, failures=1
    ),
    # An end by a process other than the one that claimed the job.
    "every_run_is_recorded: 13:0 of a did not count, and its process was not killed": lambda h: h._replace(
        runs=[*h.runs, Run("a", 1, 13, "13:0", started=600, ended=700)]
    ),
    "every_lost_attempt_has_a_kill: attempt 1 of b was retried: ValueError": lambda h: with_records(
        h, lost=[Lost("b", 2, 1, "retried", "ValueError"), h.records.lost[1]]
    ),
    "every_lost_attempt_has_a_kill: b lost 1 attempts and completed in attempt 1": lambda h: with_records(
        h, ended=[h.records.ended[0], h.records.ended[1]._replace(attempts=1), h.records.ended[2]]
    ),
    "one_lease_one_number: lease 4 is recorded 2 times, and the counter at 5": lambda h: with_records(
        h, lost=[h.records.lost[0]._replace(lease=4), h.records.lost[1]]
    ),
    "one_lease_one_number: lease 5 is recorded 1 times, and the counter at 4": lambda h: with_records(h, last_lease=4),
    "one_lease_one_number: b ended by lease 4, after lease 6 had been given": lambda h: with_records(
        h, lost=[h.records.lost[0]._replace(lease=6), h.records.lost[1]], last_lease=6
    ),
    "one_at_a_time: b ran as 11:0 while 10:1 was running": lambda h: h._replace(kills={10: 450}),
    "counts_add_up: the tallies are {'completed': 2}, a count gives {'completed': 3, 'all': 3}": lambda h: with_records(
        h, tallies={"completed": 2}
    ),
    "counts_add_up: usage has 6 runs, 2 failures: 3 ended, 2 retried": lambda h: with_records(h, runs=6),
}


def test_a_correct_history_passes() -> None:
    assert breaches(good()) == []


@pytest.mark.parametrize("breach", PLANTED)
def test_each_planted_bug_is_found(breach: str) -> None:
    assert breach in breaches(PLANTED[breach](good()))


@pytest.mark.parametrize("index", range(5))
def test_no_line_of_the_journal_can_be_dropped(index: int) -> None:
    """A start with its end; for the ends alone, see above. The killed run keeps its row of `attempts`."""
    history = good()
    dropped = history._replace(runs=history.runs[:index] + history.runs[index + 1 :])
    harmless = history.runs[index].token in ("10:1", "10:2")  # runs that changed nothing: without them nothing changes
    assert bool(breaches(dropped)) is not harmless
