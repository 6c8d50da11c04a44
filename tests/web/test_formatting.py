"""How pages format times, numbers, JSON, tracebacks and a job's timeline."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from treadle import Fail, Treadle
from treadle.job import Attempt, Job, Status, state_of
from treadle.web import formatting, highlight
from treadle.web.formatting import Formatter
from treadle.web.pages.actions import restore
from treadle.web.pages.job import timeline
from treadle.web.pages.usage_charts import window

NOON = datetime(2026, 7, 1, 12, 0, 0, tzinfo=UTC)


def a_job(**fields: Any) -> Job:
    given: dict[str, Any] = {
        "id": "01970000-0000-7000-8000-000000000000",
        "type": "a",
        "queue": "default",
        "tenant": "",
        "subject": "",
        "payload": {},
        "priority": 0,
        "status": Status.PENDING,
        "run_at": NOON,
        "attempts": 0,
        "max_attempts": 3,
        "created_at": NOON,
        "updated_at": NOON,
    }
    return Job(**given | fields)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def an_attempt(n: int, start: float, end: float, outcome: str = "retried") -> Attempt:
    return Attempt(
        attempt=n,
        lease=n,
        worker_id="w",
        started_at=at(start),
        ended_at=at(end),
        outcome=outcome,
        error="E",
        traceback=None,
    )


def test_a_time_is_shown_in_the_readers_zone_with_its_offset() -> None:
    tokyo = Formatter(NOON, zone="Asia/Tokyo")
    assert tokyo.at(NOON) == (
        '<time datetime="2026-07-01T21:00:00.000+09:00" title="2026-07-01T21:00:00.000+09:00" data-abs>'
        "2026-07-01 21:00:00</time>"
    )
    assert ">5m ago<" in Formatter(NOON).ago(at(-300))
    assert ">in 5m<" in Formatter(NOON).ago(at(300))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no job has failed", "No job has failed."),
        ("'x' is none of a, b; did you mean a?", "'x' is none of a, b; did you mean a?"),
        ("read the log.", "Read the log."),
    ],
)
def test_a_sentence_ends_with_one_punctuation_mark(text: str, shown: str) -> None:
    assert formatting.sentence(text) == shown


def test_a_filter_error_on_a_page_ends_with_one_punctuation_mark(client: TestClient) -> None:
    assert "did you mean status?</p>" in client.get("/jobs?q=staus:failed").text


def test_times_within_sentences_are_in_the_readers_zone_and_the_rest_is_escaped() -> None:
    text = Formatter(NOON, zone="Asia/Tokyo").localized("it failed at 2026-07-01 12:00:00 UTC: <b>")
    assert "2026-07-01 21:00:00</time> JST: &lt;b&gt;" in text


@pytest.mark.parametrize("text", ["2026-13-99 25:61:61 UTC", "0000-00-00 00:00:00 UTC", "9999-12-31 23:59:59 UTC"])
def test_an_error_may_contain_what_is_not_a_time(client: TestClient, td: Treadle, text: str) -> None:
    assert Formatter(NOON, zone="Asia/Tokyo").localized(text) == text
    job = td.enqueue("a", {})
    td.claim()[0].fail(Fail(text))
    assert text.removesuffix(" UTC") in client.get(f"/jobs/{job.id}").text


@pytest.mark.parametrize(
    ("cookie", "zone", "chosen"),
    [
        ("", "UTC", ""),
        ("Asia/Tokyo", "Asia/Tokyo", "Asia/Tokyo"),
        ("browser:Europe/Berlin", "Europe/Berlin", "browser"),
        ("../../etc/passwd", "UTC", ""),
        ("browser:nowhere", "UTC", "browser"),
    ],
)
def test_the_zone_comes_from_a_cookie_that_is_not_trusted(
    client: TestClient, cookie: str, zone: str, chosen: str
) -> None:
    page = client.get("/settings", headers={"Cookie": f"treadle_zone={cookie}; treadle_theme=<b>"})
    assert page.status_code == 200
    assert f"Times in {zone}" in page.text
    assert f'data-zone="{chosen}"' in page.text
    assert "data-theme" not in page.text.split(">")[1]


def test_a_choice_is_kept_in_a_cookie_and_redirects_only_within_the_dashboard(client: TestClient) -> None:
    saved = client.get("/settings/save?zone=Asia/Tokyo&back=/jobs?q=status:failed", follow_redirects=False)
    assert (saved.status_code, saved.headers["location"]) == (303, "/jobs?q=status:failed")
    assert saved.headers["set-cookie"].startswith("treadle_zone=Asia/Tokyo; Path=/;")
    for elsewhere in ("https://example.org/", "//example.org/", "/\\example.org", "javascript:alert(1)"):
        saved = client.get("/settings/save", params={"theme": "dark", "back": elsewhere}, follow_redirects=False)
        assert saved.headers["location"] == "/"
    wrong = client.get("/settings/save?zone=Nowhere", follow_redirects=False)
    assert "set-cookie" not in wrong.headers


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({}, "queued"),
        ({"run_at": at(60)}, "scheduled"),
        ({"run_at": at(60), "attempts": 1}, "retrying"),
        ({"run_at": at(-60), "attempts": 1}, "queued"),
        ({"status": Status.PROCESSING}, "processing"),
        ({"status": Status.FAILED}, "failed"),
    ],
)
def test_a_state_is_finer_than_a_status(fields: dict[str, Any], state: str) -> None:
    assert state_of(a_job(**fields), NOON) == state


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (0, 0, "\u2013"),
        (3, 4, "75 %"),
        (99_999, 100_000, "> 99.9 %"),
        (1, 100_000, "< 0.1 %"),
        (7, 7, "100 %"),
        (0, 7, "0 %"),
    ],
)
def test_a_share_is_shown_as_0_or_100_percent_only_if_it_is_exact(part: int, whole: int, text: str) -> None:
    assert formatting.share(part, whole) == text


def test_json_is_exact_and_escaped() -> None:
    text = highlight.json({"n": 9007199254740993, "<b>": "</script>", "token": "•••", "x": None})
    assert '<span class="j-num">9007199254740993</span>' in text
    assert "&lt;/script&gt;" in text
    assert "<b>" not in text
    assert '<span class="j-red">&#34;•••&#34;</span>' in text
    assert '<span class="j-con">null</span>' in text


TRACE = """Traceback (most recent call last):
  File "/usr/lib/python3.11/asyncio/runners.py", line 190, in run
    return runner.run(main)
  File "/srv/app/mail.py", line 12, in send
    connect(host)
  File "/srv/app/.venv/lib/python3.11/site-packages/smtp/client.py", line 7, in connect
    raise ConnectionError("refused")
ConnectionError: refused
"""


def test_a_traceback_shows_the_users_own_frames_first() -> None:
    lines = highlight.traceback(TRACE)
    assert [line.text.strip() for line in highlight.own(lines)] == [
        'File "/srv/app/mail.py", line 12, in send',
        "connect(host)",
        "ConnectionError: refused",
    ]
    assert "\n".join(line.text for line in lines) == TRACE.rstrip("\n")


def test_a_traceback_of_libraries_only_is_shown_whole() -> None:
    lines = [line for line in highlight.traceback(TRACE) if line.kind != "own"]
    assert highlight.own(lines) == lines


def test_a_timeline_has_no_gaps_and_adds_up() -> None:
    history = [an_attempt(1, 2, 5), an_attempt(2, 15, 16), an_attempt(3, 40, 44, "failed")]
    job = a_job(status=Status.FAILED, started_at=at(40), completed_at=at(44), attempts=3)
    parts = timeline(job, history, at(1000))
    assert [part.kind for part in parts] == ["wait", "retried", "wait", "retried", "wait", "failed"]
    assert [part.seconds for part in parts] == [2, 3, 10, 1, 24, 4]
    assert all(one.end == next.start for one, next in pairwise(parts))


def test_an_attempt_that_was_retried_is_shown_as_failed() -> None:
    history = [an_attempt(1, 0, 0.085), an_attempt(2, 10, 11, "failed")]
    job = a_job(status=Status.FAILED, started_at=at(10), completed_at=at(11), attempts=2)
    texts = [part.text for part in timeline(job, history, at(1000))]
    assert texts == ["Attempt 1 failed after 85ms", "Waited 9.9s", "Attempt 2 failed after 1.0s"]
    running = a_job(status=Status.PROCESSING, started_at=at(0), attempts=1)
    assert [part.text for part in timeline(running, [], at(2))] == ["Attempt 1 has been running for 2.0s"]


def test_the_timeline_of_a_job_that_has_not_ended_reaches_until_now() -> None:
    running = a_job(status=Status.PROCESSING, started_at=at(30), attempts=2)
    parts = timeline(running, [an_attempt(1, 1, 2)], at(50))
    assert [(part.kind, part.seconds) for part in parts] == [("wait", 1), ("retried", 1), ("wait", 28), ("running", 20)]
    waiting = timeline(a_job(), [], at(7))
    assert [(part.kind, part.seconds) for part in waiting] == [("wait", 7)]


def test_values_hidden_in_the_editor_keep_their_value() -> None:
    original = {"to": "ada", "auth": {"token": "s3cret", "user": 1}, "list": [{"password": "p"}, 2]}
    seen = {"to": "ada", "auth": {"token": "•••", "user": 1}, "list": [{"password": "•••"}, 2]}
    edited = {"to": "bob", "auth": {"token": "•••", "user": 2}, "list": [{"password": "•••"}, 3, 4]}
    assert restore(seen, seen, original) == original
    assert restore(edited, seen, original) == {
        "to": "bob",
        "auth": {"token": "s3cret", "user": 2},
        "list": [{"password": "p"}, 3, 4],
    }


def test_a_window_ends_with_the_step_that_contains_now() -> None:
    seconds = int(NOON.timestamp()) + 61
    over = window("1h", seconds * 1_000_000)
    assert over.until == at(120)
    assert (len(over.starts), over.starts[-1]) == (60, at(60))
    assert window("nonsense", 0).key == "1h"


def test_shortened_ids_of_the_same_moment_differ(tmp_path: Path) -> None:
    td = Treadle(f"sqlite:///{tmp_path}/unused.db")
    ids = [td.request("a").id for _ in range(50)]
    assert len({formatting.short(id) for id in ids}) == 50
