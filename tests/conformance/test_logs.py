"""What handlers have logged is kept with their attempts, under their leases."""

from __future__ import annotations

from typing import Any

from tests.conformance.helpers import COMPLETED, DAY, RETRIED, SNOOZED, FakeClock, put, put_and_take, settle_one, take
from treadle.clock import SECOND
from treadle.job import Status
from treadle.log_lines import NewLine
from treadle.outcome import Outcome, OutcomeKind


def line(n: int, message: str = "hello", **fields: Any) -> NewLine:
    return NewLine(n, **{"ago": 0, "level": "INFO", "message": message, **fields})


def texts(store: Any, id: str, *page: Any) -> list[str]:
    return [one.message for one in store.logs(id, *page)]


def test_lines_are_kept_in_their_order(store: Any, clock: FakeClock) -> None:
    claimed = put_and_take(store, tenant="acme")
    store.save_logs([(claimed, [line(1, "one", ago=SECOND, level="DEBUG"), line(2, "zwei\n→ 2")])])
    store.save_logs([(claimed, [line(3, "three")])])
    found = store.logs(claimed.id)
    assert [(one.line, one.attempt, one.level, one.message) for one in found] == [
        (1, 1, "DEBUG", "one"),
        (2, 1, "INFO", "zwei\n→ 2"),
        (3, 1, "INFO", "three"),
    ]
    assert (found[1].at - found[0].at).total_seconds() == 1


def test_a_page_of_lines(store: Any) -> None:
    claimed = put_and_take(store)
    store.save_logs([(claimed, [line(n, str(n)) for n in range(1, 8)])])
    assert texts(store, claimed.id, 0, 3) == ["1", "2", "3"]
    assert texts(store, claimed.id, 5, 3) == ["6", "7"]
    assert texts(store, claimed.id, None, 2) == ["6", "7"]


def test_a_repeated_line_is_one_line_and_the_last_text_counts(store: Any) -> None:
    claimed = put_and_take(store)
    for message in ("2 dropped", "3 dropped"):
        store.save_logs([(claimed, [line(1, "one"), line(2, message)])])
    assert texts(store, claimed.id) == ["one", "3 dropped"]


def test_lines_of_a_lost_lease_are_not_kept(store: Any) -> None:
    stale = put_and_take(store)
    assert settle_one(store, stale, SNOOZED)
    (held,) = take(store)
    store.save_logs([(stale, [line(1, "stale")]), (held, [line(1, "held")])])
    assert texts(store, held.id) == ["held"]


def test_the_rest_is_stored_with_the_outcome(store: Any) -> None:
    for kind in (OutcomeKind.COMPLETED, OutcomeKind.RETRIED, OutcomeKind.FAILED, OutcomeKind.SNOOZED):
        claimed = put_and_take(store)
        store.save_logs([(claimed, [line(1, "early")])])
        assert settle_one(store, claimed, Outcome(kind, delay=DAY, logs=(line(1, "early"), line(2, kind))))
        assert texts(store, claimed.id) == ["early", kind]


def test_an_outcome_that_is_not_written_leaves_no_lines(store: Any) -> None:
    claimed = put_and_take(store)
    assert settle_one(store, claimed, COMPLETED)
    store.settle([(claimed, Outcome(OutcomeKind.FAILED, logs=(line(1),)))])
    assert texts(store, claimed.id) == []


def test_the_lines_of_later_attempts_come_later(store: Any) -> None:
    first = put_and_take(store)
    store.save_logs([(first, [line(1, "first"), line(2, "attempt")])])
    assert settle_one(store, first, RETRIED)
    (second,) = take(store)
    store.save_logs([(second, [line(1, "second")])])
    assert [(one.attempt, one.message) for one in store.logs(first.id)] == [(1, "first"), (1, "attempt"), (2, "second")]


def test_the_completion_in_a_transaction_stores_them(store: Any) -> None:
    claimed = put_and_take(store)
    with store.transaction(claimed, lambda: Outcome(OutcomeKind.COMPLETED, logs=(line(1, "inside"),))):
        pass
    assert texts(store, claimed.id) == ["inside"]


def test_lines_are_deleted_and_pruned_with_their_job(store: Any, clock: FakeClock) -> None:
    kept = put_and_take(store)
    store.save_logs([(kept, [line(1)])])
    for delete in (lambda id: store.delete(id), lambda id: store.prune([Status.COMPLETED], 0, 10)):
        claimed = put_and_take(store)
        store.save_logs([(claimed, [line(1)])])
        assert settle_one(store, claimed, COMPLETED)
        clock.advance(120)
        delete(claimed.id)
        assert (store.get(claimed.id), texts(store, claimed.id)) == (None, [])
    assert texts(store, kept.id) == ["hello"]


def test_a_job_without_lines(store: Any) -> None:
    assert store.logs(put(store).id) == store.logs("nonsense") == []
