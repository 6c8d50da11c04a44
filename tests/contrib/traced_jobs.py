"""A traced app whose handlers run in child processes: they import this module, and are traced by it."""

from __future__ import annotations

import os

from opentelemetry import trace

from treadle import Treadle
from treadle.contrib.otel import instrument

td = Treadle("sqlite:////nonexistent/never_used.db")
instrument(td)


@td.job(run="process")
def current_span() -> str:
    span = trace.get_current_span().get_span_context()
    after.enqueue()
    return f"{span.trace_id:032x}-{span.span_id:016x}"


@td.job
async def after() -> None: ...


@td.job(run="process", max_attempts=1)
def complain() -> None:
    raise LookupError("no such tile")


@td.job(run="process", max_attempts=1)
def die() -> None:
    os._exit(3)
