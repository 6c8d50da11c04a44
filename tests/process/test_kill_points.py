"""kill -9 in the middle of what takes several statements or commits: the next process finds nothing lost or doubled.

A child process kills itself at a statement or a commit. Another one continues, and is killed later, and so on.
`script/torture` kills at most statements.
"""

from __future__ import annotations

import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, NamedTuple

import pytest

from tests.conformance.forking import fork_and, wait
from tests.conformance.helpers import (
    COMPLETED,
    FakeClock,
    by_hand,
    check_consistency,
    enlist,
    everything,
    new_job,
    on_postgres,
    put_many,
    select,
    take,
)
from tests.eventually import eventually
from treadle import Dedupe, Treadle
from treadle import clock as time
from treadle.backfill import Backfill
from treadle.bulk import Bulk
from treadle.clock import SECOND
from treadle.dedupe import REPLACED_BY, rule_text
from treadle.filters import Filter
from treadle.job import NewJob, Reschedule, Status
from treadle.pauses import NewPause, Target
from treadle.pausing import put_back
from treadle.schedule import NewSchedule, Rule
from treadle.stores import open_store
from treadle.stores.postgres import connection as postgres
from treadle.stores.sqlite import connection as sqlite
from treadle.web.api.bulk import ABANDONED, BulkRunner
from treadle.worker.chores import expire
from treadle.worker.firing import fire_due


class Point(NamedTuple):
    """The n-th commit, before or after it, or the n-th statement."""

    when: str
    n: int


WORST = [Point("before", 1), Point("after", 1), Point("before", 2), Point("after", 2)]


def replaces(key: str) -> NewJob:
    return new_job(dedupe=key, dedupe_rule=rule_text(Dedupe(key, mode="replace")))


def is_killed_at(point: Point, work: Callable[[], object]) -> bool:
    """Have a new process do it. False if it was done before it came to that point."""

    def work_and_die() -> None:
        _arm(point)
        work()

    code = wait(fork_and(work_and_die))
    assert code in (0, -signal.SIGKILL)
    return code != 0


def _arm(point: Point) -> None:
    left = {"before": 0, "after": 0, "statement": 0, point.when: point.n}

    def die(here: str) -> None:
        left[here] -= 1
        if left[here] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def deadly(owner: Any, name: str, *places: str) -> None:
        original = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            if places[0] != "after":
                die(places[0])
            answer = original(*args, **kwargs)
            if places[-1] == "after":
                die("after")
            return answer

        setattr(owner, name, call)

    deadly(sqlite.Database, "_commit", "before", "after")
    deadly(postgres.Database, "commit", "before", "after")
    deadly(sqlite.Transaction, "execute", "statement")
    deadly(postgres.Transaction, "execute", "statement")


class Scenario(ABC):
    """Something that takes several statements or commits."""

    def __init__(self, store: Any, clock: FakeClock) -> None:
        self.store = store
        self.clock = clock
        self.set_up()

    @abstractmethod
    def set_up(self) -> None: ...

    @abstractmethod
    def act(self) -> object:
        """What is killed. The next process does it again."""

    def check(self) -> None:
        """What holds after each kill."""
        check_consistency(self.store)

    @abstractmethod
    def check_end(self) -> None:
        """What holds when it was done to the end."""


class Fire(Scenario):
    """Each moment has exactly one job."""

    def set_up(self) -> None:
        for overlap in ("allow", "skip", "queue_one", "cancel_running"):
            rule = Rule(every=SECOND)
            self.store.put_schedule(
                NewSchedule(name=overlap, type="noop", rule=rule, missed="all", overlap=overlap),
            )
        self.first = self.clock.now + SECOND
        self.check()

    def act(self) -> object:
        return fire_due(self.store, 60)

    def check(self) -> None:
        super().check()
        found = [(job.schedule, job.fired_at) for job in everything(self.store)]
        assert len(set(found)) == len(found)
        take(self.store, 1)  # so that one runs
        self.clock.advance(3)

    def check_end(self) -> None:
        fired = [job for job in everything(self.store) if job.schedule == "allow"]
        moments = sorted(time.from_datetime(job.fired_at) for job in fired if job.fired_at)
        assert moments == list(range(self.first, self.store.schedule("", "allow").next_at, SECOND))


class Operated(Scenario):
    """An operation of a web server, which another one resumes."""

    @abstractmethod
    def work(self) -> Bulk | Backfill: ...

    def set_up(self) -> None:
        self.app = Treadle(self.store.url)
        self.app._use(self.store)
        runner = BulkRunner(self.app)
        runner.close()  # it only records the operation
        self.id = runner.start("ann", self.work()).id
        self.check()

    def check(self) -> None:
        super().check()
        self.clock.advance(2 * ABANDONED / SECOND)  # so that the next process takes it over

    def act(self) -> object:
        BulkRunner(self.app).resume(self.store.operation(self.id))
        return eventually(lambda: self.store.operation(self.id).ended_at)

    def check_end(self) -> None:
        operation = self.store.operation(self.id)
        assert (operation.total, 0, None) == (operation.done, operation.skipped, operation.error)


class BackfillHalf(Operated):
    """Each moment has exactly one job, and counts once."""

    def work(self) -> Backfill:
        self.store.put_schedule(NewSchedule(name="digest", type="noop", rule=Rule(every=SECOND)))
        self.end = self.clock.now
        self.start = self.end - 450 * SECOND
        return Backfill(self.store, "", "digest", self.start, self.end)

    def check_end(self) -> None:
        super().check_end()
        moments = sorted(time.from_datetime(job.fired_at) for job in everything(self.store))
        assert moments == list(range(self.start, self.end, SECOND))


class RescheduleHalf(Operated):
    """A job that waits and its own row say the same."""

    def work(self) -> Bulk:
        put_many(self.store, 160)
        return Bulk(self.store, "reschedule", Filter(types=("noop",)), changes=Reschedule(priority=7, queue="fast"))

    def check(self) -> None:
        super().check()
        rows = "SELECT r.priority, r.queue FROM treadle.ready r JOIN treadle.jobs j ON j.id = r.id"
        assert not select(self.store, f"{rows} WHERE r.priority <> j.priority OR r.queue <> j.queue")
        done = select(self.store, "SELECT count(*) FROM treadle.ready WHERE queue = 'fast'")
        assert done == [(self.store.operation(self.id).done,)]

    def check_end(self) -> None:
        super().check_end()
        assert {("fast", 7)} == {(job.queue, job.priority) for job in everything(self.store)}


class Replace(Scenario):
    """A new job is stored if and only if the one before it was cancelled, or lets it wait."""

    KEYS = 8

    def set_up(self) -> None:
        self.act()
        self.running = take(self.store, self.KEYS // 2)

    def act(self) -> object:
        return self.store.insert([replaces(f"key-{n}") for n in range(self.KEYS)])

    def check(self) -> None:
        super().check()
        jobs = everything(self.store)
        by = [job.error.removeprefix(REPLACED_BY) for job in jobs if job.status is Status.CANCELLED]
        assert len(by) == len(set(by) & {job.id for job in jobs})
        waiting = sum(job.status is Status.PENDING for job in jobs)
        assert (0, self.KEYS if len(jobs) > self.KEYS else self.KEYS // 2) == (len(jobs) % self.KEYS, waiting)

    def check_end(self) -> None:
        self.store.settle([(claimed, COMPLETED) for claimed in self.running])
        assert len(take(self.store)) == self.KEYS


class Resume(Scenario):
    """No row stays parked."""

    JOBS = 3_500
    TARGET = Target(tenant="acme")

    def set_up(self) -> None:
        put_many(self.store, self.JOBS, tenant="acme")
        self.store.pause(NewPause(target=self.TARGET, by="ann"))
        while self.parked() < self.JOBS:
            assert take(self.store) == []

    def parked(self) -> int:
        [(parked,)] = select(self.store, "SELECT count(*) FROM treadle.ready WHERE parked <> ''")
        return int(parked)

    def act(self) -> object:
        self.store.resume(self.TARGET)
        return put_back(self.store)

    def check_end(self) -> None:
        assert ([(0,)], 0) == (select(self.store, "SELECT count(*) FROM treadle.pauses"), self.parked())
        assert len(take(self.store, self.JOBS)) == self.JOBS


class Expire(Scenario):
    """A job that was not started in time is cancelled, and holds no key."""

    JOBS = 2_100

    def set_up(self) -> None:
        jobs = [new_job(start_within=SECOND, dedupe=None if n % 20 else f"key-{n}") for n in range(self.JOBS)]
        self.store.insert(jobs)
        self.clock.advance(5)

    def act(self) -> object:
        return expire(self.store)

    def check_end(self) -> None:
        assert [{"status": "cancelled", "count": self.JOBS}] == self.store.counts(("status",)).rows
        assert select(self.store, "SELECT count(*) FROM treadle.dedupe") == [(0,)]


SCENARIOS = [Fire, BackfillHalf, RescheduleHalf, Replace, Resume, Expire]


@pytest.fixture
def opened(process_url: str) -> Iterator[tuple[Any, FakeClock]]:
    clock = FakeClock()
    with closing(open_store(process_url, clock=clock)) as store:
        yield store, clock
        assert on_postgres(store) or store.check() == "ok"


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_kills_between_commits_lose_and_double_nothing(opened: tuple[Any, FakeClock], scenario: type[Scenario]) -> None:
    world = scenario(*opened)
    killed = 0
    for point in WORST:
        killed += is_killed_at(point, world.act)
        world.check()
    assert killed >= 2
    world.act()
    check_consistency(world.store)
    world.check_end()


@pytest.mark.torture
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_kill_at_a_statement_loses_and_doubles_nothing(
    opened: tuple[Any, FakeClock], scenario: type[Scenario]
) -> None:
    n, killed = 1, True
    while killed:
        world = scenario(*opened)
        killed = is_killed_at(Point("statement", n), world.act)
        world.check()
        world.act()
        check_consistency(world.store)
        world.check_end()
        empty(world.store)
        n += 1 + n // 20  # hundreds of them are the same
    assert n > 3


def empty(store: Any) -> None:
    for table in ("jobs", "ready", "leases", "finished", "dedupe", "tallies", "pauses", "schedules", "fired"):
        with closing(by_hand(store)) as connection:
            connection.execute(f"DELETE FROM treadle.{table}" if on_postgres(store) else f"DELETE FROM treadle_{table}")
            connection.commit()


@pytest.mark.parametrize("point", [Point("before", 1), Point("after", 1), Point("after", 3), Point("statement", 9)])
def test_a_worker_that_is_killed_with_an_outcome_set_aside_loses_no_job(postgres_url: str, point: Point) -> None:
    with closing(open_store(postgres_url)) as store:
        enlist(store, "w1")
        [holder, other] = store.insert([replaces("key"), new_job()])
        held = take(store, worker="w1")
        with closing(by_hand(store)) as users:
            [successor] = store.insert([replaces("key")], users)

            def settle_forever() -> None:
                left = [(claimed, COMPLETED) for claimed in held]
                while left:
                    left = list(store.settle(left).set_aside)

            assert is_killed_at(point, settle_forever)
            assert Status.PROCESSING is store.get(holder.id).status
            users.commit()
        store.declare_dead("w1", "its process is gone")
        check_consistency(store)
        while claimed := take(store):
            assert successor.id not in [one.id for one in claimed] or store.get(holder.id).status.is_final
            store.settle([(one, COMPLETED) for one in claimed])
        assert {Status.COMPLETED} == {store.get(job.id).status for job in (holder, other, successor)}
        check_consistency(store)
