"""What a request becomes in Redis, and what is refused before anything is stored."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest

from tests.contrib.bullmq.conftest import Bench
from treadle import Context, Dedupe, Limit, Treadle, exponential
from treadle.contrib.bullmq import Bull, BullWorker, UnsupportedByBullMQ
from treadle.errors import BadOption


@pytest.fixture
def td(bench: Bench) -> Treadle:
    return Treadle(bench.url)


def test_the_options_are_translated(bench: Bench, td: Treadle) -> None:
    @td.job(max_attempts=7, backoff=exponential(base=30, cap=600), queue="mail")
    def send(to: str) -> None: ...

    bull = Bull(bench.redis, td)
    request = send.using(delay=60, priority=5, tenant="acme", subject="call-7").request(to="ann")
    assert asyncio.run(bull.aenqueue(request)).id == request.id
    bull.close()
    found = bench.hash(request.id, "mail")
    assert (found["name"], json.loads(found["data"]), found["delay"]) == ("send", {"to": "ann"}, "60000")
    options = json.loads(found["opts"])
    assert options["attempts"] == 7
    assert options["backoff"] == {"type": "exponential", "delay": 30_000}
    assert options["priority"] == (1 << 20) - 5
    assert options["removeOnComplete"] == {"age": 7 * 86_400}
    assert options["treadle"] == {"tenant": "acme", "subject": "call-7"}


def test_an_id_and_a_dedupe_key_are_stored_once(bench: Bench, td: Treadle) -> None:
    @td.job(dedupe=True)
    def index(doc: str) -> None: ...

    bull = Bull(bench.redis, td)
    first = bull.enqueue(index.request(doc="a"))
    assert bull.enqueue(index.request(doc="a")).id == first.id
    assert bull.enqueue(index.request(doc="b")).id != first.id
    bull.close()
    assert bench.server.client.zcard("bull:default:prioritized") == 2


def test_each_tenant_has_dedupe_keys_of_its_own(bench: Bench, td: Treadle) -> None:
    @td.job
    def index() -> None: ...

    bull = Bull(bench.redis, td)
    held = [("acme", "k"), ("beta", "k"), ("", "k"), ("", "acme:k"), ("acme:", "k")]
    for _ in range(2):
        jobs = [bull.enqueue(index.using(tenant=tenant, dedupe=key).request()) for tenant, key in held]
        assert len({job.id for job in jobs}) == len(held)
    bull.close()
    assert bench.server.client.zcard("bull:default:prioritized") == len(held)


DECLARED: list[tuple[str, dict[str, Any]]] = [
    ("limits", {"limits": [Limit("openai", concurrency=2)]}),
    ("limits", {"concurrency": 3}),
    ("fair", {"fair": "tenant"}),
    ("schedules", {"cron": "0 3 * * *"}),
    ("run='process'", {"run": "process"}),
    ("colon", {"queue": "a:b"}),
]


@pytest.mark.parametrize(("what", "options"), DECLARED)
def test_a_declaration_that_bullmq_cannot_keep_is_refused_at_start(
    td: Treadle, what: str, options: dict[str, Any]
) -> None:
    @td.job(**options)
    def report() -> None: ...

    with pytest.raises(UnsupportedByBullMQ, match=what) as refused:
        BullWorker(td, "redis://127.0.0.1:1")
    assert "'report'" in str(refused.value) or what == "colon"
    if what in ("limits", "fair", "schedules"):
        BullWorker(td, "redis://127.0.0.1:1", without=[what])


def test_a_reconciled_type_is_refused_at_start(td: Treadle) -> None:
    @td.job
    def report() -> None: ...

    report.already_done(lambda jobs: [])
    with pytest.raises(UnsupportedByBullMQ, match="'report' declares reconcile"):
        BullWorker(td, "redis://127.0.0.1:1")
    with pytest.raises(BadOption, match="without='steps'"):
        BullWorker(td, "redis://127.0.0.1:1", without=["steps"])


def with_step(ctx: Context) -> None:
    ctx.step("one", lambda: 1)


async def with_sleep(context: Context) -> None:
    await context.asleep("rest", 60)


async def with_wait(ctx: Context) -> None:
    async def inner() -> None:
        await ctx.await_for("approve")

    await inner()


def with_gather(ctx: Context) -> list[object]:
    return [one for one in [1] if ctx.gather("all", [])]


def with_transaction(ctx: Context) -> None:
    with ctx.transaction():
        pass


USING = {
    with_step: r"ctx\.step",
    with_sleep: r"ctx\.asleep",
    with_wait: r"ctx\.await_for",
    with_gather: r"ctx\.gather",
    with_transaction: r"ctx\.transaction",
}


@pytest.mark.parametrize("handler", USING, ids=lambda handler: handler.__name__)
def test_a_handler_that_uses_what_bullmq_cannot_keep_is_refused_at_start(td: Treadle, handler: Any) -> None:
    td.job(handler)
    with pytest.raises(UnsupportedByBullMQ, match=rf"^type '{handler.__name__}' uses {USING[handler]}\(\): BullMQ"):
        BullWorker(td, "redis://127.0.0.1:1")
    if handler is with_transaction:
        BullWorker(td, "redis://127.0.0.1:1", without=["transactions"])


def test_a_handler_that_signals_is_refused_at_start(td: Treadle) -> None:
    @td.job
    def approve() -> None:
        td.signal("approve")

    with pytest.raises(UnsupportedByBullMQ, match=r"type 'approve' uses td\.signal\(\)"):
        BullWorker(td, "redis://127.0.0.1:1")


def test_what_has_the_same_name_elsewhere_is_accepted(td: Treadle) -> None:
    @td.job
    async def work(ctx: Context, n: int) -> None:
        await asyncio.wait_for(asyncio.gather(asyncio.sleep(0)), 1)
        ctx.progress(1.0)

    assert BullWorker(td, "redis://127.0.0.1:1").queues == ("default",)


def test_the_worker_takes_a_timedelta_for_seconds(td: Treadle) -> None:
    @td.job
    def report() -> None: ...

    worker = BullWorker(td, "redis://127.0.0.1:1", grace=timedelta(minutes=1), lock=timedelta(seconds=2))
    assert worker.queues == ("default",)
    with pytest.raises(BadOption, match="at least 0 seconds"):
        BullWorker(td, "redis://127.0.0.1:1", grace=timedelta(seconds=-1))


def test_a_request_that_bullmq_cannot_keep_is_refused(bench: Bench, td: Treadle) -> None:
    @td.job
    def report() -> None: ...

    bull, parent = Bull(bench.redis), report.request()
    for options in ({"after": parent}, {"start_within": 5}, {"dedupe": Dedupe("k", mode="replace")}, {"queue": "a:b"}):
        with pytest.raises(UnsupportedByBullMQ):
            bull.enqueue_many([parent, report.using(**options).request()])  # type: ignore[arg-type]
    assert bench.server.client.dbsize() == 0
