"""Limits: what a settle gives back, what people change at run time, and what a chore looks after."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from treadle.clock import moment
from treadle.codec import as_json
from treadle.limits import OF_TYPE, PARKED, FullLimit, Key, LimitChange, Limits, LimitState, key_parked_for
from treadle.stores.limiting import add_openings, changes, key_uses, load
from treadle.stores.parking import MOST_REASONS
from treadle.stores.transaction import LeaseOutcome, Transaction

_AFTER_PARKED = "limit;"
"""What sorts after all that begins with PARKED."""


def keys_to_write(tx: Transaction, ended: Sequence[LeaseOutcome]) -> Mapping[str, Sequence[Key]]:
    """Of leases that are about to end, the keys that they hold back, or to whose rates they give something back."""
    return {
        c.id: [(f"{OF_TYPE}{c.type}", ""), *tx.execute(tx.sql.LEASE_KEYS_OF, {"id": c.id}).fetchall()]
        for c, outcome in ended
        if outcome.holds is not None or not outcome.started
    }


def release(tx: Transaction, ended: Sequence[LeaseOutcome], keys: Mapping[str, Sequence[Key]]) -> None:
    """These leases have ended: their keys have free places. On PostgreSQL this locks nothing that a claim needs.
    `keys`: what `keys_to_write` has found."""
    for c, outcome in ended:
        if outcome.holds is not None:
            _hold(tx, keys[c.id], outcome.holds, tx.now + outcome.delay)
        elif not outcome.started:
            _give_back(tx, keys[c.id])
    ids, keyed = [c.id for c, _ in ended if c.limited], [c.id for c, _ in ended if c.limited > 1]
    for statement in tx.sql.RELEASE_LIMITS:
        tx.execute(statement, {"ids": as_json(ids), "keyed": as_json(keyed), "now": tx.now})


def _hold(tx: Transaction, its_keys: Sequence[Key], name: str, until: int) -> None:
    """Let no job of its keys start before: of the limit that was named, or of those with a rate, or else of all."""
    limits = load(tx)
    keys = [key for key in its_keys if key[0] in limits.by_name]
    rated = [key for key in keys if limits.bounds(key)[1]]
    for limit, key in [k for k in keys if k[0] == name] if name else rated or keys:
        tx.execute(tx.sql.HOLD_KEY, {"name": limit, "key": key, "at": until})


def _give_back(tx: Transaction, its_keys: Sequence[Key]) -> None:
    """A job was claimed and did not start: its rates may start another one."""
    limits = load(tx)
    for key in its_keys:
        if limits.bounds(key)[1]:
            tx.execute(tx.sql.GIVE_BACK_TOKEN, {"name": key[0], "key": key[1]})


# What holds jobs back

MOST_KEYS = 200
"""Keys with parked jobs that `full_limits` looks at."""


def without_place(tx: Transaction, limits: Limits, keys: Collection[Key]) -> Iterator[FullLimit]:
    """Those of these keys under which no job can start now."""
    for key, use in key_uses(tx, limits, keys).items():
        concurrency, rate = limits.bounds(key)
        if not use.places((concurrency, rate), tx.now):
            yield FullLimit(
                name=key[0],
                per=limits.by_name[key[0]].per,
                key=key[1],
                concurrency=concurrency,
                rate=rate,
                running=use.running,
                next_at=rate.next_at(use.full_at, tx.now) if rate and not rate.tokens(use.full_at, tx.now) else None,
                held_until=use.held_until if use.held_until > tx.now else None,
            )


def full_limits(tx: Transaction) -> list[FullLimit]:
    """The limits under which no job can start now: those of whole types, and the first keys with parked jobs."""
    in_force, types = _in_force(tx)
    parked = tx.execute(tx.sql.OLDEST_PARKED, {"after": PARKED, "before": _AFTER_PARKED, "most": MOST_KEYS})
    oldest = {key_parked_for(reason): at for reason, at in parked.fetchall()}
    whole = {(name, "") for names in in_force.whole.values() for name in names}
    keys = sorted(whole | {key for key in oldest if key[0] in in_force.by_name})
    return [
        msgspec.structs.replace(one, types=tuple(sorted(types[one.name])), oldest=oldest.get((one.name, one.key)))
        for one in without_place(tx, in_force, keys)
    ]


def _in_force(tx: Transaction) -> tuple[Limits, dict[str, list[str]]]:
    """All limits, and the types that each holds for."""
    in_force, types = load(tx), defaultdict(list)
    for type, names in in_force.types.items():
        for name in names:
            types[name].append(type)
    return in_force, types


# What people see and change


def limits(tx: Transaction) -> list[LimitState]:
    """All limits that code declares, and all keys that people have changed or handlers hold back."""
    (in_force, types), changed = _in_force(tx), {(change.name, change.key): change for change in changes(tx)}
    running = dict(tx.execute(tx.sql.RUNNING_BY_LIMIT).fetchall())
    held = {(n, k): at for n, k, at in tx.execute(tx.sql.HELD_KEYS, {"now": tx.now, "most": MOST_REASONS})}
    keys = {*((name, "") for name in in_force.by_name), *changed, *held}
    uses = key_uses(tx, in_force, [key for key in keys if key[1] or key[0].startswith(OF_TYPE)])
    states = []
    for name, key in sorted(keys):
        concurrency, rate = in_force.bounds((name, key))
        declared, change = in_force.by_name.get(name), changed.get((name, key))
        states.append(
            LimitState(
                name=name,
                key=key,
                per=declared.per if declared else None,
                types=tuple(sorted(types[name])),
                concurrency=concurrency,
                rate=rate,
                running=uses[name, key].running if (name, key) in uses else running.get(name, 0),
                declared=declared if declared and (declared.concurrency is not None or declared.rate) else None,
                changed_by=None if change is None else change.by,
                changed_at=None if change is None else change.at,
                held_until=moment(held[name, key]) if (name, key) in held else None,
            )
        )
    return states


def change_limit(tx: Transaction, change: LimitChange) -> LimitState:
    """From the commit on, claims go by it. What runs goes on."""
    rate = None if change.rate is None else as_json(change.rate)
    row = {"name": change.name, "key": change.key, "concurrency": change.concurrency, "rate": rate, "who": change.by}
    tx.execute(tx.sql.CHANGE_LIMIT, {**row, "now": tx.now})
    _changed(tx, change.name, change.key)
    return next(state for state in limits(tx) if (state.name, state.key) == (change.name, change.key))


def unset_limit(tx: Transaction, name: str, key: str) -> bool:
    """Go by the code again, and let a key go that is held back. False if there was nothing to do."""
    changed = tx.execute(tx.sql.UNSET_LIMIT, {"name": name, "key": key}).rowcount > 0
    let_go = tx.execute(tx.sql.END_HOLD, {"name": name, "key": key, "now": tx.now}).rowcount > 0
    if changed or let_go:
        _changed(tx, name, key)
    return changed or let_go


def _changed(tx: Transaction, name: str, key: str) -> None:
    """Claims read the limits again, and come to the keys for which jobs are parked. (If they are very many, a chore
    finds the rest.)"""
    tx.execute(tx.sql.LIMITS_CHANGED)
    of_limit = {"after": f"{PARKED}{name}", "before": f"{PARKED}{name} ", "most": MOST_REASONS}
    keys = [(name, key)] if key else [key_parked_for(row[0]) for row in tx.execute(tx.sql.PARKED_FOR, of_limit)]
    add_openings(tx, [(key, tx.now) for key in keys])
    for queue in {range.queue for range, _ in tx.ready_ranges()}:
        tx.job_waits(queue)


def has_limits(tx: Transaction) -> bool:
    return bool(tx.value(tx.sql.HAS_LIMITS))


def open_limits(tx: Transaction, after: str = "") -> tuple[int, str]:
    """Add openings for keys that have free places while jobs are parked for them, and delete what is over. Looks at
    some keys after this one. Return the number of those with a place, and where to go on."""
    tx.execute(tx.sql.PRUNE_LEASE_KEYS)
    tx.execute(tx.sql.PRUNE_BUCKETS, {"now": tx.now * 1_000})
    bounds = {"after": after or PARKED, "before": _AFTER_PARKED, "most": MOST_REASONS}
    parked = [row[0] for row in tx.execute(tx.sql.PARKED_FOR, bounds)]
    in_force = load(tx)
    free = [
        key
        for key, use in key_uses(tx, in_force, [key_parked_for(reason) for reason in parked]).items()
        if use.places(in_force.bounds(key), tx.now) or use.next_at(in_force.bounds(key), tx.now)
    ]
    add_openings(tx, [(key, tx.now) for key in free])
    return len(free), parked[-1] if len(parked) == MOST_REASONS else ""
