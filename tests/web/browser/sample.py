"""A day of a queue, made in a second with a fake clock."""

from __future__ import annotations

import linecache
import math
import random
from collections.abc import Callable

from treadle import Treadle, clock
from treadle.job import Job, NewJob

TENANTS = ("acme", "globex", "initech", "umbrella", "hooli", "")
HOURS = 24


class Clock:
    """A clock that a caller sets."""

    def __init__(self) -> None:
        self.at = clock.now() - HOURS * 3600 * clock.SECOND

    def __call__(self) -> int:
        return self.at

    def go(self, seconds: float) -> None:
        self.at += clock.seconds(seconds)


def connect(host: str) -> None:
    raise ConnectionRefusedError(111, f"connection to {host}:25 refused")


def deliver(job: Job) -> None:
    connect("mail.internal")


def charge(job: Job) -> None:
    raise TimeoutError(f"the bank did not answer within 30 s (order {job.payload['order']})")


def render(job: Job) -> None:
    {"2026-10": 3}[job.payload["month"]]


def as_if_in(file: str, *functions: Callable[..., None]) -> None:
    """Compile the code so that tracebacks name a file of the shop."""
    linecache.cache[file] = (0, None, linecache.getlines(__file__), file)
    for function in functions:
        function.__code__ = function.__code__.replace(co_filename=file)


as_if_in("/srv/shop/mail.py", connect, deliver)
as_if_in("/srv/shop/billing.py", charge)
as_if_in("/srv/shop/reports.py", render)

FAILS: dict[str, tuple[float, Callable[[Job], None]]] = {
    "send_email": (0.03, deliver),
    "charge_card": (0.15, charge),
    "build_report": (0.1, render),
}
LASTS = {"send_email": 0.3, "resize_image": 2.4, "charge_card": 1.1, "build_report": 25, "sync_contacts": 6}


def fill(url: str) -> None:
    """Jobs of five types for five tenants: completed, failed, queued, scheduled, and of a type without handler."""
    now = Clock()
    app, dice = Treadle(url, clock=now, synchronous="NORMAL"), random.Random(1)
    end = clock.now() - 60 * clock.SECOND
    while now.at < end:
        hour = now.at / 3.6e9 % 24
        many = dice.gauss(8, 3) * (1 + math.sin(hour / 24 * 2 * math.pi)) + 2
        app.enqueue_many([_new(app, dice) for _ in range(max(1, int(many)))])
        now.go(dice.uniform(0.5, 20))
        _work(app, dice, now)
        now.go(dice.uniform(400, 1200))
    now.at = clock.now()
    app.enqueue_many([_new(app, dice) for _ in range(60)])
    app.enqueue_many([app.request("transcode_video", {"n": n}, queue="media", tenant="acme") for n in range(12)])
    later = [app.request("send_email", {"user_id": n}, queue="mail", delay=dice.uniform(60, 90_000)) for n in range(37)]
    app.enqueue_many(later)
    app.close()


def _work(app: Treadle, dice: random.Random, now: Clock) -> None:
    for lease in app.claim(60):
        now.go(LASTS[lease.job.type] * dice.uniform(0.1, 2) / 4)
        often, raises = FAILS.get(lease.job.type, (0.0, deliver))
        if dice.random() < often or (lease.job.attempts > 1 and dice.random() < 0.8):
            try:
                raises(lease.job)
            except Exception as error:
                own = error.__traceback__.tb_next if error.__traceback__ else None  # without this line
                lease.fail(error.with_traceback(own))
        else:
            lease.complete({"ok": True, "took_ms": dice.randrange(999)})


def _new(app: Treadle, dice: random.Random) -> NewJob:
    tenant = dice.choices(TENANTS, [5, 4, 2, 2, 1, 1])[0]
    type = dice.choices(tuple(LASTS), [50, 20, 15, 8, 7])[0]
    queue, payload = {
        "send_email": ("mail", {"user_id": dice.randrange(1, 99), "template": "welcome", "to": "ada@example.org"}),
        "resize_image": ("media", {"image": f"s3://media/{dice.randrange(9999):04}.png", "width": 640}),
        "charge_card": ("billing", {"order": 9007199254740993, "amount": "42.00", "api_key": "sk_live_1"}),
        "build_report": ("reports", {"month": f"2026-{dice.randrange(1, 10):02}", "pages": 50}),
        "sync_contacts": ("default", {"account": tenant or "none", "since": "2026-11-01T00:00:00Z"}),
    }[type]
    subject = f"user-{dice.randrange(99)}" if type == "send_email" else ""
    return app.request(type, payload, queue=queue, tenant=tenant, subject=subject, max_attempts=3)
