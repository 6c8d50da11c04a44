"""What goes around handlers is the same in a worker of BullMQ: middleware, lifespans, hooks and traces."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.contrib.bullmq.conftest import Bench
from treadle import Context, Treadle
from treadle.contrib.bullmq import Bull, BullWorker
from treadle.contrib.otel import instrument
from treadle.hooks import Event


def test_middleware_lifespans_hooks_and_traces(bench: Bench) -> None:
    td, seen, spans = Treadle(bench.url), list[str](), InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    instrument(td, provider)

    @td.lifespan
    def opened() -> Iterator[dict[str, Any]]:
        yield {"name": "ann"}
        seen.append("closed")

    @td.middleware
    def around(ctx: Context) -> Iterator[None]:
        seen.append("before")
        yield
        seen.append("after")

    @td.job
    def plain(ctx: Context) -> None:
        seen.append(f"plain {ctx.state['name']}")

    @td.job
    async def awaited(ctx: Context) -> None:
        seen.append(f"awaited {ctx.state['name']}")

    done = asyncio.Event()

    is_inside = ContextVar("is_inside", default=False)

    @contextmanager
    def around_hooks() -> Iterator[None]:
        token = is_inside.set(True)
        yield
        is_inside.reset(token)

    td.hooks.around = around_hooks
    started: list[bool] = []
    td.on("job_started", lambda event: started.append(is_inside.get()))

    @td.on("job_completed")
    async def completed(event: Event) -> None:
        seen.append(f"completed {event.type}, {is_inside.get()}")
        if event.type == "awaited":
            loop.call_soon_threadsafe(done.set)
        else:
            await bull.aenqueue(awaited.request())

    async def work() -> None:
        nonlocal loop
        loop = asyncio.get_running_loop()
        await bull.aenqueue(plain.request())
        async with BullWorker(td, bench.redis).working():
            await asyncio.wait_for(done.wait(), 60)

    loop: asyncio.AbstractEventLoop
    bull = Bull(bench.redis, td)
    asyncio.run(work())
    bull.close()
    runs = [
        [f"{word} ann" if word in ("plain", "awaited") else word for word in ("before", name, "after")]
        for name in ("plain", "awaited")
    ]
    assert seen == [*runs[0], "completed plain, True", *runs[1], "completed awaited, True", "closed"]
    assert started == [True, True]
    assert [span.name for span in spans.get_finished_spans()] == ["run plain", "run awaited"]
