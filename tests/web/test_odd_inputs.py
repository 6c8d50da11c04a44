"""No input makes the server fail, or keeps it busy: on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest
from hypothesis import Phase, given, settings

from tests.web.conftest import by_header
from tests.web.odd_inputs import HEADERS, ID, IDS, TEXTS, Odd, corpus, fill, mixtures, request_to, send
from treadle import Treadle
from treadle.web.app import ROUTES, WebApp
from treadle.web.auth import Auth
from treadle.web.login import Login

MOST = int(os.environ.get("TREADLE_TEST_ODD_INPUTS", "400"))
"""Requests of the corpus that are sent to each store."""
SECONDS = 2.0
TRIES = 3
"""An answer is late if it is late each time: the machine is shared."""


class Server:
    """A mount, called without a network."""

    def __init__(self, td: Treadle, auth: Auth | Login = by_header) -> None:
        self.web = WebApp(td, auth=auth)
        self._runner = asyncio.Runner()
        self.slowest = 0.0

    def answer(self, odd: Odd) -> int:
        """The status, if it comes in time."""
        for _ in range(TRIES):
            began = time.monotonic()
            status = self._runner.run(send(self.web, odd))
            assert status < 500, f"{status}: {odd}"
            if (took := time.monotonic() - began) < SECONDS:
                self.slowest = max(self.slowest, took)
                return status
        raise AssertionError(f"it takes longer than {SECONDS} s: {odd}")

    def close(self) -> None:
        self._runner.close()
        self.web.close()


@pytest.fixture(scope="module")
def server(shared_td: Treadle) -> Iterator[Server]:
    fill(shared_td)
    made = Server(shared_td)
    yield made
    made.close()


def post(path: str, body: bytes = b"{}", **headers: str) -> Odd:
    given = {"content-type": "application/json", **{name.replace("_", "-"): text for name, text in headers.items()}}
    return Odd("POST", path, headers=tuple(given.items()), body=body)


MANY = b"9" * 5_000
FOUND = {
    Odd("GET", "/api/audit", b"cursor=x"): 400,
    Odd("GET", "/insights", b"tenant=%00"): 400,
    Odd("GET", "/insights.csv", b"tenant=%00"): 400,
    Odd("GET", "/jobs", b"\xff"): 200,
    Odd("GET", "/settings/save", b"back=/%F0%9F%92%A5"): 303,
    Odd("GET", f"/jobs/{IDS[1]}"): 200,
    Odd("GET", f"/jobs/{ID}", headers=(("cookie", "treadle_zone=Pacific/Kiritimati"),)): 200,
    Odd("GET", f"/operations/{ID}"): 200,
    Odd("GET", f"/api/operations/{ID}"): 200,
    post("/api/jobs", b'{"type": "a", "run_at": "0001-01-01T00:00:00+14:00"}'): 400,
    post("/api/jobs", b'{"type": "a", "run_at": "9999-12-31T23:59:59-14:00"}'): 400,
    post("/api/jobs", b'{"type": "a", "run_at": "0001-01-01T12:00:00Z"}'): 400,
    post("/api/jobs", b'{"type": "a", "run_at": "9999-12-31T12:00:00Z"}'): 400,
    post("/api/jobs", b'{"type": "a"}', idempotency_key="\0"): 400,
    post("/api/jobs", b'{"type": "a"}', origin="http://["): 403,
    post("/api/jobs", b'{"type": "a"}', origin="http://", host=""): 403,
    post("/api/jobs/bulk", b'{"action": "retry", "ids": [""]}'): 400,
    post("/api/jobs", b'{"type": "noop", "payload": {"%b": 1}}' % (b"://a:" * 20_000)): 400,
    post("/jobs/act", b"action=retry&q=status:failed&expected=%b&typed=%b" % (MANY, MANY)): 412,
}
"""What a review or the corpus has found to answer 500 or too late, and what it answers now."""


@pytest.mark.parametrize("odd", FOUND, ids=lambda odd: f"{odd.method} {odd.path}")
def test_what_was_found_is_answered(server: Server, odd: Odd) -> None:
    assert server.answer(odd) == FOUND[odd]


def test_one_odd_text_in_one_place(server: Server) -> None:
    whole = list(corpus())
    assert len(whole) > 10_000
    some = random.Random(0).sample(whole, min(MOST, len(whole)))
    answers = Counter(server.answer(odd) for odd in some)
    print(f"{answers.total():,} odd inputs, the slowest took {server.slowest:.2f} s: {dict(answers)}")
    assert len(answers) > 5, "all kinds of them"


def test_many_odd_texts_at_once(server: Server) -> None:
    @settings(max_examples=max(100, MOST // 4), phases=(Phase.explicit, Phase.generate))
    @given(odd=mixtures())
    def send_it(odd: Odd) -> None:
        server.answer(odd)

    send_it()


def test_odd_logins(server: Server) -> None:
    door = Server(server.web.app, Login(user="ada", password="lovelace"))
    odd = [Odd("GET", "/", urlencode({"login": text}).encode()) for text in TEXTS]
    odd += [Odd("GET", "/", headers=(("authorization", text),)) for text in (*HEADERS["authorization"], "Basic \xff")]
    odd += [Odd("GET", "/", headers=(("cookie", f"treadle_80={text}"),)) for text in TEXTS]
    assert {door.answer(one) for one in odd} <= {401, 403, 429}
    door.close()


def test_without_the_odd_text_every_route_works(server: Server) -> None:
    """So that an odd text is not hidden behind another error. A specimen may be gone, or no longer allow the action."""
    found = {f"{route.method} {route.path}": server.answer(request_to(route)) for route in ROUTES}
    assert {name: status for name, status in found.items() if status not in (200, 201, 202, 303, 404, 409)} == {}
