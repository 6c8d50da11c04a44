"""The pages on PostgreSQL, and pictures for the docs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.web.browser.conftest import Backend, Mounts, Visitor
from tests.web.browser.test_jobs import fail

PICTURES = os.environ.get("TREADLE_PICTURES")
"""If this is set, to docs/pictures, the pictures of the docs are written there."""


@pytest.fixture
def postgres_backend(postgres_url: str, mounts: Mounts) -> Iterator[Backend]:
    with ExitStack() as stack:
        yield Backend(postgres_url, mounts, stack)


def test_the_pages_work_on_postgresql(postgres_backend: Backend, visit: Visitor) -> None:
    backend = postgres_backend
    backend.do(lambda td: fail(td, 3, tenant="acme"))
    me = visit(backend)
    page = me.go()
    expect(page.get_by_test_id("value-failed")).to_have_text("3")
    expect(page.get_by_test_id("live")).to_have_attribute("data-state", "live")
    backend.do(lambda td: td.enqueue("send_mail", {"user_id": 42}))
    expect(page.get_by_test_id("value-queued")).to_have_text("1")
    for path in ("/?by=tenant&window=24h", "/failures", "/workers", "/schedules", "/insights", "/audit"):
        me.go(path)
        expect(page.get_by_test_id("problem")).to_have_count(0)
    me.go("/jobs?q=status:failed payload.user_id:42 tenant:acme")
    expect(page.get_by_test_id("row")).to_have_count(3)
    page.locator("[data-testid=row] a.name").first.click()
    page.get_by_test_id("act-retry").click()
    page.get_by_test_id("confirm-go").click()
    expect(page.get_by_test_id("job-state")).to_contain_text("Queued")
    me.go("/failures")
    page.get_by_test_id("retry-group").click()
    page.get_by_test_id("typed").fill("2")
    page.get_by_test_id("confirm-go").click()
    expect(page.get_by_test_id("operation-done")).to_have_text("2/2")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_take_the_pictures_of_the_docs(day: Backend, visit: Visitor, scheme: str, tmp_path: Path) -> None:
    folder = Path(PICTURES or tmp_path)
    me = visit(day, color_scheme=scheme)
    page = me.go("/jobs?q=status:failed type:send_email")
    job = str(page.locator("[data-testid=row] input").first.get_attribute("value"))
    for name, path in (("overview", "/?window=24h"), ("job", f"/jobs/{job}")):
        me.go(path)
        expect(page.get_by_test_id("live")).to_have_attribute("data-state", "live")
        page.screenshot(path=folder / f"{name}-{scheme}.png")
