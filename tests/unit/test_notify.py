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


def test_a_burst_is_sent_and_its_last_one_says_so(clock: list[float]) -> None:
    budget = Budget()

    assert [budget.text("mail") for _ in range(12)] == ["mail"] * 9 + ["mail\n", None, None]


def test_a_spent_budget_comes_back_with_time(clock: list[float]) -> None:
    budget = Budget()
    for _ in range(10):
        budget.text("mail")

    clock[0] += 0.051
    assert [budget.text("mail"), budget.text("mail")] == ["mail\n", None]
    clock[0] += 60
    assert budget.text("mail") == "mail"


def test_after_the_last_one_a_listener_looks_by_itself_until_the_next_can_come() -> None:
    assert looks_after("mail") == (0.0,)
    first, *_, last = looks_after("mail\n")
    assert first == 0.0
    assert last > 1 / notify.PER_SECOND
