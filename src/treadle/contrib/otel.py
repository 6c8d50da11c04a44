"""OpenTelemetry: a trace from the enqueue to the run and on to its follow-ups, and metrics of runs. Names follow
OpenTelemetry's conventions for messaging, where those have one."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any, cast

import msgspec

from treadle.app import Treadle
from treadle.context import Run
from treadle.contrib.carrier import from_text, to_text
from treadle.errors import MissingExtra, TreadleError
from treadle.hooks import Event, EventName
from treadle.job import NewJob
from treadle.outcome import Outcome, OutcomeKind
from treadle.redact import Redactor
from treadle.version import __version__

try:
    from opentelemetry import metrics, propagate, trace
    from opentelemetry.context import Context, attach, detach
except ModuleNotFoundError as error:
    raise MissingExtra("treadle.contrib.otel", "opentelemetry-api", "otel") from error

OUTCOMES: tuple[EventName, ...] = (
    "job_completed",
    "job_retried",
    "job_snoozed",
    "job_suspended",
    "job_failed",
    "job_cancelled",
)
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
"""Buckets: jobs take, and wait, from milliseconds to hours."""
OPERATION_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
"""Buckets of what a client does, as the conventions have them."""

_EXCEPTION = re.compile(r"([A-Za-z_][\w.]*)(?:: |$)")


def instrument(
    td: Treadle,
    tracer_provider: trace.TracerProvider | None = None,
    meter_provider: metrics.MeterProvider | None = None,
) -> None:
    """Trace and measure this app, with these providers or the global ones. Call it before its workers start.
    If handlers run in child processes, call it in the module that makes the app: they import that module."""
    if isinstance(td.tracing, _Spans):  # that of Sentry is replaced: it leaves traces to OpenTelemetry
        raise TreadleError(f"{td!r} is instrumented already; call instrument once, where you make the app")
    meter = metrics.get_meter("treadle", __version__, meter_provider)
    td.tracing = _Spans(trace.get_tracer("treadle", __version__, tracer_provider), td.redactor, meter)
    _measure(td, meter)


class TreadleInstrumentor:
    """Instruments every app that is made from now on. The command `opentelemetry-instrument` finds it by itself."""

    _plain: Callable[..., None] | None = None

    def instrument(self, **providers: Any) -> None:
        """`tracer_provider` and `meter_provider`: default, the global ones."""
        cls = type(self)
        if cls._plain is not None:
            return
        cls._plain = plain = Treadle.__init__
        given = {name: providers.get(name) for name in ("tracer_provider", "meter_provider")}

        @wraps(plain)
        def instrumented(td: Treadle, *args: Any, **kwargs: Any) -> None:
            plain(td, *args, **kwargs)
            instrument(td, **given)

        cast(Any, Treadle).__init__ = instrumented

    def uninstrument(self, **_: Any) -> None:
        """Instrument no further apps."""
        cls = type(self)
        if cls._plain is not None:
            cast(Any, Treadle).__init__, cls._plain = cls._plain, None

    def instrumentation_dependencies(self) -> Sequence[str]:
        return ("treadle",)


class _Spans:
    """A `Tracing` that makes spans."""

    def __init__(self, tracer: trace.Tracer, redactor: Redactor, meter: metrics.Meter) -> None:
        self._tracer, self._redactor = tracer, redactor
        self._duration = meter.create_histogram(
            "messaging.client.operation.duration",
            unit="s",
            description="Of an enqueue",
            explicit_bucket_boundaries_advisory=OPERATION_SECONDS,
        )

    @contextmanager
    def enqueuing(self, jobs: Sequence[NewJob]) -> Generator[Sequence[NewJob]]:
        """One span for all of them: jobs that have the same parent can be stored together."""
        types, queues = {job.type for job in jobs}, {job.queue for job in jobs}
        attributes = {**_SYSTEM, "messaging.operation.name": "enqueue", "messaging.operation.type": "send"}
        if len(queues) == 1:
            attributes["messaging.destination.name"] = jobs[0].queue
        if len(types) == 1:
            attributes["treadle.type"] = jobs[0].type
        name = f"enqueue {jobs[0].type}" if len(types) == 1 else "enqueue"
        with self._tracer.start_as_current_span(name, kind=trace.SpanKind.PRODUCER) as span:
            span.set_attributes(attributes)
            if len(jobs) == 1:
                span.set_attribute("messaging.message.id", jobs[0].id)
            else:
                span.set_attribute("messaging.batch.message_count", len(jobs))
            parent = _current()
            began = time.perf_counter()
            try:
                yield [msgspec.structs.replace(job, traceparent=parent) for job in jobs]
            except BaseException as error:
                attributes["error.type"] = type(error).__qualname__
                raise
            finally:
                self._duration.record(time.perf_counter() - began, attributes)

    @contextmanager
    def running(self, run: Run) -> Generator[Callable[[Outcome | None], None]]:
        """A child of the enqueue's span, whatever else is traced in this thread, and linked to it too."""
        claimed = run.claimed
        parent = _context(claimed.traceparent)
        enqueued = trace.get_current_span(parent).get_span_context()
        links = [trace.Link(enqueued)] if enqueued.is_valid else []
        name, kind, attributes = f"run {claimed.type}", trace.SpanKind.CONSUMER, _of_run(run)
        token = attach(parent)  # with its baggage
        try:
            with self._tracer.start_as_current_span(name, None, kind, attributes, links) as span:
                run.claimed = msgspec.structs.replace(claimed, traceparent=_current())
                yield lambda outcome: _record(span, outcome, self._redactor)
        finally:
            detach(token)

    @contextmanager
    def inside(self, run: Run) -> Generator[None]:
        token = attach(_context(run.claimed.traceparent))
        try:
            yield
        finally:
            detach(token)


_SYSTEM = {"messaging.system": "treadle"}


def _of_run(run: Run) -> dict[str, str | int]:
    c = run.claimed
    attributes: dict[str, str | int] = {
        **_SYSTEM,
        "messaging.operation.name": "run",
        "messaging.operation.type": "process",
        "messaging.destination.name": c.queue,
        "messaging.message.id": c.id,
        "treadle.type": c.type,
        "treadle.attempt": c.attempt,
    }
    named = {"treadle.tenant": c.tenant, "treadle.subject": c.subject}
    return {**attributes, **{key: value for key, value in named.items() if value}}


def _record(span: trace.Span, outcome: Outcome | None, redactor: Redactor) -> None:
    """How the attempt ended; None: its lease was lost."""
    span.set_attribute("treadle.outcome", "lost" if outcome is None else outcome.kind.value)
    if outcome is None or outcome.kind not in (OutcomeKind.RETRIED, OutcomeKind.FAILED):
        return
    message = redactor.text(outcome.error or "")
    exception = {"exception.message": message, "exception.stacktrace": redactor.text(outcome.traceback or "")}
    if type := _exception_type(outcome):
        exception["exception.type"] = type
        span.set_attribute("error.type", type)
    span.add_event("exception", exception)
    span.set_status(trace.StatusCode.ERROR, message)


def _exception_type(outcome: Outcome | Event) -> str | None:
    """From the traceback, which is all that comes back from a child process."""
    first = (outcome.error or "").partition("\n")[0]
    for line in reversed((outcome.traceback or "").splitlines()):
        if (found := _EXCEPTION.match(line)) and line.endswith(first):
            return found[1]
    return None


def _current() -> str | None:
    """What the configured propagators say of the current span and its baggage; None if there is none."""
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return to_text(carrier)


def _context(stored: str | None) -> Context:
    return propagate.extract(from_text(stored), Context())


def _measure(td: Treadle, meter: metrics.Meter) -> None:
    """With hooks, so that only what was committed is counted."""
    runs = meter.create_counter("treadle.runs", "{run}", "Attempts that have ended, by type and outcome")
    histogram = partial(meter.create_histogram, unit="s", explicit_bucket_boundaries_advisory=SECONDS)
    busy = histogram("messaging.process.duration", description="From the claim to the outcome")
    waiting = histogram("treadle.waiting", description="From when it was due to the claim")

    def measure(event: Event) -> None:
        attributes = {
            **_SYSTEM,
            "messaging.operation.name": "run",
            "messaging.destination.name": event.queue,
            "treadle.type": event.type,
            "treadle.outcome": event.name.removeprefix("job_"),
        }
        if event.name in ("job_retried", "job_failed"):
            attributes["error.type"] = _exception_type(event) or "_OTHER"
        runs.add(1, attributes)
        busy.record(event.busy, attributes)
        waiting.record(event.waiting, attributes)

    for name in OUTCOMES:
        td.on(name, measure)
