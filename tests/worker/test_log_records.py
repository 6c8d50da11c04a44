"""Log records say which job they belong to, and failures have their traceback."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import threading
from collections.abc import Generator
from typing import Any

import pytest

from tests.eventually import eventually
from tests.worker import process_jobs
from tests.worker.helpers import Background, is_processing, running, working
from treadle import Context, Event, Retry, Treadle
from treadle.log_records import FORMAT, TIME, JobFilter, JSONFormatter, LineFormatter
from treadle.testing import drain

pytestmark = pytest.mark.sqlite_only

mine = logging.getLogger("app.mail")


@pytest.fixture
def lines() -> Generator[io.StringIO]:
    """What an app prints as JSON that adds the filter to its handler."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(JobFilter())
    handler.setFormatter(JSONFormatter())
    logging.root.addHandler(handler)
    mine.setLevel(logging.INFO)
    yield stream
    logging.root.removeHandler(handler)


def read(lines: io.StringIO, logger: str = "app.mail") -> list[dict[str, Any]]:
    found = [json.loads(line) for line in lines.getvalue().splitlines()]
    return [line for line in found if line["logger"] == logger]


def test_what_handlers_log_has_their_job(td: Treadle, lines: io.StringIO) -> None:
    @td.job
    def plain() -> None:
        mine.info("from a thread", extra={"rows": 3})

    @td.job
    async def asynchronous() -> None:
        await asyncio.to_thread(mine.info, "from a thread of asyncio")
        mine.info("from the loop")

    @td.middleware
    def around(ctx: Context) -> Generator[None]:
        mine.info("from the middleware")
        yield

    first = plain.using(tenant="acme").enqueue()
    drain(td)
    about = {"job_id": first.id, "job_type": "plain", "attempt": 1, "tenant": "acme"}
    middleware, handler = read(lines)
    assert about.items() <= middleware.items()
    assert (about | {"message": "from a thread", "level": "INFO", "rows": 3}).items() <= handler.items()
    assert handler["time"].endswith("+00:00")
    second = asynchronous.enqueue()
    drain(td)
    assert [line["job_id"] for line in read(lines)[2:]] == [second.id] * 3
    mine.info("outside")
    assert "job_id" not in read(lines)[-1]


def test_a_failure_is_logged_with_its_job_and_its_traceback(td: Treadle, lines: io.StringIO) -> None:
    @td.job(max_attempts=1)
    def breaks() -> None:
        raise ConnectionError("postgresql://app:hunter2@db/ cannot be reached")

    @td.job
    def again() -> None:
        raise Retry("not yet", delay=900)

    job = breaks.using(tenant="acme").enqueue()
    again.enqueue()
    drain(td, raising=False)
    records = {line["job_type"]: line for line in read(lines, "treadle.jobs")}
    failed = records["breaks"]
    assert (failed["job_id"], failed["attempt"], failed["tenant"]) == (job.id, 1, "acme")
    assert 'raise ConnectionError("postgresql' in failed["traceback"]
    assert "hunter2" not in json.dumps(failed)
    assert "traceback" not in records["again"]  # it was asked for


def test_the_record_of_a_failure_has_its_exception(td: Treadle, caplog: pytest.LogCaptureFixture) -> None:
    error = KeyError("customer")

    @td.job(max_attempts=1)
    async def breaks() -> None:
        raise error

    breaks.enqueue()
    drain(td, raising=False)
    [record] = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert record.exc_info
    assert record.exc_info[1] is error


def test_the_failure_of_a_child_is_logged_with_its_traceback(in_children: Treadle, lines: io.StringIO) -> None:
    job = process_jobs.complain.enqueue(about="the weather")
    with working(in_children):
        eventually(lambda: read(lines, "treadle.jobs"))
    failed = read(lines, "treadle.jobs")[0]
    assert failed["job_id"] == job.id
    assert "in complain" in failed["traceback"]


def test_lines_for_people_have_a_date_and_the_job() -> None:
    record = logging.makeLogRecord({"name": "app", "msg": "sent \x1b[31m", "levelname": "INFO", "created": 0.0})
    vars(record).update(job_id="0199", job_type="mail")
    line = LineFormatter(FORMAT, TIME).format(record)
    assert line.startswith("1970-01-01 ")
    assert line.endswith("job 0199 (mail): sent \\x1b[31m")


def test_json_takes_any_extra(lines: io.StringIO) -> None:
    mine.warning("odd", extra={"lock": threading.Lock(), "when": None})
    [line] = read(lines)
    assert "lock" in line["lock"]
    try:
        raise ValueError("boom")
    except ValueError:
        mine.exception("failed")
    assert read(lines)[-1]["traceback"].endswith("ValueError: boom")


def test_a_worker_that_stops_says_what_it_waits_for(td: Treadle, caplog: pytest.LogCaptureFixture) -> None:
    gate = threading.Event()

    @td.job
    def slow() -> None:
        gate.wait(60)

    job = slow.enqueue()
    background = Background(td, grace=20)
    with running(background):
        eventually(is_processing(td, job))
        background.stop_soon()
        eventually(lambda: f"waits up to 20 s for 1 job: slow {job.id}" in caplog.text)
        gate.set()
    drain(td)
    assert caplog.text.count("waits up to") == 1  # nothing runs when this one stops


# Hooks


def test_the_event_of_a_failure_has_the_exception_and_the_traceback(td: Treadle) -> None:
    events: list[Event] = []
    td.on("job_failed", events.append)
    td.on("job_retried", events.append)
    td.on("job_completed", events.append)
    error = KeyError("customer")

    @td.job(max_attempts=2, backoff=0)
    def breaks(ctx: Context) -> None:
        raise error

    @td.job
    def works() -> None: ...

    breaks.enqueue()
    works.enqueue()
    drain(td, raising=False)
    failed = [event for event in events if event.type == "breaks"]
    assert [event.name for event in failed] == ["job_retried", "job_failed"]
    assert all(event.exception is error for event in failed)
    assert all("raise error" in (event.traceback or "") for event in failed)
    [completed] = [event for event in events if event.type == "works"]
    assert (completed.exception, completed.traceback) == (None, None)


def test_the_event_of_a_child_has_the_traceback(in_children: Treadle) -> None:
    events: list[Event] = []
    before = dict(in_children.hooks.plain)
    in_children.on("job_failed", events.append)
    in_children.on("job_retried", events.append)
    process_jobs.complain.enqueue(about="the weather")
    with working(in_children):
        eventually(lambda: events)
    in_children.hooks.plain = before
    assert events[0].exception is None
    assert "in complain" in (events[0].traceback or "")


def test_the_event_of_a_lease_by_hand_has_the_exception(td: Treadle) -> None:
    events: list[Event] = []
    td.on("job_failed", events.append)
    td.enqueue("mail", max_attempts=1)
    [lease] = td.claim()
    error = ConnectionError("refused")
    lease.fail(error)
    assert [event.exception for event in events] == [error]
