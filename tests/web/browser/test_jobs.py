"""Search for jobs, and actions on many of them."""

from __future__ import annotations

import re

from playwright.sync_api import Page, Route, expect

from tests.web.browser.conftest import Backend, Visitor
from treadle import Fail, Treadle

FILTER = "status:failed tenant:acme payload.user_id:42"


def fail(td: Treadle, many: int, **options: str) -> None:
    """This many failed jobs."""
    requests = [td.request("send_mail", {"user_id": 42, "n": n}, **options) for n in range(many)]  # type: ignore[arg-type]
    td.enqueue_many(requests)
    while leases := td.claim(200):
        for lease in leases:
            lease.fail(Fail("the host is down"))


def rows(page: Page) -> list[str]:
    return [str(row.get_attribute("id")) for row in page.get_by_test_id("row").all()]


def number(page: Page, tab: str) -> str:
    return page.get_by_test_id(f"tab-{tab}").locator("span").inner_text()


def test_chips_tabs_rows_and_the_api_agree_and_the_address_has_the_whole_filter(
    backend: Backend, visit: Visitor
) -> None:
    backend.do(lambda td: fail(td, 3, tenant="acme"))
    backend.do(lambda td: fail(td, 2, tenant="globex"))
    backend.do(lambda td: td.enqueue("send_mail", {"user_id": 42}, tenant="acme"))
    me = visit(backend)
    page = me.go("/jobs")
    page.get_by_test_id("filter").fill("tenant:acme")
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("row")).to_have_count(4)
    page.get_by_test_id("filter").fill(FILTER)
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("row")).to_have_count(3)
    chips = page.get_by_test_id("chips").locator(".chip span").all_inner_texts()
    assert chips == FILTER.split()
    assert [number(page, tab) for tab in ("all", "failed", "queued", "completed")] == ["4", "3", "1", "0"]
    answer = page.evaluate("async (q) => (await fetch(`api/jobs?q=${encodeURIComponent(q)}`)).json()", FILTER)
    assert [f"row-{job['id']}" for job in answer["items"]] == rows(page)
    assert answer["total"]["value"] == 3
    other = visit(backend).page
    other.goto(page.url)
    assert rows(other) == rows(page)
    page.go_back()
    expect(page.get_by_test_id("filter")).to_have_value("tenant:acme")
    expect(page.get_by_test_id("row")).to_have_count(4)
    page.get_by_test_id("chips").locator(".chip a").click()
    expect(page.get_by_test_id("row")).to_have_count(6)


def test_a_filter_that_cannot_be_read_says_what_is_wrong_under_the_box(backend: Backend, visit: Visitor) -> None:
    page = visit(backend).go("/jobs?q=stats:failed")
    expect(page.get_by_test_id("filter-error")).to_contain_text("did you mean status?")
    expect(page.get_by_test_id("filter")).to_have_value("stats:failed")


def test_an_id_in_the_box_leads_to_the_job(backend: Backend, visit: Visitor) -> None:
    id = backend.do(lambda td: td.enqueue("send_mail", {"n": 1})).id
    page = visit(backend).go("/jobs")
    page.get_by_test_id("filter").fill(id)
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("job-id")).to_have_text(id)


def test_if_nothing_matches_a_wider_filter_is_offered(backend: Backend, visit: Visitor) -> None:
    backend.do(lambda td: fail(td, 3, tenant="acme"))
    page = visit(backend).go("/jobs?q=status:completed tenant:acme")
    expect(page.get_by_test_id("suggestion")).to_have_text("3 failed →")
    page.get_by_test_id("suggestion").click()
    expect(page.get_by_test_id("row")).to_have_count(3)
    page.goto(f"{backend.url}/jobs?q=tenant:acme queue:nowhere")
    expect(page.get_by_test_id("suggestion")).to_have_text("3 without queue:nowhere →")


def test_pages_go_older_and_newer_and_counts_stop_at_ten_thousand(backend: Backend, visit: Visitor) -> None:
    backend.do(lambda td: td.enqueue_many([td.request("send_mail", {"n": n}) for n in range(10_200)]))
    page = visit(backend).go("/jobs")
    assert number(page, "all") == "10,000+"
    seen = [rows(page)]
    for _ in range(2):
        page.get_by_test_id("older").click()
        expect(page.locator(f"#{seen[-1][0]}")).to_have_count(0)
        expect(page.get_by_test_id("row")).to_have_count(50)
        seen.append(rows(page))
    assert len({row for some in seen for row in some}) == 150
    for before in reversed(seen[:-1]):
        page.get_by_test_id("newer").click()
        expect(page.locator(f"#{before[0]}")).to_have_count(1)
        expect(page.get_by_test_id("row")).to_have_count(50)
        assert rows(page) == before
    expect(page.get_by_test_id("newer")).to_have_count(0)


def test_all_matching_jobs_are_retried_after_their_number_was_typed(backend: Backend, visit: Visitor) -> None:
    backend.do(lambda td: fail(td, 137, tenant="acme"))
    page = visit(backend).go("/jobs?q=status:failed")
    page.get_by_test_id("all-matching").check()
    page.get_by_test_id("bulk-retry").click()
    expect(page.get_by_test_id("confirm-title")).to_have_text("Retry 137 jobs?")
    page.get_by_test_id("typed").fill("136")
    page.get_by_test_id("confirm-go").click()
    expect(page.get_by_test_id("confirm-error")).to_contain_text("Type 137 to confirm")
    page.get_by_test_id("typed").fill("137")
    page.get_by_test_id("confirm-go").click()
    expect(page).to_have_url(re.compile("/operations/"))
    expect(page.get_by_test_id("operation-done")).to_have_text("137/137")
    expect(page.get_by_test_id("operation")).to_have_attribute("data-state", "completed")
    assert page.evaluate("async () => (await fetch('../api/jobs?q=status:failed')).json()")["total"]["value"] == 0
    page.get_by_test_id("nav-audit").click()
    expect(page.get_by_test_id("audit").locator("tbody tr")).to_have_count(1)


def test_a_count_that_has_changed_is_reported_and_nothing_is_done(backend: Backend, visit: Visitor) -> None:
    backend.do(lambda td: fail(td, 12))
    page = visit(backend).go("/jobs?q=status:failed")
    page.get_by_test_id("all-matching").check()
    page.get_by_test_id("bulk-delete").click()
    page.get_by_test_id("typed").fill("12")
    backend.do(lambda td: fail(td, 1))
    with page.expect_response("**/jobs/act") as answered:
        page.get_by_test_id("confirm-go").click()
    assert answered.value.status == 412
    expect(page.get_by_test_id("confirm-error")).to_contain_text("Expected 12 matching jobs, found 13")
    expect(page.get_by_test_id("confirm-title")).to_have_text("Delete 13 jobs?")
    assert backend.do(lambda td: td.count("status:failed").value) == 13


def test_selected_rows_are_changed_and_no_others(backend: Backend, visit: Visitor) -> None:
    backend.do(lambda td: fail(td, 4))
    page = visit(backend).go("/jobs?q=status:failed")
    chosen = [page.locator("input[name=id]").nth(n) for n in (0, 2)]
    ids = [str(box.get_attribute("value")) for box in chosen]
    for box in chosen:
        box.check()
    expect(page.get_by_test_id("selected")).to_have_text("2 selected")
    page.get_by_test_id("bulk-delete").click()
    expect(page.get_by_test_id("confirm-title")).to_have_text("Delete 2 jobs?")
    page.get_by_test_id("confirm-go").click()
    expect(page.get_by_test_id("operation-done")).to_have_text("2/2")
    assert backend.do(lambda td: [td.get(id) for id in ids]) == [None, None]
    assert backend.do(lambda td: td.count("status:failed").value) == 2


def wait_for_shortcuts(page: Page) -> None:
    """A page that `goto` did not load may be shown before its script has run. The badge is the script's last step."""
    expect(page.get_by_test_id("live")).to_be_visible()


def test_the_jobs_page_works_by_keyboard(backend: Backend, visit: Visitor) -> None:
    backend.do(lambda td: fail(td, 3, tenant="acme"))
    backend.do(lambda td: fail(td, 3, tenant="globex"))
    page = visit(backend).go()
    page.clock.set_fixed_time("2026-07-01T12:00:00Z")  # the second key must follow within a second
    page.keyboard.press("g")
    page.keyboard.press("j")
    expect(page.get_by_test_id("row")).to_have_count(6)
    wait_for_shortcuts(page)
    page.keyboard.press("/")
    page.keyboard.type("tenant:acme")
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("row")).to_have_count(3)
    wait_for_shortcuts(page)
    for key in ("j", "j", "x"):
        page.keyboard.press(key)
    expect(page.get_by_test_id("selected")).to_have_text("1 selected")
    id = str(page.locator("input[name=id]:checked").get_attribute("value"))
    page.keyboard.press("R")
    expect(page.get_by_test_id("confirm-go")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("#dialog")).to_be_hidden()
    assert backend.do(lambda td: td.count("status:failed").value) == 6, "it asks first"
    page.keyboard.press("R")
    expect(page.get_by_test_id("confirm-go")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("job-state")).to_contain_text("Queued")
    wait_for_shortcuts(page)
    assert backend.do(lambda td: str(td.get(id).status)) == "pending"  # type: ignore[union-attr]
    page.keyboard.press("?")
    expect(page.get_by_test_id("help")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#dialog")).to_be_hidden()
    page.keyboard.press("C")
    expect(page.get_by_test_id("confirm-go")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("job-state")).to_contain_text("Cancelled")


def test_keys_typed_before_the_dialog_opens_do_nothing(backend: Backend, visit: Visitor) -> None:
    backend.do(lambda td: fail(td, 2))
    held: list[Route] = []
    profile = visit(backend)
    profile.page.route("**/confirm**", lambda route: held.append(route))
    page = profile.go("/jobs?q=status:failed")
    with page.expect_request("**/confirm**"):
        for key in ("j", "R", "Enter", "D"):  # Enter alone would open the job
            page.keyboard.press(key)
    expect(page.get_by_test_id("row")).to_have_count(2)
    assert len(held) == 1
    held[0].continue_()
    expect(page.get_by_test_id("confirm-title")).to_have_text("Retry this send_mail job?")
    expect(page.get_by_test_id("confirm-go")).to_be_focused()


def test_shortcuts_can_be_turned_off(backend: Backend, visit: Visitor) -> None:
    page = visit(backend).go("/settings")
    page.get_by_test_id("keys").uncheck()
    page.goto(f"{backend.url}/jobs")
    page.keyboard.press("?")
    page.keyboard.press("/")
    expect(page.get_by_test_id("filter")).not_to_be_focused()
    expect(page.get_by_test_id("help")).to_have_count(0)


def test_the_pages_work_without_javascript(backend: Backend, visit: Visitor) -> None:
    backend.do(lambda td: fail(td, 3, tenant="acme"))
    backend.do(lambda td: fail(td, 1, tenant="globex"))
    page = visit(backend, java_script_enabled=False).go("/jobs")
    page.get_by_test_id("filter").fill("tenant:acme")
    page.get_by_test_id("filter-go").click()
    expect(page.get_by_test_id("row")).to_have_count(3)
    page.locator("[data-testid=row] a.name").first.click()
    expect(page.get_by_test_id("why")).to_contain_text("the host is down")
    page.get_by_test_id("act-retry").click()
    page.get_by_test_id("confirm-go").click()
    expect(page.get_by_test_id("job-state")).to_contain_text("Queued")
    page.goto(f"{backend.url}/jobs?q=status:failed tenant:acme")
    page.get_by_test_id("all-matching").check()
    page.get_by_test_id("bulk-delete").click()
    page.get_by_test_id("typed").fill("2")
    page.get_by_test_id("confirm-go").click()
    expect(page.get_by_test_id("operation")).to_be_visible()
    page.get_by_test_id("nav-overview").click()
    expect(page.get_by_test_id("chart-throughput")).to_be_visible()
