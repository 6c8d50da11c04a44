"""Arguments, results and steps keep their types through every store."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pydantic
import pytest

from tests.worker.helpers import now
from treadle import Context, Dedupe, Limit, Rate, RateLimited, Retry, Snooze, Status, Treadle, exponential
from treadle.codec import decode, encode
from treadle.errors import BadOption
from treadle.testing import ManualClock, drain
from treadle.views import job as visible


class Line(pydantic.BaseModel):
    sku: str
    quantity: int = 1


class Order(pydantic.BaseModel):
    id: int
    lines: list[Line]


class Receipt(pydantic.BaseModel):
    order: Order
    total: float


class Session(pydantic.BaseModel):
    user: str
    token: pydantic.SecretStr


@dataclass
class Refused:
    why: str


def test_models_arrive_in_handlers_and_come_back_as_results(td: Treadle) -> None:
    seen: list[object] = []

    @td.job
    def charge(order: Order, to: Path, zone: ZoneInfo, extra: Line | None = None) -> Receipt | Refused:
        seen.extend((order, to, zone, extra))
        return Receipt(order=order, total=9.5) if order.lines else Refused("nothing to pay")

    order = Order(id=7, lines=[Line(sku="a", quantity=2)])
    job = charge.enqueue(order, Path("/tmp/a"), ZoneInfo("Europe/Berlin"), Line(sku="b"))
    empty = charge.enqueue(Order(id=8, lines=[]), Path("b"), ZoneInfo("UTC"))
    drain(td)
    assert order in seen
    assert {Path("/tmp/a"), ZoneInfo("Europe/Berlin")} <= {one for one in seen if isinstance(one, Path | ZoneInfo)}
    assert td.result(job) == td.result(job.id) == Receipt(order=order, total=9.5)
    assert td.result(empty) == Refused("nothing to pay")
    assert {type(one.result) for one in td.jobs()} == {Receipt, Refused}
    stored = now(td, job)
    assert isinstance(stored.result, Receipt)
    shown = {"order": {"id": 7, "lines": [{"sku": "a", "quantity": 2}]}, "total": 9.5}
    assert visible(stored, td.redactor).result == shown  # as the dashboard, the API and the CLI show it
    assert decode(encode(visible(stored, td.redactor)))["result"] == shown


def test_results_of_parents_and_subjobs_are_models(td: Treadle) -> None:
    @td.job
    def charge(order: Order) -> Receipt:
        return Receipt(order=order, total=9.5)

    @td.job
    def book(ctx: Context) -> list[float]:
        receipts = [parent.result for parent in ctx.parents]
        receipts += ctx.gather("more", [charge.request(Order(id=n, lines=[])) for n in (1, 2)])
        return [receipt.total + receipt.order.id for receipt in receipts]

    job = book.using(after=charge.enqueue(Order(id=7, lines=[]))).enqueue()
    drain(td)
    assert td.result(job) == [16.5, 10.5, 11.5]


def test_steps_store_models(td: Treadle) -> None:
    calls: list[str] = []

    def fetch(id: int) -> list[Order]:
        calls.append("fetch")
        return [Order(id=id, lines=[])]

    def quote(order: Order) -> Receipt | Refused:
        return Receipt(order=order, total=1.0)

    @td.job(backoff=0)
    def work(ctx: Context) -> int:
        [order] = ctx.step("fetch", fetch, 5)
        quoted = ctx.step("quote", quote, order)
        if ctx.attempt == 1:
            raise ConnectionError
        assert isinstance(quoted, Receipt)
        return order.id

    job = work.enqueue()
    drain(td, raising=False)
    assert td.result(job) == 5
    assert calls == ["fetch"]


@pytest.mark.sqlite_only
def test_an_unannotated_model_is_stored_too(td: Treadle) -> None:
    @td.job
    def work():  # type: ignore[no-untyped-def]
        return Line(sku="a")

    job = work.enqueue()
    drain(td)
    assert td.result(job) == {"sku": "a", "quantity": 1}


@pytest.mark.sqlite_only
def test_a_secret_is_not_stored_with_a_result(td: Treadle) -> None:
    @td.job
    def sign_in() -> Session:
        return Session(user="ann", token=pydantic.SecretStr("s3cret"))

    job = sign_in.enqueue()
    drain(td)
    assert td.result(job) == Session(user="ann", token=pydantic.SecretStr("**********"))


@pytest.mark.sqlite_only
def test_a_result_of_an_older_deploy_stays_readable(td: Treadle) -> None:
    @td.job
    def work() -> Line:
        return Line.model_construct(sku=5)  # type: ignore[arg-type]

    job = work.enqueue()
    drain(td)
    assert td.result(job) == {"sku": 5, "quantity": 1}


def test_a_timedelta_is_taken_wherever_seconds_are(timed: Treadle, treadle_clock: ManualClock) -> None:
    hour = timedelta(hours=1)

    @timed.job(
        timeout=timedelta(minutes=5),
        backoff=exponential(base=hour, cap=2 * hour),
    )
    def work(how: str) -> None:
        if how == "snooze":
            raise Snooze(hour)
        if how == "retry":
            raise Retry("later", delay=hour)
        raise ConnectionError

    @timed.job(limits=[Limit("api", rate=Rate(5, per=timedelta(minutes=1)))])
    def limited() -> None:
        raise RateLimited(hour)

    start = treadle_clock.now()
    jobs = [limited.enqueue(), *(work.enqueue(how) for how in ("snooze", "retry", "fail"))]
    drain(timed, raising=False, max_seconds=timedelta(seconds=60))
    assert [now(timed, job).run_at - start for job in jobs] == [hour] * 4
    assert work.job_type.timeout == 300
    late = work.using(delay=2 * hour, start_within=timedelta(minutes=5)).enqueue("fail")
    assert (late.run_at - start, late.start_by) == (2 * hour, start + 2 * hour + timedelta(minutes=5))
    assert timed.reschedule(late.id, delay=hour).run_at == start + hour
    once = work.using(dedupe=Dedupe("k", mode="debounce", wait=hour, at_most=2 * hour)).enqueue("fail")
    assert once.run_at - start == hour
    with pytest.raises(BadOption, match="it cannot be less than wait=1:00:00"):
        Dedupe("k", mode="debounce", wait=hour, at_most=timedelta(minutes=1))
    treadle_clock.advance(hour)
    [lease] = timed.claim(lease=timedelta(minutes=2))
    lease.extend(timedelta(minutes=10))
    assert lease.deadline == pytest.approx((treadle_clock.now() + timedelta(minutes=10)).timestamp(), abs=1)
    lease.fail("no", retry_in=hour)
    assert timed.prune(older_than=hour) == 0


@pytest.mark.sqlite_only
def test_a_negative_timedelta_is_refused(td: Treadle) -> None:
    @td.job
    def work() -> None: ...

    less = timedelta(seconds=-1)
    for refused in (
        lambda: work.using(delay=less),
        lambda: td.job(type="work2", timeout=less)(lambda: None),
        lambda: Snooze(less),
        lambda: Retry(delay=less),
        lambda: exponential(base=less),
        lambda: td.worker(grace=less),
        lambda: td.claim(lease=less),
    ):
        with pytest.raises(BadOption):
            refused()
    assert Status.PENDING not in {job.status for job in td.jobs()}
