"""What limits let a claim start.

A limit without a key holds for whole types: the claim leaves out the ranges of those that have no free place. A limit
with a key is met job by job: a job whose key has no free place is parked for it, which takes it out of the index that
claims read, so that a full key costs the others nothing.

How many jobs run under a key is counted, in the leases, while nobody else can start one (`lock_limits`). A place
becomes free when a job ends, or at a known time. Both leave an opening: a row that names the key and the moment. A
claim that comes to it puts back as many of the parked jobs as there are free places. An opening that is missing (its
job was cancelled meanwhile, say) is added by a chore.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Container, Iterable, Mapping, Sequence

import msgspec

from treadle import clock
from treadle.codec import as_json, decode, decode_as
from treadle.job import ClaimedJob
from treadle.limits import OF_TYPE, Bounds, Key, KeyUse, Limit, LimitChange, Limits, Rate, parked_for
from treadle.stores.base import RECLAIM_AFTER
from treadle.stores.claim_order import ClaimOrder, KnownLimits
from treadle.stores.parking import MOST_PARKED
from treadle.stores.ranges import NO_SLOTS, Candidate, ReadyRange, Slots
from treadle.stores.rows import Due
from treadle.stores.transaction import Transaction

SOON = 5_000
"""Microseconds after which a claim that could not lock a key is repeated."""
MOST_IN_VAIN = 3
"""Times that one claim goes on behind jobs that other claims have, or whose keys they have locked. There may be very
many of them, and as long as this claim reads them, it keeps its own keys from the others."""
MOST_OPENINGS = 200
"""Openings to which one claim comes."""
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
    return _uses(tx, {key: limits.bounds(key) for key in sorted(keys)}, count_all) if keys else {}


def _uses(tx: Transaction, bounds: Mapping[Key, Bounds], count_all: bool) -> dict[Key, KeyUse]:
    asked = [(*key, int(count_all or n is not None), int(rate is not None)) for key, (n, rate) in bounds.items()]
    statement = tx.sql.KEY_USES.format(keys=tx.sql.COUNTED_KEYS, unit=tx.sql.UNIT)
    rows = tx.execute(statement, {"keys": as_json(asked), "now": tx.now, "grace": RECLAIM_AFTER})
    found = {}
    for name, key, running, bucket, given_back, held_until, parked in rows.fetchall():
        full_at = row = 0
        if bucket is not None and (rate := bounds[name, key][1]):
            full_at, row = _decode_bucket(bucket)
            full_at = rate.spend(full_at, 0, -given_back) if full_at and given_back else full_at
        found[name, key] = KeyUse(running, full_at, held_until or 0, parked is not None, row)
    return found


class LimitedClaim:
    """What the limits allow one claim."""

    def __init__(self, tx: Transaction, known: KnownLimits) -> None:
        self._tx, self._known, self._limits = tx, known, known.limits
        self._uses: dict[Key, KeyUse] = {}
        self._places: dict[Key, int] = {}
        self._keys: dict[str, tuple[Key, ...]] = {}
        """The keys of jobs that fit."""
        self._bounded: set[Key] = set()
        """Of the keys that were measured, those whose jobs free a place when they end."""
        self._rated: set[Key] = set()
        """... those with a rate."""
        self._full: set[Key] = set()
        """Keys for which jobs were parked."""
        self._spent: set[Key] = set()
        """Keys with a rate, of jobs that were claimed."""
        self._left: set[Key] = set()
        """Keys with a free place that a job did not take, because another key of it is full."""
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
        locked = {(name, key) for name, key, is_locked in rows if is_locked}
        self.again = len(rows) == MOST_OPENINGS or not all(is_locked for _, _, is_locked in rows)
        self._measure(locked)
        free = {key: min(self._places[key], MOST_PARKED) for key in locked if self._uses[key].parked}
        queues = self._put_back({key: n for key, n in free.items() if n})
        add_openings(tx, [(key, tx.now if n == MOST_PARKED else self._next_at(key)) for key, n in free.items()])
        return queues

    def _put_back(self, free: dict[Key, int]) -> int:
        """Let as many jobs that are parked for these keys be claimed, of each queue and type. Return how many."""
        tx = self._tx
        if not free:
            return 0
        back = as_json([(parked_for(key), n) for key, n in free.items()])
        queues = [row[0] for row in tx.execute(tx.sql.UNPARK_KEYS, {"rows": back, "most": max(free.values())})]
        for queue in sorted(set(queues)):
            tx.job_waits(queue)
        return len(queues)

    def due(self, due: Due) -> Due:
        """The same, if a place becomes free before."""
        now, whole = self._tx.now, [self._next_at(key) for key in self._uses if not key[1]]
        opening = self._tx.value(self._tx.sql.NEXT_OPENING)
        moments = [at for at in (opening, *whole, now + SOON if self.again else None) if at is not None]
        if not moments or (due.next_at is not None and due.next_at <= min(moments)):
            return due
        wait = max(SOON, min(moments) - now)
        return Due(due.now or self.again, now + wait, wait / clock.SECOND)

    def _next_at(self, key: Key) -> int | None:
        return self._uses[key].next_at(self._limits.bounds(key), self._tx.now)

    def slots_again(self, types: Iterable[str]) -> Slots:
        """Begin again: nothing was taken."""
        self._places, self._keys = {}, {}
        return self.slots(types)

    @property
    def keyed(self) -> Container[str]:
        """The types of which it has to be seen for each job whether it fits."""
        return self._limits.keyed

    def slots(self, types: Iterable[str], *, lock: bool = True) -> Slots:
        """The free places of the limits without a key, once no other transaction can take any of them. A claim that
        looks again does not wait for others of them: two such claims would deadlock."""
        whole = self._limits.whole
        keys = {(name, "") for type in types for name in whole.get(type, ())}
        if not keys:
            return NO_SLOTS
        places = self._lock_whole(keys) if lock and self._tx.locks_limits else self._measure(keys)
        return Slots(whole, {name: places.get((name, ""), 0) for name, _ in keys})

    def _lock_whole(self, keys: set[Key]) -> dict[Key, int]:
        """Lock and measure limits; but those that were full at the last claim only if they are no longer."""
        full = self._known.full & keys
        wanted = keys - {key for key, n in self._measure(full).items() if not n}
        locked = self._tx.lock_limits(wanted, wait=not self._tx.has_locked_limits)
        self._tx.has_locked_limits, self.again = True, self.again or len(locked) < len(wanted)
        places = self._measure(locked)
        self._known.full = {key for key in keys if not places.get(key)}
        return places

    def _measure(self, keys: Collection[Key]) -> dict[Key, int]:
        """The free places of keys."""
        bounds, now = {key: self._limits.bounds(key) for key in sorted(keys)}, self._tx.now
        uses = _uses(self._tx, bounds, count_all=False) if keys else {}
        places = {key: use.places(bounds[key], now) for key, use in uses.items()}
        self._bounded.update([key for key in uses if bounds[key][0] is not None])
        self._rated.update([key for key in uses if bounds[key][1] is not None])
        self._uses |= uses
        self._places |= places
        return places

    def fit(self, order: ClaimOrder, jobs: list[Candidate]) -> list[Candidate]:
        """Those of the jobs whose keys have free places. The others are parked, and the claim goes on behind them."""
        keyed = self._limits.keyed
        limited = {id: range.type for _, id, range in jobs if range.type in keyed}
        if not limited:
            return jobs
        keys = self._read_keys(limited)
        self._lock({key for of in keys.values() for key in of})
        parked: list[tuple[str, str]] = []
        fitting, others = list[Candidate](), list[str]()
        for job in jobs:
            _, id, range = job
            if id not in limited or (id in keys and self._take(id, keys[id], parked)):
                fitting.append(job)
            else:
                others.append(range.type)
        order.give_back(others)
        if parked:
            self._tx.execute(self._tx.sql.PARK_FOR, {"rows": as_json(parked)})
        self._parked += len(parked)
        self._in_vain += len(others) > len(parked)
        if self._parked >= MOST_PARKED or self._in_vain >= MOST_IN_VAIN:  # others wait for this transaction
            order.missing, self.again, self.is_over = 0, True, True
        return fitting

    def _read_keys(self, limited: dict[str, str]) -> dict[str, tuple[Key, ...]]:
        """The keys of the jobs that are still there. On PostgreSQL they are locked now."""
        limits, types = self._limits, set(limited.values())
        paths, known = limits.paths(types), dict[tuple[str, str, str, str], tuple[Key, ...]]()
        rows = self._tx.limit_values(list(limited), self.paths(types))
        keys = {}
        for id, tenant, subject, values in rows:
            seen = limited[id], tenant, subject, values
            if seen not in known:  # most jobs of a claim have the same keys as others
                found = dict(zip(paths, decode(values), strict=False)) if values else {}
                known[seen] = limits.keys(*seen[:3], found)
            keys[id] = known[seen]
        return keys

    def paths(self, types: Collection[str]) -> list[list[str]] | None:
        """What the keys of these types need of the payloads. None: the tenant is enough."""
        limits = self._limits
        return None if limits.by_tenant(types) else [path.split(".")[1:] for path in limits.paths(types)]

    def _lock(self, keys: set[Key]) -> None:
        """Lock and measure keys that are new to this claim. It does not wait for others, which may wait for it."""
        if new := keys - self._places.keys():
            self._measure(self._tx.lock_limits(new, wait=False))

    def _take(self, id: str, keys: tuple[Key, ...], parked: list[tuple[str, str]]) -> bool:
        """Take a place of each key; or none, and park the job for the first that has none."""
        if len(keys) == 1 and (n := self._places.get(keys[0])):  # nearly always
            self._places[keys[0]] = n - 1
            self._keys[id] = keys
            return True
        places = [self._places.get(key) for key in keys]
        if None in places:
            self.again = True
            return False
        if 0 in places:
            full = keys[places.index(0)]
            parked.append((id, parked_for(full)))
            self._full.add(full)
            self._left.update(key for key in keys if self._places[key] > 0)
            return False
        for key in keys:
            self._places[key] -= 1
        self._keys[id] = keys
        return True

    def keys_of(self, fitting: Mapping[str, ReadyRange]) -> list[tuple[str, str, str]]:
        """Under which keys these jobs will run: ids, names and keys."""
        counted = self._limits.counted
        return [(id, name, key) for id, range in fitting.items() for name, key in counted[range.type] + self._keys[id]]

    def record(self, claimed: Sequence[ClaimedJob], *, with_keys: bool = True) -> None:
        """Write what the claimed jobs take from the buckets and, unless that is done, under which keys they run."""
        starts, rows = Counter[Key](), list[tuple[str, str, str, int, str]]()
        alike: defaultdict[tuple[str, tuple[Key, ...]], list[ClaimedJob]] = defaultdict(list)
        for c in claimed:
            alike[c.type, self._keys.pop(c.id, ())].append(c)
        for (type, own), jobs in alike.items():
            counted, whole = self._limits.counted.get(type, ()), self._limits.whole_keys.get(type, ())
            spent = [key for key in whole + own if key in self._rated]
            for one in spent:
                starts[one] += len(jobs)
            limited = 1 if self._bounded.isdisjoint(own) else 2
            for c in jobs if own or counted or spent else ():
                msgspec.structs.force_setattr(c, "limited", limited)
            for name, key in counted + own if with_keys else ():
                rows += [(name, key, c.id, c.number, c.tenant) for c in jobs]
        if rows:
            self._tx.execute(self._tx.sql.ADD_LEASE_KEYS, {"rows": as_json(rows)})
        if starts:
            self._spend(starts)

    def record_parked(self) -> None:
        """Write when the jobs that were parked may follow, if that is known now: at once, if a job that fits was not
        leased, such as one that was not started in time."""
        for key in (key for keys in self._keys.values() for key in keys):
            self._places[key] += 1
            self._left.add(key)
        later = [(key, self._next_at(key)) for key in self._full | self._spent]
        add_openings(self._tx, [*later, *((key, self._tx.now) for key in self._left if self._places[key] > 0)])

    def _spend(self, starts: Counter[Key]) -> None:
        rows = []
        for key, n in starts.items():
            use, (_, rate) = self._uses[key], self._limits.bounds(key)
            assert rate is not None
            full_at = rate.spend(use.full_at, self._tx.now, n)
            self._uses[key] = use._replace(running=use.running + n, full_at=full_at)
            rows.append((*key, full_at, use.bucket))
        self._spent |= starts.keys()
        for statement in self._tx.sql.SET_BUCKETS:
            self._tx.execute(statement, {"keys": as_json(rows)})


def add_openings(tx: Transaction, openings: Iterable[tuple[Key, int | None]]) -> None:
    """Of keys for which jobs are parked: when they may have a free place."""
    rows = [(*key, at, parked_for(key)) for key, at in openings if at is not None]
    if rows:
        tx.execute(tx.sql.ADD_OPENINGS, {"rows": as_json(rows), "now": tx.now})
