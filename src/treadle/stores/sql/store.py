"""The verbs, written once for all databases that speak SQL. Each is one transaction, and what happens in it is in the
file of that name; a store adds how it connects, how it waits, and what only it can do."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from itertools import islice
from typing import Any, ClassVar, TypeVar

import msgspec

from treadle.diagnosis import JobFacts
from treadle.errors import CommitUnknown, JobNotFound, LeaseLost, StoreBusy, StoreUnusable
from treadle.filters import EVERYTHING, Filter
from treadle.ids import is_id
from treadle.job import Attempt, ClaimedJob, FailureGroup, Job, NewJob, Page, Progress, Status, Usage
from treadle.outcome import Outcome
from treadle.stores.base import Beat, ClaimRequest, Due, Inserted, Settled, TypePolicy, WorkerRow
from treadle.stores.rows import AuditRow, Batch, Counted, Operation, QueueStats, Sampled, Token
from treadle.stores.sql import diagnosis, insert, lanes, manage, read, rescue, search, settle, stats, web_records
from treadle.stores.sql.fork_safe import D, PerProcess
from treadle.stores.sql.insert import Insert, as_json
from treadle.stores.sql.transaction import Transaction

T = TypeVar("T")

log = logging.getLogger("treadle")


class SQLStore(PerProcess[D]):
    """Jobs in tables."""

    joins_transactions: bool

    @abstractmethod
    def _write(self, verb: str, steps: Callable[[Transaction], T]) -> T:
        """Take the steps in one transaction."""

    @abstractmethod
    def _read(self, verb: str, steps: Callable[[Transaction], T]) -> T:
        """Take steps that only read, each of which sees the newest commit."""

    # Enqueue

    already_there: ClassVar[type[Exception]]
    """What the driver raises if a row with that id is stored."""

    def insert(self, jobs: Sequence[NewJob], connection: Any = None) -> list[Job]:
        if connection is not None:
            return self._insert_within(connection, jobs)
        try:
            return self._write("insert", lambda tx: self._insert(tx, jobs, insert.insert))
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
        return self._write("insert", lambda tx: self._insert(tx, jobs, insert.insert_again))

    def _insert(self, tx: Transaction, jobs: Sequence[NewJob], how: Insert) -> list[Job]:
        return how(tx, jobs)

    def insert_groups(self, groups: Sequence[Sequence[NewJob]]) -> list[Inserted]:
        if len(groups) > 1:
            try:
                return self._insert_together(groups)
            except StoreBusy as error:  # each for itself would wait as long again
                joins = self.joins_transactions
                return [StoreBusy(error.where, error.seconds, joins_transactions=joins) for _ in groups]
            except CommitUnknown as error:  # and is for all: another try could only say that the server is gone
                return [CommitUnknown(error.where, error.problem, error.way_out) for _ in groups]
            except Exception as error:
                # One of them is to blame, and for anything: a value, a key, a right that only its tenant lacks. Alone,
                # each hears of what is its own.
                log.debug("%d enqueues could not share a commit, each has its own now: %r", len(groups), error)
        return [self._insert_or_error(group) for group in groups]

    def _insert_together(self, groups: Sequence[Sequence[NewJob]]) -> list[Inserted]:
        jobs = [job for group in groups for job in group]  # as if they were one's: statements cost more than rows
        stored = iter(self.insert(jobs))
        return [list(islice(stored, len(group))) for group in groups]

    def _insert_or_error(self, jobs: Sequence[NewJob]) -> Inserted:
        try:
            return self.insert(jobs)
        except Exception as error:
            return error

    def publish(self, policies: Sequence[TypePolicy]) -> None:
        def steps(tx: Transaction) -> None:
            for policy in sorted(policies, key=lambda policy: policy.type):
                tx.execute(tx.sql.PUBLISH, {**msgspec.structs.asdict(policy), "now": tx.now})

        self._write("publish", steps)

    def policies(self) -> dict[str, TypePolicy]:
        rows = self._read("read", lambda tx: tx.execute(tx.sql.POLICIES).fetchall())
        names = TypePolicy.__struct_fields__
        return {row[0]: TypePolicy(**dict(zip(names, row, strict=True))) for row in rows}

    # Claim and settle

    def due(self, wanted: ClaimRequest) -> Due:
        return self._read("claim", lambda tx: tx.moves.due(tx, wanted))

    def claim(self, worker: str, wanted: ClaimRequest) -> list[ClaimedJob]:
        return self._write("claim", lambda tx: tx.moves.take(tx, worker, wanted))

    def settle(self, ended: Sequence[tuple[ClaimedJob, Outcome]]) -> Settled:
        return self._write("settle", lambda tx: settle.settle(tx, ended)) if ended else Settled(at=0)

    def save_progress(self, progress: Sequence[tuple[ClaimedJob, Progress]]) -> None:
        def steps(tx: Transaction) -> None:
            for c, p in progress:
                row = {"fraction": p.fraction, "message": p.message, "id": c.id, "number": c.number}
                tx.execute(tx.sql.REPORT, row)

        self._write("report", steps)

    def extend(self, claimed: ClaimedJob, until: int) -> ClaimedJob:
        def steps(tx: Transaction) -> ClaimedJob:
            deadline = tx.now + until
            row = {"deadline": deadline, "id": claimed.id, "number": claimed.number}
            if not tx.execute(tx.sql.EXTEND, row).rowcount:
                raise LeaseLost(claimed.id, claimed.number)
            return msgspec.structs.replace(claimed, deadline=deadline)

        return self._write("extend", steps)

    # Liveness

    def register(self, worker: WorkerRow) -> None:
        row = {
            "id": worker.id,
            "name": worker.name,
            "concurrency": worker.concurrency,
            "queues": as_json(worker.queues),
            "types": as_json(worker.types),
            "host": as_json(worker.host),
            "version": worker.version,
        }
        self._write("register", lambda tx: tx.execute(tx.sql.REGISTER, {**row, "now": tx.now}))

    def beat(self, worker: str) -> Beat:
        return self._write("beat", lambda tx: rescue.beat(tx, worker))

    def cancelled(self, worker: str) -> list[int]:
        rows = self._read("settle", lambda tx: tx.execute(tx.sql.LEASES_MINE, {"worker": worker}).fetchall())
        return [number for number, cancelled in rows if cancelled]

    def release_unheld(self, worker: str, numbers: Collection[int]) -> int:
        return self._write("settle", lambda tx: rescue.release_unheld(tx, worker, numbers))

    def declare_dead(
        self,
        worker: str,
        reason: str,
        *,
        beats: int | None = None,
        started: Collection[int] | None = None,
        outside: bool = False,
    ) -> int:
        return self._write(
            "rescue", lambda tx: rescue.declare_dead(tx, worker, reason, beats=beats, started=started, outside=outside)
        )

    def rescue(self, *, silent_for: int | None = None) -> int:
        return self._write("rescue", lambda tx: rescue.rescue(tx, silent_for))

    def workers(self) -> list[WorkerRow]:
        return self._read("read", read.workers)

    # Manage

    def get(self, id: str) -> Job | None:
        return self._read("read", lambda tx: read.get(tx, id)) if is_id(id) else None

    def job_facts(self, id: str) -> JobFacts | None:
        return self._read("read", lambda tx: diagnosis.job_facts(tx, id)) if is_id(id) else None

    def attempts(self, id: str) -> list[Attempt]:
        return self._read("read", lambda tx: read.attempts(tx, id)) if is_id(id) else []

    def jobs(self, wanted: Filter, limit: int, before: str | None = None) -> Page:
        return self._read("read", lambda tx: search.jobs(tx, wanted, limit, before))

    def counts(self, by: Sequence[str], wanted: Filter = EVERYTHING, most: int | None = None) -> Counted:
        return self._read("read", lambda tx: search.counts(tx, by, wanted, most))

    def queue_stats(self) -> list[QueueStats]:
        return self._read("read", lanes.lanes)

    def usage(self, since: int, until: int, step: int, by: Sequence[str], tenant: str | None = None) -> list[Usage]:
        return self._read("read", lambda tx: stats.usage(tx, since, until, step, by, tenant))

    def latency_sample(self) -> list[Sampled]:
        return self._read("read", stats.sample)

    def failures(self) -> list[FailureGroup]:
        return self._read("read", stats.failures)

    def cancel(self, id: str) -> Job:
        return self._manage(id, manage.cancel)

    def retry(self, id: str) -> Job:
        return self._manage(id, manage.retry)

    def delete(self, id: str) -> Job:
        return self._manage(id, manage.delete)

    def run_now(self, id: str) -> Job:
        return self._manage(id, manage.run_now)

    def batch(self, action: str, wanted: Filter, before: str | None, limit: int, operation: str | None = None) -> Batch:
        return self._write("manage", lambda tx: manage.batch(tx, action, wanted, before, limit, operation))

    def _manage(self, id: str, verb: Callable[[Transaction, str], Job]) -> Job:
        if not is_id(id):
            raise JobNotFound(id)
        return self._write("manage", lambda tx: verb(tx, id))

    def complete(self, ids: Sequence[str]) -> int:
        return self._write("manage", lambda tx: manage.complete(tx, [id for id in ids if is_id(id)]))

    def prune(self, statuses: Sequence[Status], before: int, limit: int) -> int:
        return self._write("manage", lambda tx: manage.prune(tx, statuses, before, limit))

    # The books of the HTTP API

    def audit(self, row: AuditRow) -> None:
        self._write("manage", lambda tx: web_records.audit(tx, row))

    def audits(self, limit: int, before: str | None = None) -> list[AuditRow]:
        return self._read("read", lambda tx: web_records.audits(tx, limit, before))

    def add_token(self, token: Token) -> bool:
        return self._write("manage", lambda tx: web_records.add_token(tx, token))

    def token(self, hash: str) -> Token | None:
        return self._read("read", lambda tx: web_records.token(tx, hash))

    def tokens(self) -> list[Token]:
        return self._read("read", web_records.tokens)

    def drop_token(self, name: str) -> bool:
        return self._write("manage", lambda tx: tx.execute(tx.sql.DROP_TOKEN, {"name": name}).rowcount > 0)

    def start_operation(self, operation: Operation) -> None:
        self._write("manage", lambda tx: web_records.start(tx, operation))

    def resume_operation(self, operation: Operation) -> bool:
        row = {"id": operation.id, "seen": operation.updated_at}
        return self._write("manage", lambda tx: tx.execute(tx.sql.TAKE_OVER, {**row, "now": tx.now}).rowcount > 0)

    def fail_operation(self, id: str, error: str) -> None:
        self._write("manage", lambda tx: tx.execute(tx.sql.GIVE_UP, {"id": id, "error": error, "now": tx.now}))

    def operation(self, id: str) -> Operation | None:
        return self._read("read", lambda tx: web_records.operation(tx, id)) if is_id(id) else None

    def operations(self, limit: int) -> list[Operation]:
        return self._read("read", lambda tx: web_records.operations(tx, limit))

    def insert_once(self, tenant: str, key: str, hash: str, jobs: Sequence[NewJob]) -> tuple[list[Job], bool]:
        def steps(tx: Transaction, how: Insert = insert.insert) -> tuple[list[Job], bool]:
            return web_records.insert_once(tx, tenant, key, hash, jobs, lambda: self._insert(tx, jobs, how))

        try:
            return self._write("insert", steps)
        except CommitUnknown:
            stored, _ = self._write("insert", steps)  # if it was committed, this finds what it has stored
            return stored, True
        except (self.already_there, JobNotFound):  # as in insert
            return self._write("insert", lambda tx: steps(tx, insert.insert_again))
