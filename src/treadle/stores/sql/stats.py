"""What people want to see of all jobs together: usage, speed, failures, who does what."""

from __future__ import annotations

from collections.abc import Sequence

from treadle.job import FailureGroup, Usage
from treadle.stores.rows import Sampled
from treadle.stores.sql import read
from treadle.stores.sql.transaction import Transaction

SAMPLE = 2_000
SAMPLED_FROM = 10_000
"""Of so many at most: a million that were cancelled before they ran are no reason to read them all."""
FAILED = 10_000
"""Of the newest so many."""


def usage(tx: Transaction, since: int, until: int, step: int, by: Sequence[str], tenant: str | None) -> list[Usage]:
    """From and to are seconds since 1970, as is the start of each step of so many seconds."""
    columns = "".join(f"{name}, " for name in by)
    group = ", ".join(["1", *by])
    rows = tx.execute(
        tx.sql.USAGE.format(by=columns, group=group),
        {"since": since, "until": until, "step": step, "tenant": tenant},
    )
    return [
        Usage(
            at=read.moment(at * 1_000_000),
            key=tuple(numbers[: len(by)]),
            runs=numbers[-5],
            completed=numbers[-4],
            failures=numbers[-3],
            busy=numbers[-2] / 1e6,
            waiting=numbers[-1] / 1e6,
        )
        for at, *numbers in rows
    ]


def sample(tx: Transaction) -> list[Sampled]:
    return [Sampled(*row) for row in tx.execute(tx.sql.SAMPLE, {"limit": SAMPLE, "looked_at": SAMPLED_FROM})]


def failures(tx: Transaction) -> list[FailureGroup]:
    rows = tx.execute(tx.sql.FAILURES, {"limit": FAILED})
    return [
        FailureGroup(type=type, error=error, count=n, first_at=read.moment(first), last_at=read.moment(last), sample=id)
        for type, error, n, first, last, id in rows
    ]
