"""How rows move in SQLite: one writer at a time, so that what was read cannot change before it is written."""

from __future__ import annotations

import logging
import secrets
from collections import Counter, defaultdict
from collections.abc import Collection, Generator, Iterable, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

import msgspec

from treadle.codec import as_json
from treadle.errors import WorkerLost, WorkerQuiet
from treadle.job import ClaimedJob, NewJob, Status
from treadle.limits import Key
from treadle.outcome import UNSUCCESSFUL, OutcomeKind
from treadle.stores.base import ClaimRequest
from treadle.stores.claim_order import LOOKED_AT, ClaimOrder, Cursors, due_with_arrival, next_due
from treadle.stores.limiting import LimitedClaim, limited_claim
from treadle.stores.parking import MOST_LOOKS, MOST_PARKED, PauseRow, due_with_pauses, paused, put_back_ended
from treadle.stores.ranges import NO_SLOTS, START, Candidate, Found, RangeStart, ReadyRange, Slots
from treadle.stores.rows import NOTHING_PAUSED, Claim, Due, Paused
from treadle.stores.sqlite import insert_claim_settle_sql as sql
from treadle.stores.sqlite.prune import PruneTransaction
from treadle.stores.transaction import LeaseOutcome, LimitValues, Moved, as_written, requeued
from treadle.stores.turns import TurnReader, found_by_turns, served

log = logging.getLogger("treadle")

_decode_claimed = msgspec.json.Decoder(list[ClaimedJob]).decode
_decode_found = msgspec.json.Decoder(list[Found]).decode
_decode_ranges = msgspec.json.Decoder(list[ReadyRange]).decode
_decode_starts = msgspec.json.Decoder(list[RangeStart]).decode
_decode_pauses = msgspec.json.Decoder(list[PauseRow]).decode
_decode_ids = msgspec.json.Decoder(list[str]).decode
_decode_held = msgspec.json.Decoder(list[tuple[tuple[int, int], int]]).decode

_COLUMNS = (
    *("type", "queue", "tenant", "subject", "priority", "max_attempts"),
    *("dedupe", "dedupe_rule", "traceparent", "schedule", "fired_at", "origin", "batch", "start_within"),
)
_COMMON = attrgetter(*_COLUMNS, "run_at", "delay", "fair", "after")

NUMBERS = range(1 << 62)
"""A counter of lease numbers beyond them was broken by hand."""


class Transitions(PruneTransaction):
    """A transaction on SQLite's tables, in a file or on a libSQL server."""

    cursors: Cursors
    _back = 0
    """How many rows this claim has put back after a pause."""
    _found_before = False
    """Whether an earlier claim has found some of the jobs of this one."""

    def job_waits(self, queue: str) -> None:
        """Workers see every commit. But if the clock steps back, the job must not wait until it has caught up."""
        self.execute(sql.ADVANCE_CLOCK, {"now": self.now})
        self.cursors.stale = True

    @contextmanager
    def snapshot(self) -> Generator[None]:
        self.execute(sql.SAVEPOINT)
        try:
            yield
        finally:
            self.execute(sql.RELEASE)

    # Into `jobs` and `ready`

    def insert(self, jobs: Sequence[NewJob]) -> Moved:
        """Jobs that differ only in their payloads share two statements."""
        self.cursors.stale = True
        if len(jobs) == 1 and not jobs[0].after:
            return self._insert_one(jobs[0])
        alike: defaultdict[tuple[Any, ...], list[NewJob]] = defaultdict(list)
        for job in jobs:
            alike[_COMMON(job)].append(job)
        moved: Counter[tuple[str, str, str]] = Counter()
        for common, some in alike.items():
            first = some[0]
            row = {
                **dict(zip(_COLUMNS, common, strict=False)),
                "run_at": first.due(self.now),
                "parked": first.parked(self.now),
                "now": self.now,
                "rows": as_json({job.id: job.payload for job in some}),
                "ids": as_json([job.id for job in some]),
            }
            self.execute(sql.INSERT_JOBS, row)
            self.execute(sql.INSERT_READY, row)
            moved[Status.BLOCKED if first.after else Status.PENDING, first.type, first.queue] += len(some)
        self.execute(sql.ADVANCE_CLOCK, {"now": self.now})
        return [(*key, n) for key, n in moved.items()]

    def _insert_one(self, job: NewJob) -> Moved:
        now = self.now
        row = {**msgspec.structs.asdict(job), "now": now, "run_at": job.due(now), "parked": job.parked(now)}
        for statement in sql.INSERT_ONE:
            self.execute(statement, row)
        return ()

    # From `ready` to `leases`

    def due(self, request: ClaimRequest) -> Due:
        state = self.execute(sql.CLAIM_STATE, {"worker": "", "now": self.now})
        later = self.execute(sql.NEXT_DUE, {"now": self.now, "limit": LOOKED_AT})
        found = self.ready_ranges()
        _, latest, _, pauses, version, opened, arrival = state.fetchone()
        held = paused(_decode_pauses(pauses), self.now)
        limited = limited_claim(self, self.cursors.known, version, opened)
        order = ClaimOrder(found, request, held)
        slots = limited.slots(order.types) if limited else NO_SLOTS
        now = max(self.now, latest or 0)  # a claim corrects a clock that stepped back
        arrived = arrival is not None and arrival <= now
        if opened or arrived or self._find(order, 1, slots, now, reads_only=held):
            return Due(True)
        due = next_due(later.fetchall(), request, self.now, held)
        due = due if held is NOTHING_PAUSED else due_with_pauses(due, held, self.now, more=bool(held.ended))
        due = limited.due(due) if limited else due
        return due if arrival is None else due_with_arrival(due, arrival, self.now)

    def ready_ranges(self) -> list[Found]:
        found, by_turns, fair = self.execute(sql.READY_RANGES).fetchone()
        if by_turns == fair == "[]":
            return _decode_found(found)
        waiting = [Found(range, START) for range in _decode_ranges(by_turns)]
        return found_by_turns(_decode_found(found), waiting, _decode_ids(fair))

    locks_limits = False

    def lock_limits(self, keys: Collection[Key], *, wait: bool) -> Collection[Key]:
        return keys  # the one writer locks everything

    def limit_values(self, ids: Sequence[str], paths: Sequence[Sequence[str]] | None) -> Iterable[LimitValues]:
        inside = [".".join(["$", *(f'"{name}"' for name in path)]) for path in paths or ()]
        return self.execute(sql.LIMIT_VALUES, {"ids": as_json(ids), "paths": as_json(inside)}).fetchall()

    def claim(self, worker: str, request: ClaimRequest) -> tuple[Claim, Moved]:
        state = self.execute(sql.CLAIM_STATE, {"worker": worker, "now": self.now})
        kept = self.cursors.kept(request)
        order = kept or self.cursors.looked(self.ready_ranges, request)
        *checked, pauses, version, opened, arrival = state.fetchone()
        self._check(worker, *checked)
        held = NOTHING_PAUSED if pauses == "[]" else paused(_decode_pauses(pauses), self.now)
        known, limited = self.cursors.known, None
        if version != known.version or known.limits.types or opened:
            limited = limited_claim(self, known, version, opened)
        back = limited.open_keys() if limited and opened else 0
        if not order.ahead:
            self.cursors.version = version
        if held != self.cursors.paused or held.ended or back or version != self.cursors.version:
            order, kept = self._look_again(request, held), None
        slots = limited.slots(order.types) if limited else NO_SLOTS
        jobs = self._find(order, request.limit, slots, self.now, limited)
        if order.missing and (self.cursors.may_look() if kept else self.cursors.stale):
            jobs, kept = self._find_again(request, limited), None
        leased = self._lease(worker, request, jobs, sorted(held.tenants)) if jobs else (Claim(), [])
        if leased is None and self._found_before:
            self.cursors.others_were_faster(order)
            jobs, kept = self._find_again(request, limited), None
            leased = self._lease(worker, request, jobs) if jobs else (Claim(), [])
        claimed, moved = self._lease_of_others(worker, request, limited, held) if leased is None else leased
        claimed.arrived = arrival is not None and arrival <= self.now
        if limited:
            limited.record(claimed)
            limited.record_parked()
        if len(jobs if leased else claimed) < request.limit and claimed.due is None:
            later = self.execute(sql.NEXT_DUE, {"now": self.now, "limit": LOOKED_AT})
            due = next_due(later.fetchall(), request, self.now, held)
            due = due if held is NOTHING_PAUSED else due_with_pauses(due, held, self.now, more=self._back > 0)
            due = limited.due(due) if limited else due
            due = due if arrival is None else due_with_arrival(due, arrival, self.now)
            claimed.due = Due(True, None, 0.0) if order.more else self.cursors.unsure(due) if kept else due
        return claimed, moved

    def _look_again(self, request: ClaimRequest, held: Paused) -> ClaimOrder:
        """Something was paused or resumed since the last look, or is to be put back, or the limits have changed."""
        self.cursors.paused = held
        if held.ended:
            self._back = put_back_ended(self, held.ended)
        return self.cursors.looked(self.ready_ranges, request)

    def _lease_of_others(
        self, worker: str, request: ClaimRequest, limited: LimitedClaim | None, held: Paused
    ) -> tuple[Claim, Moved]:
        """Park what paused tenants have among the first jobs, until none is of theirs. If they have too many for one
        claim, take what comes before the first of theirs, and leave the rest to the next claim."""
        parked, tenants = 0, as_json(sorted(held.tenants))
        while jobs := self._find_again(request, limited):
            ids = as_json([id for _, id, _ in jobs])
            theirs = set(_decode_ids(self.value(sql.OF_TENANTS, {"ids": ids, "tenants": tenants})))
            first = next((place for place, job in enumerate(jobs) if job[1] in theirs), None)
            if first is None or parked >= MOST_PARKED:
                break
            most = max(MOST_PARKED, request.limit)
            row = {**jobs[first][2]._asdict(), "now": self.now, "tenants": tenants, "most": most}
            parked += max(self.execute(sql.PARK, row).rowcount, MOST_PARKED // MOST_LOOKS)
        else:
            return Claim(), []
        leased = self._lease(worker, request, jobs[:first]) if jobs[:first] else None
        claimed, moved = leased or (Claim(), [])
        if first is not None:
            self.cursors.stale, claimed.due = True, Due(True, None, 0.0)
        return claimed, moved

    def _find_again(self, request: ClaimRequest, limited: LimitedClaim | None) -> list[Candidate]:
        order = self.cursors.looked(self.ready_ranges, request)
        slots = limited.slots_again(order.types) if limited else NO_SLOTS
        return self._find(order, request.limit, slots, self.now, limited)

    def _check(self, worker: str, may_claim: int | None, latest: int | None, number: int) -> None:
        """Whether the worker may claim, and whether the clock and the counter of leases are right."""
        if worker and not may_claim:
            raise WorkerLost(worker) if may_claim is None else WorkerQuiet(worker)
        if latest is None or number not in NUMBERS:
            latest = self._restore_meta(latest, number)
        if self.now < latest:
            self._correct_clock_step(latest)

    def _restore_meta(self, latest: int | None, number: int) -> int:
        """The clock or the counter of lease numbers starts again: at now, which is more than any count of leases."""
        log.warning("treadle_meta was broken by hand: 'clock' is %s, 'lease' is %s", latest, number)
        clock = self.now if latest is None else latest
        self.execute(sql.RESTORE_META, {"clock": clock, "number": number if number in NUMBERS else self.now})
        return clock

    def _correct_clock_step(self, latest: int) -> None:
        """The clock stepped back: what should run at once would wait until it has caught up."""
        for statement in (sql.MAKE_DUE, *sql.MOVE_LIMITS):
            self.execute(statement, {"now": self.now, "step": latest - self.now})
        self.execute(sql.SET_CLOCK, {"now": self.now})
        self.cursors.stale = True

    def _find(
        self,
        order: ClaimOrder,
        limit: int,
        slots: Slots,
        now: int,
        limited: LimitedClaim | None = None,
        reads_only: Paused | None = None,
    ) -> list[Candidate]:
        """`reads_only`: what is paused, if nothing is to be written."""
        jobs = order.take_ahead(limit, slots) if order.ahead else []
        self._found_before = bool(jobs)
        for batch in order.batches(limit - len(jobs), slots, now, self.cursors.known.limits.types):
            ranges = [(*head.range[:3], *head.after) for head in batch if not head.range.fair]
            row = {"ranges": as_json(ranges), "now": now, "limit": order.rows}
            starts = _decode_starts(self.execute(sql.READ_RANGES, row).fetchone()[0]) if ranges else []
            if len(starts) < len(batch):
                turns = TurnReader(self, order, self.cursors.turn, (reads_only or self.cursors.paused).tenants)
                starts = turns.starts(batch, starts, reads_only=reads_only is not None)
            some = order.merge(batch, starts)
            some = served(order, some, self.cursors.turn) if order.turns else some
            jobs += limited.fit(order, some) if limited and some else some
        return jobs

    def _lease(
        self, worker: str, request: ClaimRequest, jobs: Sequence[Candidate], paused: Sequence[str] = ()
    ) -> tuple[Claim, Moved] | None:
        """None if one of them is of a paused tenant, or may no longer start though an earlier claim has found it: then
        none is leased."""
        timeouts, token = request.types or {}, secrets.randbits(63)
        by_timeout: defaultdict[int | None, list[str]] = defaultdict(list)
        if request.lease_for is not None or not timeouts:
            by_timeout[request.lease_for] = [id for _, id, _ in jobs]
        else:
            for _, id, range in jobs:
                by_timeout[timeouts[range.type]].append(id)
        for timeout, ids in by_timeout.items():
            row = {"worker": worker, "token": token, "now": self.now, "timeout": timeout, "rows": as_json(ids)}
            if self._found_before:
                queues = as_json(request.queues) if request.queues else None
                leased = self.execute(sql.INSERT_LEASES_AS_FOUND, {**row, "queues": queues})
            elif paused:
                leased = self.execute(sql.INSERT_LEASES_OF_OTHERS, {**row, "tenants": as_json(paused)})
            else:
                leased = self.execute(sql.INSERT_LEASES, row)
            if (paused or self._found_before) and leased.rowcount < len(ids):
                self.execute(sql.TAKE_BACK_LEASES, {"ids": as_json([id for _, id, _ in jobs]), "token": token})
                return None
            self.execute(sql.ADVANCE_LEASE_NUMBER, {"n": len(ids)})
        these = {"ids": as_json([id for _, id, _ in jobs])}
        self.execute(sql.DELETE_LEASED, {**these, "now": self.now})
        claimed = Claim(_decode_claimed(self.execute(sql.CLAIMED, {**these, "token": token}).fetchone()[0]))
        orphaned: Moved = []
        if len(claimed) < len(jobs):
            expired = self.value(sql.COUNT_EXPIRED, {**these, "now": self.now})
            self.met_expired = expired > 0
            orphaned = self._drop_unusable() if len(claimed) + expired < len(jobs) else []
        self.execute(sql.ADVANCE_CLOCK, {"now": self.now})
        return claimed, orphaned

    def _drop_unusable(self) -> Moved:
        """Jobs were broken by hand. There is nothing left to run of them."""
        rows = [*self.execute(sql.DROP_UNUSABLE_READY), *self.execute(self.sql.DELETE_ORPHANED_LEASES)]
        log.warning("%d waiting jobs were broken by hand: deleted, or with an id that cannot be read", len(rows))
        return [(Status.PENDING, type, queue, -n) for (type, queue), n in Counter(rows).items()]

    # From `leases` to `finished`, or back to `ready`

    def settle(self, ended: Sequence[LeaseOutcome]) -> tuple[Sequence[LeaseOutcome], Sequence[LeaseOutcome]]:
        self.execute(sql.ADVANCE_CLOCK, {"now": self.now})
        all_final = all(kind.final for kind in {outcome.kind for _, outcome in ended})
        if not all_final or self._finish(ended) < len(ended):  # rarely: the fence lets nearly all of them through
            ended = self._held(ended)
        if ended and not all_final:
            self._finish([e for e in ended if e[1].kind.final])
            self._requeue([e for e in ended if not e[1].kind.final])
        if failures := [(c, o) for c, o in ended if o.kind in UNSUCCESSFUL]:
            rows = as_json([(c.id, o.kind, o.error, o.traceback) for c, o in failures])
            self.execute(sql.INSERT_ATTEMPTS, {"now": self.now, "rows": rows})
        if ended:
            self.execute(sql.DELETE_LEASES, {"ids": as_json([c.id for c, _ in ended])})
        if final := [c.id for c, outcome in ended if outcome.kind.final]:
            self.execute(sql.TELL_WAITING, {"ids": as_json(final), "now": self.now})
        return ended, ended

    def _held(self, ended: Sequence[LeaseOutcome]) -> Sequence[LeaseOutcome]:
        rows = as_json([(c.id, c.number, c.token) for c, _ in ended])
        return as_written(ended, dict(_decode_held(self.value(sql.HELD, {"rows": rows}))))

    def _finish(self, ended: Sequence[LeaseOutcome]) -> int:
        """Write how jobs ended, if their leases are held. Return the number of those jobs."""
        plain: defaultdict[int, dict[str, int]] = defaultdict(dict)
        others: list[tuple[object, ...]] = []
        for c, o in ended:
            if o.kind is OutcomeKind.COMPLETED and o.result is None:
                plain[c.token][c.id] = c.number
            else:
                others.append((c.id, c.number, c.token, o.kind, o.charged, o.result, o.error))
        both = (sql.COMPLETE, plain), (sql.FINISH, others)
        asked = [self.execute(s, {"now": self.now, "rows": as_json(rows)}) for s, rows in both if rows]
        return sum(written.rowcount for written in asked)

    def release_keys(self, ids: Sequence[str]) -> Collection[str]:
        these = {"ids": as_json(ids), "now": self.now}
        woken, *_ = [self.execute(statement, these) for statement in sql.RELEASE_KEYS]
        if not self.cursors.stale:  # else the next claim looks anyway
            self.cursors.stale = woken.rowcount > 0
        return ()

    def _requeue(self, ended: Iterable[LeaseOutcome]) -> None:
        rows = as_json([(c.id, *requeued(self.now, o)) for c, o in ended])
        self.execute(sql.REQUEUE, {"now": self.now, "rows": rows})
        self.cursors.stale = True
