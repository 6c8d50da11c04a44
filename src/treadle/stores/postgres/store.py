"""The store on a PostgreSQL server: how it connects, how it joins your own transaction, and how it waits."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing, contextmanager, suppress
from functools import cached_property
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from treadle.clock import MINUTE, Clock, now
from treadle.errors import BadConnection, BadOption, StoreRefused, StoreUnusable, TransactionOver
from treadle.filters import EVERYTHING, Filter
from treadle.job import ClaimedJob, Job, NewJob, Page
from treadle.outcome import Outcome
from treadle.steps import NewStep, Step
from treadle.stores.base import ClaimRequest
from treadle.stores.postgres import at_once, diagnostics, roles, sql
from treadle.stores.postgres import url as postgres_url
from treadle.stores.postgres.connection import ANSWER_SECONDS, Database, Transaction
from treadle.stores.postgres.listen import Watch
from treadle.stores.postgres.loop_claims import LoopClaims
from treadle.stores.postgres.notify import CHANNEL
from treadle.stores.postgres.placeholders import named
from treadle.stores.postgres.schema import EMPTY, check, newest_schema, schema, schema_sql, upgrade
from treadle.stores.rows import Beat, Claim, JobCounts, Settled
from treadle.stores.shared import claim_settle, enqueue, liveness, matching, search, waiting
from treadle.stores.shared.steps import as_steps
from treadle.stores.shared.store import SQLStore
from treadle.stores.transaction import NOTHING, Insert
from treadle.stores.transaction import Transaction as AnyTransaction
from treadle.stores.user_connections import IDENTITY, identity, savepoint, wrap
from treadle.waits import NewSignal, Signal


class UserRows(list[tuple[Any, ...]]):
    """The rows of a statement. (On a user's connection, a statement that changes rows has to return them.)"""

    @property
    def rowcount(self) -> int:
        return len(self)

    def fetchone(self) -> tuple[Any, ...] | None:
        return self[0] if self else None

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self


class UserTransaction(Transaction):
    """The user's own transaction. We do not know its role. In the end it names no tenant, as before."""

    names_tenant = False

    @cached_property
    def is_open(self) -> bool:
        """Whether a tenant has to be named, and was not when we came."""
        return bool(self.value(roles.IS_OPEN))

    def execute(self, sql: str, parameters: Mapping[str, Any] = NOTHING) -> UserRows:
        return UserRows(self.connection.execute(named(sql), parameters))

    def act_for(self, tenant: str) -> None:
        if tenant and self.is_open:
            self.names_tenant = True
            self.execute(roles.SET_TENANT, {"tenant": tenant})


class PostgresStore(SQLStore[Database]):
    """Jobs in the schema `treadle` of one database, shared by any number of machines."""

    single_host = False
    notices_commits = True
    dedupe_may_block = True
    joins_transactions = True

    def __init__(self, url: str, *, clock: Clock = now) -> None:
        super().__init__()
        self.url = url
        self._conninfo, self.where = postgres_url.read(url)
        self._clock = None if clock is now else clock
        self._inherited: list[Database] = []  # kept, since closing a parent's connections would end its sessions

    # Life of the store

    def _connections(self) -> Database:
        return Database(self._conninfo, self.where, self._clock)

    def _prepare(self, database: Database) -> None:
        check(database)

    def _inherit(self, parents: Database) -> None:
        self._inherited.append(parents)

    def schema(self) -> int | None:
        with closing(self._connections()) as database:
            return schema(database)[0]

    newest_schema, schema_sql = staticmethod(newest_schema), staticmethod(schema_sql)

    def upgrade(self) -> int:
        with closing(self._connections()) as database:
            return upgrade(database)

    def give_rights(self, to: roles.Roles) -> None:
        """Create these roles, and grant them their rights. Safe to repeat."""
        with closing(self._connections()) as database:
            try:
                database.write("other", lambda tx: tx.connection.execute(roles.script(to)))
            except StoreUnusable as error:
                if not isinstance(cause := error.__cause__, psycopg.errors.InsufficientPrivilege):
                    raise
                way_out = "run it as a superuser, or as a role that owns the tables and may create roles"
                raise StoreUnusable(self.where, str(cause).partition("\n")[0], way_out) from cause

    def empty(self) -> None:
        """Delete every job, and what is known of workers and types. For tests: `treadle.testing.temporary`."""
        self.database.write("other", lambda tx: tx.connection.execute(EMPTY))

    def now(self) -> int:
        return self.database.read("other", lambda tx: tx.now)

    def checkup(self) -> diagnostics.Diagnostics:
        """What `treadle doctor` asks the server about itself."""
        return diagnostics.checkup(self.database)

    def status(self) -> Mapping[str, Any]:
        def steps(tx: Transaction) -> Mapping[str, Any]:
            meta = dict(tx.execute(sql.META).fetchall())
            size, oldest, given, dead = tx.execute(sql.STATUS).fetchone()
            return {
                "store": "postgresql",
                "where": self.where,
                "schema": meta["schema"],
                "newest_schema": newest_schema(),
                "leases_given": given,
                "bytes": size,
                "server_version": tx.connection.info.parameter_status("server_version"),
                "oldest_transaction_seconds": oldest,
                "dead_rows": dead,
            }

        return self.database.read("read", steps)

    def changes(self) -> int:
        number: int = self.database.read("read", Transaction.value, sql.CHANGES)
        return number

    def watch(self) -> Watch:
        return Watch(self.database)

    def claims_on_loop(self, thread: Executor) -> LoopClaims:
        return LoopClaims(self, thread)

    # Enqueue

    def _insert_now(self, jobs: Sequence[NewJob]) -> list[Job]:
        stored = at_once.insert(self.database, jobs)
        return self.database.write("insert", self._insert, jobs, enqueue.insert) if stored is None else stored

    def _insert(self, tx: AnyTransaction, jobs: Sequence[NewJob], how: Insert) -> list[Job]:
        if isinstance(tx, UserTransaction):
            one_by_one = all(job.tenant for job in jobs) and tx.is_open
            return roles.insert_for_tenants(tx, jobs, how) if one_by_one else how(tx, jobs)
        scope = self.database.scope
        if scope is not None and not all(job.tenant for job in jobs):
            raise BadOption("tenant", "", "this role acts for one tenant at a time: using(tenant=…)")
        return roles.insert_for_tenants(tx, jobs, how) if scope == "" else how(tx, jobs)

    @contextmanager
    def _within(self, connection: Any) -> Generator[Transaction]:
        """The caller's own open transaction on this database. If the block raises, nothing of it stays there."""
        theirs = wrap(connection)
        with savepoint(theirs):
            here = identity(theirs)
            if here != self._identity and here != self._ask_identity():
                raise BadConnection(connection, f"it is not open on {self.where}", "the jobs live in another database")
            tx = UserTransaction(theirs, self.database)
            yield tx
            if tx.names_tenant:
                tx.execute(roles.SET_TENANT, {"tenant": ""})
            for queue in tx.queues:  # one notification per queue and transaction: the server drops the others
                tx.execute(sql.NOTIFY, {"channel": CHANNEL, "text": queue})

    def _undo(self, connection: Any) -> None:
        theirs = wrap(connection)
        with suppress(Exception):  # then the server refuses a commit
            theirs.execute(sql.FAIL, {})

    _identity: str | None = None

    def _ask_identity(self) -> str | None:
        """It changes when the server restarts."""
        self._identity = self.database.read("other", Transaction.value, IDENTITY)
        return self._identity

    # Manage

    def jobs(self, filter: Filter, limit: int, before: str | None = None) -> Page:
        return self.database.read("read", lambda tx: search.jobs(self._filtered(tx, filter), filter, limit, before))

    def counts(self, by: Sequence[str], filter: Filter = EVERYTHING, most: int | None = None) -> JobCounts:
        """The tallies are of all tenants: a role that sees one tenant has to count."""

        def steps(tx: Transaction) -> JobCounts:
            count = search.counts if self.database.scope is None else search.count_jobs
            return count(self._filtered(tx, filter), by, filter, most)

        return self.database.read("read", steps)

    def _filtered(self, tx: Transaction, filter: Filter) -> Transaction:
        """If our role sees one tenant at a time: act for the one that is asked for."""
        if len(filter.tenants) == 1 and isinstance(filter.tenants[0], str):
            tx.act_for(filter.tenants[0])
        return tx

    # Claim and settle

    def _claim(self, worker: str, request: ClaimRequest) -> Claim:
        with suppress(StoreRefused):  # by a row that was broken by hand, which the other way repairs
            claimed = at_once.claim(self.database, worker, request)
            if claimed is not None:
                return claimed
        return super()._claim(worker, request)

    def claim_more(self, worker: str, request: ClaimRequest, claimed: Claim) -> Claim:
        """Let what has arrived let jobs go, and claim them, too."""
        return matching.claim_more(self, worker, request, claimed)

    def _match(self, request: ClaimRequest, claimed: Claim) -> int:
        """Nearly always, a signal lets one job go, which waits for nothing else."""
        free = request.limit - len(claimed)
        most = matching.MOST_MATCHED
        return (claimed.signalled and at_once.match_signals(self.database, request, free, most)) or self.match()

    def settle(self, ended: Sequence[tuple[ClaimedJob, Outcome]]) -> Settled:
        with suppress(StoreRefused):  # as in a claim
            if settled := at_once.settle(self.database, ended):
                return settled
        return super().settle(ended)

    def _save_steps(self, done: Sequence[tuple[ClaimedJob, NewStep]]) -> list[Exception | None]:
        return at_once.save_steps(self.database, done) or super()._save_steps(done)

    def steps(self, id: str) -> list[Step]:
        return as_steps(at_once.steps(self.database, id))

    def signal(self, new: NewSignal, connection: Any = None) -> Signal:
        stored = at_once.signal(self.database, new) if connection is None else None
        return super().signal(new, connection) if stored is None else waiting.as_signal(stored)

    def beat(self, worker: str, time_left: Sequence[tuple[ClaimedJob, int]] = (), stalled_for: int = 0) -> Beat:
        return liveness.beat_of(worker, *at_once.beat(self.database, worker, time_left, stalled_for))

    @contextmanager
    def transaction(self, claimed: ClaimedJob, outcome: Callable[[], Outcome | None]) -> Generator[Any]:
        database = self.database
        block, tx = database.begin_block()
        connection = tx.connection
        with block:
            connection.answer_within = None
            yield connection
            connection.answer_within = ANSWER_SECONDS
            if connection.info.transaction_status != TransactionStatus.INTRANS:
                raise TransactionOver(claim_settle.ENDED_BY_THE_BLOCK)
            with database.typed(connection):
                tx.set_now()
                claim_settle.settle_in_transaction(tx, claimed, outcome())
                notices = database.notify(tx)
                database.commit(connection)
            if tx.queues:
                database.notified(notices)
            with suppress(psycopg.Error):  # it is committed, whatever happens to the connection now
                connection.execute("RESET ALL")

    # Chores

    def compact(self) -> int:
        def steps(tx: Transaction) -> int:
            if not tx.value(sql.LOCK_COMPACTING):
                return 0
            since = tx.now // MINUTE * 60 - 3600
            tallies = tx.execute(sql.COMPACT_TALLIES)
            return int(tallies.rowcount + tx.execute(sql.COMPACT_USAGE, {"since": since}).rowcount)

        return self.database.write("other", steps)
