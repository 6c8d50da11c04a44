"""The page of one job, and why it does not run."""

from __future__ import annotations

import re

from playwright.sync_api import Page, expect

from tests.web.browser.conftest import Backend, Visitor
from treadle.units import parse_duration


def seconds(page: Page, which: str) -> float:
    """The sum of the timeline's entries of a kind."""
    texts = page.get_by_test_id("timeline").locator("li", has_text=re.compile(which)).all_inner_texts()
    found = [re.search(r"((?:[\d.]+(?:ms|[dhms])\s?)+)$", text.splitlines()[0]) for text in texts]
    return sum(parse_duration(match[1]) or 0 for match in found if match)


def test_a_failure_shows_every_attempt_and_a_retry_adds_one(backend: Backend, visit: Visitor) -> None:
    backend.work()
    job = backend.do(
        lambda td: td.enqueue("send_mail", {"to": "a@down.example", "user_id": 9007199254740993}, max_attempts=3)
    )
    page = visit(backend).go(f"/jobs/{job.id}")
    expect(page.get_by_test_id("job-state")).to_contain_text("Failed")
    attempts = page.get_by_test_id("attempt")
    expect(attempts).to_have_count(3)
    for attempt in attempts.all():
        if attempt.get_attribute("open") is None:
            attempt.locator("summary").first.click()
        expect(attempt.get_by_test_id("traceback")).to_contain_text(
            "ConnectionRefusedError: [Errno 111] connection to down"
        )
        expect(attempt.get_by_test_id("traceback")).to_contain_text("in connect")
        expect(attempt.get_by_test_id("traceback")).not_to_contain_text("treadle/worker")
    expect(page.get_by_test_id("payload")).to_contain_text("9007199254740993")
    whole = parse_duration(
        page.get_by_test_id("timeline").locator(".panel-head p").inner_text().removesuffix(" in total")
    )
    assert whole is not None
    assert abs(seconds(page, "Waited") + seconds(page, "Attempt") - whole) <= 0.05 * whole + 0.1
    expect(page.get_by_test_id("why")).to_contain_text("after 3 of 3 attempts")
    page.get_by_test_id("act-retry").click()
    page.get_by_test_id("confirm-go").click()
    expect(attempts).to_have_count(6)
    expect(page.get_by_test_id("job-state")).to_contain_text("Failed")


def test_progress_is_live_and_a_disabled_button_says_why(backend: Backend, visit: Visitor) -> None:
    backend.work()
    job = backend.do(lambda td: td.enqueue("build_report", {"pages": 200}))
    page = visit(backend).go(f"/jobs/{job.id}")
    bar = page.get_by_test_id("progress")
    expect(bar).to_contain_text("page")
    before = bar.inner_text()
    expect(bar).not_to_have_text(before, use_inner_text=True)
    expect(page.get_by_test_id("act-retry")).to_be_disabled()
    reason = page.locator("span[title]", has=page.get_by_test_id("act-delete")).get_attribute("title")
    assert reason == "It is running: cancel it first."
    page.keyboard.press("C")
    page.get_by_test_id("confirm-go").click()
    expect(page.get_by_test_id("why")).to_contain_text("cancel")


def test_a_type_that_no_worker_handles_is_named_until_one_does(backend: Backend, visit: Visitor) -> None:
    """A worker with the type starts, and the problem disappears without a reload."""
    job = backend.do(lambda td: td.enqueue("late_type", {"n": 1}))
    overview, detail = visit(backend).go(), visit(backend).go(f"/jobs/{job.id}")
    expect(overview.get_by_test_id("problems")).to_contain_text("1 job waits and no worker is running")
    expect(detail.get_by_test_id("why")).to_contain_text("No worker is running on this database")
    for page in (overview, detail):
        page.evaluate("window.same = true")
    backend.work()
    expect(detail.get_by_test_id("job-state")).to_contain_text("Completed")
    expect(overview.get_by_test_id("problems")).to_have_count(0)
    stranger = backend.do(lambda td: td.enqueue("nobody_knows_it", {"n": 1}))
    expect(overview.get_by_test_id("problems")).to_contain_text('1 job of type "nobody_knows_it" waits')
    assert overview.evaluate("window.same")
    assert detail.evaluate("window.same")
    detail.goto(f"{backend.url}/jobs/{stranger.id}")
    expect(detail.get_by_test_id("why")).to_contain_text("No live worker knows type 'nobody_knows_it'")


def test_a_clone_can_be_edited_and_keeps_hidden_values(backend: Backend, visit: Visitor) -> None:
    job = backend.do(lambda td: td.enqueue("send_mail", {"to": "ada", "api_key": "s3cret"}, tenant="acme"))
    page = visit(backend).go(f"/jobs/{job.id}")
    page.get_by_test_id("act-clone").click()
    editor = page.get_by_test_id("clone-payload")
    expect(editor).not_to_have_value(re.compile("s3cret"))
    editor.fill(editor.input_value().replace("ada", "bob"))
    page.get_by_test_id("clone-go").click()
    expect(page.get_by_test_id("job-id")).not_to_have_text(job.id)
    new = backend.do(lambda td: td.get(page.url.rsplit("/", 1)[-1]))
    assert new is not None
    assert (new.payload, new.tenant) == ({"to": "bob", "api_key": "s3cret"}, "acme")


def test_a_job_can_be_copied_in_four_ways(backend: Backend, visit: Visitor) -> None:
    job = backend.do(lambda td: td.enqueue("send_mail", {"user_id": 9007199254740993, "password": "x"}))
    me = visit(backend)
    me.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = me.go(f"/jobs/{job.id}")
    copied = {}
    for kind in ("id", "json", "curl", "python"):
        page.get_by_test_id(f"copy-{kind}").click()
        copied[kind] = page.evaluate("navigator.clipboard.readText()")
    assert copied["id"] == job.id
    assert '"user_id": 9007199254740993' in copied["json"]
    assert copied["curl"].startswith(f"curl {backend.url}/api/jobs -H ")
    assert copied["python"].startswith("td.enqueue('send_mail', {'user_id': 9007199254740993, 'password': '•••'}")
