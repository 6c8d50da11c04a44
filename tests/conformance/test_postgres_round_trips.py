"""The number of round trips to a PostgreSQL server: a proxy counts how often it answers after a request."""

from __future__ import annotations

from contextlib import closing

import pytest

from tests.conformance.helpers import enlist, limit, new_job, put_many, take
from tests.conformance.test_pauses import ACME, EMBED, MAIL, pause
from tests.conformance.test_waiting import waiting_for
from tests.servers.proxy import Proxy
from treadle import clock
from treadle.clock import SECOND
from treadle.codec import as_json
from treadle.limits import Limit, Rate
from treadle.outcome import COMPLETED
from treadle.steps import NewStep
from treadle.stores.base import TypePolicy
from treadle.stores.claim_order import Cursors
from treadle.stores.postgres.store import PostgresStore
from treadle.waits import NewSignal

pytestmark = pytest.mark.only("postgresql")


class Counter(Proxy):
    """Counts the answers: the server is ready for the next request once after each.

    A connection prepares a statement once, before it first executes it. That round trip is not counted.
    """

    answers = 0
    parsed = 0
    """Statements that the server has parsed."""
    has_parsed = False
    """Whether this is all that it has done since its last answer."""

    def from_server(self, message):
        self.answers += message.kind == b"Z" and not self.has_parsed
        self.parsed += message.kind == b"1"
        self.has_parsed = message.kind == b"1"
        return message


class CountingPooler(Counter):
    """As a pooler does, it sends a cancel key of its own."""

    def from_server(self, message):
        message = super().from_server(message)
        return message._replace(body=bytes(8)) if message.kind == b"K" else message


@pytest.fixture(params=[Counter])
def proxy(request, postgres_url):
    with request.param(postgres_url) as proxy:
        yield proxy


@pytest.fixture
def store(proxy):
    """A store whose connections are open, and whose statements are prepared."""
    with closing(PostgresStore(proxy.url())) as store:
        worker = enlist(store)
        put_many(store, 10)
        for claimed in [take(store, 1, worker=worker) for _ in range(10)]:
            store.settle([(c, COMPLETED) for c in claimed])
            store.beat(worker, [(c, 60 * SECOND) for c in claimed])
        take(store, worker=worker)
        yield store


def round_trips(proxy, call):
    before = proxy.answers
    answer = call()
    return proxy.answers - before, answer


@pytest.mark.parametrize(
    "options", [{}, {"delay": 60 * SECOND}, {"start_within": SECOND}, {"tenant": "acme", "fair": "tenant"}], ids=str
)
@pytest.mark.parametrize("n", [1, 100])
def test_an_insert_takes_one(store, proxy, n, options):
    jobs = [new_job(**options) for _ in range(n)]

    trips, stored = round_trips(proxy, lambda: store.insert(jobs))

    assert (1, stored) == (trips, [store.get(job.id) for job in jobs])


def test_an_insert_with_a_key_takes_more(store, proxy):
    """Who holds the key decides what is stored."""
    assert 1 < round_trips(proxy, lambda: store.insert([new_job(dedupe="k")]))[0]


def test_what_takes_one_is_parsed_when_it_comes_first(proxy):
    """The server takes longer to plan a claim than to execute it."""
    with closing(PostgresStore(proxy.url())) as store:
        worker, parsed = enlist(store), []
        for _ in range(3):
            put_many(store, 1)
            (claimed,) = take(store, 1, worker=worker)
            store.beat(worker, [(claimed, 60 * SECOND)])
            store.settle([(claimed, COMPLETED)])
            parsed.append(proxy.parsed)

    assert parsed[1] == parsed[2]


@pytest.mark.parametrize("types", [1, 5])
def test_a_claim_takes_one(store, proxy, types):
    """It looks, takes the most urgent jobs of all types, and returns when the next one is due."""
    store.insert([new_job(f"type-{n % types}", priority=n % 2) for n in range(300)])

    for wanted, found in (200, 200), (200, 100), (200, 0):
        trips, claimed = round_trips(proxy, lambda wanted=wanted: take(store, wanted, worker="w1"))
        assert (1, found) == (trips, len(claimed))
        assert (claimed.due is None) is (found == wanted)


def test_a_claim_takes_one_while_no_job_of_a_limited_type_waits(store, proxy):
    limit(store, "limited", 3)
    store.insert([new_job("limited", delay=60 * SECOND)])
    take(store, worker="w1")  # reads the limits
    put_many(store, 300)

    trips, claimed = round_trips(proxy, lambda: take(store, 200, worker="w1"))

    assert (1, 200) == (trips, len(claimed))


def test_a_claim_takes_one_while_jobs_wait_by_turns_that_it_does_not_want(store, proxy):
    store.insert([new_job(type, tenant="acme", fair="tenant") for type in ("fair", "turns") for _ in range(5)])
    put_many(store, 10)

    trips, claimed = round_trips(proxy, lambda: take(store, 20, types={"noop": None}, worker="w1"))
    assert (1, 10) == (trips, len(claimed))
    assert 5 == len(take(store, 20, types={"noop": None, "turns": None}, worker="w1"))


@pytest.mark.parametrize("target", [MAIL, EMBED, ACME], ids=["queue", "type", "tenant"])
def test_a_claim_of_other_jobs_takes_one_during_a_pause(store, proxy, target):
    """What is paused waits beside them, or is parked."""
    pause(store, target, until=2 * clock.now())
    store.insert([new_job("embed", queue="mail", tenant="acme") for _ in range(5)])
    take(store, worker="w1")  # parks the tenant's
    store.database.cursors = Cursors()  # as after a second
    put_many(store, 250)

    for wanted, found in (200, 200), (200, 50):
        trips, claimed = round_trips(proxy, lambda wanted=wanted: take(store, wanted, worker="w1"))
        assert (1, found) == (trips, len(claimed))
    assert claimed.due.in_seconds == pytest.approx(clock.now() / SECOND, rel=0.01)  # the end of the pause


def test_a_claim_that_meets_jobs_of_a_paused_tenant_parks_them_first(store, proxy):
    pause(store, ACME)
    store.insert([new_job(tenant="acme") for _ in range(5)])
    put_many(store, 5)

    trips, claimed = round_trips(proxy, lambda: take(store, 5, worker="w1"))

    assert (5, {""}) == (len(claimed), {c.tenant for c in claimed})
    assert trips > 1


def test_a_claim_in_one_learns_when_a_limit_lets_the_next_job_go(store, proxy):
    """The job is parked, so it is not among those that are due next."""
    limits = [Limit("api", rate=Rate(1, per=60, burst=1), per="tenant")]
    store.publish([TypePolicy(type="limited", limits=as_json(limits))])
    store.insert([new_job("limited", tenant="acme") for _ in range(2)])
    assert 1 == len(take(store, worker="w1"))
    store.database.cursors.claimed_at_once(0.0, succeeded=True)

    trips, claimed = round_trips(proxy, lambda: take(store, worker="w1"))

    assert (1, []) == (trips, claimed)
    assert claimed.due.in_seconds == pytest.approx(60, abs=30)


def test_a_claim_with_limits_is_not_tried_in_one_again(store):
    """It counts in a statement of its own, when it has locked them. The first claim learns that there are limits."""
    limit(store, "noop", 3)
    put_many(store, 5)

    assert [3, 0] == [len(take(store, 5)) for _ in range(2)]
    assert not store.database.cursors.may_claim_at_once()


def test_a_settle_of_completed_jobs_takes_one(store, proxy):
    put_many(store, 500)
    claimed = take(store, 500)

    assert (1, []) == round_trips(proxy, lambda: store.settle([(c, COMPLETED) for c in claimed]).lost)


def test_a_settle_of_completed_jobs_with_limits_takes_one(store, proxy):
    limits = [Limit("api", 10, per="tenant"), Limit("all", 100)]
    store.publish([TypePolicy(type="limited", limits=as_json(limits))])
    store.insert([new_job("limited", tenant=str(n % 5)) for n in range(50)])
    put_many(store, 10)
    claimed = take(store, 60)
    assert 60 == len(claimed)

    assert (1, []) == round_trips(proxy, lambda: store.settle([(c, COMPLETED) for c in claimed]).lost)
    assert {"all": 0, "api": 0} == {one.name: one.running for one in store.limits()}


def test_steps_of_many_handlers_take_one(store, proxy):
    put_many(store, 50)
    done = [(claimed, NewStep(name)) for claimed in take(store, 50) for name in ("a", "b")]

    for _ in "the first step of a run", "a later one":
        assert (1, [None] * 100) == round_trips(proxy, lambda: store.save_steps(done))


def test_a_signal_takes_one_and_its_job_three_more(store, proxy):
    """A claim that finds the signal, its match, and another claim. Then the handler reads its steps."""
    for name in "abcdefg":  # statements are prepared after some times
        put_many(store, 1)
        store.settle([(c, waiting_for(name)) for c in take(store)])
        take(store)
        signalled, _ = round_trips(proxy, lambda name=name: store.signal(NewSignal(name)))
        claimed, jobs = round_trips(proxy, lambda: take(store, 1))
        read, steps = round_trips(proxy, lambda jobs=jobs: store.steps(jobs[0].id))

    assert (1, 3, 1, ["ok"]) == (signalled, claimed, read, [step.name for step in steps])


def test_a_heartbeat_takes_one_also_if_deadlines_are_wrong(store, proxy):
    put_many(store, 50)
    claimed = take(store, 50, worker="w1", types={"noop": 60 * SECOND})

    for left in 60, 90:
        beat = lambda left=left: store.beat("w1", [(c, left * SECOND) for c in claimed])  # noqa: E731
        assert 1 == round_trips(proxy, beat)[0]


@pytest.mark.parametrize("proxy", [CountingPooler], indirect=True)
def test_behind_a_pooler_each_has_a_begin_and_a_commit(store, proxy):
    """Its sessions have not our settings."""
    assert 3 == round_trips(proxy, lambda: store.insert([new_job()]))[0]
    put_many(store, 50)
    claimed = take(store, 50, worker="w1")

    put_many(store, 50)
    assert 3 == round_trips(proxy, lambda: take(store, 50, worker="w1"))[0]
    assert 3 == round_trips(proxy, lambda: store.beat("w1"))[0]
    assert (3, [None]) == round_trips(proxy, lambda: store.save_steps([(claimed[0], NewStep("a"))]))
    assert (3, []) == round_trips(proxy, lambda: store.settle([(c, COMPLETED) for c in claimed]).lost)
