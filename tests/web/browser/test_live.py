"""Live pages: they update themselves, but not while the reader uses them."""

from __future__ import annotations

import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, Route, expect

from tests.web.browser.conftest import Backend, Visitor
from tests.web.browser.sample import fill
from tests.web.served import Dashboard
from treadle import Treadle

ENQUEUE = """async (count) => {
  const jobs = Array.from({ length: count }, (_, n) => ({ type: "send_mail", payload: { to: `${n}@example.org` } }));
  const headers = { "Content-Type": "application/json" };
  return (await fetch("api/jobs", { method: "POST", headers, body: JSON.stringify(jobs) })).status;
}"""


def badge(page: Page, state: str) -> None:
    expect(page.get_by_test_id("live")).to_have_attribute("data-state", state)


def test_a_new_dashboard_shows_jobs_within_seconds_and_calls_no_other_host(
    tmp_path: Path, backend: Backend, visit: Visitor
) -> None:
    backend.do(lambda td: fill(backend.database))
    began = time.monotonic()
    with Dashboard(tmp_path) as served:
        backend.url = served.url
        me = visit(backend)
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


def test_the_overview_follows_and_survives_a_restart_of_the_server(
    tmp_path: Path, backend: Backend, visit: Visitor
) -> None:
    me = visit(backend)
    page = me.page
    with Dashboard(tmp_path) as served:
        page.goto(served.login)
        badge(page, "live")
        page.evaluate("window.same = true")
        times = []
        for queued in (50, 100, 150):  # the best of them, because the machine is shared
            assert page.evaluate(ENQUEUE, 50) == 201
            began = time.monotonic()
            expect(page.get_by_test_id("value-queued")).to_have_text(str(queued))
            times.append(time.monotonic() - began)
        assert min(times) < 2
        assert served.stop() == 0
        badge(page, "reconnecting")
    backend.do(lambda td: td.enqueue("send_mail", {"to": "a@example.org"}))
    with Dashboard(tmp_path, port=served.port):
        badge(page, "live")
        expect(page.get_by_test_id("value-queued")).to_have_text("151")
        assert page.evaluate("window.same"), "all of it without a navigation"
        page.close()
    me.errors = [error for error in me.errors if "net::ERR_" not in error]


def test_the_bar_of_a_batch_follows_its_members(backend: Backend, visit: Visitor) -> None:
    def make(td: Treadle) -> None:
        with td.batch("import-7") as batch:
            for n in range(4):
                batch.add(td.request("load", {"n": n}))

    backend.do(make)
    page = visit(backend).go("/batch?name=import-7")
    badge(page, "live")
    bar = page.get_by_test_id("progress").locator("progress")
    expect(bar).to_have_js_property("value", 0)
    page.evaluate("window.same = true")
    for ended in range(1, 5):
        backend.do(lambda td: [lease.complete() for lease in td.claim(1)])
        expect(bar).to_have_js_property("value", ended / 4)
        expect(page.get_by_test_id("counts")).to_have_text(f"{ended} of 4")
    assert page.evaluate("window.same"), "all of it without a navigation"


def test_a_page_does_not_refresh_while_the_reader_types_or_selects(backend: Backend, visit: Visitor) -> None:
    backend.do(lambda td: [td.enqueue("send_mail", {"n": n}) for n in range(3)])
    page = visit(backend).go("/jobs")
    badge(page, "live")
    rows = page.get_by_test_id("row")
    page.locator("input[name=id]").first.check()
    backend.do(lambda td: td.enqueue("send_mail", {"n": 3}))
    badge(page, "paused")
    expect(rows).to_have_count(3)
    page.locator("input[name=id]").first.uncheck()
    expect(rows).to_have_count(4)
    badge(page, "live")
    page.get_by_test_id("filter").fill("status:fai")
    backend.do(lambda td: td.enqueue("send_mail", {"n": 4}))
    badge(page, "paused")
    expect(page.get_by_test_id("filter")).to_have_value("status:fai")
    page.get_by_test_id("filter").blur()
    expect(rows).to_have_count(5)


@pytest.mark.parametrize("how", ["selects", "pauses"])
def test_a_refresh_that_arrives_after_the_reader_selected_or_paused_is_dropped(
    backend: Backend, visit: Visitor, how: str
) -> None:
    backend.do(lambda td: [td.enqueue("send_mail", {"n": n}) for n in range(3)])
    held: list[Route] = []
    me = visit(backend)

    def hold_the_first(route: Route) -> None:
        if route.request.resource_type == "fetch" and not held:
            held.append(route)
        else:
            route.continue_()

    me.page.route("**/jobs", hold_the_first)
    with me.page.expect_request(lambda request: request.resource_type == "fetch"):
        page = me.go("/jobs")
    backend.do(lambda td: td.enqueue("send_mail", {"n": 3}))
    box, rows = page.locator("input[name=id]").first, page.get_by_test_id("row")
    box.check() if how == "selects" else page.keyboard.press("r")
    held[0].continue_()
    badge(page, "paused")
    expect(page.get_by_test_id("live")).to_contain_text("update")
    expect(rows).to_have_count(3)
    box.uncheck() if how == "selects" else page.keyboard.press("r")
    expect(rows).to_have_count(4)


def test_a_refresh_keeps_focus_open_details_and_the_current_row(backend: Backend, visit: Visitor) -> None:
    backend.do(lambda td: fill(backend.database))
    page = visit(backend).go("/jobs?q=type:transcode_video")
    badge(page, "live")
    page.keyboard.press("j")
    page.keyboard.press("j")
    marked = page.locator("tr.cursor").get_attribute("id")
    link = page.locator(f"#{marked} a.name")
    link.focus()
    backend.do(lambda td: td.enqueue("transcode_video", {"n": 99}, queue="media"))
    expect(page.get_by_test_id("row")).to_have_count(13)
    assert page.locator("tr.cursor").get_attribute("id") == marked
    assert page.evaluate("document.activeElement.closest('tr').id") == marked
    page.goto(backend.url + "/")
    page.get_by_test_id("as-table-throughput").click()
    backend.do(lambda td: td.enqueue("transcode_video", {"n": 100}, queue="media"))
    expect(page.locator("[data-testid=by] tr", has_text="transcode_video").locator("td").nth(1)).to_have_text("14")
    assert page.locator("#table-throughput").get_attribute("open") is not None


def test_live_updates_can_be_paused_permanently(backend: Backend, visit: Visitor) -> None:
    page = visit(backend).go()
    badge(page, "live")
    page.keyboard.press("r")
    badge(page, "paused")
    backend.do(lambda td: td.enqueue("send_mail", {"n": 1}))
    expect(page.get_by_test_id("live")).to_contain_text("update")
    expect(page.get_by_test_id("value-queued")).to_have_text("0")
    page.reload()
    badge(page, "paused")
    page.get_by_test_id("live").click()
    badge(page, "live")
