"""The jobs that the workers of these tests run."""

from __future__ import annotations

import time

from treadle import Context, Treadle

td = Treadle()


def connect(host: str) -> None:
    raise ConnectionRefusedError(111, f"connection to {host} refused")


@td.job(max_attempts=3, backoff=0.05)
def send_mail(to: str, user_id: int = 0) -> str:
    """Fails for one host, every time."""
    if to.endswith("@down.example"):
        connect(to.partition("@")[2])
    return f"sent to {to}"


@td.job
def build_report(ctx: Context, pages: int) -> int:
    """Reports its progress."""
    for page in range(pages):
        ctx.progress(page / pages, f"page {page} of {pages}")
        time.sleep(0.2)
    return pages


@td.job(type="late_type")
def late(n: int) -> int:
    """A type that other workers do not know."""
    return n
