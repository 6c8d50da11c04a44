"""`td.batch` stores a group of jobs, members add to it, and what is to follow runs once when all have ended."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing, suppress

import psycopg
import pytest

from tests.worker.helpers import now
from treadle import Context, Dedupe, Fail, KeyHeld, Status, Treadle
from treadle.batch import Batch
from treadle.errors import BadCursor, BadOption, BatchExists, BlocksTheLoop
from treadle.testing import drain, enqueued

REJECTING = Dedupe("k", mode="reject")


class Jobs:
    """A batch's usual jobs. `load` fails for a negative row."""

    def __init__(self, td: Treadle) -> None:
        @td.job(max_attempts=1)
        def load(row: int) -> None:
            if row < 0:
                raise Fail("negative")

        @td.job
        def report(n: int) -> int:
            return n

        @td.job
        def alert() -> None: ...

        self.load, self.report, self.alert = load, report, alert


@pytest.fixture
def jobs(td: Treadle) -> Jobs:
    return Jobs(td)


def got(td: Treadle, name: str = "import-7", tenant: str = "") -> Batch:
    batch = td.batches.get(name, tenant=tenant)
    assert batch is not None
    return batch


def test_then_runs_when_all_members_have_completed(td: Treadle, jobs: Jobs) -> None:
    with td.batch("import-7", then=jobs.report.request(n=7), on_failure=jobs.alert.request()) as batch:
        first = batch.add(jobs.load.request(row=1))
        batch.add(jobs.load.request(row=2), jobs.load.request(row=3))
        assert td.batches.get("import-7") is None
    assert (td.jobs(batch="import-7").jobs[-1].id, got(td).added) == (first.id, 3)
    drain(td)
    assert len(enqueued(td, jobs.report, n=7)) == 1
    assert not enqueued(td, jobs.alert)
    batch_ = got(td)
    assert (batch_.is_open, batch_.progress, str(batch_)) == (False, 1.0, "3 of 3")
    assert td.jobs("batch:import-7 status:completed").jobs == td.jobs("batch:import-*").jobs


def test_on_failure_runs_if_one_has_not(td: Treadle, jobs: Jobs) -> None:
    with td.batch("import-7", then=jobs.report.request(n=7), on_failure=jobs.alert.request()) as batch:
        batch.add(jobs.load.request(row=1), jobs.load.request(row=-1))
    drain(td, raising=False)
    assert (len(enqueued(td, jobs.report)), len(enqueued(td, jobs.alert))) == (0, 1)
    assert str(got(td)) == "2 of 2; 1 failed"


def test_an_empty_batch_runs_then(td: Treadle, jobs: Jobs) -> None:
    with td.batch("import-7", then=jobs.report.request(n=7)):
        pass
    drain(td)
    assert len(enqueued(td, jobs.report)) == 1


def test_a_block_that_raises_stores_nothing(td: Treadle, jobs: Jobs) -> None:
    with pytest.raises(ZeroDivisionError), td.batch("import-7") as batch:
        batch.add(jobs.load.request(row=1 // 0))
    assert (td.batches.get("import-7"), td.jobs().jobs) == (None, [])


def test_the_same_block_is_async(td: Treadle, jobs: Jobs) -> None:
    async def fails() -> None:
        async with td.batch("import-9"):
            raise ZeroDivisionError

    async def make() -> None:
        async with td.batch("import-7") as batch:
            batch.add(jobs.load.request(row=1))
        found = await td.batches.aget("import-7")
        assert (found and found.added, [one.name for one in await td.batches.alist()]) == (1, ["import-7"])
        with pytest.warns(BlocksTheLoop), td.batch("import-8"):
            pass
        with pytest.raises(ZeroDivisionError):
            await fails()

    asyncio.run(make())
    assert td.batches.get("import-9") is None


def test_what_is_refused(td: Treadle, jobs: Jobs) -> None:
    with td.batch("import-7") as batch:
        with pytest.raises(BadOption, match=r"using\(tenant=''\)"):
            batch.add(jobs.load.using(tenant="acme").request(row=1))
        with pytest.raises(BadOption, match="a request"):
            batch.add(jobs.load)  # type: ignore[arg-type]
    with pytest.raises(BadOption, match=r"ctx\.batch\.add"):
        batch.add(jobs.load.request(row=1))
    with pytest.raises(BatchExists, match="another name"), td.batch("import-7"):
        pass
    with pytest.raises(BadOption, match="needs a name"):
        td.batch("")
    with pytest.raises(BadOption, match="has the tenant 'acme'"):
        td.batch("import-8", then=jobs.report.request(n=1), tenant="acme")
    with pytest.raises(BadOption, match="another dedupe mode"):
        td.batch("import-8", then=jobs.alert.using(dedupe=REJECTING).request())
    with pytest.raises(BadCursor):
        td.batches.list(cursor="[1]")


def test_a_member_that_is_rejected_leaves_nothing(td: Treadle, jobs: Jobs) -> None:
    jobs.alert.using(dedupe="k").enqueue()
    with pytest.raises(KeyHeld), td.batch("import-7") as batch:
        batch.add(jobs.load.request(row=1), jobs.alert.using(dedupe=REJECTING).request())
    assert td.batches.get("import-7") is None
    assert len(td.jobs()) == 1


def test_batches_of_tenants(td: Treadle, jobs: Jobs) -> None:
    for tenant in ("acme", "globex"):
        with td.batch("import-7", jobs.report.using(tenant=tenant).request(n=1), tenant=tenant) as batch:
            batch.add(jobs.load.using(tenant=tenant).request(row=1))
    drain(td)
    assert [job.tenant for job in td.jobs(type="report", tenant="acme")] == ["acme"]
    assert got(td, tenant="globex").closings == 1
    page = td.batches.list(limit=1)
    assert page.next is not None
    assert {one.tenant for one in (*page, *td.batches.list(cursor=page.next))} == {"acme", "globex"}


# Inside handlers


def test_a_member_adds_to_its_batch(td: Treadle, jobs: Jobs) -> None:
    seen: list[float] = []

    @td.job
    def split(ctx: Context, rows: int) -> None:
        for row in range(rows):
            ctx.batch.add(jobs.load.request(row=row))
        with pytest.raises(BadOption, match="has the tenant"):
            ctx.batch.add(jobs.load.using(tenant="acme").request(row=1))
        seen.append(ctx.batch.progress)

    @td.job
    def alone(ctx: Context) -> bool:
        with pytest.raises(BadOption, match="batch=None: this job is in no batch"):
            ctx.batch.add(jobs.load.request(row=1))
        return not ctx.batch

    with td.batch("import-7", then=jobs.report.request(n=7)) as batch:
        first = batch.add(split.request(rows=5))
    lone = alone.enqueue()
    drain(td)
    assert (seen, got(td).added, now(td, lone).result) == ([0.0], 6, True)
    assert {job.origin for job in td.jobs(type="load")} == {first.id}
    assert len(enqueued(td, jobs.report)) == 1


def test_a_failed_attempt_adds_nothing(td: Treadle, jobs: Jobs) -> None:
    @td.job(max_attempts=1)
    def split(ctx: Context) -> None:
        ctx.batch.add(jobs.load.request(row=1))
        raise Fail("after that")

    with td.batch("import-7", on_failure=jobs.alert.request()) as batch:
        batch.add(split.request())
    drain(td, raising=False)
    assert (got(td).added, len(enqueued(td, jobs.alert))) == (1, 1)


@pytest.mark.parametrize("how", ["sync", "async"])
def test_a_batch_of_a_handler_is_stored_with_its_completion(td: Treadle, jobs: Jobs, how: str) -> None:
    seen: list[object] = []

    @td.job(type="make")
    def make() -> None:
        with td.batch("import-7", jobs.report.request(n=1)) as batch:
            batch.add(jobs.load.request(row=1))
        seen.append(td.batches.get("import-7"))

    @td.job(type="amake")
    async def amake() -> None:
        async with td.batch("import-7", jobs.report.request(n=1)) as batch:
            batch.add(jobs.load.request(row=1))
        seen.append(await td.batches.aget("import-7"))

    job = (make if how == "sync" else amake).enqueue()
    drain(td)
    assert (seen, got(td).added, len(enqueued(td, jobs.report))) == ([None], 1, 1)
    assert [one.origin for one in td.jobs(batch="import-7")] == [job.id]


def test_a_batch_and_members_that_a_step_makes_are_stored_with_the_step(td: Treadle, jobs: Jobs) -> None:
    runs = []

    @td.job(max_attempts=2, backoff=lambda _: 0)
    def make(ctx: Context) -> None:
        ctx.step("make", fill, ctx)
        runs.append(ctx.attempt)
        if ctx.attempt == 1:
            raise ValueError("after the step")

    def fill(ctx: Context) -> None:
        ctx.batch.add(jobs.load.request(row=1))
        with td.batch("inner", jobs.report.request(n=1)) as batch:
            batch.add(jobs.load.request(row=2))

    with td.batch("import-7", jobs.report.request(n=2)) as batch:
        batch.add(make.request())
    drain(td, raising=False)
    assert (runs, got(td).completed, got(td, "inner").completed) == ([1, 2], 2, 1)
    assert (len(enqueued(td, jobs.load)), len(enqueued(td, jobs.report))) == (2, 2)


def test_a_handler_whose_batch_exists_fails(td: Treadle, jobs: Jobs) -> None:
    @td.job(max_attempts=1)
    def make() -> None:
        with td.batch("import-7"):
            pass

    make.enqueue()
    drain(td)
    job = make.enqueue()
    drain(td, raising=False)
    assert now(td, job).status is Status.FAILED


def test_a_batch_in_a_transaction_that_is_rolled_back(td: Treadle, jobs: Jobs) -> None:
    @td.job(max_attempts=1)
    def make(ctx: Context) -> None:
        with suppress(ZeroDivisionError), ctx.transaction():
            with td.batch("lost") as batch:
                batch.add(jobs.load.request(row=1))
            raise ZeroDivisionError
        with ctx.transaction(), td.batch("kept") as batch:
            batch.add(jobs.load.request(row=2))

    make.enqueue()
    drain(td)
    assert (td.batches.get("lost"), got(td, "kept").completed) == (None, 1)


@pytest.mark.parametrize("commits", [True, False])
def test_a_batch_in_your_own_transaction(td: Treadle, jobs: Jobs, commits: bool) -> None:
    if not td.store.joins_transactions:
        pytest.skip("a libSQL server takes no part in your transactions")
    td.jobs()  # makes the tables
    url = td.store.url
    connection = psycopg.connect(url) if url.startswith("postgres") else sqlite3.connect(url.removeprefix("sqlite:///"))
    with closing(connection):
        with td.batch("import-7", jobs.report.request(n=1), connection=connection) as batch:
            batch.add(jobs.load.request(row=1))
        assert td.batches.get("import-7") is None
        connection.commit() if commits else connection.rollback()
    drain(td)
    assert (td.batches.get("import-7") is not None, len(enqueued(td, jobs.report))) == (commits, int(commits))


def test_a_retried_member_lets_then_run(td: Treadle, jobs: Jobs) -> None:
    broken = [True]

    @td.job(max_attempts=1)
    def flaky() -> None:
        if broken[0]:
            raise Fail("not yet")

    with td.batch("import-7", jobs.report.request(n=1), jobs.alert.request()) as batch:
        request = batch.add(flaky.request())
    drain(td, raising=False)
    broken[0] = False
    td.retry(request.id)
    assert got(td).is_open
    drain(td)
    assert (len(enqueued(td, jobs.alert)), len(enqueued(td, jobs.report)), got(td).closings) == (1, 1, 2)
