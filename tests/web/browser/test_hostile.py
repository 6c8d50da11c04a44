"""Stored text is shown, and never run."""

from __future__ import annotations

from urllib.parse import urlencode

from playwright.sync_api import expect

from tests.web.browser.conftest import Backend, Visitor
from treadle import Fail, Treadle
from treadle.job import Progress

CORPUS = (
    "<img src=x onerror=window.pwned=1>",
    "</script><script>window.pwned=1</script>",
    '"><svg onload=window.pwned=1>',
    "' onmouseover='window.pwned=1' x='",
    "javascript:window.pwned=1",
    "{{ 7*7 }}${7*7}<%= 7*7 %>",
    "</textarea></title></style><script>window.pwned=1</script>",
    '<a href="javascript:window.pwned=1">x</a>',
)


def poison(td: Treadle, text: str) -> dict[str, str]:
    """Jobs with the text in every field that is stored, one in each state. Their ids."""
    options = {"queue": text, "tenant": text, "subject": text}
    payload = {text: text, "list": [text], "password": "hunter2"}
    ids = {}
    for state in ("failed", "running", "completed", "retrying", "queued"):
        ids[state] = td.enqueue(text, payload, **options).id  # type: ignore[arg-type]
        if state == "queued":
            continue
        [lease] = td.claim(1, types=(text,))
        if state == "failed":
            try:
                raise ValueError(text)
            except ValueError as error:
                lease.fail(Fail(f"{text} password=hunter2").with_traceback(error.__traceback__))
        elif state == "running":
            td.store.save_progress([(lease._claimed, Progress(0.5, text))])
        elif state == "completed":
            lease.complete({text: text, "api_key": "hunter2"})
        else:
            lease.fail(text, retry_in=3600)
    return ids


def poison_schedule(td: Treadle, text: str) -> str:
    """A schedule whose texts are all hostile."""
    td.schedules.put(text, text, every=3600, payload={text: text, "api_key": "hunter2"}, subject=text)
    td.schedules.pause(text, by=text, reason=text)
    return text


def test_nothing_that_is_stored_is_run_on_any_page(backend: Backend, visit: Visitor) -> None:
    poisoned = backend.do(lambda td: [poison(td, text) for text in CORPUS])
    schedules = backend.do(lambda td: [poison_schedule(td, text) for text in CORPUS])
    me = visit(backend)
    me.context.add_init_script(
        "document.addEventListener('securitypolicyviolation', (event) => console.error(`CSP: ${event.blockedURI}`))"
    )
    paths = [
        *(
            "/",
            "/?by=queue",
            "/?by=tenant",
            "/jobs",
            "/failures",
            "/workers",
            "/schedules",
            "/insights",
            "/insights?by=tenant",
        ),
        *(f"/jobs/{ids[state]}" for ids in poisoned for state in ("failed", "running", "completed")),
        *(f"/jobs/{ids['failed']}/clone" for ids in poisoned),
        *(f"/jobs?q={text}" for text in CORPUS),
        *(f"/schedule?{urlencode({'name': name})}" for name in schedules),
        *(f"/schedule/confirm?{urlencode({'name': name, 'action': 'pause'})}" for name in schedules),
        "/jobs/confirm?action=delete&all=1&q=status:failed",
    ]
    for path in paths:
        page = me.go(path)
        assert page.evaluate("window.pwned") is None, path
        assert "hunter2" not in page.content(), path
    page = me.go("/jobs?q=status:failed")
    assert page.get_by_test_id("row").locator("a.name").all_inner_texts() == list(reversed(CORPUS))
    for n in range(len(CORPUS)):
        page.get_by_test_id("row").locator("a.name").nth(n).hover()
    me.go(f"/jobs/{poisoned[0]['failed']}")
    expect(page.get_by_test_id("payload")).to_contain_text("•••")
    page.keyboard.press("D")
    page.get_by_test_id("confirm-go").click()
    page.wait_for_url("**/jobs")
    me.go("/jobs?q=status:failed")
    page.get_by_test_id("all-matching").check()
    page.get_by_test_id("bulk-retry").click()
    page.get_by_test_id("typed").fill(str(len(CORPUS) - 1))
    page.get_by_test_id("confirm-go").click()
    expect(page.get_by_test_id("operation")).to_be_visible()
    assert page.evaluate("window.pwned") is None
    me.go("/audit")
    assert page.evaluate("window.pwned") is None


def test_a_group_of_failures_is_found_without_showing_the_secret_in_its_error(backend: Backend, visit: Visitor) -> None:
    backend.do(lambda td: poison(td, "a"))
    page = visit(backend).go("/failures")
    expect(page.get_by_test_id("group")).to_have_count(2)  # it failed with a secret; another waits for a retry
    page.get_by_test_id("group").filter(has_text="password").get_by_role("link", name="View").click()
    expect(page.get_by_test_id("row")).to_have_count(1)
    assert "hunter2" not in page.url


def test_pages_have_a_content_security_policy_that_allows_nothing_inline(backend: Backend, visit: Visitor) -> None:
    me = visit(backend)
    answer = me.page.goto(backend.url + "/")
    assert answer is not None
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    html = me.page.content()
    assert " style=" not in html
    assert " onclick=" not in html


def test_a_form_of_another_site_changes_nothing(backend: Backend, visit: Visitor) -> None:
    id = backend.do(lambda td: td.enqueue("send_mail", {"n": 1})).id
    page = visit(backend).page
    fields = f"<input name=action value=cancel><input name=id value={id}>"
    form = f'<form method=post action="{backend.url}/jobs/act">{fields}</form>'
    page.route("http://elsewhere.test/", lambda route: route.fulfill(body=form, content_type="text/html"))
    page.goto("http://elsewhere.test/")
    with page.expect_navigation() as navigated:
        page.evaluate("document.forms[0].submit()")
    assert navigated.value is not None
    assert navigated.value.status == 403
    assert backend.do(lambda td: str(td.get(id).status)) == "pending"  # type: ignore[union-attr]


def test_a_read_only_dashboard_has_no_button_that_changes_anything(backend: Backend, visit: Visitor) -> None:
    ids = backend.do(lambda td: poison(td, "a"))
    backend.read_only()
    me = visit(backend)
    for path in ("/", "/jobs", "/failures", f"/jobs/{ids['failed']}", f"/jobs/{ids['queued']}"):
        page = me.go(path)
        for name in ("act-", "bulk-", "retry-group", "all-matching", "select-page"):
            expect(page.locator(f"[data-testid^={name}]")).to_have_count(0)
        expect(page.locator("form[method=post]")).to_have_count(0)
    post = "async ([url, body]) => (await fetch(url, { method: 'POST', body })).status"
    status = me.page.evaluate(post, [f"{backend.url}/jobs/act", f"action=delete&id={ids['failed']}"])
    assert status in (404, 405)
