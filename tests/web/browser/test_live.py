"""Pages that stay true by themselves, and leave alone whoever works with them."""

from __future__ import annotations

import time
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Page, expect

from tests.web.browser.conftest import Desk, Visitor
from tests.web.browser.sample import fill
from tests.web.served import Dashboard

ENQUEUE = """async (count) => {
  const jobs = Array.from({ length: count }, (_, n) => ({ type: "send_mail", payload: { to: `${n}@example.org` } }));
  const headers = { "Content-Type": "application/json" };
  return (await fetch("api/jobs", { method: "POST", headers, body: JSON.stringify(jobs) })).status;
}"""


def badge(page: Page, state: str, seconds: float = 8) -> None:
    expect(page.get_by_test_id("live")).to_have_attribute("data-state", state, timeout=seconds * 1000)


def test_a_cold_start_shows_what_was_done_within_seconds_and_asks_nobody_else(
    tmp_path: Path, desk: Desk, visit: Visitor
) -> None:
    desk.do(lambda wl: fill(desk.database))
    began = time.monotonic()
    with Dashboard(tmp_path) as served:
        desk.url = served.url
        me = visit(desk)
        page = me.page
        page.goto(served.login)
        done = page.get_by_test_id("value-completed")
        done.wait_for()
        assert int(done.inner_text().replace(",", "")) > 0
        assert time.monotonic() - began < 10
        me.go("/jobs")
        page.get_by_test_id("row").first.wait_for()
        here = urlsplit(served.url).netloc
        assert {urlsplit(request.url).netloc for request in me.requests} == {here}
        page.close()


def test_the_overview_follows_and_survives_a_restart_of_the_server(tmp_path: Path, desk: Desk, visit: Visitor) -> None:
    me = visit(desk)
    page = me.page
    with Dashboard(tmp_path) as served:
        page.goto(served.login)
        badge(page, "live")
        page.evaluate("window.same = true")
        assert page.evaluate(ENQUEUE, 50) == 201
        expect(page.get_by_test_id("value-queued")).to_have_text("50", timeout=2_000)
        assert served.stop() == 0
        badge(page, "reconnecting")
    desk.do(lambda wl: wl.enqueue("send_mail", {"to": "a@example.org"}))
    with Dashboard(tmp_path, port=served.port):
        badge(page, "live", 20)
        expect(page.get_by_test_id("value-queued")).to_have_text("51")
        assert page.evaluate("window.same"), "all of it without a navigation"
        page.close()
    me.errors = [error for error in me.errors if "net::ERR_" not in error]


def test_who_types_or_selects_is_left_alone_and_catches_up_afterwards(desk: Desk, visit: Visitor) -> None:
    desk.do(lambda wl: [wl.enqueue("send_mail", {"n": n}) for n in range(3)])
    page = visit(desk).go("/jobs")
    badge(page, "live")
    rows = page.get_by_test_id("row")
    page.locator("input[name=id]").first.check()
    desk.do(lambda wl: wl.enqueue("send_mail", {"n": 3}))
    badge(page, "paused")
    expect(rows).to_have_count(3)
    page.locator("input[name=id]").first.uncheck()
    expect(rows).to_have_count(4)
    badge(page, "live")
    page.get_by_test_id("filter").fill("status:fai")
    desk.do(lambda wl: wl.enqueue("send_mail", {"n": 4}))
    badge(page, "paused")
    expect(page.get_by_test_id("filter")).to_have_value("status:fai")
    page.get_by_test_id("filter").blur()
    expect(rows).to_have_count(5)


def test_a_refresh_keeps_focus_open_details_and_the_row_that_the_keys_are_on(desk: Desk, visit: Visitor) -> None:
    desk.do(lambda wl: fill(desk.database))
    page = visit(desk).go("/jobs?q=type:transcode_video")
    badge(page, "live")
    page.keyboard.press("j")
    page.keyboard.press("j")
    marked = page.locator("tr.cursor").get_attribute("id")
    link = page.locator(f"#{marked} a.name")
    link.focus()
    desk.do(lambda wl: wl.enqueue("transcode_video", {"n": 99}, queue="media"))
    expect(page.get_by_test_id("row")).to_have_count(13)
    assert page.locator("tr.cursor").get_attribute("id") == marked
    assert page.evaluate("document.activeElement.closest('tr').id") == marked
    page.goto(desk.url + "/")
    page.get_by_test_id("as-table-throughput").click()
    desk.do(lambda wl: wl.enqueue("transcode_video", {"n": 100}, queue="media"))
    expect(page.locator("[data-testid=by] tr", has_text="transcode_video").locator("td").nth(1)).to_have_text("14")
    assert page.locator("#table-throughput").get_attribute("open") is not None


def test_live_updates_can_be_paused_for_good(desk: Desk, visit: Visitor) -> None:
    page = visit(desk).go()
    badge(page, "live")
    page.keyboard.press("r")
    badge(page, "paused")
    desk.do(lambda wl: wl.enqueue("send_mail", {"n": 1}))
    expect(page.get_by_test_id("live")).to_contain_text("update")
    expect(page.get_by_test_id("value-queued")).to_have_text("0")
    page.reload()
    badge(page, "paused")
    page.get_by_test_id("live").click()
    badge(page, "live")
