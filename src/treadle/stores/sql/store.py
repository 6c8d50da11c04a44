"""The verbs, written once for all databases that speak SQL. Each is one transaction, and what happens in it is in the
file of that name; a store adds how it connects, how it waits, and what only it can do."""

from __future__ import annotations

import logging
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from itertools import islice
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from treadle.diagnosis import JobFacts
from treadle.errors import CommitUnknown, JobNotFound, StoreBusy, StoreUnusable
from treadle.filters import EVERYTHING, Filter
from treadle.ids import is_id
from treadle.job import Attempt, ClaimedJob, FailureGroup, Job, NewJob, Page, Progress, Status, Usage
from treadle.outcome import Outcome
from treadle.stores.base import ClaimRequest, Inserted, TypePolicy, WorkerRow
from treadle.stores.rows import AuditRow, Batch, Beat, Counted, Due, Operation, QueueStats, Sampled, Settled, Token
from treadle.stores.sql import diagnosis, insert, manage, read, rescue, search, settle, stats, web_records
from treadle.stores.sql.insert import Insert
from treadle.stores.sql.transaction import Transaction

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("treadle")


class Connections(Protocol):
    """The connections of one process to a database. `pool` says what for, so that none starves another."""

    pid: int

    def write(
        self, pool: str, steps: Callable[Concatenate[Transaction, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Take the steps in one transaction. Nothing of them stays if they raise."""
        ...

    def read(
        self, pool: str, steps: Callable[Concatenate[Transaction, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Take steps that only read, each of which sees the newest commit."""
        ...

    def close(self) -> None: ...


D = TypeVar("D", bound=Connections)


class SQLStore(ABC, Generic[D]):
    """Jobs in tables. It connects when it is first used, can be closed, and connects again.

    Connections belong to the process that made them: a forked child leaves its parent's alone, and makes its own.
    """

    joins_transactions: bool

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

    already_there: ClassVar[type[Exception]]
    """What the driver raises if a row with that id is stored."""

    def insert(self, jobs: Sequence[NewJob], connection: Any = None) -> list[Job]:
        if connection is not None:
            return self._insert_within(connection, jobs)
        try:
            return self.database.write("insert", self._insert, jobs, insert.insert)
        except CommitUnknown as unknown:
            try:
                return self._insert_again(jobs)
            except (StoreUnusable, StoreBusy):
                raise unknown from None  # of the two, the one that says that the jobs may be there
        except (self.already_there, JobNotFound):
            # By an earlier try; or who held the key was deleted as we looked.
            return self._insert_again(jobs)

    @abstractmethod
    def _insert_within(self, connection: Any, jobs: Sequence[NewJob]) -> list[Job]:
        """Store them as part of the user's own transaction. If that fails, nothing of them stays in there."""

    def _insert_again(self, jobs: Sequence[NewJob]) -> list[Job]:
        return self.database.write("insert", self._insert, jobs, insert.insert_again)

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
        if isinstance(error, StoreBusy):  # each for itself would wait as long again
            joins = self.joins_transactions
            return [StoreBusy(error.where, error.seconds, joins_transactions=joins) for _ in groups]
        if isinstance(error, CommitUnknown):  # for all: another try could only say that the server is gone
            return [CommitUnknown(error.where, error.problem, error.way_out) for _ in groups]
        # One of them is to blame, and for anything: a value, a key, a right that only its tenant lacks. Alone, each
        # gets its own answer.
        log.debug("%d enqueues could not share a commit, each has its own now: %r", len(groups), error)
        return [self.insert_groups([group])[0] for group in groups]

    def publish(self, policies: Sequence[TypePolicy]) -> None:
        self.database.write("other", insert.publish, policies)

    def policies(self) -> dict[str, TypePolicy]:
        return self.database.read("read", insert.policies)

    # Claim and settle

    def due(self, request: ClaimRequest) -> Due:
        return self.database.read("claim", lambda tx: tx.due(request))

    def claim(self, worker: str, request: ClaimRequest) -> list[ClaimedJob]:
        return self.database.write("claim", lambda tx: tx.claim(worker, request))

    def settle(self, ended: Sequence[tuple[ClaimedJob, Outcome]]) -> Settled:
        return self.database.write("settle", settle.settle, ended) if ended else Settled(at=0)

    def save_progress(self, progress: Sequence[tuple[ClaimedJob, Progress]]) -> None:
        self.database.write("other", settle.save_progress, progress)

    def extend(self, claimed: ClaimedJob, until: int) -> ClaimedJob:
        return self.database.write("other", settle.extend, claimed, until)

    # Liveness

    def register(self, worker: WorkerRow) -> None:
        self.database.write("other", rescue.register, worker)

    def beat(self, worker: str) -> Beat:
        return self.database.write("beat", rescue.beat, worker)

    def cancelled(self, worker: str) -> list[int]:
        return self.database.read("settle", rescue.cancelled, worker)

    def release_unheld(self, worker: str, numbers: Collection[int]) -> int:
        return self.database.write("settle", rescue.release_unheld, worker, numbers)

    def declare_dead(
        self,
        worker: str,
        reason: str,
        *,
        beats: int | None = None,
        started: Collection[int] | None = None,
        outside: bool = False,
    ) -> int:
        return self.database.write(
            "other", rescue.declare_dead, worker, reason, beats=beats, started=started, outside=outside
        )

    def rescue(self, *, silent_for: int | None = None) -> int:
        return self.database.write("other", rescue.rescue, silent_for)

    def workers(self) -> list[WorkerRow]:
        return self.database.read("read", read.workers)

    # Manage

    def get(self, id: str) -> Job | None:
        return self.database.read("read", read.get, id) if is_id(id) else None

    def job_facts(self, id: str) -> JobFacts | None:
        return self.database.read("read", diagnosis.job_facts, id) if is_id(id) else None

    def attempts(self, id: str) -> list[Attempt]:
        return self.database.read("read", read.attempts, id) if is_id(id) else []

    def jobs(self, wanted: Filter, limit: int, before: str | None = None) -> Page:
        return self.database.read("read", search.jobs, wanted, limit, before)

    def counts(self, by: Sequence[str], wanted: Filter = EVERYTHING, most: int | None = None) -> Counted:
        return self.database.read("read", search.counts, by, wanted, most)

    def queue_stats(self) -> list[QueueStats]:
        return self.database.read("read", stats.queue_stats)

    def usage(self, since: int, until: int, step: int, by: Sequence[str], tenant: str | None = None) -> list[Usage]:
        return self.database.read("read", stats.usage, since, until, step, by, tenant)

    def latency_sample(self) -> list[Sampled]:
        return self.database.read("read", stats.latency_sample)

    def failures(self) -> list[FailureGroup]:
        return self.database.read("read", stats.failures)

    def cancel(self, id: str) -> Job:
        return self._manage(id, manage.cancel)

    def retry(self, id: str) -> Job:
        return self._manage(id, manage.retry)

    def delete(self, id: str) -> Job:
        return self._manage(id, manage.delete)

    def run_now(self, id: str) -> Job:
        return self._manage(id, manage.run_now)

    def batch(self, action: str, wanted: Filter, before: str | None, limit: int, operation: str | None = None) -> Batch:
        return self.database.write("other", manage.batch, action, wanted, before, limit, operation)

    def _manage(self, id: str, verb: Callable[[Transaction, str], Job]) -> Job:
        if not is_id(id):
            raise JobNotFound(id)
        return self.database.write("other", verb, id)

    def complete(self, ids: Sequence[str]) -> int:
        return self.database.write("other", manage.complete, [id for id in ids if is_id(id)])

    def prune(self, statuses: Sequence[Status], before: int, limit: int) -> int:
        return self.database.write("other", manage.prune, statuses, before, limit)

    # The records of the HTTP API

    def audit(self, row: AuditRow) -> None:
        self.database.write("other", web_records.audit, row)

    def audits(self, limit: int, before: str | None = None) -> list[AuditRow]:
        return self.database.read("read", web_records.audits, limit, before)

    def add_token(self, token: Token) -> bool:
        return self.database.write("other", web_records.add_token, token)

    def token(self, hash: str) -> Token | None:
        return self.database.read("read", web_records.token, hash)

    def tokens(self) -> list[Token]:
        return self.database.read("read", web_records.tokens)

    def drop_token(self, name: str) -> bool:
        return self.database.write("other", web_records.drop_token, name)

    def start_operation(self, operation: Operation) -> None:
        self.database.write("other", web_records.start, operation)

    def resume_operation(self, operation: Operation) -> bool:
        return self.database.write("other", web_records.resume, operation)

    def fail_operation(self, id: str, error: str) -> None:
        self.database.write("other", web_records.fail, id, error)

    def operation(self, id: str) -> Operation | None:
        return self.database.read("read", web_records.operation, id) if is_id(id) else None

    def operations(self, limit: int) -> list[Operation]:
        return self.database.read("read", web_records.operations, limit)

    def insert_once(self, tenant: str, key: str, hash: str, jobs: Sequence[NewJob]) -> tuple[list[Job], bool]:
        def steps(tx: Transaction, how: Insert) -> tuple[list[Job], bool]:
            if (found := web_records.answered(tx, tenant, key, hash, jobs)) is not None:
                return found, False
            stored = self._insert(tx, jobs, how)
            if [job.id for job in stored] != [job.id for job in jobs]:
                web_records.correct_answer(tx, tenant, key, stored)
            return stored, True

        try:
            return self.database.write("insert", steps, insert.insert)
        except CommitUnknown:
            stored, _ = self.database.write("insert", steps, insert.insert)  # if it was committed, this finds the jobs
            return stored, True
        except (self.already_there, JobNotFound):  # as in insert
            return self.database.write("insert", steps, insert.insert_again)
