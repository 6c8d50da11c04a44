"""What pages look like: in both themes, on a phone, in any time zone."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page

from tests.web.browser.conftest import PHONE, Backend, Visitor
from tests.web.browser.contrast import LEAST, contrasts
from treadle import Fail, Treadle

PAGES = (
    "/",
    "/jobs",
    "/jobs?q=status:failed",
    "/failures",
    "/workers",
    "/schedules",
    "/batches",
    "/insights",
    "/audit",
    "/settings",
)


def a_job(page: Page) -> str:
    """The path of the first job of a list."""
    return f"/jobs/{page.locator('[data-testid=row] input').first.get_attribute('value')}"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_has_enough_contrast(day: Backend, visit: Visitor, scheme: str) -> None:
    me = visit(day, color_scheme=scheme)
    paths = [*PAGES, a_job(me.go("/jobs?q=status:failed")), "/jobs?q=nonsense"]
    faint = {(path, *found) for path in paths for found in contrasts(me.go(path)) if found[-1] < LEAST}
    assert not faint, f"{len(faint)} texts have too little contrast"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_pages_of_batches_can_be_read_everywhere(backend: Backend, visit: Visitor, scheme: str) -> None:
    """One that is open, with members that have completed, failed and wait; and one that is closed."""
    backend.do(make_batches)
    me = visit(backend, viewport=PHONE, color_scheme=scheme)
    for path in ("/batches", "/batch?name=import-7", "/batch?name=empty"):
        page = me.go(path)
        assert [found for found in contrasts(page) if found[-1] < LEAST] == [], path
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], path


def make_batches(td: Treadle) -> None:
    with td.batch("import-7", then=td.request("report"), on_failure=td.request("alert")) as batch:
        for n in range(4):
            batch.add(td.request("load_a_row_of_a_very_long_file", {"n": n}))
    done, bad = td.claim(2)
    done.complete()
    bad.fail(Fail("not a row"))
    with td.batch("empty"):
        pass
    td.store.match()  # closes it


def test_the_theme_can_be_chosen_and_stays(day: Backend, visit: Visitor) -> None:
    page = visit(day, color_scheme="light").go()
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.keyboard.press("t")  # light
    page.get_by_test_id("theme").click()  # dark
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert dark != light
    page.reload()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark


def test_no_page_scrolls_sideways_on_a_phone(day: Backend, visit: Visitor) -> None:
    me = visit(day, viewport=PHONE, has_touch=True, is_mobile=True)
    job = a_job(me.go("/jobs?q=status:failed"))
    for path in (*PAGES, job, f"{job}/clone", "/jobs/confirm?action=retry&all=1&q=status:failed"):
        page = me.go(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], path


def test_a_failed_job_can_be_retried_on_a_phone(day: Backend, visit: Visitor) -> None:
    me = visit(day, viewport=PHONE, has_touch=True, is_mobile=True)
    page = me.go(a_job(me.go("/jobs?q=status:failed")))
    retry = page.get_by_test_id("act-retry")
    box = retry.bounding_box()
    assert box is not None
    assert box["y"] + box["height"] < PHONE["height"], "without scrolling"
    retry.tap()
    page.get_by_test_id("confirm-go").wait_for()
    assert page.get_by_test_id("confirm-title").inner_text().startswith("Retry this ")


def test_a_time_zone_changes_every_absolute_time(day: Backend, visit: Visitor) -> None:
    me = visit(day, timezone_id="Europe/Berlin")
    page = me.go(a_job(me.go("/jobs?q=status:failed")))
    page.locator("#foot", has_text="Times in Europe/Berlin").wait_for()
    berlin = page.locator("time[data-abs]").all_inner_texts()
    page.get_by_test_id("zone").select_option("Asia/Tokyo")
    page.locator("#foot", has_text="Times in Asia/Tokyo").wait_for()
    tokyo = page.locator("time[data-abs]").all_inner_texts()
    assert len(berlin) == len(tokyo) > 3
    assert not set(berlin) & set(tokyo)
    assert all("+09:00" in (time.get_attribute("title") or "") for time in page.locator("time[data-abs]").all())
    assert "UTC" not in page.get_by_test_id("why").inner_text()
    axis = [me.go(path).locator(".xs").first.inner_text() for path in ("/", "/insights")]
    page.get_by_test_id("zone").select_option("UTC")
    page.locator("#foot", has_text="Times in UTC").wait_for()
    assert [me.go(path).locator(".xs").first.inner_text() for path in ("/", "/insights")] != axis


def test_a_chart_can_be_read_as_a_table(day: Backend, visit: Visitor) -> None:
    page = visit(day).go("/?window=24h")
    page.get_by_test_id("as-table-throughput").click()
    rows = page.locator("#table-throughput tbody tr")
    assert rows.count() > 10
    assert page.locator("#chart-throughput svg g title").first.text_content()
