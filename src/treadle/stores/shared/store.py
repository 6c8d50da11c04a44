"""The verbs, written once for all SQL databases. Each is one transaction, whose steps are in the file of that name. A
store adds how it connects, how it waits, and what only it can do."""

from __future__ import annotations

import logging
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any, Generic, ParamSpec, TypeVar

from treadle.errors import CommitUnknown, JobNotFound, LeaseLost, StoreBusy, StoreRefused, StoreUnusable
from treadle.job import ClaimedJob, Job, NewJob, Status
from treadle.outcome import Outcome
from treadle.schedule import NewSchedule
from treadle.steps import NewStep
from treadle.stores.base import LAST_PRUNED, ClaimRequest, Inserted
from treadle.stores.rows import ChoresDue, Claim, Due, ScheduleRow, Settled
from treadle.stores.shared import (
    backlog,
    batches,
    claim_settle,
    closing,
    defects,
    enqueue,
    expiry,
    fire,
    limits,
    lineage,
    liveness,
    logs,
    manage,
    matching,
    moved,
    pausing,
    read,
    schedules,
    search,
    stats,
    steps,
    waiting,
    web_records,
)
from treadle.stores.shared.verbs import moves, reads, returns, writes
from treadle.stores.transaction import Connections, Insert, KeysLocked, Steps, Transaction, WaitsForever
from treadle.waits import NewSignal, Signal

RECORDS = 2_500
"""Usage, signals, batches and such of which one transaction deletes so many; ten times as many of small ones."""
P = ParamSpec("P")
T = TypeVar("T")
D = TypeVar("D", bound=Connections)

log = logging.getLogger("treadle")


class SQLStore(ABC, Generic[D]):
    """Jobs in tables. It connects when it is first used, can be closed, and connects again.

    Connections belong to the process that made them: a forked child leaves its parent's alone, and makes its own.
    """

    joins_transactions: bool
    where: str
    opens_moved = False
    """Whether it also opens a database whose jobs are elsewhere, or not all there yet: for `treadle copy` alone."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._opening = threading.Lock()
        self._database: D | None = None

    @abstractmethod
    def _connections(self) -> D:
        """New ones, to a database that may have no tables yet, or old ones."""

    @abstractmethod
    def _prepare(self, database: D) -> None:
        """Make sure that the tables are there, and that we can work with them."""

    def _inherit(self, parents: D) -> None:
        """A forked child finds the connections of its parent."""

    @property
    def database(self) -> D:
        """This process's connections."""
        database = self._database
        return database if database is not None and database.pid == os.getpid() else self._connect()

    def _connect(self) -> D:
        if self._pid != os.getpid():  # a thread of the parent may have held the lock
            self._opening, self._pid = threading.Lock(), os.getpid()
        with self._opening:
            if self._database is not None and self._database.pid != os.getpid():
                self._inherit(self._database)
                self._database = None
            if self._database is None:
                database = self._connections()
                try:
                    self._prepare(database)
                    if not self.opens_moved:
                        database.read("other", moved.refuse_moved, self.where)
                except BaseException:
                    database.close()
                    raise
                self._database = database
            return self._database

    def open(self) -> None:
        _ = self.database

    def close(self) -> None:
        database = self._database
        if database is not None and database.pid == os.getpid():
            self._database = None
            database.close()

    # Enqueue

    def insert(self, jobs: Sequence[NewJob], connection: Any = None) -> list[Job]:
        if connection is not None:
            with self._within(connection) as tx:
                return self._insert(tx, jobs, enqueue.insert_again)
        try:
            return self._insert_now(jobs)
        except CommitUnknown as unknown:
            try:
                return self._insert_again(jobs)
            except (StoreUnusable, StoreBusy):
                raise unknown from None  # of the two errors, this one says that the jobs may be stored
        except (StoreRefused, JobNotFound):
            # An earlier try may have stored them, or the holder of a key was deleted just after we found it.
            return self._insert_again(jobs)

    @abstractmethod
    def _within(self, connection: Any) -> AbstractContextManager[Transaction]:
        """The user's own open transaction. If the block raises, nothing of it stays in there."""

    def _insert_now(self, jobs: Sequence[NewJob]) -> list[Job]:
        return self.database.write("insert", enqueue.insert, jobs)

    def _insert_again(self, jobs: Sequence[NewJob]) -> list[Job]:
        return self.database.write("insert", self._insert, jobs, enqueue.insert_again)

    def _insert(self, tx: Transaction, jobs: Sequence[NewJob], how: Insert) -> list[Job]:
        return how(tx, jobs)

    def insert_groups(self, groups: Sequence[Sequence[NewJob]]) -> list[Inserted]:
        try:  # all together: statements cost more than rows
            stored = iter(self.insert([job for group in groups for job in group]))
            return [list(islice(stored, len(group))) for group in groups]
        except Exception as error:
            return [error] if len(groups) == 1 else self._insert_apart(groups, error)

    def _insert_apart(self, groups: Sequence[Sequence[NewJob]], error: Exception) -> list[Inserted]:
        """Their common commit failed."""
        if isinstance(error, StoreBusy):  # one by one, each of them would wait just as long
            return [StoreBusy(error.where, error.seconds, joins_transactions=self.joins_transactions) for _ in groups]
        if isinstance(error, CommitUnknown):  # of all of them: another try could only find that the server is gone
            return [CommitUnknown(error.where, error.problem) for _ in groups]
        # The cause is in one of them: a value, a key, a right that only its tenant lacks. Stored one by one, each gets
        # its own result.
        log.debug("%d enqueues could not share a commit, each has its own now: %r", len(groups), error)
        return [self.insert_groups([group])[0] for group in groups]

    publish = writes("other", enqueue.publish)
    policies = reads("read", enqueue.policies)
    arguments = reads("read", enqueue.arguments)

    # Claim and settle

    def due(self, request: ClaimRequest) -> Due:
        return self.database.read("claim", lambda tx: tx.due(request))

    def move(self, pool: str, steps: Steps[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Take the steps in one transaction. If a row is in the way that contradicts others, it is removed first. Jobs
        whose dedupe keys other transactions have locked are set aside."""
        try:
            return self.database.write(pool, steps, *args, **kwargs)
        except KeysLocked as locked:
            return self._move_rest(pool, set(locked.ids), steps, *args, **kwargs)
        except StoreRefused:
            if not self.database.write(pool, defects.repair):
                raise
            return self.database.write(pool, steps, *args, **kwargs)

    def _move_rest(self, pool: str, aside: set[str], steps: Steps[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        def rest(tx: Transaction) -> T:
            tx.set_aside = frozenset(aside)
            return steps(tx, *args, **kwargs)

        while True:
            try:
                return self.database.write(pool, rest)
            except KeysLocked as locked:
                aside |= set(locked.ids)

    def claim(self, worker: str, request: ClaimRequest) -> Claim:
        claimed = self._claim(worker, request)
        return matching.claim_more(self, worker, request, claimed) if claimed.arrived else claimed

    def _claim(self, worker: str, request: ClaimRequest) -> Claim:
        return self.move("claim", claim_settle.claim, worker, request)

    def _match(self, request: ClaimRequest, claimed: Claim) -> int:
        return self.match()

    def settle(self, ended: Sequence[tuple[ClaimedJob, Outcome]]) -> Settled:
        if not ended:
            return Settled(at=0)
        try:
            return self.move("settle", claim_settle.settle, ended)
        except WaitsForever as error:
            return self.settle([(claimed, error.outcome(claimed, outcome)) for claimed, outcome in ended])
        except StoreBusy:
            if not any(map(claim_settle.may_have_waited, ended)):
                raise
            return self._settle_apart(ended)

    def _settle_apart(self, ended: Sequence[tuple[ClaimedJob, Outcome]]) -> Settled:
        """A follow-up of one of them has waited for its dedupe key. It is set aside, and the rest goes on."""
        if len(ended) == 1:
            return Settled(at=0, set_aside=ended)
        rest = [one for one in ended if not claim_settle.may_have_waited(one)]
        parts = [self.settle(rest), *(self.settle([one]) for one in ended if claim_settle.may_have_waited(one))]
        return Settled(
            max(part.at for part in parts),
            [one for part in parts for one in part.written],
            [one for part in parts for one in part.lost],
            [one for part in parts for one in part.set_aside],
        )

    def complete_within(self, claimed: ClaimedJob, outcome: Outcome, connection: Any) -> None:
        try:
            with self._within(connection) as tx:
                claim_settle.settle_in_transaction(tx, claimed, outcome)
        except LeaseLost:
            self._undo(connection)
            raise

    @abstractmethod
    def _undo(self, connection: Any) -> None:
        """See to it that what the user's transaction has written is not committed."""

    save_progress = writes("other", liveness.save_progress)
    extend = writes("other", liveness.extend)

    # Liveness

    register = writes("other", liveness.register)
    beat = writes("beat", liveness.beat)
    cancelled = reads("settle", liveness.cancelled)
    release_unheld = returns("settle", liveness.release_unheld)
    declare_dead = returns("other", liveness.declare_dead)
    rescue = returns("other", liveness.rescue)
    workers = reads("read", read.workers)

    # Manage

    defects = reads("read", defects.defects)
    get = reads("read", read.get)
    plain_key = reads("read", read.plain_key)
    ids_between = reads("read", read.ids_between)
    job_facts = reads("read", read.job_facts)
    attempts = reads("read", read.attempts)
    jobs = reads("read", search.jobs)
    counts = reads("read", search.counts)
    queue_stats = reads("read", stats.queue_stats)
    usage = reads("read", stats.usage)
    backlog = reads("read", backlog.backlog)
    latency_sample = reads("read", stats.latency_sample)
    failures = reads("read", stats.failures)
    cancel = moves("other", manage.cancel)
    retry = writes("other", manage.retry)
    delete = moves("other", manage.delete)
    run_now = writes("other", manage.run_now)
    reschedule = writes("other", manage.reschedule)
    change_next = moves("other", manage.change_next)

    def expire(self, limit: int) -> int:
        database = self.database
        return database.write("other", expiry.expire, limit) if database.read("read", expiry.has_expired) else 0

    def chores_due(self) -> ChoresDue:
        return self.database.read("read", liveness.chores_due, self.where)

    def sample_backlog(self) -> int:
        database = self.database
        if database.read("read", backlog.is_sampled):
            return 0
        return database.write("other", backlog.sample, database.read("read", backlog.count))

    complete = moves("other", manage.complete)

    def prune(self, statuses: Sequence[Status], before: int, limit: int) -> int:
        pruned = self._prune(statuses, before, limit) if statuses else 0
        if pruned < min(limit, LAST_PRUNED):  # the last chunk
            self.database.write("other", manage.prune_records, before if statuses else None, min(limit, RECORDS))
        return pruned

    def _prune(self, statuses: Sequence[Status], before: int, limit: int) -> int:
        return self.database.write("other", manage.prune, statuses, before, limit)

    # Limits

    change_limit = writes("other", limits.change_limit)
    unset_limit = writes("other", limits.unset_limit)

    def open_limits(self, after: str = "") -> tuple[int, str]:
        if not self.database.read("read", limits.has_limits):
            return 0, ""
        return self.database.write("other", limits.open_limits, after)

    full_limits = reads("read", limits.full_limits)
    limits = reads("read", limits.limits)

    # Pauses

    pause = writes("other", pausing.pause)
    resume = writes("other", pausing.resume)
    pauses = reads("read", pausing.pauses)
    put_back_parked = writes("other", pausing.put_back_parked)
    running_of = reads("read", pausing.running_of)
    claiming = reads("read", pausing.claiming)
    set_quiet = writes("other", liveness.set_quiet)

    # Steps, waits and signals

    def save_steps(self, done: Sequence[tuple[ClaimedJob, NewStep]]) -> list[Exception | None]:
        try:
            return self._save_steps(done)
        except Exception as error:
            is_of_one = not isinstance(error, StoreBusy) or any(map(claim_settle.may_have_waited, done))
            if len(done) == 1 or isinstance(error, StoreUnusable) or not is_of_one:
                return [error] * len(done)
            return [self.save_steps([one])[0] for one in done]

    def _save_steps(self, done: Sequence[tuple[ClaimedJob, NewStep]]) -> list[Exception | None]:
        return self.database.write("settle", claim_settle.save_steps, done)

    ends = reads("read", steps.ends)
    steps = reads("read", steps.steps)
    save_logs = writes("settle", logs.save_logs)
    logs = reads("read", logs.logs)
    waits = reads("read", waiting.waits)
    parents = reads("read", waiting.parents)
    held = reads("read", read.held)
    lineage = reads("read", lineage.lineage)
    get_signal = reads("read", waiting.get_signal)
    match = matching.match_arrivals

    def signal(self, new: NewSignal, connection: Any = None) -> Signal:
        if connection is None:
            return self.database.write("other", waiting.signal, new)
        with self._within(connection) as tx:
            return waiting.signal(tx, new)

    # Batches

    insert_batch = closing.insert_batch
    batch = reads("read", batches.batch)
    batches = reads("read", batches.batches)

    # Schedules

    declare_schedules = writes("other", schedules.declare)
    odd_schedules = reads("read", schedules.odd_schedules)
    pause_schedule = writes("other", schedules.pause)
    resume_schedule = writes("other", schedules.resume)
    delete_schedule = writes("other", schedules.delete)
    schedule = reads("read", schedules.schedule)
    schedules = reads("read", schedules.schedules)
    fire_now = writes("other", fire.fire_now)
    backfill = writes("other", fire.backfill)
    next_fire = reads("other", fire.next_fire)
    fire = moves("other", fire.fire)

    def put_schedule(self, new: NewSchedule, connection: Any = None) -> ScheduleRow:
        if connection is None:
            return self.database.write("other", schedules.put, new)
        with self._within(connection) as tx:
            return schedules.put(tx, new)

    # The records of the HTTP API

    audit = writes("other", web_records.audit)
    audits = reads("read", web_records.audits)
    add_token = writes("other", web_records.add_token)
    token = reads("read", web_records.token)
    tokens = reads("read", web_records.tokens)
    drop_token = writes("other", web_records.drop_token)
    start_operation = writes("other", web_records.start)
    resume_operation = writes("other", web_records.resume)
    fail_operation = writes("other", web_records.fail)
    operation = reads("read", web_records.operation)
    operations = reads("read", web_records.operations)
    insert_once = web_records.insert_once
