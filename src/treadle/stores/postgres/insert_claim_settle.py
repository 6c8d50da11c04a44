"""How rows move in PostgreSQL: many writers at once, each of which locks what it takes by taking it.

A statement that moves rows counts them too, in the same round trip. Only a settle with mixed outcomes leaves the count
to the verb.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec

from treadle.codec import as_json
from treadle.errors import WorkerLost, WorkerQuiet
from treadle.job import ClaimedJob, NewJob
from treadle.limits import Key
from treadle.outcome import OutcomeKind
from treadle.stores.base import ClaimRequest
from treadle.stores.claim_order import LOOKED_AT, ClaimOrder, Cursors, due_with_arrival, next_due
from treadle.stores.limiting import LimitedClaim, limited_claim
from treadle.stores.parking import MOST_LOOKS, MOST_PARKED, PauseRow, due_with_pauses, paused, put_back_ended
from treadle.stores.postgres import insert_claim_settle_sql as sql
from treadle.stores.postgres.row_values import fences, new_rows, settle_row, starts_of
from treadle.stores.postgres.sql import PLAN_BY_INDEX, PLAN_FREELY, PostgresStatements
from treadle.stores.ranges import NO_SLOTS, START, Candidate, Found, Head, Position, RangeStart, ReadyRange, Slots
from treadle.stores.rows import NOTHING_PAUSED, Claim, Due
from treadle.stores.transaction import LeaseOutcome, LimitValues, Moved, Transaction, as_written
from treadle.stores.turns import TurnReader, found_by_turns, served

MOST_BEHIND = 3
"""Times that a claim goes on by turns though others were faster."""

ORPHANED = "%d waiting jobs were broken by hand: there is no such job"

log = logging.getLogger("treadle")

_EXPIRED = len(ClaimedJob.__struct_fields__) - 1  # `limited` is not read
_PAYLOAD = ClaimedJob.__struct_fields__.index("payload")
_decode_starts = msgspec.json.Decoder(list[RangeStart]).decode
_decode_expired = msgspec.json.Decoder(list[tuple[str, int]]).decode
_decode_pauses = msgspec.json.Decoder(list[PauseRow]).decode
_decode_held = msgspec.json.Decoder(list[tuple[tuple[int, int], int]]).decode


class Transitions(Transaction):
    """A transaction on PostgreSQL's tables."""

    sql = PostgresStatements()
    cursors: Cursors
    _parked = 0
    """How many rows this claim has parked, about."""
    _more = False
    """Whether another claim is to follow: rows may still be parked for a pause that is over."""
    _limited: LimitedClaim | None = None
    locks_limits = True
    _state: tuple[int | None, int, bool, int | None]
    """What CLAIM_STATE has found."""
    _arrival: int | None = None
    """When something happens next that may let waiting jobs go."""
    _short: list[tuple[ReadyRange, int, Position]]
    """The ranges of which it got less than it asked for."""
    _behind = 0
    """How often it got less than it asked for of those by turns."""
    _locked: list[tuple[Any, ...]] | None = None
    """Jobs that it has locked, as LIMIT_VALUES finds them, if their keys are not read yet."""
    _places: Mapping[str, str]
    """Their rows."""

    @contextmanager
    def snapshot(self) -> Generator[None]:
        """A transaction that reads sees one moment anyway. A page of it is read by its index."""
        self.execute(PLAN_BY_INDEX)
        yield
        self.execute(PLAN_FREELY)  # not after an error, which ends the transaction: this would hide it

    # Into `jobs` and `ready`

    def insert(self, jobs: Sequence[NewJob]) -> Moved:
        self.execute(sql.INSERT_JOBS, {**new_rows(jobs), "now": self.now})
        for queue in {job.queue for job in jobs}:
            self.job_waits(queue)
        return []

    # From `ready` to `leases`

    def ready_ranges(self) -> list[Found]:
        return self._found(sql.READY_RANGES)

    def _found(self, look: str, worker: str = "") -> list[Found]:
        """What a look finds. It also reads what is paused, and the state of limits and of the worker."""
        *rows, (*_, pauses, alive, version, opened, arrival) = self.execute(look, {"worker": worker, "now": self.now})
        self._state = alive, version, opened, arrival
        self.cursors.paused = NOTHING_PAUSED if pauses is None else paused(_decode_pauses(pauses), self.now)
        places = [(Found(ReadyRange(*row[:3]), START if row[6] else row[3:5]), row[6]) for row in rows]
        in_order, by_turns = ([found for found, turns in places if turns is which] for which in (False, True))
        fair = {row[1] for row in rows if row[5]}
        return found_by_turns(in_order, by_turns, fair) if fair or by_turns else in_order

    def due(self, request: ClaimRequest) -> Due:
        order = ClaimOrder(self.ready_ranges(), request, self.cursors.paused)
        _, version, opened, self._arrival = self._state
        self._limited = limited_claim(self, self.cursors.known, version, opened)
        slots = self._limited.slots(order.types, lock=False) if self._limited else NO_SLOTS
        batches = order.batches(1, slots, self.now)
        if (
            opened
            or self._arrived
            or any(order.merge(batch, self._read_starts(batch, order, reads_only=True)) for batch in batches)
        ):
            return Due(True)
        self._more = bool(self.cursors.paused.ended)
        return self._next_due(request)

    def _next_due(self, request: ClaimRequest) -> Due:
        later = self.execute(sql.NEXT_DUE, {"now": self.now, "limit": LOOKED_AT}).fetchall()
        due, held = next_due(later, request, self.now, self.cursors.paused), self.cursors.paused
        if held is not NOTHING_PAUSED or self._more:
            due = due_with_pauses(due, held, self.now, more=self._more or self._parked >= MOST_PARKED)
        due = self._limited.due(due) if self._limited else due
        return due if self._arrival is None else due_with_arrival(due, self._arrival, self.now)

    @property
    def _arrived(self) -> bool:
        return self._arrival is not None and self._arrival <= self.now

    def lock_limits(self, keys: Collection[Key], *, wait: bool) -> Collection[Key]:
        statement = sql.LOCK_LIMITS if wait else sql.LOCK_FREE_LIMITS
        rows = self.execute(statement, {"keys": as_json(sorted(keys))}).fetchall() if keys else ()
        return [(name, key) for name, key, locked in rows if wait or locked]

    def limit_values(self, ids: Sequence[str], paths: Sequence[Sequence[str]] | None) -> Iterable[LimitValues]:
        if self._locked is None:
            row = {"ids": as_json(ids), "paths": as_json(paths or []), "by_tenant": paths is None, "now": self.now}
            self._locked = self.execute(sql.LIMIT_VALUES, row).fetchall()
        locked, self._locked = self._locked, None
        self._places = {row[0]: row[6] for row in locked}
        return [row[:4] for row in locked if not row[5]]

    def _lock_start(self, head: Head, order: ClaimOrder, limited: LimitedClaim) -> RangeStart:
        """Read a range beside which no other is to be read, and lock what is read: all of it is taken or parked."""
        paths, (run_at, id) = limited.paths([head.range.type]), head.after
        row = {"paths": as_json(paths or []), "by_tenant": paths is None, "now": self.now, "limit": order.rows}
        place = {**head.range._asdict(), "run_at": run_at, "id": id}
        self._locked = self.execute(sql.LIMIT_VALUES_OF_RANGE, {**row, **place}).fetchall()
        due = [(row[4], row[0]) for row in self._locked]
        lower = self.value(sql.LOWER_PRIORITY, place) if len(due) < order.rows else None
        return RangeStart(due, lower)

    def claim(self, worker: str, request: ClaimRequest) -> tuple[Claim, Moved]:
        look = partial(self._found, sql.CLAIM_RANGES, worker)
        kept = self.cursors.kept(request)
        order = kept or self.cursors.looked(look, request)
        if kept:
            self._state = self.execute(sql.CLAIM_STATE, {"worker": worker, "now": self.now}).fetchone()
        may_claim, version, opened, self._arrival = self._state
        if worker and not may_claim:
            raise WorkerLost(worker) if may_claim is None else WorkerQuiet(worker)
        self._parked, self._short, self._more, self._behind = 0, [], False, 0
        self._limited = limited_claim(self, self.cursors.known, version, opened)
        if not kept:
            self.cursors.version = version
        back = self._limited.open_keys() if opened and self._limited else 0
        self.cursors.stale = self.cursors.stale or back > 0
        if kept:
            kept = self.cursors.kept(request)
            order = kept or self.cursors.looked(self.ready_ranges, request)
        elif back:
            order = self.cursors.looked(self.ready_ranges, request)
        if ended := self.cursors.paused.ended:
            self._more = put_back_ended(self, ended) > 0
            order, kept = self.cursors.looked(self.ready_ranges, request), None
        claimed = self._claim_in(order, worker, request)
        claimed.arrived = self._arrived
        if self.met_expired:  # what is behind them is for another claim, once the verb has ended them
            self.cursors.stale = True
            if self._limited:
                self._limited.record_parked()
            return claimed, []
        if kept and len(claimed) < request.limit and self.cursors.may_look():
            rest, kept = msgspec.structs.replace(request, limit=request.limit - len(claimed)), None
            claimed += self._claim_in(self.cursors.looked(self.ready_ranges, request), worker, rest)
        if self._limited:
            self._limited.record_parked()
        if len(claimed) < request.limit:
            due = self._next_due(request)
            claimed.due = self.cursors.unsure(due) if kept else due
        return claimed, []

    def _claim_in(self, order: ClaimOrder, worker: str, request: ClaimRequest) -> Claim:
        slots = self._limited.slots(order.types) if self._limited else NO_SLOTS
        claimed = self._lease_ahead(order, slots, worker, request) if order.ahead else Claim()
        if self.met_expired:  # there may be more of this priority
            return claimed
        missing, limited = request.limit - len(claimed), self.cursors.known.limits.types
        for batch in order.batches(missing, slots, self.now, limited):
            claimed += self._claim_batch(worker, request, order, batch)
            if request.limit - len(claimed) > order.missing:
                self.cursors.others_were_faster(order)
            order.missing = request.limit - len(claimed)
            if self.met_expired or (self._limited and self._limited.is_over):  # the next claim goes on
                break
            if self.cursors.paused.tenants and order.missing and self._park_met():
                order = self.cursors.looked(self.ready_ranges, request)
                if self._parked < MOST_PARKED:  # else the next claim parks the rest of them, before it goes on
                    rest = msgspec.structs.replace(request, limit=request.limit - len(claimed))
                    claimed += self._claim_in(order, worker, rest)
                break
        self._more = self._more or order.more or (self._behind > MOST_BEHIND and bool(claimed))
        return claimed

    def _lease_ahead(self, order: ClaimOrder, slots: Slots, worker: str, request: ClaimRequest) -> Claim:
        """Lease what an earlier claim has found for this one, except what others have taken since then."""
        found = order.take_ahead(request.limit, slots)
        ids = as_json([id for _, id, _ in found])
        leased = self._lease(worker, request, [range for _, _, range in found], {"ids": ids}) if found else []
        if len(leased) < len(found):
            self.cursors.others_were_faster(order)
        return Claim(leased)

    def _park_met(self) -> int:
        """Park what paused tenants have at the start of the ranges that gave too little, which may be why."""
        short, self._short = self._short, []
        if not short:
            return 0
        ranges = as_json([(*range[:3], limit, *position) for range, limit, position in short])
        parked = self.execute(sql.PARK, {"ranges": ranges, "now": self.now, "most": MOST_PARKED}).rowcount
        self._parked += max(parked, MOST_PARKED // MOST_LOOKS)
        return parked

    def _claim_batch(
        self, worker: str, request: ClaimRequest, order: ClaimOrder, batch: Sequence[Head]
    ) -> list[ClaimedJob]:
        head = batch[0]
        limited, alone = self._limited, not (len(batch) > 1 or head.range.fair or order.has_others(head))
        keyed_types = limited.keyed if limited else ()
        if not alone or head.range.type in keyed_types:
            all_taken = alone and order.places(head.range.type) == order.missing == order.rows
            if all_taken and limited and head.at[0] <= self.now:
                starts = [self._lock_start(head, order, limited)]
            else:
                starts = self._read_starts(batch, order)
            jobs = order.merge(batch, starts)
            jobs = served(order, jobs, self.cursors.turn) if order.turns else jobs
            keyed = self._lease_fitting(limited, worker, request, order, jobs) if limited and jobs else []
            plain = [job for job in jobs if job[2].type not in keyed_types]
            if self.cursors.paused.tenants and len(keyed) < len(jobs) - len(plain):
                met = {job[1] for job in plain}
                self._short += starts_of([job for job in jobs if job[1] not in met and not job[2].fair], batch)
            in_order = self._lease_in_order(worker, request, batch, [job for job in plain if not job[2].fair])
            if keyed and in_order:  # two statements, one order
                keyed = sorted([*keyed, *in_order], key=lambda c: (c.run_at, c.id))
                in_order = []
            return [*keyed, *in_order, *self._lease_by_turns(worker, request, order, plain)]
        # Nearly always: nothing to merge, so nothing to read first.
        is_due, most = head.at[0] <= self.now, order.places(head.range.type)
        claimed = self._lease_ranges(worker, request, [(head.range, most, head.after)]) if is_due else []
        order.take(head.range.type, len(claimed))
        if len(claimed) == most:
            order.passed(head, max((c.run_at, c.id) for c in claimed))
        elif (lower := self.value(sql.LOWER_PRIORITY, head.range._asdict())) is not None:
            order.below(head, lower)
        return claimed

    def _lease_fitting(
        self, limited: LimitedClaim, worker: str, request: ClaimRequest, order: ClaimOrder, jobs: list[Candidate]
    ) -> list[ClaimedJob]:
        """Of types whose limits have keys, lease those jobs that fit."""
        keyed_types = limited.keyed
        fitting = {id: range for _, id, range in limited.fit(order, jobs) if range.type in keyed_types}
        if not fitting:
            return []
        places = ",".join([f'"{self._places[id]}"' for id in fitting])
        return self._lease(
            worker, request, fitting.values(), {"places": f"{{{places}}}", **limited.first_keys(fitting)}
        )

    def _lease_by_turns(
        self, worker: str, request: ClaimRequest, order: ClaimOrder, jobs: Sequence[Candidate]
    ) -> list[ClaimedJob]:
        """Others may have taken these very jobs by now. Then the claim goes on with those behind them, but not forever:
        others may have locked all of them."""
        fair = [(id, range) for _, id, range in jobs if range.fair]
        ids = as_json([id for id, _ in fair])
        claimed = self._lease(worker, request, [range for _, range in fair], {"ids": ids}) if fair else []
        self._behind += len(claimed) < len(fair)
        for range in {range for _, range in fair} if self._behind > MOST_BEHIND else ():
            order.leave(range)
        turns = {id: n for n, (id, _) in enumerate(fair)}
        return sorted(claimed, key=lambda job: turns[job.id])

    def _read_starts(self, batch: Sequence[Head], order: ClaimOrder, *, reads_only: bool = False) -> list[RangeStart]:
        ranges = [(*head.range[:3], *head.after) for head in batch if not head.range.fair]
        row = {"ranges": as_json(ranges), "now": self.now, "limit": order.rows}
        starts = _decode_starts(self.value(sql.READ_RANGES, row)) if ranges else []
        if len(starts) == len(batch):
            return starts
        turns = TurnReader(self, order, self.cursors.turn, self.cursors.paused.tenants)
        return turns.starts(batch, starts, reads_only=reads_only)

    def _lease_in_order(
        self, worker: str, request: ClaimRequest, batch: Sequence[Head], jobs: Sequence[Candidate]
    ) -> list[ClaimedJob]:
        """Lease these jobs, if they are of many ranges: to name them costs less than to look for the next one of each.
        Others may have taken some of them by now. Then, or of few ranges, lease the next jobs of each range."""
        starts = starts_of(jobs, batch)
        if self._short or 2 * len(starts) < len(jobs):
            return self._lease_ranges(worker, request, starts) if starts else []
        ids = as_json([id for _, id, _ in jobs])
        claimed = self._lease(worker, request, [range for range, _, _ in starts], {"ids": ids}) if jobs else []
        if len(claimed) < len(jobs):
            self._short += starts
        return claimed

    def _lease_ranges(
        self, worker: str, request: ClaimRequest, starts: Sequence[tuple[ReadyRange, int, Position]]
    ) -> list[ClaimedJob]:
        """Lease the next jobs of each range."""
        ranges = as_json([(*range[:3], limit, *position) for range, limit, position in starts])
        claimed = self._lease(worker, request, [range for range, _, _ in starts], {"ranges": ranges})
        if len(claimed) < sum(limit for _, limit, _ in starts):
            self._short += starts
        return claimed

    def _lease(
        self, worker: str, request: ClaimRequest, ranges: Iterable[ReadyRange], which: Mapping[str, str]
    ) -> list[ClaimedJob]:
        known, by_hand = request.types or {}, request.lease_for
        types = {range.type for range in ranges}
        timeouts = {type: known.get(type) if by_hand is None else by_hand for type in types}
        parameters = {**which, "now": self.now, "worker": worker, "timeouts": as_json(timeouts)}
        parameters["queues"] = as_json(request.queues) if request.queues else None
        token = secrets.randbits(63)
        statement = sql.INSERT_LEASES if "ranges" in which else sql.INSERT_LEASES_OF
        statement = sql.INSERT_KEYED_LEASES if "keys" in which else statement
        found = self.execute(statement, {**parameters, "token": token}).fetchall()
        if found and found[0][_EXPIRED]:
            found = self._put_back_expired(found, token)
        claimed = [ClaimedJob(*row[:_EXPIRED]) for row in found if row[_PAYLOAD] is not None]
        if len(claimed) < len(found):
            log.warning(ORPHANED, len(found) - len(claimed))
            self.execute(sql.DROP_ORPHANED_LEASES)
        if self._limited:
            self._limited.record(claimed, from_key=int("keys" in which))
        return claimed

    def _put_back_expired(self, found: Sequence[tuple[Any, ...]], token: int) -> list[tuple[Any, ...]]:
        """The jobs that may start. The others wait again, until the verb ends them."""
        self.met_expired = True
        expired = found[0][_EXPIRED]
        self.execute(PostgresStatements.UNLEASE, {"rows": expired, "token": token, "now": self.now})
        late = {id for id, _ in _decode_expired(expired)}
        return [row for row in found if row[0] not in late]

    # From `leases` to `finished`, or back to `ready`

    def settle(self, ended: Sequence[LeaseOutcome]) -> tuple[Sequence[LeaseOutcome], Sequence[LeaseOutcome]]:
        self._wake_others(ended)
        if all(o.kind is OutcomeKind.COMPLETED and o.result is None and not c.limited for c, o in ended):
            return self._complete(ended), ()
        for claimed, outcome in ended:
            if not outcome.kind.final:
                self.job_waits(claimed.queue)
        rows = as_json([settle_row(self.now, *one) for one in ended])
        held, arrived = self.execute(sql.SETTLE, {"rows": rows, "now": self.now}).fetchone()
        if arrived:
            self.job_waits("")
        written = as_written(ended, dict(_decode_held(held)))
        return written, written

    def _complete(self, ended: Sequence[LeaseOutcome]) -> Sequence[LeaseOutcome]:
        held = self.execute(sql.COMPLETE, {**fences(ended), "now": self.now}).fetchall()
        if held and held[0][-1]:
            self.job_waits("")
        return ended if len(held) == len(ended) else as_written(ended, {row[:2]: 0 for row in held})

    def _wake_others(self, ended: Sequence[LeaseOutcome]) -> None:
        """The owners of these leases claim again, and use the places that become free. Others have to be notified."""
        if alike := self.cursors.known.limits.alike(c.type for c, _ in ended):
            these = {"ids": as_json([c.id for c, _ in ended]), "types": as_json(alike)}
            if self.value(sql.PLACES_ARE_FOR_OTHERS, these):
                self.job_waits("")

    def release_keys(self, ids: Sequence[str]) -> Collection[str]:
        these = {"ids": as_json(ids), "now": self.now}
        released = 0
        for one, queue in self.execute(sql.RELEASE_KEYS, these):
            released += one
            if queue is not None:
                self.job_waits(queue)
        if released == len(ids):
            return ()
        return [row[0] for row in self.execute(sql.UNRELEASED_KEYS, these)]

    def prune(self, old: Mapping[str, Any]) -> Moved:
        return self.execute(PostgresStatements.PRUNE, old).fetchall()
