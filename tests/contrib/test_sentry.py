"""Sentry, with its real SDK and a local endpoint: an event for each exception, with stack, job and trace."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from treadle import Treadle, TreadleError
from treadle.contrib import otel, sentry

Event = dict[str, Any]


@contextmanager
def endpoint() -> Iterator[tuple[str, list[Event]]]:
    """The DSN of a server that keeps what an SDK sends."""
    received: list[Event] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            body = gzip.decompress(body) if self.headers["content-encoding"] == "gzip" else body
            received.extend(items(body))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://key@127.0.0.1:{server.server_port}/1", received
    finally:
        server.shutdown()


def items(envelope: bytes) -> Iterator[Event]:
    """The events and transactions of an envelope: a header, then a header and a body for each item."""
    lines = iter(envelope.split(b"\n")[1:])
    for header in lines:
        if header and json.loads(header)["type"] in ("event", "transaction"):
            yield json.loads(next(lines))
        elif header:
            next(lines)


@pytest.fixture(scope="module")
def received(tmp_path_factory: pytest.TempPathFactory) -> list[Event]:
    """What the app of `sentry_jobs` sends."""
    database = tmp_path_factory.mktemp("sentry") / "treadle.db"
    with endpoint() as (dsn, received):
        command = [sys.executable, "-m", "tests.contrib.sentry_jobs", f"sqlite:///{database}"]
        environment = {**os.environ, "SENTRY_DSN": dsn}
        root = Path(__file__).parents[2]
        ended = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, timeout=120)
        assert ended.returncode == 0, ended.stderr
    return received


def errors(received: list[Event]) -> dict[str, list[Event]]:
    found: dict[str, list[Event]] = {}
    for event in received:
        if event.get("type") != "transaction":
            found.setdefault(event["tags"]["treadle.type"], []).append(event)
    return found


def raised(event: Event) -> tuple[str, str]:
    last = event["exception"]["values"][-1]
    return last["type"], last["value"]


def test_each_exception_is_one_event_with_its_stack_and_its_job(received: list[Event]) -> None:
    found = errors(received)
    assert {type: len(events) for type, events in found.items()} == dict.fromkeys(
        ("plain", "asynchronous", "in_child", "dies", "hangs", "gives_up", "never_ready"), 1
    )
    [plain] = found["plain"]
    assert raised(plain) == ("LookupError", "acme")
    frame = plain["exception"]["values"][-1]["stacktrace"]["frames"][-1]
    assert (frame["function"], frame["context_line"].strip()) == ("plain", "raise LookupError(customer)")
    assert plain["tags"] == {"treadle.type": "plain", "treadle.queue": "default", "treadle.tenant": "acme"}
    assert plain["contexts"]["job"]["attempt"] == 1
    assert len(plain["contexts"]["job"]["id"]) == 36
    assert plain["transaction"] == "plain"
    assert "looking for acme" in [crumb["message"] for crumb in plain["breadcrumbs"]["values"]]
    assert raised(found["asynchronous"][0]) == ("Fail", "no such customer")
    assert raised(found["in_child"][0]) == ("ZeroDivisionError", "in a child")


def test_a_retry_or_a_snooze_that_fails_the_job_is_reported(received: list[Event]) -> None:
    found = errors(received)
    assert raised(found["gives_up"][0]) == ("Retry", "the partner does not answer")
    assert found["never_ready"][0]["message"] == "never_ready: still not ready after 0 snoozes"


def test_what_no_handler_could_raise_is_reported_too(received: list[Event]) -> None:
    found = errors(received)
    assert found["dies"][0]["message"] == "dies: its process exited with 3"
    assert found["hangs"][0]["message"] == "hangs: timed out after 0.1 s"


def test_a_trace_goes_from_the_enqueue_to_the_run_and_its_follow_ups(received: list[Event]) -> None:
    transactions = {event["transaction"]: event for event in received if event.get("type") == "transaction"}
    trace = transactions["POST /orders"]["contexts"]["trace"]["trace_id"]
    assert [span["op"] for span in transactions["POST /orders"]["spans"]] == ["queue.publish"] * 2
    for name in ("plain", "completes", "after"):
        run = transactions[name]["contexts"]["trace"]
        assert (run["trace_id"], run["op"]) == (trace, "queue.process")
        assert run["data"]["messaging.destination.name"] == "default"
    assert transactions["plain"]["contexts"]["trace"]["status"] == "internal_error"
    assert errors(received)["plain"][0]["contexts"]["trace"]["trace_id"] == trace


@pytest.mark.sqlite_only
def test_an_app_is_instrumented_once(td: Treadle) -> None:
    sentry.instrument(td)
    with pytest.raises(TreadleError, match="is instrumented already"):
        sentry.instrument(td)


@pytest.mark.sqlite_only
@pytest.mark.parametrize("order", [(sentry, otel), (otel, sentry)])
def test_traces_are_left_to_opentelemetry_whichever_comes_first(td: Treadle, order: tuple[ModuleType, ...]) -> None:
    for contrib in order:
        contrib.instrument(td)
    assert type(td.tracing).__module__ == otel.__name__
    with pytest.raises(TreadleError, match="is instrumented already"):
        otel.instrument(td)
