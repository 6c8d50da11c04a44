"""On a phone: nothing is cut off, nothing overlaps, every link can be reached."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page

from tests.web.browser.conftest import Backend, Visitor
from tests.web.browser.test_look import PAGES, a_job
from treadle.stores.base import WorkerRow

PHONES = ({"width": 390, "height": 844}, {"width": 375, "height": 667})
SCROLLS = ".code, .nav, .tabs, .as-table > div, .spark, .sr, .skip, .clip, thead"
"""Elements that scroll, end in an ellipsis, are only for screen readers, or are not shown on a phone."""

CUT_OFF = """(scrolls) => [...document.querySelectorAll("header *, main *")].filter((element) => {
  const box = element.getBoundingClientRect();
  if (!box.width || !box.height || element.closest(scrolls)) return false;
  if (element.closest("svg")?.matches(":not(.icon)")) return false; // a chart's marks
  const panel = element.parentElement.closest(".panel, body").getBoundingClientRect();
  return box.right > panel.right + 1 || box.left < panel.left - 1;
}).map((element) => `${element.tagName}.${element.className}: ${element.textContent.trim().slice(0, 40)}`)"""

OVERLAPS = """(scrolls) => {
  const texts = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, parent = node.parentElement;
    if (!node.nodeValue.trim() || !parent.checkVisibility()) continue;
    if (parent.closest(scrolls) || parent.closest("select, svg, script, style, template, dialog")) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const box of range.getClientRects()) if (box.width && box.height) texts.push([box, node.nodeValue.trim()]);
  }
  for (const meter of document.querySelectorAll("progress")) texts.push([meter.getBoundingClientRect(), "a meter"]);
  const found = [];
  texts.forEach(([a, one], n) => texts.slice(n + 1).forEach(([b, other]) => {
    const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (wide > 1 && high > Math.min(a.height, b.height) / 3) found.push(`${one} / ${other}`);
  }));
  return found;
}"""


def cut_off(page: Page) -> list[Any]:
    found: list[Any] = page.evaluate(CUT_OFF, SCROLLS)
    return found


def overlapping(page: Page) -> list[Any]:
    found: list[Any] = page.evaluate(OVERLAPS, SCROLLS)
    return found


@pytest.mark.parametrize("phone", PHONES, ids=lambda phone: str(phone["width"]))
def test_nothing_is_cut_off_and_nothing_overlaps(day: Backend, visit: Visitor, phone: dict[str, int]) -> None:
    me = visit(day, viewport=phone, has_touch=True, is_mobile=True)
    job = a_job(me.go("/jobs?q=status:failed"))
    confirm = "/jobs/confirm?action=cancel&all=1&q=status:queued"
    wrong: dict[str, list[Any]] = {}
    for path in (*PAGES, "/insights?by=tenant", "/?by=tenant", job, f"{job}/clone", confirm, "/jobs?q=nonsense"):
        page = me.go(path)
        wrong[path] = [*cut_off(page), *overlapping(page)]
    assert not {path: found for path, found in wrong.items() if found}


def test_the_workers_page_has_room_for_long_names(backend: Backend, visit: Visitor) -> None:
    queues = ("billing", "contacts", "default", "mail", "media", "reports")
    row = WorkerRow(id="w1", name="batch-7.eu-central-1.internal:31337", concurrency=64, queues=queues, version="9.9")
    backend.do(lambda td: td.store.register(row))
    backend.do(lambda td: [td.enqueue("build_report", {"pages": 600}, queue="reports") for _ in range(2)])
    backend.do(lambda td: td.enqueue("synchronize_contacts_with_provider", queue="contacts"))
    backend.work("--concurrency", "2")
    page = visit(backend, viewport=PHONES[0], has_touch=True, is_mobile=True).go("/workers")
    page.locator("[data-label=Doing]", has_text="build_report").wait_for()
    assert [*cut_off(page), *overlapping(page)] == []


@pytest.mark.parametrize("width", [375, 390, 640, 960, 1000])
def test_every_page_can_be_reached_from_the_bar(day: Backend, visit: Visitor, width: int) -> None:
    page = visit(day, viewport={"width": width, "height": 844}, has_touch=True).go("/")
    for name in ("jobs", "failures", "workers", "schedules", "insights", "audit", "overview"):
        link = page.get_by_test_id(f"nav-{name}")
        box = link.bounding_box()
        assert box is not None
        assert box["x"] >= 0, name
        assert box["x"] + box["width"] <= width, name
        link.tap(timeout=5_000)  # fails if something else covers it
        page.wait_for_url(f"**/{'' if name == 'overview' else name}")


def test_a_traceback_scrolls_sideways_so_that_its_carets_stay_in_place(day: Backend, visit: Visitor) -> None:
    me = visit(day, viewport=PHONES[0], has_touch=True, is_mobile=True)
    page = me.go(a_job(me.go("/jobs?q=status:failed")))
    trace = page.get_by_test_id("traceback").first
    assert trace.evaluate("e => getComputedStyle(e).whiteSpace") == "pre"
    assert trace.evaluate("e => e.scrollWidth > e.clientWidth")
    assert trace.evaluate("e => e.getBoundingClientRect().right") <= PHONES[0]["width"]
