"""Everything that locks rows on PostgreSQL, at once: no two transactions wait for each other."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

import msgspec
import psycopg
import pytest

from tests.conformance.helpers import (
    COMPLETED,
    FAILED,
    MINUTE,
    RETRIED,
    check_consistency,
    enlist,
    limit,
    new_job,
    put,
    put_and_take,
)
from tests.conformance.keyed_jobs import DEBOUNCE, REJECT, REPLACE, STARTED, call, keyed
from tests.eventually import eventually
from tests.servers.databases import deadlocks
from treadle import Dedupe, Limit, Rate, clock
from treadle.batch import NewBatch, member
from treadle.clock import SECOND
from treadle.codec import as_json
from treadle.dedupe import rule_text
from treadle.errors import BadOption, BatchExists, JobNotFound, KeyHeld, LeaseLost, WorkerLost, WrongStatus
from treadle.filters import EVERYTHING, Filter
from treadle.ids import first_id_of, new_id
from treadle.job import NewJob, Progress, Reschedule, Status
from treadle.limits import LimitChange
from treadle.outcome import CANCELLED, RELEASED, UNSTARTED, Outcome, OutcomeKind
from treadle.pauses import NewPause, Target
from treadle.schedule import NewSchedule, Rule
from treadle.steps import NewStep
from treadle.stores.base import ClaimRequest, TypePolicy
from treadle.stores.shared import claim_settle, keys, manage
from treadle.stores.transaction import WaitsForever
from treadle.waits import IF_FAILED, NewSignal, NewWait

THROTTLE = {"mode": "throttle", "period": 0.2}
RULES = [{}, STARTED, REPLACE, REPLACE | STARTED, DEBOUNCE, DEBOUNCE | STARTED, THROTTLE, REJECT, REJECT | STARTED]
LATER_RULES = [rule for rule in RULES if rule.get("mode") != "reject"]
"""For jobs that are stored when nobody could get the error."""
CHILD_RULES = [rule for rule in RULES if rule.get("mode") not in ("replace", "debounce")]
"""A job that may replace another has no parents."""
TYPES = ["free", "one", "three", "keyed", "rated"]
LIMITS = [Limit("two each", concurrency=2, per="tenant"), Limit("rate", rate=Rate(200, per=1, burst=5))]
KEYS = [f"key-{n}" for n in range(6)]
SCHEDULES = [f"schedule-{n}" for n in range(4)]
OVERLAPS = ["allow", "skip", "queue_one", "cancel_running"]
FILTERS = [EVERYTHING, *(Filter(statuses=(status,)) for status in Status), Filter(types=("free",))]
CHANGES = Reschedule(run_at=0, priority=1)
SIGNALS = [f"signal-{n}" for n in range(4)]
BATCHES = [f"batch-{n}" for n in range(3)]
EXPECTED = (BadOption, BatchExists, JobNotFound, KeyHeld, LeaseLost, WaitsForever, WorkerLost, WrongStatus)

Actor = Callable[[], None]


def some_jobs(most: int) -> list[NewJob]:
    """With keys of all modes in any order, the same key twice too."""
    return [a_job() for _ in range(random.randint(1, most))]


def a_job(rules: Sequence[Mapping[str, Any]] = RULES) -> NewJob:
    options: dict[str, Any] = {"tenant": random.choice(["", "acme"])}
    if random.random() < 0.7:
        key = random.choice(KEYS)
        options |= {"dedupe": key, "dedupe_rule": rule_text(Dedupe(key, **random.choice(rules)))}
    if random.random() < 0.2:
        options["start_within"] = 50_000
    return new_job(random.choice(TYPES), **options)


def an_outcome() -> Outcome:
    done = Outcome(OutcomeKind.COMPLETED, follow_ups=tuple(some_jobs(3)), signals=(a_signal(),))
    held = Outcome(OutcomeKind.SNOOZED, delay=10_000, charged=0, holds="")
    ended = [COMPLETED, COMPLETED, done, done, FAILED, CANCELLED]
    return random.choice([*ended, RETRIED, RELEASED, UNSTARTED, held, waits_for_a_signal(), waits_for_subjobs()])


def waits_for_a_signal() -> Outcome:
    wait = NewWait("signal", random.choice(SIGNALS), new_id(), timeout=random.choice([None, 20_000]))
    return Outcome(OutcomeKind.SUSPENDED, charged=0, waits=(wait,))


def waits_for_subjobs() -> Outcome:
    """A key may make a subjob another job, and so one for which others wait too."""
    jobs, step = some_jobs(3), new_id()
    waits = tuple(NewWait("subjob", job.id, step) for job in jobs)
    gather = NewStep(step, "gather", as_json([job.id for job in jobs]))
    return Outcome(OutcomeKind.SUSPENDED, charged=0, steps=(gather,), waits=waits, follow_ups=tuple(jobs))


def a_signal() -> NewSignal:
    return NewSignal(random.choice(SIGNALS), tenant=random.choice(["", "acme"]))


def a_step() -> NewStep:
    some = random.random() < 0.3
    return NewStep(new_id(), follow_ups=tuple(some_jobs(2)) if some else (), signals=(a_signal(),) if some else ())


class Storm:
    """Callers that act on the same few keys and jobs until the time is over."""

    def __init__(self, store: Any, seconds: float) -> None:
        self.store = store
        self.seconds = seconds
        self.done: Counter[str] = Counter()
        self.errors: list[Exception] = []
        store.open()
        limit(store, "one", 1)
        limit(store, "three", 3)
        store.publish([TypePolicy(type=type, limits=as_json(LIMITS)) for type in ("keyed", "rated")])

    def run(self) -> None:
        actors = [self.enqueues, self.enqueues, self.within, self.works, self.works, self.bulk, self.bulk]
        actors += [self.manages, self.in_transaction, self.rescues, self.fires, self.cleans]
        actors += [self.depends, self.signals, self.batches]
        threads = [threading.Thread(target=self._repeat, args=(actor,)) for actor in actors]
        self._until = time.monotonic() + self.seconds
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _repeat(self, actor: Actor) -> None:
        while time.monotonic() < self._until:
            try:
                actor()
                self.done[actor.__name__] += 1
            except EXPECTED:
                self.done["refused"] += 1
            except Exception as error:
                self.errors.append(error)

    def enqueues(self) -> None:
        self.store.insert(some_jobs(6))

    def within(self) -> None:
        with closing(psycopg.connect(self.store.url, prepare_threshold=None)) as users:
            for _ in range(10):
                try:
                    self.store.insert(some_jobs(4), users)
                except KeyHeld:
                    self.done["refused"] += 1
                random.choice([users.commit, users.commit, users.rollback])()

    def claims(self, worker: str = "", most: int = 8) -> list[Any]:
        types = dict.fromkeys(TYPES, None)
        return list(self.store.claim(worker, ClaimRequest(limit=random.randint(1, most), types=types)))

    def works(self) -> None:
        worker = enlist(self.store, f"w{random.getrandbits(40)}")
        for _ in range(random.randint(1, 10)):
            held = [*self.claims(worker), *self.claims(worker)]
            self.store.beat(worker, [(claimed, MINUTE) for claimed in held])
            random.shuffle(held)
            self.store.save_progress([(claimed, Progress(0.5, "half")) for claimed in held])
            self.store.save_steps([(claimed, a_step()) for claimed in held for _ in range(2)])
            self.store.settle([(claimed, an_outcome()) for claimed in held])

    def depends(self) -> None:
        """Children of jobs that end meanwhile, and of each other."""
        parents = [job.id for job in self.store.jobs(random.choice(FILTERS), 6) if job.tenant == ""]
        for _ in range(4):
            if parents:
                some = tuple(random.sample(parents, min(3, len(parents))))
                how = {"after": some, "if_failed": random.choice(IF_FAILED)}
                parents.append(self.store.insert([msgspec.structs.replace(a_job(CHILD_RULES), tenant="", **how)])[0].id)

    def signals(self) -> None:
        self.store.signal(a_signal())
        self.store.match()
        with closing(psycopg.connect(self.store.url, prepare_threshold=None)) as users:
            for _ in range(3):
                self.store.signal(a_signal(), users)
            random.choice([users.commit, users.rollback])()

    def batches(self) -> None:
        """All callers know the same few, and add to them while others end their members."""
        name = random.choice([*BATCHES, new_id()])
        jobs = tuple(member(msgspec.structs.replace(job, tenant=""), name, "") for job in some_jobs(4))
        then, on_failure = (msgspec.structs.replace(a_job(LATER_RULES), tenant="") for _ in range(2))
        if self.store.batch("", name) is None:
            self.store.insert_batch(NewBatch(name=name, jobs=jobs, then=then, on_failure=on_failure))
        else:
            self.store.insert(jobs)
        self.store.match()

    def in_transaction(self) -> None:
        for claimed in self.claims(most=2):
            with self.store.transaction(claimed, an_outcome):
                pass

    def bulk(self) -> None:
        action, chosen = random.choice(["cancel", "retry", "delete", "run_now", "reschedule"]), random.choice(FILTERS)
        before: str | None = first_id_of(clock.now() + MINUTE)
        while before is not None and time.monotonic() < self._until:
            before = self.store.change_next(action, chosen, before, 20, None, CHANGES).position

    def manages(self) -> None:
        store = self.store
        for job in store.jobs(random.choice(FILTERS), 20):
            verb = random.choice([store.cancel, store.retry, store.retry, store.delete, store.run_now, self.reschedule])
            try:
                verb(job.id)
            except EXPECTED:
                self.done["refused"] += 1
        store.complete([job.id for job in store.jobs(random.choice(FILTERS), 3)])

    def reschedule(self, id: str) -> None:
        self.store.reschedule(id, CHANGES)

    def rescues(self) -> None:
        for worker in self.store.workers()[-1:] if random.random() < 0.3 else ():
            self.store.declare_dead(worker.id, "stood still")
        self.store.rescue(silent_for=random.choice([None, SECOND]))

    def fires(self) -> None:
        name = random.choice(SCHEDULES)
        rule = Rule(every=random.randint(1, 9) * 1000)
        self.store.put_schedule(NewSchedule(name=name, type="free", rule=rule, overlap=random.choice(OVERLAPS)))
        for _ in range(5):
            self.store.fire(10)
        job = self.store.fire_now("", name)
        self.store.backfill("", name, [clock.now() - n * SECOND for n in range(3)])
        self.store.cancel(job.id)
        self.store.retry(job.id)

    def cleans(self) -> None:
        store, acme = self.store, Target(tenant="acme")
        store.expire(50)
        store.pause(NewPause(target=acme, by="storm"))
        store.prune((Status.COMPLETED, Status.CANCELLED), 20_000, 50)
        store.compact()
        store.resume(acme)
        store.put_back_parked()
        store.change_limit(LimitChange(name="two each", key="acme", concurrency=random.randint(1, 3)))
        store.open_limits()


def check_storm(open_store: Callable[..., Any], seconds: float) -> None:
    store = open_store(clock=clock.now)
    before = deadlocks(store.url)

    storm = Storm(store, seconds)
    storm.run()

    print(dict(storm.done))
    assert storm.errors == []
    store.close()
    assert deadlocks(store.url) == before
    check_consistency(store)


@pytest.fixture
def handles(open_store):
    """Two of them, which may not deadlock."""
    ours, theirs = open_store(), open_store()
    before = deadlocks(ours.url)
    yield ours, theirs
    ours.close()
    theirs.close()
    assert deadlocks(ours.url) == before


def while_others_wait(
    ours: Any, theirs: Callable[[], object], keys_of: list[Any], then_lock: Any, first: Any = None
) -> None:
    """Lock the keys of jobs, or the `first` job; when the other caller waits for one of them, lock another job."""
    waiting = "SELECT 1 FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE NOT granted AND datname = %s"
    other = threading.Thread(target=theirs)

    def steps(tx: Any) -> None:
        keys.lock(tx, [job.id for job in keys_of])
        if first is not None:
            manage.lock_job(tx, first.id)
        other.start()
        with closing(psycopg.connect(ours.url, autocommit=True)) as watcher:
            eventually(lambda: watcher.execute(waiting, [watcher.info.dbname]).fetchall())
        manage.lock_job(tx, then_lock.id)

    ours.database.write("other", steps)
    other.join()


@pytest.mark.only("postgresql")
def test_an_enqueue_that_waits_for_a_key_has_locked_no_job_without_its_key(handles):
    ours, theirs = handles
    first, second = call(ours, STARTED, "key-1"), call(ours, REPLACE, "key-2")

    def enqueue() -> None:
        theirs.insert([keyed(STARTED, "key-1"), keyed(REPLACE, "key-2")])

    while_others_wait(ours, enqueue, [first, second], first)


@pytest.mark.only("postgresql")
def test_a_handlers_transaction_that_waits_for_the_key_of_a_follow_up_has_not_deleted_its_lease(handles):
    ours, theirs = handles
    holder, [claimed] = call(ours, REPLACE, delay=MINUTE), [put_and_take(ours)]

    def complete() -> None:
        with theirs.transaction(claimed, lambda: Outcome(OutcomeKind.COMPLETED, follow_ups=(keyed(),))):
            pass

    while_others_wait(ours, complete, [holder], claimed)
    assert Status.COMPLETED is ours.get(claimed.id).status


@pytest.mark.only("postgresql")
def test_a_rescue_that_waits_for_a_lease_has_locked_no_other(handles, clock):
    ours, theirs = handles
    lost, stuck = put_and_take(ours, enlist(ours)), put_and_take(ours, lease_for=SECOND)
    ours.database.write("other", lambda tx: tx.execute(tx.sql.UNREGISTER, {"worker": "w1", "beats": None}))
    clock.advance(2)

    while_others_wait(ours, theirs.rescue, [], stuck, first=lost)
    assert [ours.get(job.id).status for job in (lost, stuck)] == [Status.PENDING] * 2


@pytest.mark.only("postgresql")
def test_the_chore_of_limits_waits_for_no_bucket_that_a_claim_changes(handles, clock):
    ours, theirs = handles
    ours.publish([TypePolicy(type="rated", limits=as_json(LIMITS))])
    put_and_take(ours, type="rated")
    clock.advance(60)  # the bucket is full again
    put(ours, "rated")

    def steps(tx: Any) -> None:
        assert len(claim_settle.claim(tx, "", ClaimRequest(limit=1))) == 1
        theirs.open_limits()

    ours.database.write("claim", steps)


@pytest.mark.only("postgresql")
def test_no_statement_keeps_a_plan_that_was_made_with_the_settings_of_a_user(store):
    """It may read leases in another order than a settle."""
    for _ in range(8):
        with store.transaction(put_and_take(store), lambda: COMPLETED) as connection:
            prepared = connection.execute("SELECT statement FROM pg_prepared_statements").fetchall()
            assert [] == [statement for (statement,) in prepared if "DELETE FROM treadle.leases" in statement]


@pytest.mark.only("postgresql")
def test_no_two_transactions_deadlock(open_store):
    check_storm(open_store, 4)


@pytest.mark.torture
@pytest.mark.timeout(1800)
@pytest.mark.only("postgresql")
def test_no_two_transactions_deadlock_for_minutes(open_store):
    check_storm(open_store, 300)
