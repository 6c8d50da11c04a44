"""Sentry: an issue for each exception of a handler, with its stack, its job and its trace from the enqueue on."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

import msgspec

from treadle.app import Treadle
from treadle.context import Context, Run
from treadle.contrib.carrier import from_text, to_text
from treadle.errors import MissingExtra, TreadleError
from treadle.hooks import Event
from treadle.job import NewJob
from treadle.outcome import Outcome, Retry, Snooze

try:
    import sentry_sdk
    from sentry_sdk.integrations.logging import ignore_logger
except ModuleNotFoundError as error:
    raise MissingExtra("treadle.contrib.sentry", "sentry-sdk", "sentry") from error


FLUSH_SECONDS = 2.0
"""How long a child process waits until an exception is sent."""


def instrument(td: Treadle) -> None:
    """Report this app to Sentry. Call it after `sentry_sdk.init`, in the module that makes the app: child processes
    import that module."""
    if report in td.hooks.plain.get("job_failed", ()):
        raise TreadleError(f"{td!r} is instrumented already; call instrument once, where you make the app")
    ignore_logger("treadle.jobs")  # it logs the same failures
    td.middleware(around)
    td.on("job_failed", report)
    td.on("job_retried", report)
    if td.tracing is None:  # else OpenTelemetry traces it
        td.tracing = _Trace()


def around(ctx: Context) -> Generator[None]:
    """The middleware: a scope and a transaction for each attempt."""
    headers = from_text(ctx._run.claimed.traceparent)
    with sentry_sdk.isolation_scope() as scope:
        scope.clear_breadcrumbs()
        _describe(scope, ctx.type, ctx.queue, ctx.tenant)
        job = {"id": ctx.id, "subject": ctx.subject, "attempt": ctx.attempt, "max_attempts": ctx.max_attempts}
        scope.set_context("job", {name: value for name, value in job.items() if value})
        transaction = sentry_sdk.continue_trace(headers, op="queue.process", name=ctx.type, source="task")
        with sentry_sdk.start_transaction(transaction) as span:
            span.set_data("messaging.system", "treadle")
            span.set_data("messaging.message.id", ctx.id)
            span.set_data("messaging.destination.name", ctx.queue)
            span.set_data("messaging.message.retry.count", ctx.attempt - 1)
            try:
                yield
            except Snooze:
                raise  # the handler asked for it; the hook reports one snooze too many
            except Exception as error:
                if not isinstance(error, Retry) or ctx._run.claimed.failures >= ctx.max_attempts:
                    sentry_sdk.capture_exception()
                    if multiprocessing.parent_process() is not None:  # a child may be killed before it is sent
                        sentry_sdk.flush(FLUSH_SECONDS)
                raise


def report(event: Event) -> None:
    """The hook: what no middleware sees, because the handler was stopped or its process died."""
    if event.traceback is not None or not event.error:
        return
    with sentry_sdk.isolation_scope() as scope:
        _describe(scope, event.type, event.queue, event.tenant)
        scope.set_context("job", {"id": event.id, "attempt": event.attempt, "max_attempts": event.max_attempts})
        scope.fingerprint = ["treadle", event.type, event.error]
        sentry_sdk.capture_message(f"{event.type}: {event.error}", level="error")


def _describe(scope: sentry_sdk.Scope, type: str, queue: str, tenant: str) -> None:
    scope.set_transaction_name(type, source="task")
    scope.set_tag("treadle.type", type)
    scope.set_tag("treadle.queue", queue)
    if tenant:
        scope.set_tag("treadle.tenant", tenant)


class _Trace:
    """A `Tracing` that stores Sentry's trace with each job. The middleware continues it."""

    @contextmanager
    def enqueuing(self, jobs: Sequence[NewJob]) -> Generator[Sequence[NewJob]]:
        with sentry_sdk.start_span(op="queue.publish", name=jobs[0].type) as span:
            span.set_data("messaging.system", "treadle")
            span.set_data("messaging.message.id", jobs[0].id)
            span.set_data("messaging.destination.name", jobs[0].queue)
            headers = {"sentry-trace": sentry_sdk.get_traceparent(), "baggage": sentry_sdk.get_baggage()}
            stored = to_text({name: value for name, value in headers.items() if value})
            yield [msgspec.structs.replace(job, traceparent=stored) for job in jobs]

    @contextmanager
    def running(self, run: Run) -> Generator[Callable[[Outcome | None], None]]:
        yield lambda outcome: None

    @contextmanager
    def inside(self, run: Run) -> Generator[None]:
        yield
