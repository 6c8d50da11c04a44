"""What limits let a claim start.

A limit without a key holds for whole types: the claim leaves out the ranges of those that have no free place. A limit
with a key is met job by job: a job whose key has no free place is parked for it, which takes it out of the index that
claims read, so that a full key costs the others nothing.

How many jobs run under a key is counted, in the leases, while nobody else can start one (`lock_limits`). A place
becomes free when a job ends, or at a known time. Both leave an opening: a row that names the keys and the moment. A
claim that comes to it puts back as many of the parked jobs as there are free places. An opening that is missing (its
job was cancelled meanwhile, say) is added by a chore.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence

import msgspec

from treadle import clock
from treadle.codec import as_json, decode, decode_as
from treadle.job import ClaimedJob
from treadle.limits import OF_TYPE, UNUSED, Bounds, Key, KeyUse, Limit, LimitChange, Limits, Rate, parked_for
from treadle.stores.base import RECLAIM_AFTER
from treadle.stores.claim_order import ClaimOrder, KnownLimits
from treadle.stores.parking import MOST_PARKED
from treadle.stores.ranges import NO_SLOTS, Candidate, Slots
from treadle.stores.rows import Due
from treadle.stores.transaction import Transaction

SOON = 5_000
"""Microseconds after which a claim that could not lock a key is repeated."""
MOST_IN_VAIN = 3
"""Times that one claim goes on behind jobs that other claims have, or whose keys they have locked. There may be very
many of them, and as long as this claim reads them, it keeps its own keys from the others."""
LATER = 50_000
"""Microseconds after which a claim comes again to a key whose jobs another transaction has locked."""
MOST_BESIDE = 200
"""Jobs that cannot start now and are in the way of a free place, which one claim looks at."""
MOST_OPENINGS = 200
"""Keys to whose openings one claim comes."""
_decode_keys = msgspec.json.Decoder(list[object]).decode
_decode_bucket = msgspec.json.Decoder(tuple[int, int]).decode


def load(tx: Transaction) -> Limits:
    """All limits that are in force."""
    declared: dict[str, list[Limit]] = {}
    types, changed = tx.execute(tx.sql.LIMITED_TYPES), changes(tx)
    names = {change.name for change in changed}
    for type, concurrency, limits in types.fetchall():
        own = [] if concurrency is None and f"{OF_TYPE}{type}" not in names else [Limit(f"{OF_TYPE}{type}", 1)]
        for limit in own:  # 0 by hand: nothing of it starts
            msgspec.structs.force_setattr(limit, "concurrency", None if concurrency is None else max(0, concurrency))
        declared[type] = [*own, *(decode_as(limits, list[Limit]) or ())]
    return Limits(declared, changed)


def limited_claim(tx: Transaction, known: KnownLimits, version: int, opened: int) -> LimitedClaim | None:
    """What the limits allow a claim; None if there are none, and no openings either. This process remembers them until
    they are changed."""
    if version != known.version:
        known.limits, known.version = load(tx), version
    return LimitedClaim(tx, known) if known.limits.types or opened else None


def changes(tx: Transaction) -> list[LimitChange]:
    """What people set at run time."""
    rows = tx.execute(tx.sql.LIMIT_CHANGES).fetchall()
    return [
        LimitChange(name=n, key=k, concurrency=c, rate=decode_as(r or "", Rate), by=by, at=clock.moment(at))
        for n, k, c, r, by, at in rows
    ]


def key_uses(tx: Transaction, limits: Limits, keys: Collection[Key], *, count_all: bool = True) -> dict[Key, KeyUse]:
    """How much of these keys is used. `count_all`: count the jobs that run under keys that only have a rate, too."""
    bounds = {key: limits.bounds(key) for key in sorted(keys)}
    return dict.fromkeys(bounds, UNUSED) | _uses(tx, bounds, count_all)


def _uses(tx: Transaction, bounds: Mapping[Key, Bounds], count_all: bool) -> dict[Key, KeyUse]:
    """Of the keys of which something is used."""
    asked = [(*key, int(count_all or n is not None), int(rate is not None)) for key, (n, rate) in bounds.items()]
    if not asked:
        return {}
    statement = tx.sql.KEY_USES.format(keys=tx.sql.COUNTED_KEYS, unit=tx.sql.UNIT, once=tx.sql.ONCE)
    rows = tx.execute(statement, {"keys": as_json(asked), "now": tx.now, "grace": RECLAIM_AFTER})
    found = {}
    for name, key, running, bucket, given_back, held_until, parked in rows.fetchall():
        full_at = row = 0
        if bucket is not None and (rate := bounds[name, key][1]):
            full_at, row = _decode_bucket(bucket)
            full_at = rate.spend(full_at, 0, -given_back) if full_at and given_back else full_at
        found[name, key] = KeyUse(running, full_at, held_until or 0, parked is not None, row)
    return found


class KeyInClaim(msgspec.Struct, eq=False, gc=False):
    """One key of a limit, as a claim knows it."""

    key: Key
    bounds: Bounds
    limited: int
    """2: a job that runs under it frees a place when it ends; else 1. See `ClaimedJob.limited`."""
    use: KeyUse = UNUSED
    free: int | None = None
    """Places that no job of this claim has taken. None: not measured, or another claim has locked it."""
    starts: int = 0
    """Jobs that were claimed, and that its rate does not know yet."""
    is_spent: bool = False
    """Whether its rate has changed."""
    parked_for: bool = False
    """Whether this claim has parked jobs for it."""
    is_left: bool = False
    """Whether a job did not take its free place, because another key of the job is full."""

    @property
    def is_rated(self) -> bool:
        return self.bounds[1] is not None

    def next_at(self, now: int) -> int | None:
        return self.use.next_at(self.bounds, now)


class LimitedClaim:
    """What the limits allow one claim."""

    def __init__(self, tx: Transaction, known: KnownLimits) -> None:
        self._tx, self._known, self._limits = tx, known, known.limits
        self._keys: dict[Key, KeyInClaim] = {}
        self._taken: dict[str, tuple[KeyInClaim, ...]] = {}
        """The jobs that fit, with the keys of which they have places, until they are leased."""
        self._parked = 0
        self._in_vain = 0
        """How often it read jobs that other claims have, or whose keys they have locked."""
        self.is_over = False
        """Whether the claim is to end here, though there is more."""
        self.again = False
        """Whether another claim should follow soon: there is more to park, or another claim has locked a key."""

    def open_keys(self) -> int:
        """Come to the openings that are due: put back what is parked for keys with free places, as many of each queue
        and type as there are places. Return how many jobs."""
        tx = self._tx
        rows = tx.execute(tx.sql.TAKE_OPENINGS, {"now": tx.now, "most": MOST_OPENINGS}).fetchall()
        met = [(name, key, is_locked) for name, keys, is_locked in rows for key in _decode_keys(keys)]
        locked = {(name, key) for name, key, is_locked in met if is_locked and isinstance(key, str)}
        self.again = len(met) >= MOST_OPENINGS or not all(is_locked for _, _, is_locked in met)
        # Others lock limits without a key in another order: to wait for them now could be a deadlock.
        tx.has_locked_limits = tx.has_locked_limits or any(not key for _, key in locked)
        keys = [self._key(key) for key in locked]
        self._measure(keys)
        free = [(one, min(one.free or 0, MOST_PARKED)) for one in keys if one.use.parked]
        openings = list[tuple[Key, int | None]]()
        back, others = self._put_back({one.key: n for one, n in free if n})
        for one, n in free:
            if n and parked_for(one.key) in others:  # none of them uses the place
                openings.append((one.key, tx.now))
            elif tx.locks_limits and back[parked_for(one.key)] < n:  # another transaction may have locked some jobs
                openings.append((one.key, tx.now + LATER))
            openings.append((one.key, tx.now if n == MOST_PARKED else one.next_at(tx.now)))
        add_openings(tx, openings)
        self.again = self.again or bool(others)
        return back.total()

    def _put_back(self, free: dict[Key, int]) -> tuple[Counter[str], set[str]]:
        """Let as many jobs that are parked for these keys be claimed, of each queue and type. Return how many, by what
        they were parked for, if others may have locked some of them; and for which keys only jobs were found that
        cannot start now."""
        back, others = Counter[str](), set[str]()
        for beside in (0, MOST_BESIDE):
            if not free:
                break
            rows = as_json([(parked_for(key), n) for key, n in free.items()])
            row = {"rows": rows, "n": max(free.values()), "beside": beside, "now": self._tx.now}
            found = self._tx.execute(self._tx.sql.UNPARK_KEYS, row).fetchall()
            for queue in sorted({queue for queue, _, _ in found}):
                self._tx.job_waits(queue)
            back += Counter([reason or "" for _, reason, counts in found if counts])
            others = {reason for _, reason, counts in found if not counts}
            if "" in others:  # SQLite does not say for which key
                others = {parked_for(key) for key in free}
            free = {
                key: left
                for key, n in free.items()
                if (reason := parked_for(key)) in others and (left := n - back[reason])
            }
        return back, others & {parked_for(key) for key in free}

    def due(self, due: Due) -> Due:
        """The same, if a place becomes free before."""
        now, whole = self._tx.now, [one.next_at(self._tx.now) for key, one in self._keys.items() if not key[1]]
        opening = self._tx.value(self._tx.sql.NEXT_OPENING)
        moments = [at for at in (opening, *whole, now + SOON if self.again else None) if at is not None]
        if not moments or (due.next_at is not None and due.next_at <= min(moments)):
            return due
        wait = max(SOON, min(moments) - now)
        return Due(due.now or self.again, now + wait, wait / clock.SECOND)

    def slots_again(self, types: Iterable[str]) -> Slots:
        """Begin again: nothing was taken."""
        self._taken = {}
        for one in self._keys.values():
            one.free = None
        return self.slots(types)

    @property
    def keyed(self) -> Container[str]:
        """The types of which it has to be seen for each job whether it fits."""
        return self._limits.keyed

    def slots(self, types: Iterable[str], *, lock: bool = True) -> Slots:
        """The free places of the limits without a key, once no other transaction can take any of them. A claim that
        looks again does not wait for others of them: two such claims would deadlock."""
        whole = self._limits.whole
        keys = [self._key((name, "")) for name in sorted({name for type in types for name in whole.get(type, ())})]
        if not keys:
            return NO_SLOTS
        if lock and self._tx.locks_limits:
            self._lock_whole(keys)
        else:
            self._measure(keys)
        return Slots(whole, {one.key[0]: one.free or 0 for one in keys})

    def _lock_whole(self, keys: list[KeyInClaim]) -> None:
        """Lock and measure limits; but those that were full at the last claim only if they are no longer."""
        full = [one for one in keys if one.key in self._known.full]
        self._measure(full)
        wanted = [one for one in keys if one not in full or one.free]
        locked = self._tx.lock_limits([one.key for one in wanted], wait=not self._tx.has_locked_limits)
        self._tx.has_locked_limits, self.again = True, self.again or len(locked) < len(wanted)
        for one in keys:
            one.free = None
        self._measure([self._key(key) for key in locked])
        self._known.full = {one.key for one in keys if not one.free}

    def _key(self, key: Key) -> KeyInClaim:
        one = self._keys.get(key)
        if one is None:
            bounds = self._limits.bounds(key)
            one = self._keys[key] = KeyInClaim(key, bounds, 1 if bounds[0] is None else 2)
        return one

    def _measure(self, keys: Collection[KeyInClaim]) -> None:
        """Find out how many places of these keys are free."""
        now = self._tx.now
        uses = _uses(self._tx, {one.key: one.bounds for one in keys}, count_all=False)
        unused = {bounds: UNUSED.places(bounds, now) for bounds in {one.bounds for one in keys}}
        for one in keys:
            one.use, one.free = UNUSED, unused[one.bounds]
        for key, use in uses.items():
            one = self._keys[key]
            one.use, one.free = use, use.places(one.bounds, now)

    def fit(self, order: ClaimOrder, jobs: list[Candidate]) -> list[Candidate]:
        """Those of the jobs whose keys have free places. The others are parked, and the claim goes on behind them."""
        keyed = self._limits.keyed
        limited = {id: range.type for _, id, range in jobs if range.type in keyed}
        if not limited:
            return jobs
        keys = self._read_keys(limited)
        self._lock({one for of in keys.values() for one in of if one.free is None})
        parked: list[tuple[str, str]] = []
        fitting, others = list[Candidate](), list[str]()
        for job in jobs:
            id = job[1]
            own = keys.get(id)
            if self._take(id, own, parked) if own else id not in limited:
                fitting.append(job)
            else:
                others.append(job[2].type)
        order.give_back(others)
        if parked:
            self._tx.execute(self._tx.sql.PARK_FOR, {"rows": as_json(parked)})
        self._parked += len(parked)
        self._in_vain += len(others) > len(parked)
        if self._parked >= MOST_PARKED or self._in_vain >= MOST_IN_VAIN:  # others wait for this transaction
            order.missing, self.again, self.is_over = 0, True, True
        return fitting

    def _read_keys(self, limited: dict[str, str]) -> dict[str, tuple[KeyInClaim, ...]]:
        """The keys of the jobs that are still there. On PostgreSQL they are locked now."""
        limits, types = self._limits, set(limited.values())
        paths, known = limits.paths(types), dict[tuple[str, str, str, str], tuple[KeyInClaim, ...]]()
        rows = self._tx.limit_values(list(limited), self.paths(types))
        keys = {}
        for id, tenant, subject, values in rows:
            seen = limited[id], tenant, subject, values
            own = known.get(seen)
            if own is None:  # most jobs of a claim have the same keys as others
                found = dict(zip(paths, decode(values), strict=False)) if values else {}
                own = known[seen] = tuple([self._key(key) for key in limits.keys(*seen[:3], found)])
            keys[id] = own
        return keys

    def paths(self, types: Collection[str]) -> list[list[str]] | None:
        """What the keys of these types need of the payloads. None: the tenant is enough."""
        limits = self._limits
        return None if limits.by_tenant(types) else [path.split(".")[1:] for path in limits.paths(types)]

    def _lock(self, new: Collection[KeyInClaim]) -> None:
        """Lock and measure keys that are new to this claim. It does not wait for others, which may wait for it."""
        if new:
            self._measure([self._keys[key] for key in self._tx.lock_limits([one.key for one in new], wait=False)])

    def _take(self, id: str, keys: tuple[KeyInClaim, ...], parked: list[tuple[str, str]]) -> bool:
        """Take a place of each key; or none, and park the job for the first that has none."""
        for one in keys:
            if not one.free:
                return self._leave(id, keys, parked)
        for one in keys:
            one.free -= 1  # type: ignore[operator]
        self._taken[id] = keys
        return True

    def _leave(self, id: str, keys: tuple[KeyInClaim, ...], parked: list[tuple[str, str]]) -> bool:
        """Park a job that cannot take a place of each key, unless another claim has locked one of them."""
        if any(one.free is None for one in keys):
            self.again = True
            return False
        full = next(one for one in keys if not one.free)
        parked.append((id, parked_for(full.key)))
        full.parked_for = True
        for one in keys:
            one.is_left = one.is_left or bool(one.free)
        return False

    def first_keys(self, fitting: Iterable[str]) -> Mapping[str, str]:
        """The first key under which each of these jobs will run, in columns: names and keys."""
        first = [self._taken[id][0].key for id in fitting]
        return {"names": as_json([name for name, _ in first]), "keys": as_json([key for _, key in first])}

    def record(self, claimed: Sequence[ClaimedJob], *, from_key: int = 0) -> None:
        """Write what the claimed jobs take from the buckets, and under which keys they run. `from_key`: so many keys of
        each job are written already."""
        rows, of_types = list[tuple[str, str, str, int, str]](), dict[str, tuple[tuple[Key, ...], list[KeyInClaim]]]()
        for c in claimed:
            if c.type not in of_types:
                rated = [
                    one
                    for key in self._limits.whole_keys.get(c.type, ())
                    if (one := self._key(key)).is_rated and one.free is not None
                ]
                of_types[c.type] = self._limits.counted.get(c.type, ()), rated
            counted, rated = of_types[c.type]
            own = self._taken.pop(c.id, ())
            limited = 1 if counted or rated else 0
            for one in own:
                one.starts += 1
                limited = max(limited, one.limited)
            for one in rated:
                one.starts += 1
            if limited:
                msgspec.structs.force_setattr(c, "limited", limited)
            if counted or len(own) > from_key:
                others = (*counted, *[one.key for one in own[from_key:]])
                rows += [(*key, c.id, c.number, c.tenant) for key in others]
        if rows:
            self._tx.execute(self._tx.sql.ADD_LEASE_KEYS, {"rows": as_json(rows)})
        self._spend([one for one in self._keys.values() if one.starts and one.is_rated])

    def record_parked(self) -> None:
        """Write when the jobs that were parked may follow, if that is known now: at once, if a job that fits was not
        leased, such as one that was not started in time."""
        for one in [one for keys in self._taken.values() for one in keys]:
            one.free, one.is_left = (one.free or 0) + 1, True
        now, keys = self._tx.now, self._keys.values()
        later = [(one.key, one.next_at(now)) for one in keys if one.parked_for or one.is_spent]
        left = [(one.key, now) for one in keys if one.is_left and one.free]
        add_openings(self._tx, [*later, *left])

    def _spend(self, rated: list[KeyInClaim]) -> None:
        rows = []
        for one in rated:
            rate, use = one.bounds[1], one.use
            assert rate is not None
            full_at = rate.spend(use.full_at, self._tx.now, one.starts)
            rows.append((*one.key, full_at, use.bucket))
            one.use = use._replace(running=use.running + one.starts, full_at=full_at)
            one.starts, one.is_spent = 0, True
        for statement in self._tx.sql.SET_BUCKETS if rows else ():
            self._tx.execute(statement, {"keys": as_json(rows)})


def add_openings(tx: Transaction, openings: Iterable[tuple[Key, int | None]]) -> None:
    """Of keys for which jobs are parked: when they may have a free place."""
    rows = [(*key, at, parked_for(key)) for key, at in openings if at is not None]
    if rows:
        tx.execute(tx.sql.ADD_OPENINGS, {"rows": as_json(rows), "now": tx.now})
