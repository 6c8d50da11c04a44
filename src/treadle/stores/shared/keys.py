"""Dedupe keys: new jobs take them, replace their holders or wait behind them; ended jobs release them.

The order of locks: keys, sorted; then jobs. A job with a key is locked by those who have locked its key, and by those
who wait for nobody. So no two transactions deadlock. A transaction that has locked a key may be a user's, and stay open
for long: a claim needs no key and skips locked jobs, and a settle sets aside the jobs whose keys are locked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from treadle.codec import as_json
from treadle.dedupe import PLAIN, REPLACED_BY, KeyState, Place, Rule, due_at, read_rule
from treadle.errors import BadOption, KeyHeld
from treadle.job import NewJob, Status
from treadle.stores.shared.ending import Ending, waiting_status
from treadle.stores.transaction import KeysLocked, Rows, Transaction


class KeyTaker:
    """Takes the keys of new jobs, and finds what becomes of each: stored, or answered with the holder of its key."""

    def __init__(self, tx: Transaction, jobs: Sequence[NewJob]) -> None:
        self.holders: dict[str, str] = {}
        """The jobs that must not be stored, each with the job that is the answer in its place."""
        self.replaced: dict[str, Ending] = {}
        """The jobs that end once the new ones are stored. Some of them may be new themselves."""
        self.successors: list[str] = []
        """The jobs that wait behind a running holder, once they are stored."""
        self._due: dict[str, int] = {}
        self._tx = tx
        self._fresh = {job.id: job for job in jobs}
        rules = [(job, PLAIN if job.dedupe_rule is None else read_rule(job.dedupe_rule)) for job in jobs]
        self._replaces = {(job.tenant, job.dedupe) for job, rule in rules if rule.replaces}
        # In the order of the keys, so that two transactions that take the same keys do not deadlock.
        for job, rule in sorted(rules, key=lambda one: (one[0].tenant, one[0].dedupe or "")):
            if job.dedupe is not None:
                self._take(job, job.dedupe, rule)

    def row(self, job: NewJob) -> NewJob:
        """The job, with the time at which it is due if its key decides that."""
        due = self._due.get(job.id)
        return job if due is None else msgspec.structs.replace(job, run_at=due, delay=None)

    def _take(self, job: NewJob, key: str, rule: Rule) -> None:
        place = {"tenant": job.tenant, "key": key}
        # Another of these jobs may replace the holder, too: a weaker lock could not become stronger.
        locked = (job.tenant, key) in self._replaces
        tx = self._tx
        stored = tx.execute(tx.sql.IS_STORED, {"id": job.id}) if tx.travels_together and not rule.replaces else None
        while (state := take(self._tx, place, job.id, rule, self._fresh, locked=locked)) is not None:
            if rule.replaces and job.id in (state.holder, state.successor):
                return  # the same request twice
            done = (
                self._replace(job, place, rule, state)
                if rule.replaces
                else self._answer(job, place, rule, state, stored)
            )
            if done:
                return
        if rule.mode == "debounce":
            self._due[job.id] = due_at(rule, self._tx.now, None)

    def _answer(self, job: NewJob, place: Mapping[str, Any], rule: Rule, state: KeyState, stored: Rows | None) -> bool:
        """The holder is the answer. False if it has started just now, and that releases the key."""
        if state.until_started and state.holder not in self._fresh:
            # Nobody can claim it until we commit: what our caller changes in this transaction is there when it starts.
            row = self._tx.execute(self._tx.sql.SHARE_READY, {**place, "id": state.holder}).fetchone()
            if row is None:
                return False
            self._tx.job_waits(row[1])
        if (stored or self._tx.execute(self._tx.sql.IS_STORED, {"id": job.id})).fetchone():
            self.holders[job.id] = job.id  # by an earlier try, and the key may be another's by now
        elif rule.mode == "reject":
            raise KeyHeld(job.id, place["key"], state.holder, is_new=True)
        elif state.holder != job.id:
            self.holders[job.id] = state.holder
        return True

    def _replace(self, job: NewJob, place: Mapping[str, Any], rule: Rule, state: KeyState) -> bool:
        """Take the place of a holder that waits, or wait behind one that runs. False if it has moved just now."""
        if state.place is Place.ENDED:  # its throttle holds the key
            self.holders[job.id] = state.holder
            return True
        now, runs = self._tx.now, state.place is Place.RUNNING
        _refuse_replaced_parent(job, {state.successor, None if runs else state.holder})
        if state.place in (Place.FRESH, Place.WAITING) and not self._end(state.holder, job.id):
            return False
        if state.successor is not None:
            self._end(state.successor, job.id)
        since = None if runs and state.successor is None else state.since
        row = _key_row(job.id, rule, now)
        if rule.mode == "debounce":
            row["since"], self._due[job.id] = now if since is None else since, due_at(rule, now, since)
        if runs:
            held = {"id": state.holder, "until_started": state.until_started, "expires_at": state.expires_at}
            row |= {**held, "successor": job.id}
            self.successors.append(job.id)
        _set(self._tx, place, row)
        return True

    def _end(self, id: str, by: str) -> bool:
        """A waiting job will be replaced. False if it does not wait."""
        if (new := self._fresh.get(id)) is not None:
            self.replaced[id] = _replaced(id, by, new.type, new.queue, new.parked(self._tx.now))
            return True
        row = self._tx.execute(self._tx.sql.LOCK_READY, {"id": id}).fetchone()
        if row is None:
            return False
        self.replaced[id] = _replaced(id, by, *row)
        return True


def _refuse_replaced_parent(job: NewJob, replaced: Collection[str | None]) -> None:
    """Raise BadOption for a job that could not start: it cancels a parent whose retry needs the key."""
    if job.if_failed != "run" and (parent := next((id for id in job.after if id in replaced), None)):
        problem = "this job would replace that one, because both have the same dedupe key, and wait for it"
        raise BadOption("after", parent, f"{problem}; give it another key, or leave the parent out")


def _replaced(id: str, by: str, type: str, queue: str, parked: str) -> Ending:
    """A waiting job that a newer one replaces: it is cancelled, and says by which."""
    return Ending(id, type, queue, waiting_status(parked), Status.CANCELLED, f"{REPLACED_BY}{by}")


def take(
    tx: Transaction, place: Mapping[str, Any], id: str, rule: Rule, fresh: Collection[str] = (), *, locked: bool = False
) -> KeyState | None:
    """Take a key for a job, or return how it is held. `locked`: nobody changes that until we commit.

    `fresh`: new jobs, which hold keys already but are not stored yet.
    """
    while True:
        taken = tx.execute(tx.sql.TAKE_KEY, {**place, "id": id})
        ahead = tx.execute(tx.sql.KEY_STATE, place) if tx.travels_together else None
        if taken.rowcount:
            break
        state = _look(tx, place, fresh, tx.sql.LOCK_KEY if locked else None, ahead)
        if state is not None and not locked and (state.is_free(tx.now) or state.is_overdue):
            state = _look(tx, place, fresh, tx.sql.LOCK_FREE_KEY)  # another may have been faster
        if state is None:
            continue  # it was released in between
        if state.is_overdue:
            _pass_on(tx, place, state)
        elif not state.is_free(tx.now):
            return state
        else:
            _set(tx, place, _key_row(id, rule, tx.now))
            return None
    if rule is not PLAIN:
        _set(tx, place, _key_row(id, rule, tx.now))
    return None


def _look(
    tx: Transaction, place: Mapping[str, Any], fresh: Collection[str], lock: str | None, ahead: Rows | None = None
) -> KeyState | None:
    """`ahead`: the answer, if it was asked for already. There nothing needs a lock."""
    if lock and ahead is None and tx.value(lock, place) is None:
        return None
    row = (ahead or tx.execute(tx.sql.KEY_STATE, place)).fetchone()
    if row is None:
        return None
    holder, until_started, since, expires_at, successor, where = row
    where = Place.FRESH if holder in fresh else Place(where)
    return KeyState(holder, until_started, since, expires_at, successor, where)


def _key_row(id: str, rule: Rule, now: int) -> dict[str, Any]:
    """What the row of a key says of its new holder."""
    return {
        "id": id,
        "until_started": int(rule.until == "started"),
        "since": now if rule.mode == "debounce" else None,
        "expires_at": now + rule.period if rule.mode == "throttle" else None,
    }


def _set(tx: Transaction, place: Mapping[str, Any], row: Mapping[str, Any]) -> None:
    tx.execute(tx.sql.SET_KEY, {"successor": None, **place, **row})


def _pass_on(tx: Transaction, place: Mapping[str, Any], state: KeyState) -> None:
    """The holder was deleted by hand: its successor takes the key."""
    queue = tx.value(tx.sql.WAKE_SUCCESSOR, {"successor": state.successor, "now": tx.now})
    if queue is not None:
        tx.job_waits(queue)
    found = tx.execute(tx.sql.DEDUPE_KEY, {"id": state.successor}).fetchone()
    until_started = int(found is not None and read_rule(found[2]).until == "started")
    row = {"id": state.successor, "until_started": until_started, "since": state.since, "expires_at": None}
    _set(tx, place, row)


def release(tx: Transaction, ids: Sequence[str]) -> None:
    """Release the keys of jobs that have ended. Raises KeysLocked if another transaction has locked one of them."""
    if locked := tx.release_keys(ids):
        raise KeysLocked(locked)


def lock(tx: Transaction, ids: Sequence[str]) -> None:
    """Lock the keys of jobs before the jobs themselves: all at once, and only once in a transaction."""
    for statement in () if tx.has_locked_keys else tx.sql.LOCK_KEYS:
        tx.execute(statement, {"ids": as_json(ids)})
    tx.has_locked_keys = True


def hold(tx: Transaction, ids: Sequence[str], jobs: Sequence[NewJob] = ()) -> Sequence[Any]:
    """`lock` for a transaction that takes keys: some of these, and those of new jobs. Nobody else can take them then.
    Return those that were free."""
    these = {"ids": as_json(ids), "keys": as_json([(job.tenant, job.dedupe) for job in jobs if job.dedupe is not None])}
    statements = () if tx.has_locked_keys else tx.sql.HOLD_KEYS
    tx.has_locked_keys = True
    return [row for statement in statements for row in tx.execute(statement, these)]


def drop_held(tx: Transaction, held: Sequence[Any]) -> None:
    """Release the keys of `hold` that nobody has taken."""
    if held:
        tx.execute(tx.sql.DROP_HELD_KEYS, {"keys": as_json(held)})


def drop(tx: Transaction, id: str) -> None:
    """A waiting job ends: it holds no key, and waits behind none."""
    drop_successors(tx, [id])
    release(tx, [id])


def drop_successors(tx: Transaction, ids: Collection[str]) -> None:
    """Waiting jobs end, and nobody waits behind the holders of their keys."""
    for id in sorted(ids):
        tx.execute(tx.sql.DROP_SUCCESSOR, {"id": id})


class Successors(NamedTuple):
    """Waiting jobs, which this transaction has locked, behind the holders of their keys."""

    ours: set[str]
    """Nobody else passes their keys on to them until we commit."""
    busy: set[str]
    """Other transactions have locked their keys."""


def lock_successors(tx: Transaction, ids: Sequence[str]) -> Successors:
    """Of these the successors. Waits for nobody. One that is none now will never be one again."""
    if not ids:
        return Successors(set(), set())
    these = {"ids": as_json(ids)}
    locked = {row[0] for row in tx.execute(tx.sql.LOCK_SUCCESSORS, these)} if tx.sql.LOCK_SUCCESSORS else set(ids)
    behind = {row[0] for row in tx.execute(tx.sql.SUCCESSORS, these)}  # of those not locked, as it is after the locks
    return Successors(behind & locked, behind - locked)


def retake(tx: Transaction, id: str) -> None:
    """A retried job holds its key again, or does not start."""
    found = tx.execute(tx.sql.DEDUPE_KEY, {"id": id}).fetchone()
    if found is None:
        return
    tenant, key, text = found
    rule = msgspec.structs.replace(read_rule(text), mode="return") if read_rule(text).replaces else read_rule(text)
    state = take(tx, {"tenant": tenant, "key": key}, id, rule)
    if state is not None and state.holder != id:
        raise KeyHeld(id, key, state.holder)
