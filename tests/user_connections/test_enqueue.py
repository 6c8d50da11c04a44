"""`using(connection=…)` with every kind of connection: a commit of the user stores and announces the job."""

from __future__ import annotations

import pytest

from tests.user_connections.kinds import ASYNC, KINDS, done
from tests.user_connections.test_drivers import every_kind, on_a_loop, orders
from treadle import Dedupe, KeyHeld, Treadle
from treadle.job import Status
from treadle.outcome import COMPLETED
from treadle.stores import open_store
from treadle.stores.base import ClaimRequest

ORDER = "INSERT INTO orders VALUES (1, 'theirs')"

pytestmark = pytest.mark.filterwarnings("ignore::treadle.errors.BlocksTheLoop")  # nothing else runs when they look


@pytest.fixture
def td(jobs_url):
    app = Treadle(jobs_url)
    yield app
    app.close()


@pytest.fixture
def ship(td):
    @td.job
    def ship(order: int) -> None: ...

    return ship


@pytest.fixture
def worker(jobs_url):
    """Another store, which listens for jobs."""
    store = open_store(jobs_url)
    yield store
    store.close()


async def enqueue(ship, kind, user, order, **options):
    using = ship.using(connection=user.connection, **options)
    return await using.aenqueue(order) if kind in ASYNC else using.enqueue(order)


def claim(store):
    return store.claim("", ClaimRequest(limit=10))


@every_kind
@on_a_loop
async def test_a_job_can_be_claimed_when_the_users_transaction_has_committed(kind, td, ship, worker, jobs_url):
    async with KINDS[kind](jobs_url) as user:
        await user.execute(ORDER)
        job = await enqueue(ship, kind, user, 1)
        assert (None, []) == (td.get(job.id), claim(worker))

        await done(user.commit())

        (claimed,) = claim(worker)
    assert (job.id, '{"order":1}') == (claimed.id, claimed.payload)
    assert ([(1, "theirs")], Status.PROCESSING) == (orders(jobs_url), td.get(job.id).status)
    assert [{"count": 1}] == worker.counts(()).rows


@every_kind
@on_a_loop
async def test_there_is_no_job_if_the_users_transaction_rolls_back(kind, ship, worker, jobs_url):
    async with KINDS[kind](jobs_url) as user:
        await user.execute(ORDER)
        await enqueue(ship, kind, user, 1, dedupe="k")

        await done(user.rollback())

        assert ([], [], []) == (orders(jobs_url), claim(worker), worker.counts(()).rows)
    assert Status.PENDING == (await ship.using(dedupe="k").aenqueue(1)).status


@every_kind
@on_a_loop
async def test_a_schedule_is_put_when_the_users_transaction_commits(kind, td, ship, jobs_url):
    async with KINDS[kind](jobs_url) as user:
        await user.execute(ORDER)
        for every in (60, 90):  # it is new, and it is changed
            options = {"every": every, "payload": {"order": 1}, "tenant": "acme", "connection": user.connection}
            put = (
                await td.schedules.aput("s", ship, **options)
                if kind in ASYNC
                else td.schedules.put("s", ship, **options)
            )
            assert every == put.every
        assert [] == td.schedules.list().schedules

        await done(user.commit())

    [found] = td.schedules.list()
    assert ("acme", "s", 90, {"order": 1}, 2) == (
        found.tenant, found.name, found.every, found.payload, found.revision,
    )  # fmt: skip


@every_kind
@on_a_loop
async def test_listeners_are_notified_when_the_users_transaction_commits(kind, ship, worker, jobs_url):
    worker.open()
    watch = worker.watch()
    while watch.wait(0.1):
        pass  # a new listener looks a few times at first
    async with KINDS[kind](jobs_url) as user:
        await user.execute(ORDER)
        job = await enqueue(ship, kind, user, 1)
        assert not watch.wait(0.02)

        await done(user.commit())

        assert watch.wait(20)
    assert [job.id] == [claimed.id for claimed in claim(worker)]
    watch.close()


@every_kind
@on_a_loop
async def test_a_key_in_use_returns_its_holder(kind, td, ship, jobs_url):
    holder = await ship.using(dedupe="k").aenqueue(1)
    async with KINDS[kind](jobs_url) as user:
        await user.execute(ORDER)
        first = await enqueue(ship, kind, user, 1, dedupe="k")
        again = await enqueue(ship, kind, user, 1, dedupe="l")
        same = await enqueue(ship, kind, user, 1, dedupe="l")
        await done(user.commit())

    assert (holder.id, again.id) == (first.id, same.id)
    assert {holder.id, again.id} == {job.id for job in td.jobs()}


@every_kind
@on_a_loop
async def test_a_new_job_replaces_the_waiting_one_and_waits_behind_a_running_one(kind, td, ship, worker, jobs_url):
    """Every statement of the modes runs on every driver."""
    modes = {"replace": Dedupe("r", mode="replace"), "debounce": Dedupe("d", mode="debounce", wait=1, at_most=9)}
    waits = [await ship.using(dedupe=Dedupe(key, mode="replace")).aenqueue(1) for key in ("r", "d")]
    runs = await ship.using(dedupe="running", priority=1).aenqueue(1)
    [running] = worker.claim("", ClaimRequest(limit=1))
    async with KINDS[kind](jobs_url) as user:
        await user.execute(ORDER)
        new = [await enqueue(ship, kind, user, 2, dedupe=dedupe) for dedupe in modes.values()]
        behind = await enqueue(ship, kind, user, 2, dedupe=Dedupe("running", mode="replace"))
        newest = await enqueue(ship, kind, user, 2, dedupe=Dedupe("running", mode="replace"))
        await enqueue(ship, kind, user, 2, dedupe=Dedupe("throttled", mode="throttle", period=60))
        await enqueue(ship, kind, user, 2, dedupe=Dedupe("started", until="started"))
        await enqueue(ship, kind, user, 2, dedupe=Dedupe("started", until="started"))
        with pytest.raises(KeyHeld):
            await enqueue(ship, kind, user, 2, dedupe=Dedupe("started", mode="reject"))
        await done(user.commit())

    assert [f"replaced by {job.id}" for job in new] == [td.get(job.id).error for job in waits]
    assert f"replaced by {newest.id}" == td.get(behind.id).error
    assert runs.id == running.id
    worker.settle([(running, COMPLETED)])
    assert {new[0].id, newest.id} <= {claimed.id for claimed in claim(worker)}
