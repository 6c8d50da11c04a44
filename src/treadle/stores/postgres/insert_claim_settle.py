"""How rows move in PostgreSQL: many writers at once, each of which locks what it takes by taking it.

A statement that moves rows counts them too, in the same round trip. Only a settle with mixed outcomes leaves the count
to the verb.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from operator import attrgetter

import msgspec

from treadle.codec import as_json
from treadle.errors import WorkerLost
from treadle.job import ClaimedJob, NewJob
from treadle.outcome import UNSUCCESSFUL, Outcome, OutcomeKind
from treadle.stores.base import RECLAIM_AFTER, ClaimRequest
from treadle.stores.claim_order import Candidate, ClaimOrder, Head, RangeStart, ReadyRange, allowed
from treadle.stores.postgres import insert_claim_settle_sql as sql
from treadle.stores.postgres.cursor import Cursors, Position
from treadle.stores.postgres.sql import PostgresStatements
from treadle.stores.rows import Due
from treadle.stores.transaction import LeaseOutcome, Moved, Transaction, as_written, requeued

log = logging.getLogger("treadle")

_COLUMNS = attrgetter(
    *("id", "type", "queue", "tenant", "subject", "payload", "priority", "max_attempts", "dedupe", "traceparent")
)
_PAYLOAD = ClaimedJob.__struct_fields__.index("payload")
_decode_due = msgspec.json.Decoder(list[tuple[int, str]]).decode
_decode_held = msgspec.json.Decoder(list[tuple[tuple[int, int], int]]).decode

Found = Sequence[tuple[ReadyRange, int | None]]
"""Ranges, each with the free slots of its type, if that is limited."""


class Transitions(Transaction):
    """A transaction on PostgreSQL's tables."""

    sql = PostgresStatements()
    cursors: Cursors

    @contextmanager
    def snapshot(self) -> Generator[None]:
        """A transaction that reads sees one moment anyway. A page of it is read by its index."""
        self.execute(sql.PLAN_BY_INDEX)
        yield
        self.execute(sql.PLAN_FREELY)  # not after an error, which ends the transaction: this would hide it

    # Into `jobs` and `ready`

    def insert(self, jobs: Sequence[NewJob]) -> Moved:
        now = self.now
        rows = [(*_COLUMNS(job), job.due(now)) for job in jobs]
        self.execute(sql.INSERT_JOBS, {"rows": as_json(rows), "now": now})
        for queue in {job.queue for job in jobs}:
            self.job_waits(queue)
        return []

    # From `ready` to `leases`

    def ready_ranges(self) -> list[tuple[ReadyRange, int | None]]:
        began = time.monotonic()
        rows = self.execute(sql.READY_RANGES, {"grace": RECLAIM_AFTER, "now": self.now}).fetchall()
        found = [(ReadyRange(queue, type, priority), slots) for queue, type, priority, _, _, slots in rows]
        heads = [(run_at, id) for _, _, _, run_at, id, _ in rows]
        self.cursors.looked(time.monotonic() - began, found, heads)
        return found

    def due(self, request: ClaimRequest) -> Due:
        ranges, slots = _allowed(self.ready_ranges(), request)
        order = ClaimOrder(ranges, 1, slots)
        jobs = [job for level in order for job in order.merge(level, self._read_starts(level))]
        return order.due(jobs, self.now)

    def claim(self, worker: str, request: ClaimRequest) -> tuple[list[ClaimedJob], Moved]:
        if worker and self.value(self.sql.IS_ALIVE, {"worker": worker}) is None:
            raise WorkerLost(worker)
        look = self.cursors.look_first()
        claimed = self._claim_from(worker, request, self.ready_ranges() if look else self.cursors.ranges)
        if len(claimed) < request.limit and not look and self.cursors.may_look():
            rest = msgspec.structs.replace(request, limit=request.limit - len(claimed))
            claimed += self._claim_from(worker, rest, self.ready_ranges())
        return claimed, []

    def _claim_from(self, worker: str, request: ClaimRequest, found: Found) -> list[ClaimedJob]:
        ranges, slots = _allowed(found, request)
        if slots:
            ranges, slots = self._lock_limits(ranges, request, slots)
        order, claimed = ClaimOrder(ranges, request.limit, slots), list[ClaimedJob]()
        for level in order:
            claimed += self._claim_level(worker, request, order, level)
            order.missing = request.limit - len(claimed)  # others may have been faster
        return claimed

    def _claim_level(
        self, worker: str, request: ClaimRequest, order: ClaimOrder, level: Sequence[Head]
    ) -> list[ClaimedJob]:
        [(range, limit), *others] = level
        if others or range.type in order.slots:
            jobs = order.merge(level, self._read_starts(level))
            return self._lease(worker, request, _starts_of(jobs)) if jobs else []
        # Nearly always: nothing to merge, so nothing to read first.
        start = self.cursors.start(range)
        claimed = [] if start[0] > self.now else self._lease(worker, request, [(range, limit, start)])
        if len(claimed) < limit:
            order.merge(level, self._read_starts([(range, 0)]))  # for what is below it
        return claimed

    def _lock_limits(
        self, ranges: Sequence[ReadyRange], request: ClaimRequest, slots: dict[str, int]
    ) -> tuple[list[ReadyRange], dict[str, int]]:
        """The free slots of the limited types, once no other transaction can take any of them."""
        types = sorted(slots)
        self.execute(sql.LOCK_TYPES, {"types": types})
        rows = self.execute(sql.FREE_SLOTS, {"types": types, "grace": RECLAIM_AFTER, "now": self.now})
        exact: dict[str, int] = dict(rows.fetchall())
        return allowed(ranges, request, exact), {type: n for type, n in exact.items() if n > 0}

    def _read_starts(self, level: Sequence[Head]) -> list[RangeStart]:
        ranges = as_json([(*range, limit, *self.cursors.start(range)) for range, limit in level])
        rows = self.execute(sql.READ_RANGES, {"ranges": ranges, "now": self.now}).fetchall()
        return [RangeStart(_decode_due(due), next_at, lower) for due, next_at, lower in rows]

    def _lease(
        self, worker: str, request: ClaimRequest, starts: Sequence[tuple[ReadyRange, int, Position]]
    ) -> list[ClaimedJob]:
        now = self.now
        ranges = as_json([(*range, limit, *position) for range, limit, position in starts])
        known, by_hand = request.types or {}, request.lease_for
        timeouts = {r.type: known.get(r.type) if by_hand is None else by_hand for r, _, _ in starts}
        parameters = {"ranges": ranges, "now": now, "worker": worker, "timeouts": as_json(timeouts)}
        found = self.execute(sql.INSERT_LEASES, {**parameters, "token": secrets.randbits(63)}).fetchall()
        claimed = [ClaimedJob(*row) for row in found if row[_PAYLOAD] is not None]
        if len(claimed) < len(found):
            log.warning("%d waiting jobs were broken by hand: there is no such job", len(found) - len(claimed))
            self.execute(sql.DROP_ORPHANED_LEASES)
        if len(starts) == 1 and claimed:  # of several ranges, a claim does not say which had which job's priority
            self.cursors.passed(starts[0][0], max((c.run_at, c.id) for c in claimed))
        return claimed

    # From `leases` to `finished`, or back to `ready`

    def settle(self, ended: Sequence[LeaseOutcome]) -> tuple[Sequence[LeaseOutcome], Sequence[LeaseOutcome]]:
        if all(outcome.kind is OutcomeKind.COMPLETED and outcome.result is None for _, outcome in ended):
            return self._complete(ended), ()
        for claimed, outcome in ended:
            if not outcome.kind.final:
                self.job_waits(claimed.queue)
        rows = as_json([self._settle_row(*one) for one in ended])
        held = dict(_decode_held(self.value(sql.SETTLE, {"rows": rows, "now": self.now})))
        written = as_written(ended, held)
        return written, written

    def _complete(self, ended: Sequence[LeaseOutcome]) -> Sequence[LeaseOutcome]:
        ids, numbers = ",".join([c.id for c, _ in ended]), ",".join([str(c.number) for c, _ in ended])
        tokens = ",".join([str(c.token) for c, _ in ended])
        arrays = {"ids": f"{{{ids}}}", "numbers": f"{{{numbers}}}", "tokens": f"{{{tokens}}}"}  # texts cost the least
        held = self.execute(sql.COMPLETE, {**arrays, "now": self.now})
        return ended if held.rowcount == len(ended) else as_written(ended, dict.fromkeys(held.fetchall(), 0))

    def _settle_row(self, c: ClaimedJob, o: Outcome) -> tuple[object, ...]:
        run_at, charged, snoozed, suspicion = requeued(self.now, o)
        failure = o.kind if o.kind in UNSUCCESSFUL else None
        ends = c.id, c.number, c.token, o.kind.final, charged, o.result, o.error
        return *ends, run_at, snoozed, suspicion, failure, o.traceback


def _allowed(found: Found, request: ClaimRequest) -> tuple[list[ReadyRange], dict[str, int]]:
    limited = {range.type: slots for range, slots in found if slots is not None}
    ranges = allowed((range for range, _ in found), request, limited)
    return ranges, {range.type: limited[range.type] for range in ranges if range.type in limited}


def _starts_of(jobs: Sequence[Candidate]) -> list[tuple[ReadyRange, int, Position]]:
    """How many jobs to take of each range, and from which on: others may have taken these very jobs by now."""
    counts = Counter(range for _, _, range in jobs)
    first: dict[ReadyRange, Position] = {}
    for run_at, id, range in jobs:
        first.setdefault(range, (run_at, id))
    return [(range, n, first[range]) for range, n in counts.items()]
