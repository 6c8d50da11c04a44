"""OpenTelemetry, with the real SDK: one trace of enqueue, run and follow-ups, and metrics of committed outcomes."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import baggage, propagate
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import attach, detach
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    TraceState,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tests import stores
from tests.contrib import traced_jobs
from treadle import BadArguments, Context, Fail, Snooze, Treadle, TreadleError
from treadle.contrib.carrier import from_text, to_text
from treadle.contrib.otel import TreadleInstrumentor, _Spans, instrument
from treadle.stores import open_store
from treadle.testing import drain


class Seen:
    """What was exported."""

    def __init__(self) -> None:
        self._spans, self._metrics = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self.meters = MeterProvider([self._metrics])

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._spans.get_finished_spans())

    def named(self, name: str) -> ReadableSpan:
        (span,) = [span for span in self.spans if span.name == name]
        return span

    def points(self, name: str) -> dict[tuple[str, str], Any]:
        """A metric's points, by type and outcome."""
        points = self.all_points(name)
        return {(str(p.attributes["treadle.type"]), str(p.attributes["treadle.outcome"])): p for p in points}

    def all_points(self, name: str) -> list[Any]:
        data = self._metrics.get_metrics_data()
        assert data is not None
        metrics = [m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics if m.name == name]
        return [point for metric in metrics for point in metric.data.data_points]


@pytest.fixture
def seen() -> Iterator[Seen]:
    seen = Seen()
    yield seen
    seen.tracers.shutdown()
    seen.meters.shutdown()


@pytest.fixture
def traced(td: Treadle, seen: Seen) -> Treadle:
    instrument(td, seen.tracers, seen.meters)
    return td


def is_child(span: ReadableSpan, parent: ReadableSpan) -> bool:
    assert span.parent is not None
    return (span.parent.span_id, span.context.trace_id) == (parent.context.span_id, parent.context.trace_id)


def declare(td: Treadle, kind: str) -> None:
    """Declare a job `first` that enqueues `second`."""
    if kind == "plain":

        @td.job
        def first() -> None:
            td.enqueue("second", {"n": 1})
    elif kind == "async":

        @td.job(type="first")
        async def afirst() -> None:
            await asyncio.sleep(0)
            await td.aenqueue("second", {"n": 1})
    else:

        @td.job(type="first")
        def in_transaction(ctx: Context) -> None:
            with ctx.transaction():
                td.enqueue("second", {"n": 1})

    @td.job
    async def second(n: int) -> None: ...


@pytest.mark.parametrize("kind", ["plain", "async", "transaction"])
def test_one_trace_connects_the_caller_and_the_follow_up(traced: Treadle, seen: Seen, kind: str) -> None:
    declare(traced, kind)
    with seen.tracers.get_tracer("test").start_as_current_span("request"):
        job = traced.enqueue("first", tenant="acme", subject="call-7")
    drain(traced)

    chain = [seen.named(name) for name in ("request", "enqueue first", "run first", "enqueue second", "run second")]
    assert all(is_child(span, parent) for parent, span in itertools.pairwise(chain))
    _, enqueue, run, *_ = chain
    assert (enqueue.kind, run.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert [link.context.span_id for link in run.links] == [enqueue.context.span_id]
    common = {"messaging.system": "treadle", "messaging.destination.name": "default", "messaging.message.id": job.id}
    assert dict(enqueue.attributes or {}) == {
        **common,
        "messaging.operation.name": "enqueue",
        "messaging.operation.type": "send",
        "treadle.type": "first",
    }
    assert dict(run.attributes or {}) == {
        **common,
        "messaging.operation.name": "run",
        "messaging.operation.type": "process",
        "treadle.type": "first",
        "treadle.attempt": 1,
        "treadle.tenant": "acme",
        "treadle.subject": "call-7",
        "treadle.outcome": "completed",
    }
    assert run.status.status_code is StatusCode.UNSET


def test_the_parent_is_stored_with_the_job(traced: Treadle, treadle_url: str, seen: Seen) -> None:
    traced.enqueue("anything")
    span = seen.named("enqueue anything").context
    expected = f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"
    assert stores.rows(treadle_url, "SELECT traceparent FROM treadle_jobs") == [(expected,)]


def test_a_bulk_enqueue_is_one_span_and_every_run_is_its_child(traced: Treadle, seen: Seen) -> None:
    @traced.job
    async def tile(n: int) -> None: ...

    traced.enqueue_many([tile.request(n=n) for n in range(3)])
    drain(traced)
    enqueue = seen.named("enqueue tile")
    assert (enqueue.attributes or {})["messaging.batch.message_count"] == 3
    runs = [span for span in seen.spans if span.name == "run tile"]
    assert len(runs) == 3
    assert all(is_child(run, enqueue) for run in runs)


def test_failures_are_recorded_as_errors_and_snoozes_are_not(traced: Treadle, seen: Seen) -> None:
    @traced.job(max_attempts=2, backoff=60)
    def breaks() -> None:
        raise ValueError("one line\nand: another")

    @traced.job
    async def fails() -> None:
        raise Fail("no such thing")

    @traced.job
    def snoozes() -> None:
        raise Snooze(60)

    for name in ("breaks", "fails", "snoozes"):
        traced.enqueue(name)
    drain(traced, raising=False)

    breaking, failing, snoozing = (seen.named(f"run {name}") for name in ("breaks", "fails", "snoozes"))
    (event,) = breaking.events
    recorded = dict(event.attributes or {})
    assert (recorded["exception.type"], recorded["exception.message"]) == (
        "ValueError",
        "ValueError: one line\nand: another",
    )
    assert 'raise ValueError("one line' in str(recorded["exception.stacktrace"])
    assert breaking.status.status_code is failing.status.status_code is StatusCode.ERROR
    assert failing.status.description == "no such thing"
    assert (failing.attributes or {})["error.type"] == "treadle.outcome.Fail"
    assert (snoozing.status.status_code, snoozing.events) == (StatusCode.UNSET, ())
    outcomes = [(span.attributes or {})["treadle.outcome"] for span in (breaking, failing, snoozing)]
    assert outcomes == ["retried", "failed", "snoozed"]


def test_an_enqueue_that_the_store_refuses_is_an_error_of_its_span(
    traced: Treadle, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: Any) -> None:
        raise TreadleError("not now")

    monkeypatch.setattr(traced.store, "insert_groups", busy)
    traced._start_over()
    with pytest.raises(TreadleError, match="not now"):
        traced.enqueue("anything")
    assert seen.named("enqueue anything").status.status_code is StatusCode.ERROR


def test_metrics_count_runs_and_their_seconds(traced: Treadle, seen: Seen) -> None:
    @traced.job(max_attempts=2, backoff=0)
    def odd(n: int) -> None:
        if n % 2 == 0:
            raise ValueError(n)

    traced.enqueue_many([odd.request(n=n) for n in range(5)])
    drain(traced, raising=False)
    runs = {place: point.value for place, point in seen.points("treadle.runs").items()}
    assert runs == {("odd", "completed"): 2, ("odd", "retried"): 3, ("odd", "failed"): 3}
    for name in ("messaging.process.duration", "treadle.waiting"):
        histogram = seen.points(name)
        assert {place: point.count for place, point in histogram.items()} == runs
        assert histogram["odd", "completed"].explicit_bounds[0] == 0.005


def test_spans_hide_what_the_app_hides(traced: Treadle, seen: Seen) -> None:
    @traced.job(max_attempts=1)
    def login() -> None:
        raise ValueError("password=hunter2")

    traced.enqueue("login")
    drain(traced, raising=False)

    span = seen.named("run login")
    assert "hunter2" not in f"{span.status.description} {[event.attributes for event in span.events]}"
    assert span.status.description == "ValueError: password=•••"


@pytest.fixture
def in_children(treadle_url: str, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> Iterator[Treadle]:
    """The app of `traced_jobs`, on this test's database, with this test's exporter on the worker's side."""
    app, before = traced_jobs.td, traced_jobs.td.store
    monkeypatch.setattr(
        app, "tracing", _Spans(seen.tracers.get_tracer("treadle"), app.redactor, seen.meters.get_meter("treadle"))
    )
    app._use(open_store(treadle_url, **stores.quick(treadle_url)))
    yield app
    app.close()
    app._use(before)


def test_handlers_in_child_processes_are_part_of_the_trace(in_children: Treadle, seen: Seen) -> None:
    """The worker makes their spans, so that a child that died has one too."""
    job = traced_jobs.current_span.enqueue()
    traced_jobs.complain.enqueue()
    traced_jobs.die.enqueue()
    in_children.tick(max_seconds=60)
    in_children.tick()

    run, after = seen.named("run current_span"), seen.named("run after")
    assert is_child(run, seen.named("enqueue current_span"))
    assert in_children.result(job.id) == f"{run.context.trace_id:032x}-{run.context.span_id:016x}"
    assert after.context.trace_id == run.context.trace_id
    assert [e.attributes["exception.type"] for e in seen.named("run complain").events if e.attributes] == [
        "LookupError"
    ]
    died = seen.named("run die")
    assert (died.status.status_code, died.status.description) == (StatusCode.ERROR, "its process exited with 3")


@pytest.mark.sqlite_only
def test_the_span_of_a_handler_that_was_stopped_says_so(traced: Treadle, seen: Seen) -> None:
    started = threading.Event()

    @traced.job
    async def waits() -> None:
        started.set()
        await asyncio.sleep(60)

    async def stop_while_it_runs() -> None:
        async with traced.worker(grace=0):
            await asyncio.to_thread(started.wait, 15)

    traced.enqueue("waits")
    asyncio.run(stop_while_it_runs())
    assert (seen.named("run waits").attributes or {})["treadle.outcome"] == "released"


@pytest.mark.sqlite_only
def test_a_worker_in_a_traced_program_does_not_make_its_runs_children_of_that_span(traced: Treadle, seen: Seen) -> None:
    @traced.job
    async def quick() -> None: ...

    @traced.job
    def plain() -> None: ...

    quick.enqueue()
    plain.enqueue()
    with seen.tracers.get_tracer("test").start_as_current_span("the program"):
        drain(traced)
    for name in ("quick", "plain"):
        assert is_child(seen.named(f"run {name}"), seen.named(f"enqueue {name}"))


@pytest.mark.sqlite_only
def test_without_a_provider_everything_works_and_nothing_is_stored(td: Treadle, treadle_url: str) -> None:
    instrument(td)

    @td.job
    def quick() -> None: ...

    quick.enqueue()
    assert drain(td).completed == 1
    assert stores.rows(treadle_url, "SELECT traceparent FROM treadle_jobs") == [(None,)]


@pytest.mark.sqlite_only
def test_bad_arguments_raise_the_same_errors_and_a_second_instrument_is_refused(traced: Treadle) -> None:
    @traced.job
    def takes(n: int) -> None: ...

    with pytest.raises(BadArguments):
        takes.enqueue(m=1)
    with pytest.raises(TreadleError, match="instrumented already"):
        instrument(traced)


WITHOUT = """
import sys
sys.modules["opentelemetry"] = None
import treadle
try:
    import treadle.contrib.otel
except treadle.errors.MissingExtra as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("code", "printed"),
    [
        (
            WITHOUT,
            "treadle.contrib.otel needs opentelemetry-api, which is not installed; "
            "install it: pip install 'treadle[otel]'",
        ),
        ("import sys, treadle; print('opentelemetry' in sys.modules)", "False"),
    ],
    ids=["missing", "not asked for"],
)
def test_opentelemetry_is_imported_only_on_request(code: str, printed: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == printed


# What the configured propagators carry


@pytest.fixture
def propagators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are configured by default."""
    both = CompositePropagator([TraceContextTextMapPropagator(), W3CBaggagePropagator()])
    monkeypatch.setattr(propagate, "propagators", both)


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_the_whole_carrier_goes_with_the_job(traced: Treadle, seen: Seen, propagators: None, kind: str) -> None:
    found: list[tuple[Any, str]] = []

    def look() -> None:
        found.append((baggage.get_baggage("customer"), get_current_span().get_span_context().trace_state.to_header()))

    async def look_async() -> None:
        look()

    work = traced.job(type="work")(look if kind == "plain" else look_async)
    remote = SpanContext(1, 2, is_remote=True, trace_flags=TraceFlags(1), trace_state=TraceState([("vendor", "x")]))
    token = attach(baggage.set_baggage("customer", "acme", set_span_in_context(NonRecordingSpan(remote))))
    work.enqueue()
    detach(token)
    drain(traced)
    assert found == [("acme", "vendor=x")]
    assert seen.named("run work").context.trace_id == 1
    assert baggage.get_baggage("customer") is None


@pytest.mark.sqlite_only
def test_baggage_that_is_too_large_is_left_out(traced: Treadle, seen: Seen, propagators: None) -> None:
    sizes: list[int] = []

    @traced.job
    def work() -> None:
        sizes.append(len(baggage.get_all()))

    token = attach(baggage.set_baggage("b", "x" * 4_090, baggage.set_baggage("a", "x" * 4_090)))
    work.enqueue()
    detach(token)
    token = attach(baggage.set_baggage("a", "x" * 4_090))
    work.enqueue()
    detach(token)
    drain(traced)
    assert sorted(sizes) == [0, 1]
    assert len({span.context.trace_id for span in seen.spans}) == 2


@pytest.mark.sqlite_only
def test_a_carrier_that_was_broken_by_hand_starts_a_new_trace() -> None:
    assert from_text(to_text({"traceparent": "00-1-2-01"})) == {"traceparent": "00-1-2-01"}
    assert to_text({"traceparent": "00-1-2-01"}) == "00-1-2-01"  # as it was stored before
    assert (from_text(None), from_text("{broken"), to_text({})) == ({}, {}, None)


def test_the_duration_of_an_enqueue_is_measured_as_the_conventions_say(traced: Treadle, seen: Seen) -> None:
    @traced.job(max_attempts=1)
    def breaks() -> None:
        raise ValueError

    breaks.enqueue()
    drain(traced, raising=False)
    [point] = seen.all_points("messaging.client.operation.duration")
    assert point.count == 1
    assert dict(point.attributes) == {
        "messaging.system": "treadle",
        "messaging.operation.name": "enqueue",
        "messaging.operation.type": "send",
        "messaging.destination.name": "default",
        "treadle.type": "breaks",
    }
    [process] = seen.all_points("messaging.process.duration")
    assert (process.attributes["messaging.operation.name"], process.attributes["error.type"]) == ("run", "ValueError")


AUTOMATIC = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from treadle import Treadle

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))
trace.set_tracer_provider(provider)
td = Treadle("sqlite:///{}")


@td.job
def work() -> None:
    print("INSIDE", trace.get_current_span().get_span_context().is_valid)


work.enqueue()
td.tick()
"""


@pytest.mark.sqlite_only
def test_the_command_opentelemetry_instrument_finds_treadle(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(AUTOMATIC.format(tmp_path / "treadle.db"))
    command = [
        str(Path(sys.executable).with_name("opentelemetry-instrument")),
        sys.executable,
        str(tmp_path / "app.py"),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert "INSIDE True" in ended.stdout
    assert '"name": "enqueue work"' in ended.stdout
    assert '"name": "run work"' in ended.stdout


@pytest.mark.sqlite_only
def test_the_instrumentor_instruments_new_apps_until_it_is_taken_away(treadle_url: str, seen: Seen) -> None:
    instrumentor = TreadleInstrumentor()
    instrumentor.instrument(tracer_provider=seen.tracers, meter_provider=seen.meters)
    TreadleInstrumentor().instrument()  # a second time changes nothing
    app = Treadle(treadle_url)
    TreadleInstrumentor().uninstrument()
    app.enqueue("work")
    assert [span.name for span in seen.spans] == ["enqueue work"]
    assert Treadle(treadle_url).tracing is None
    app.close()
