"""Claim and settle: ready jobs become leases; leases become finished jobs, or ready ones again.

Every way out of a lease goes through `settle_held`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from treadle.batch import NewBatch
from treadle.codec import as_json
from treadle.errors import LeaseLost
from treadle.job import ClaimedJob, NewJob
from treadle.outcome import Outcome, OutcomeKind
from treadle.steps import NewStep
from treadle.stores.base import ClaimRequest
from treadle.stores.rows import Claim, Due, Settled
from treadle.stores.shared import batches, keys, limits
from treadle.stores.shared.enqueue import insert_again, insert_unchecked
from treadle.stores.shared.expiry import expire
from treadle.stores.shared.logs import add_logs
from treadle.stores.shared.stats import count_ended, tally
from treadle.stores.shared.steps import add_steps, lock_held
from treadle.stores.shared.waiting import forgive, refuse_endless, signal, suspend
from treadle.stores.transaction import Insert, LeaseOutcome, Transaction
from treadle.waits import NewSignal

decode_claimed = msgspec.json.Decoder(ClaimedJob).decode

EXPIRED_BY_A_CLAIM = 500
"""Jobs that a claim ends at most because they were not started in time. The rest is for later claims and a chore."""
LATER = Due(True, None, 1.0)
"""When to claim again, if a user has locked the dedupe key of an expired job."""
ENDED_BY_THE_BLOCK = (
    "the block committed or rolled back by itself, so that its rows and the job's completion are no longer one; the "
    "job was not completed: leave both to ctx.transaction()"
)


def claim(tx: Transaction, worker: str, request: ClaimRequest) -> Claim:
    claimed, moved = tx.claim(worker, request)
    if moved:
        tally(tx, moved)
    return _end_expired(tx, worker, request, claimed) if tx.met_expired else claimed


def _end_expired(tx: Transaction, worker: str, request: ClaimRequest, claimed: Claim) -> Claim:
    """The claim met expired jobs. End them, and take what is behind them too."""
    ended, missing = expire(tx, EXPIRED_BY_A_CLAIM), request.limit - len(claimed)
    if missing and ended < EXPIRED_BY_A_CLAIM:  # else there may be more of them: the next claim is worth it
        tx.met_expired = False
        more, moved = tx.claim(worker, msgspec.structs.replace(request, limit=missing))
        tally(tx, moved)
        claimed.extend(more)
        claimed.due = more.due if ended else LATER
    return claimed


def settle(tx: Transaction, ended: Sequence[LeaseOutcome]) -> Settled:
    """Write what is still ours to write. The rest is lost, unless it was written before."""
    if tx.set_aside:
        return _settle_rest(tx, ended, set(tx.set_aside))
    for statement in tx.sql.WAIT_BRIEFLY if any(o.otherwise for _, o in ended) else ():  # it may still be open
        tx.execute(statement)
    given, ended = ended, [(c, o.otherwise or o) for c, o in ended]
    written = settle_held(tx, ended, briefly=True)
    if len(written) == len(ended):
        return Settled(tx.now, written)
    held = {c.fence for c, _ in written}
    rest = [(c, outcome) for c, outcome in given if c.fence not in held]
    before = _written_before(tx, rest)
    repeated = [(c, outcome) for c, outcome in rest if c.fence in before]
    return Settled(tx.now, [*written, *repeated], [c for c, _ in rest if c.fence not in before])


def _settle_rest(tx: Transaction, ended: Sequence[LeaseOutcome], aside: set[str]) -> Settled:
    """Settle all but the jobs that are set aside."""
    tx.set_aside = ()
    rest = [one for one in ended if one[0].id not in aside]
    settled = settle(tx, rest) if rest else Settled(tx.now)
    return msgspec.structs.replace(settled, set_aside=[one for one in ended if one[0].id in aside])


def settle_held(tx: Transaction, ended: Sequence[LeaseOutcome], *, briefly: bool = False) -> Sequence[LeaseOutcome]:
    """Write the outcomes of leases that are still held, with all that follows. Return them as they were written.
    `briefly`: do not wait long for dedupe keys and names of signals, which a transaction may have locked."""
    if tx.set_aside:
        ended = [one for one in ended if one[0].id not in tx.set_aside]
    limited = [one for one in ended if one[0].limited or one[1].holds is not None]
    limit_keys = limits.keys_to_write(tx, limited) if limited else {}  # a lease that has ended no longer says them
    written, uncounted = tx.settle(ended)
    if uncounted:
        count_ended(tx, uncounted)
    if limited := [one for one in written if one[0].limited or one[1].holds is not None]:
        limits.release(tx, limited, limit_keys)
    if batched := [one for one in written if one[0].batch is not None or one[1].batches]:
        batches.count_settled(tx, batched)
        _add_batches(tx, [new for _, outcome in batched for new in outcome.batches], briefly=briefly)
    if keyed := [c.id for c, outcome in written if c.keyed and outcome.kind.final]:
        keys.release(tx, keyed)
    suspended = [one for one in written if one[1].kind is OutcomeKind.SUSPENDED]
    if suspended:
        forgive(tx, suspended)  # before the subjobs are stored: their keys may depend on whether these have started
    follow_ups = [job for _, outcome in written if outcome.follow_ups for job in outcome.follow_ups]
    signals = [new for _, outcome in written if outcome.signals for new in outcome.signals]
    stored = _add(tx, follow_ups, signals, insert_unchecked, briefly=briefly) if follow_ups or signals else {}
    if suspended:
        refuse_endless(tx, suspended, stored)
        suspend(tx, suspended, stored)
    if logged := [(c, outcome.logs) for c, outcome in written if outcome.logs]:
        add_logs(tx, logged)
    return written


def save_steps(tx: Transaction, done: Sequence[tuple[ClaimedJob, NewStep]]) -> list[Exception | None]:
    """Store these steps, each if the lease of its run is still held. Return an error for each of the others."""
    held = lock_held(tx, [c for c, _ in done])
    stored = [(c, step) for c, step in done if c.fence in held]
    if stored:
        tx.execute(tx.sql.FORGIVE, {"ids": as_json(sorted({c.id for c, _ in stored}))})
        add_steps(tx, [(c.id, c.tenant, step, c.number, c.attempt) for c, step in stored])
        jobs = [job for _, step in stored for job in step.follow_ups]
        _add_batches(tx, [new for _, step in stored for new in step.batches], briefly=True)
        _add(tx, jobs, [new for _, step in stored for new in step.signals], insert_again, briefly=True)
    return [None if c.fence in held else LeaseLost(c.id, c.number) for c, _ in done]


def _add_batches(tx: Transaction, made: Sequence[NewBatch], *, briefly: bool) -> None:
    for statement in tx.sql.WAIT_BRIEFLY if briefly and made else ():
        tx.execute(statement)
    batches.add_made(tx, made)


def _add(
    tx: Transaction, jobs: Sequence[NewJob], signals: Sequence[NewSignal], how: Insert, *, briefly: bool
) -> Mapping[str, str]:
    """Store what handlers have enqueued. Return the id of the job that each is now, as a dedupe key may decide."""
    for statement in tx.sql.WAIT_BRIEFLY if briefly and _may_wait(jobs, signals) else ():
        tx.execute(statement)
    stored = how(tx, jobs) if jobs else ()
    for new in sorted(signals, key=lambda new: (new.tenant, new.name)):
        signal(tx, new)
    return {job.id: answer.id for job, answer in zip(jobs, stored, strict=True)}


def _may_wait(jobs: Sequence[NewJob], signals: Sequence[NewSignal]) -> bool:
    """Whether these need a dedupe key or the name of a signal, which another transaction may have locked."""
    return bool(signals) or any(job.dedupe is not None for job in jobs)


def may_have_waited(one: tuple[ClaimedJob, Outcome | NewStep]) -> bool:
    its = one[1]
    joined = isinstance(its, Outcome) and its.otherwise is not None
    return _may_wait(its.follow_ups, its.signals) or bool(its.batches) or joined


def settle_in_transaction(tx: Transaction, claimed: ClaimedJob, outcome: Outcome | None) -> None:
    """End a job in the transaction of its handler. Raises LeaseLost if it is no longer the handler's."""
    if outcome is None:
        return
    held: Sequence[object] = ()
    if claimed.keyed or _may_wait(outcome.follow_ups, ()):
        held = keys.hold(tx, [claimed.id], outcome.follow_ups)
    if not settle_held(tx, [(claimed, outcome)]):
        raise LeaseLost(claimed.id, claimed.number)
    keys.drop_held(tx, held)


def _written_before(tx: Transaction, ended: Sequence[LeaseOutcome]) -> set[tuple[int, int]]:
    """The leases that have ended this way already: their commit is repeated."""
    rows = as_json([(c.id, *c.fence, outcome.kind.final) for c, outcome in ended])
    return set(tx.execute(tx.sql.WRITTEN_BEFORE, {"rows": rows}).fetchall())
