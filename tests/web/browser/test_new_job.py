"""The form for a new job, the suggestions of the filter box, and the reschedule dialog."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.web.browser.conftest import Backend, Visitor
from treadle.stores.base import TypePolicy

SCHEMA = """{"type": "object", "required": ["to"], "properties": {"to": {"type": "string"}, "n": {"type": "integer"},
"loud": {"type": "boolean"}}}"""


def test_a_job_is_enqueued_and_rescheduled(backend: Backend, visit: Visitor) -> None:
    backend.do(lambda td: td.store.publish([TypePolicy(type="greet", arguments=SCHEMA)]))
    page = visit(backend).go("/jobs")
    page.get_by_test_id("new").click()
    page.get_by_test_id("type").fill("greet")
    page.get_by_test_id("choose").click()
    page.get_by_test_id("arg-to").fill("ada")
    page.get_by_test_id("arg-loud").select_option("true")
    page.get_by_test_id("place-when").fill("1h")
    page.get_by_test_id("enqueue").click()
    expect(page.get_by_test_id("job-type")).to_have_text("greet")
    expect(page.get_by_test_id("payload")).to_contain_text("ada")

    page.keyboard.press("Shift+S")
    expect(page.get_by_test_id("place-when")).to_be_focused()
    page.get_by_test_id("place-priority").fill("7")
    page.keyboard.press("Enter")
    expect(page.locator(".facts")).to_contain_text("7")
    assert backend.do(lambda td: td.jobs("type:greet")[0].priority) == 7


def test_the_filter_box_suggests_what_its_last_word_can_become(backend: Backend, visit: Visitor) -> None:
    backend.do(lambda td: td.enqueue("send_mail", tenant="acme"))
    page = visit(backend).go("/jobs")
    box = page.get_by_test_id("filter")
    box.press_sequentially("status:pending ty")
    expect(page.locator('#terms option[value="status:pending type:send_mail"]')).to_have_count(1)
    box.fill("ten")
    expect(page.locator('#terms option[value="tenant:acme"]')).to_have_count(1)
    expect(page.locator('#terms option[value^="status:"]')).to_have_count(0)
