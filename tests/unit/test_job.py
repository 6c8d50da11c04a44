"""What a job's status allows."""

from __future__ import annotations

import pytest

from treadle.job import Page, Status, can_retry


@pytest.mark.parametrize(
    ("status", "attempts", "answer"),
    [
        ("pending", 0, True),
        ("pending", 4, True),
        ("pending", 5, False),
        ("failed", 0, True),
        ("failed", 4, True),
        ("failed", 5, False),
        ("failed", 6, False),
        ("cancelled", 1, True),
        ("processing", 0, False),
        ("completed", 0, False),
    ],
)
def test_a_job_can_be_retried_if_it_is_not_running_or_completed_and_has_attempts_left(status, attempts, answer):
    assert answer is can_retry(status, attempts, 5)
    assert answer is can_retry(Status(status), attempts)


def test_three_statuses_are_final():
    assert ["completed", "failed", "cancelled"] == [status for status in Status if status.is_final]


def test_a_status_is_a_string():
    assert "pending" == Status.PENDING == f"{Status.PENDING}"


def test_a_page_is_a_sequence_of_its_jobs():
    page = Page(["a", "b"], "cursor")

    assert (["a", "b"], 2, "b") == (list(page), len(page), page[1])
