"""A million jobs, and the pages that users open first."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from bench.sqlite.database import SQLiteBenchDatabase
from tests.web.browser.conftest import Backend, Visitor

FAILED = 20_000


@pytest.fixture
def crowd(tmp_path: Path, backend: Backend) -> Iterator[Backend]:
    """Half of them wait, and some of the others have failed. The file is deleted afterwards."""
    database = SQLiteBenchDatabase(tmp_path / "jobs.db")
    database.waiting(500_000)
    ended = database.finished(500_000)
    failed = {"first": ended.prefix, "last": f"{ended.prefix}{FAILED:012x}", "n": FAILED}
    database.connection.execute(
        "UPDATE treadle_finished SET status = 'failed', error = 'Boom' WHERE id >= :first AND id < :last", failed
    )
    database.connection.execute("UPDATE treadle_tallies SET count = count - :n WHERE status = 'completed'", failed)
    database.connection.execute("INSERT INTO treadle_tallies VALUES ('failed', 'noop', 'default', :n)", failed)
    database.tidy()
    yield backend
    database.close()


def test_pages_are_fast_with_a_million_jobs(crowd: Backend, visit: Visitor) -> None:
    page = visit(crowd).page
    first = {
        "/": page.get_by_test_id("tile-failed"),
        "/jobs": page.locator("tbody tr").first,
        "/jobs?q=status:failed": page.locator("tbody tr").first,
        "/jobs?q=payload.n:499942": page.locator("tbody tr").first,
    }
    for path, sign in first.items():
        times = []
        for _ in range(3):  # the best of them, because the machine is shared
            answer = page.goto(crowd.url + path)
            expect(sign).to_be_visible()
            assert answer is not None
            [milliseconds] = re.findall(r"dur=([\d.]+)", answer.headers["server-timing"])
            times.append(float(milliseconds))
        assert min(times) < 1_000, path
    page.goto(f"{crowd.url}/jobs?q=status:failed")
    expect(page.get_by_test_id("tab-failed")).to_contain_text("10,000+")
    page.goto(f"{crowd.url}/jobs?q=payload.n:7")  # it is far down: the page says how far it has searched, and continues
    expect(page.get_by_text("Searched the newest 20,000 jobs")).to_be_visible()
    expect(page.get_by_test_id("older")).to_be_visible()
