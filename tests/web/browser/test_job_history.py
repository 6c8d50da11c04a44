"""The lineage, the waterfall and the logs of a job, in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.web.browser.conftest import PHONE, Backend, Mounts, Visitor
from tests.web.browser.contrast import LEAST, contrasts
from tests.web.test_job_history import chain, fan, run
from treadle import Treadle
from treadle.job import ClaimedJob
from treadle.log_lines import NewLine
from treadle.outcome import Outcome, OutcomeKind
from treadle.steps import NewStep


@pytest.fixture(params=["sqlite", "postgresql"])
def either(request: pytest.FixtureRequest, tmp_path: Path, mounts: Mounts) -> Iterator[Backend]:
    on_postgres = request.param == "postgresql"
    url = request.getfixturevalue("postgres_url") if on_postgres else f"sqlite:///{tmp_path}/jobs.db"
    with ExitStack() as stack:
        yield Backend(url, mounts, stack)


def log(backend: Backend, claimed: ClaimedJob, n: int, text: str, level: str = "INFO") -> None:
    backend.do(lambda td: td.store.save_logs([(claimed, [NewLine(n, 0, level, text)])]))


def busy(td: Treadle) -> Any:
    """A job with steps, failed attempts and lines of every level."""
    claimed = run(td)
    levels = enumerate(("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"), 1)
    td.store.save_logs([(claimed, [NewLine(n, 0, level, f"a line of {level} " * 20) for n, level in levels])])
    td.store.save_steps([(claimed, NewStep("plan", took=500_000)), (claimed, NewStep("nap", kind="sleep"))])
    td.store.settle([(claimed, Outcome(OutcomeKind.RETRIED, error="no"))])
    return claimed


def test_logs_are_live(either: Backend, visit: Visitor) -> None:
    claimed = either.do(run)
    log(either, claimed, 1, "the first line")
    page = visit(either).go(f"/jobs/{claimed.id}")
    lines = page.get_by_test_id("logs").locator("li")
    expect(lines).to_have_count(1)
    page.evaluate("window.same = true")
    log(either, claimed, 2, "the second line", "ERROR")
    expect(lines).to_have_count(2)
    expect(lines.last).to_contain_text("ERROR")
    assert page.evaluate("window.same")


def test_a_box_leads_to_its_job(backend: Backend, visit: Visitor) -> None:
    first, *_, last = backend.do(lambda td: fan(td, 5))
    page = visit(backend).go(f"/jobs/{last.id}")
    page.get_by_test_id("graph").get_by_role("link", name="scan").click()
    expect(page.get_by_test_id("job-id")).to_have_text(first.id)


def test_this_job_can_be_brought_into_view(backend: Backend, visit: Visitor) -> None:
    jobs = backend.do(lambda td: chain(td, 50))
    page = visit(backend).go(f"/jobs/{jobs[40].id}")
    box = page.locator("#this-job")
    expect(box).not_to_be_in_viewport()
    page.get_by_text("Show this job").click()
    expect(box).to_be_in_viewport()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_has_enough_contrast_and_nothing_scrolls_sideways(
    backend: Backend, visit: Visitor, scheme: str
) -> None:
    ids = [backend.do(lambda td: fan(td, 100))[0].id, backend.do(busy).id]
    wide, phone = visit(backend, color_scheme=scheme), visit(backend, color_scheme=scheme, viewport=PHONE)
    for id in ids:
        page = wide.go(f"/jobs/{id}")
        for closed in page.locator("#logs details:not([open])").all():
            closed.click()
        assert not {found for found in contrasts(page) if found[-1] < LEAST}
        assert phone.go(f"/jobs/{id}").evaluate("document.documentElement.scrollWidth <= innerWidth")
