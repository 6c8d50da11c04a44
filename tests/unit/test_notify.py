"""The budget of notifications on PostgreSQL."""

from __future__ import annotations

import pytest

from treadle.stores.postgres import notify
from treadle.stores.postgres.notify import Budget, looks_after


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr("treadle.stores.postgres.notify.time.monotonic", lambda: now[0])
    return now


def send(budget: Budget, *queues: str) -> list[str]:
    """The notifications of a commit that takes no time."""
    notices = budget.notices(queues or ("mail",))
    budget.sent(notices)
    return list(notices.texts)


def test_a_burst_is_sent_and_its_last_one_says_so(clock: list[float]) -> None:
    budget = Budget()

    assert [send(budget) for _ in range(12)] == [["mail"]] * 9 + [["mail\n"], [], []]


def test_many_queues_use_the_budget_up_at_once(clock: list[float]) -> None:
    budget = Budget()

    assert send(budget, *"abcdefghijklmn") == [*"abcdefghi", "j\n"]
    assert send(budget) == []


def test_a_spent_budget_comes_back_with_time(clock: list[float]) -> None:
    budget = Budget()
    for _ in range(10):
        send(budget)

    clock[0] += 0.051
    assert [send(budget), send(budget)] == [["mail\n"], []]
    clock[0] += 60
    assert send(budget) == ["mail"]


def test_what_was_not_committed_does_not_count(clock: list[float]) -> None:
    budget = Budget()
    for _ in range(9):
        send(budget)
    for _ in range(5):
        assert list(budget.notices(["mail"]).texts) == ["mail\n"]

    assert send(budget) == ["mail\n"]


def test_listeners_look_no_longer_than_from_the_moment_before_the_commit(clock: list[float]) -> None:
    budget = Budget()
    for _ in range(9):
        send(budget)
    last = budget.notices(["mail"])
    clock[0] += 0.02  # its commit took that long
    budget.sent(last)

    assert send(budget) == []
    clock[0] += 0.011  # the next commit would take as long
    assert not budget.is_late()
    assert list(budget.notices(["mail"]).texts) == ["mail\n"]
    clock[0] += 0.02
    assert budget.is_late()


def test_after_the_last_one_a_listener_looks_by_itself_until_the_next_can_come() -> None:
    assert looks_after("mail") == (0.0,)
    first, *_, last = looks_after("mail\n")
    assert first == 0.0
    assert last > 1 / notify.PER_SECOND
