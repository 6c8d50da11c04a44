"""Requests that nobody sends by accident: odd texts in every place of every route, and random mixtures of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import quote, quote_from_bytes, unquote, urlencode

from hypothesis import strategies as st
from starlette.types import ASGIApp, Message, Scope

from treadle import Fail, Limit, Treadle, clock
from treadle.batch import NewBatch
from treadle.codec import as_json
from treadle.filters import MOST_VALUES, Filter
from treadle.job import NewJob
from treadle.outcome import Outcome, OutcomeKind
from treadle.schedule import NewSchedule, Rule
from treadle.steps import NewStep
from treadle.stores.base import TypePolicy
from treadle.stores.rows import Operation
from treadle.waits import NewWait
from treadle.web.app import ROUTES
from treadle.web.route import Route

LONG = "x" * 3_000
IDS = tuple(f"01970000-0000-7000-8000-00000000000{n}" for n in range(7))
"""Jobs that are stored: one that waits, a failed, a completed, a retrying and a running one, a blocked one, and one to
delete."""
ID = IDS[0]

# What is odd

NUMBERS = ("0", "-1", "-0", "1.5", "1_000", "1e999", "NaN", "Infinity", "0x10", "\xb2", "\u0663", "9" * 400, str(2**63))
TIMES = ("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "2026-02-30", "2026-11-01T25:00Z", "99999999999d")
NAMES = ("", " ", "\0", "a\0b", "\x1b[31m", "a\r\nSet-Cookie: a=b", "\u202e", "ﷺ" * 60, "💥", "/💥", "é" * 201, LONG)
MARKUP = ("<script>", "'\"><img src=x>", "{{7*7}}", "${x}", "%", "%s%n", "' OR 1=1 --", "\\", "../../etc/passwd", "//a")
AWKWARD = tuple(
    unit * (40_000 // len(unit)) for unit in ("://a:", "password='", "a ", "1s", '"', "\\", ",", "<b>", "%2", "/")
)
"""Texts that a pattern may look through again and again."""
NO_IDS = (ID.upper(), f"{{{ID}}}", f"urn:uuid:{ID}", ID.replace("-", ""), ID[:8], "f" * 36, f"{ID} {ID}")
JSONS = ("null", "[]", "{}", "{", "[" * 5_000, '"\\ud800"', '{"a": 1e999}', '{"a": 1, "a": 2}', "9" * 5_000, "true")
FILTERS = (
    *(f"since:{time}" for time in TIMES),
    *(f"attempt:>{number}" for number in NUMBERS),
    *(f"{key}:*" for key in ("type", "queue", "tenant", "subject", "worker", "id", "status")),
    *(f"type:{name}" for name in (*NAMES, *(f'"{name}"' for name in NAMES))),
    *(f"id:{','.join([ID] * n)}" for n in (2, MOST_VALUES, MOST_VALUES + 1)),
    *(f"type:{','.join('a' * n)}" for n in (MOST_VALUES, MOST_VALUES + 1)),
    *(f"payload.{'a.' * n}a:1" for n in (1, 9, 10)),
    *('"', 'error:"', 'error:""', "error:%", "error:_", "error:\\", "payload.a:\\", "type:\\", "worker:\\", "type:a*b"),
    *(f"payload.{path}:1" for path in ("", "a..b", "$", "-1.-1.-1", "0.0.0.0", 'a"b', "';--", "[0]", "💥", "*")),
    *(":", "a:", ":a", ",", "status:,", "status:failed,failed", "status:failed status:failed", "colour:red"),
)
TEXTS = tuple(dict.fromkeys((*NAMES, *NUMBERS, *TIMES, *MARKUP, *IDS, *NO_IDS, *JSONS, *FILTERS, *AWKWARD)))
"""For any place that takes text."""
BYTES = (b"\xff", b"\xed\xa0\x80", b"%", b"%00", b"%ff", b"%ed%a0%80", b"&&==", b"=", b"q", b"a[b]=c", b"+" * 2_000)
"""For a query or a body as a whole."""
VALUES = (
    *(None, True, 0, -1, 1.5, 1e308, float("nan"), 2**63, -(2**63) - 1, 10**400),
    *("", "\0", LONG, ID, *TIMES),
    *({text: 1} for text in AWKWARD),
    *([], [[]], ["x"], [""], [ID] * MOST_VALUES, {}, {"": ""}, {"a\0": 1}, {"password": "\ud800"}, {"a": 2**64}),
)
"""For a field of a JSON body."""
HEADERS = {
    "host": ("", "[", "[::1", "a@b", "a b", "localhost:99999999", "localhost:x", "\u2100.example", "\xff", LONG),
    "origin": (
        "",
        "http://[",
        "http://[::1",
        "null",
        "http://",
        "//",
        "http://localhost:x",
        "http://\u2100",
        "\xff",
        LONG,
    ),
    "sec-fetch-site": ("", "same-origin, none", "\xff"),
    "authorization": ("", "Bearer", "Bearer td_", "Bearer td_\xff", "Basic", "Basic x", "Basic /////w==", LONG),
    "cookie": (
        "=;=",
        "a",
        *(f"treadle_zone={zone}" for zone in ("browser:", "Mars", "../../etc/passwd", "\xff", LONG)),
    ),
    "accept": ("", "text/html", "text/html;q=x", "\xff"),
    "content-type": ("", "application/json; charset=utf-16", "application/json;", "multipart/form-data", "\xff"),
    "content-length": ("x", "-1", "0", "99999999999"),
    "idempotency-key": ("", " ", "\xff", "\0", "k" * 201, "k: k", "'"),
    "if-none-match": ("*", '"', "\xff"),
}
ZONES = ("Pacific/Kiritimati", "Etc/GMT+12")
"""The first and the last day on earth: a moment at the end of time must not leave the calendar."""

# Where it goes

OF_PAGES = {
    "/": ("window", "by"),
    "/jobs": ("q", "cursor", "trail"),
    "/jobs/new": ("type", "stored"),
    "/jobs/confirm": ("q", "action", "all", "id", "from_step"),
    "/jobs/{id}/signal": ("name",),
    "/pauses/new": ("kind", "name"),
    "/limits/edit": ("name", "key"),
    "/audit": ("cursor",),
    "/insights": ("window", "by", "tenant", "type"),
    "/insights.csv": ("window", "tenant", "type"),
    "/schedules": ("tenant", "cursor"),
    "/schedule": ("name", "tenant"),
    "/schedule/confirm": ("action", "name", "tenant"),
    "/batches": ("tenant", "cursor"),
    "/batch": ("name", "tenant"),
    "/settings": ("back",),
    "/settings/save": ("back", "zone", "theme"),
    "/static/{name}": ("v",),
}
"""What pages read from their address. They declare no parameters."""
OF_FORMS = {
    "/jobs/act": ("action", "id", "q", "expected", "typed", "when", "priority", "queue", "from_step"),
    "/jobs/{id}/signal": ("name", "value"),
    "/jobs/{id}/clone": ("payload",),
    "/jobs/new": ("type", "payload", "tenant", "when", "priority", "queue"),
    "/pauses": ("kind", "name", "reason", "for"),
    "/pauses/resume": ("kind", "name"),
    "/limits": ("name", "key", "concurrency", "rate", "burst"),
    "/limits/unset": ("name", "key"),
    "/workers/quiet": ("id", "quiet"),
    "/schedule/act": ("action", "name", "tenant", "reason", "start", "end"),
}
USUAL = {"/jobs/confirm": {"action": "run_now", "id": ID}, "/schedule/confirm": {"action": "pause"}}
"""What the address of a page needs. The schedule without a name is the one that is meant."""
SPAN = {"start": "2026-01-01T00:00:00Z", "end": "2026-01-02T00:00:00Z"}
FORM = {"action": "run_now", "q": "status:scheduled", "expected": "0", "typed": "0", "payload": "{}", "kind": "queue"}
FORM |= {"name": "mail", "type": "odd"}
PAUSE = {"queue": "mail", "type": None, "tenant": None, "reason": None, "until": None}
OF_JOBS = (
    *("payload", "queue", "priority", "tenant", "subject", "max_attempts", "delay", "run_at", "start_within"),
    *("dedupe", "id", "after", "if_failed"),
)
OF_BODIES: dict[str, dict[str, Any]] = {
    "/api/jobs": {"type": "odd", **dict.fromkeys(OF_JOBS)},
    "/api/jobs/bulk": {
        "action": "run_now",
        "filter": "status:scheduled",
        "ids": None,
        "changes": None,
        "expected_count": None,
        "dry_run": False,
    },
    "/api/jobs/{id}/clone": {"payload": None},
    "/api/jobs/{id}/retry": {"from_step": None},
    "/api/signals": {"name": "go", "value": None, "tenant": None},
    "/api/jobs/{id}/reschedule": {"run_at": None, "delay": None, "priority": 1, "queue": None},
    "/api/jobs/tick": {"max_jobs": 1, "max_seconds": 0.05},
    "/api/pauses": PAUSE,
    "/api/pauses/drain": PAUSE,
    "/api/pauses/resume": {"queue": "mail", "type": None, "tenant": None},
    "/api/limits": {"name": "odd", "key": None, "concurrency": 5, "rate": None},
    "/api/limits/unset": {"name": "odd", "key": None},
    "/api/schedule/pause": {"reason": None, "until": None},
    "/api/schedule/backfill": dict(SPAN),
}
"""The fields of each body, with a value if the body needs one."""
WHO = ("read enqueue tick manage", "manage @acme", "read @", "manage @\xff", "enqueue", None)
"""The scopes and the tenant of a caller, for `by_header`."""


class Odd(NamedTuple):
    """One request, as a server gives it to an ASGI app."""

    method: str
    path: str
    query: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    who: str | None = WHO[0]

    def scope(self) -> Scope:
        given = {"host": "localhost", **dict(self.headers)}
        if "origin" not in given:
            given.setdefault("sec-fetch-site", "same-origin")
        if self.who is not None:
            given["x-who"] = self.who
        return {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": self.method,
            "scheme": "http",
            "path": unquote(self.path),
            "raw_path": self.path.encode(),
            "query_string": self.query,
            "root_path": "",
            "headers": [(name.encode(), value.encode("utf-8", "replace")) for name, value in given.items()],
            "client": ("127.0.0.1", 50_000),
            "server": ("localhost", 80),
        }


async def send(app: ASGIApp, odd: Odd) -> int:
    """The status of the answer. A stream is closed after its first part."""
    answer: list[Message] = []
    received = iter([{"type": "http.request", "body": odd.body, "more_body": False}])

    async def receive() -> Message:
        return next(received, {"type": "http.disconnect"})

    async def keep(message: Message) -> None:
        answer.append(message)

    await app(odd.scope(), receive, keep)
    status: int = answer[0]["status"]
    return status


def fill(td: Treadle) -> None:
    """Store the jobs of `IDS`, with odd texts and times in them, and an operation with a very long filter."""
    td.store.insert([NewJob(id=id, type="odd", payload=json.dumps({"<b>": "\u202e", "n": 2**64})) for id in IDS[1:]])
    leases = {lease.job.id: lease for lease in td.claim(5, types=["odd"])}
    steps = (NewStep("<b>\u202e", value='{"<script>": "\u2028"}'), NewStep("x" * 200, "timeout", f'"{LONG}"'))
    td.store.save_steps([(leases[id]._claimed, step) for id in (IDS[1], IDS[5]) for step in steps])
    waits = (NewWait("signal", "a/b <b>\u202e", step="\x1b[31m"), NewWait("parent", IDS[1]))
    suspended = Outcome(OutcomeKind.SUSPENDED, charged=0, waits=waits)
    td.store.settle([(leases[IDS[5]]._claimed, suspended)])
    leases[IDS[1]].fail(Fail("at 2026-13-45 99:99:99 UTC and 0001-01-01 00:00:00 UTC: <script>"))
    leases[IDS[2]].complete({"<script>": ["\u2028", 10**30]})
    leases[IDS[3]].fail('File "x", line 1\n\x1b[31m', retry_in=3600)
    never = clock.from_datetime(datetime.max.replace(tzinfo=UTC))
    td.store.insert([NewJob(id=ID, type="<odd>", tenant="acme", subject="'\"", queue="a/b", run_at=never)])
    found = str(Filter(ids=IDS[:1] * MOST_VALUES, tenants=("é" * 200,)))
    td.store.start_operation(Operation(ID, "<who>", "retry", found, 50))
    limit = Limit("odd", concurrency=9, per="tenant")
    td.store.publish([TypePolicy(type="limited", limits=as_json([limit]))])
    for name in ("", "a/b <b>"):
        td.store.put_schedule(NewSchedule(name=name, type="<odd>", rule=Rule(every=3600 * clock.SECOND)))
        td.store.insert_batch(NewBatch(name=name, then=NewJob(id=ID, type="<odd>")))


# One odd text in one place, and the rest as it should be


def corpus() -> Iterator[Odd]:
    for route in ROUTES:
        plain = request_to(route)
        yield from (plain._replace(who=who) for who in WHO)
        yield from (plain._replace(method=method) for method in ("HEAD", "OPTIONS", "PUT", "get", "\xff", ""))
        yield from (plain._replace(query=query) for query in BYTES)
        for name in parameters(route):
            usual = USUAL.get(route.path, {})
            yield from (plain._replace(query=urlencode({**usual, name: text}).encode()) for text in TEXTS)
            yield from (plain._replace(query=f"{name}={quote_from_bytes(text)}".encode()) for text in BYTES)
        for name, texts in HEADERS.items():
            yield from (plain._replace(headers=(*plain.headers, (name, text))) for text in texts)
        if "{" in route.path:
            yield from (plain._replace(path=address(route, text)) for text in TEXTS)
        for zone in ZONES if route.page else ():
            cookie = (("cookie", f"treadle_zone={zone}"),)
            yield from (plain._replace(path=address(route, id), headers=cookie) for id in IDS)
        yield from bodies(route, plain)


def bodies(route: Route, plain: Odd) -> Iterator[Odd]:
    if route.writes:
        yield from (plain._replace(body=text.encode()) for text in (*JSONS, *NAMES))
        yield from (plain._replace(body=body) for body in BYTES)
    for name in OF_FORMS.get(route.path, ()) if route.writes else ():
        yield from (plain._replace(body=urlencode({**form(route), name: text}).encode()) for text in TEXTS)
    for name in OF_BODIES.get(route.path, {}) if route.writes else ():
        values = TEXTS if name in ("filter", "dedupe") else VALUES
        usual = {key: value for key, value in needed(route).items() if (key, name) != ("filter", "ids")}
        yield from (plain._replace(body=to_json({**usual, name: value})) for value in values)
        if (route.path, name) == ("/api/jobs", "payload"):  # of a type whose signature is known, too
            yield from (plain._replace(body=to_json({"type": "noop", name: value})) for value in values)


def request_to(route: Route) -> Odd:
    """As one should call it."""
    kind = "application/x-www-form-urlencoded" if route.page else "application/json"
    body = urlencode(form(route)).encode() if route.page else to_json(needed(route))
    path = address(route, IDS[-1] if route.method == "DELETE" else ID)
    query = urlencode(USUAL.get(route.path, {})).encode()
    return Odd(route.method, path, query, (("content-type", kind),), body if route.writes else b"")


def form(route: Route) -> dict[str, str]:
    special = {"/schedule/act": {"action": "backfill", **SPAN}, "/limits": {"name": "odd", "concurrency": "5"}}
    return special.get(route.path, FORM)


def address(route: Route, text: str) -> str:
    return route.path.replace("{id}", quote(text, errors="replace")).replace("{name}", quote(text, errors="replace"))


def parameters(route: Route) -> tuple[str, ...]:
    declared = (parameter.name for parameter in route.parameters if parameter.where == "query")
    return (*declared, *OF_PAGES.get(route.path, ()), "odd")


def needed(route: Route) -> dict[str, Any]:
    return {name: value for name, value in OF_BODIES.get(route.path, {}).items() if value is not None}


def to_json(value: Any) -> bytes:
    return json.dumps(value).encode()


# Many odd texts at once

_words = st.sampled_from([*FILTERS, "status:failed", "type:odd", 'error:"x y"', "tenant:acme", "since:1h"])
_texts = st.sampled_from(TEXTS) | st.text(max_size=40) | st.lists(_words, max_size=4).map(" ".join)
_values = st.recursive(
    st.sampled_from(VALUES) | _texts | st.integers() | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
_headers = st.sampled_from([(name, text) for name, texts in HEADERS.items() for text in texts])
_finite = st.sampled_from([route for route in ROUTES if not route.stream])


@st.composite
def mixtures(draw: st.DrawFn) -> Odd:
    route = draw(_finite)
    plain = request_to(route)
    query = draw(st.dictionaries(st.sampled_from(parameters(route)), _texts, max_size=3))
    return plain._replace(
        path=draw(st.just(plain.path) | _texts.map(lambda text: address(route, text))),
        query=urlencode(query, errors="replace").encode() + draw(st.just(b"") | st.sampled_from(BYTES)),
        headers=(*plain.headers, *draw(st.lists(_headers, max_size=2))),
        body=draw(_bodies(route)) if route.writes else b"",
        who=draw(st.sampled_from(WHO)),
    )


def _bodies(route: Route) -> st.SearchStrategy[bytes]:
    if route.page:
        fields = st.dictionaries(st.sampled_from(OF_FORMS[route.path]), _texts, max_size=4)
        return fields.map(lambda given: urlencode({**form(route), **given}, errors="replace").encode())
    if route.body is None:
        return st.binary(max_size=20)
    names = st.sampled_from(sorted(OF_BODIES[route.path]))
    return st.dictionaries(names, _values, max_size=4).map(lambda fields: to_json({**needed(route), **fields}))
