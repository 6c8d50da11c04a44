"""Settle: leases become finished jobs, or wait again. Every way out of a lease goes through here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from treadle.clock import MINUTE
from treadle.job import ClaimedJob, Status
from treadle.outcome import UNSUCCESSFUL, Outcome, OutcomeKind
from treadle.stores.base import Settled
from treadle.stores.sql.insert import as_json, insert, tally
from treadle.stores.sql.transaction import Ended, Transaction


def settle(tx: Transaction, ended: Sequence[Ended]) -> Settled:
    """Write down what is still ours to write. The rest is lost, unless it was written before."""
    ours = _settle(tx, ended)
    if len(ours) == len(ended):
        return Settled(tx.now, ours)
    rest = _without(ended, ours)
    lost = _lost(tx, rest)
    gone = {c.number for c in lost}
    return Settled(tx.now, [*ours, *((c, outcome) for c, outcome in rest if c.number not in gone)], lost)


def settle_held(tx: Transaction, ended: Sequence[Ended]) -> list[Ended]:
    """Write down what is still ours to write. The rest is returned, even if it was written before."""
    return _without(ended, _settle(tx, ended))


def _settle(tx: Transaction, ended: Sequence[Ended]) -> Sequence[Ended]:
    """What was still ours to write, as it was written."""
    ours = still_held(ended, tx.moves.leave(tx, ended))
    if ours:
        _follow(tx, ours)
    return ours


def _without(ended: Sequence[Ended], ours: Sequence[Ended]) -> list[Ended]:
    held = {c.number for c, _ in ours}
    return [(c, outcome) for c, outcome in ended if c.number not in held]


def still_held(ended: Sequence[Ended], held: Mapping[int, int]) -> Sequence[Ended]:
    """What was ours to write, as it was written. `held` says of each lease whether it was cancelled."""
    if len(held) == len(ended) and not any(held.values()):
        return ended
    return [(c, _minding_cancel(outcome, held[c.number])) for c, outcome in ended if c.number in held]


def _minding_cancel(outcome: Outcome, cancelled: int) -> Outcome:
    """A completion that came first wins; a cancelled job does not go back to wait."""
    if cancelled and outcome.kind.final is None:
        return Outcome(OutcomeKind.CANCELLED, error=outcome.error or "cancelled", charged=0)
    return outcome


def _lost(tx: Transaction, ended: Sequence[Ended]) -> list[ClaimedJob]:
    rows = as_json([(c.id, c.number, outcome.kind.final) for c, outcome in ended])
    before = {row[0] for row in tx.execute(tx.sql.WRITTEN_BEFORE, {"rows": rows})}
    return [c for c, _ in ended if c.number not in before]


def _follow(tx: Transaction, ended: Sequence[Ended]) -> None:
    """All that goes with the end of these leases."""
    if keyed := [c.id for c, o in ended if c.keyed and o.kind.final]:
        tx.execute(tx.sql.DROP_KEYS, {"ids": as_json(keyed)})
    if follow_ups := [job for _, outcome in ended if outcome.follow_ups for job in outcome.follow_ups]:
        insert(tx, follow_ups)


def count(tx: Transaction, ended: Iterable[Ended]) -> None:
    """Tallies and usage, from what was just written. This runs for every job, so it adds up first."""
    now = tx.now
    sums: dict[tuple[OutcomeKind, str, str, str], list[int]] = {}
    for c, outcome in ended:
        place = (outcome.kind, c.type, c.queue, c.tenant)
        sum = sums.get(place)
        if sum is None:
            sum = sums[place] = [0, 0, 0]
        sum[0] += 1
        sum[1] += now - c.started_at
        sum[2] += c.started_at - c.run_at
    moved: Counter[tuple[str, str, str]] = Counter()
    usage: list[tuple[Any, ...]] = []
    for (kind, type, queue, tenant), (runs, busy, waiting) in sums.items():
        moved[kind.final or Status.PENDING, type, queue] += runs
        moved[Status.PROCESSING, type, queue] -= runs
        if kind is not OutcomeKind.RELEASED:
            completed, failures = runs * (kind is OutcomeKind.COMPLETED), runs * (kind in UNSUCCESSFUL)
            times = max(0, busy), max(0, waiting)
            usage.append((now // MINUTE * 60, type, queue, tenant, runs, completed, failures, *times))
    tally(tx, [(*place, n) for place, n in moved.items()])
    if usage:
        tx.execute(tx.sql.USE, {"rows": as_json(usage)})


def waiting_again(now: int, claimed: ClaimedJob, outcome: Outcome) -> tuple[int | None, int, int, int | None]:
    """How a job goes back to wait: its run_at (None: as it was), attempts charged, 1 if snoozed, its suspicion."""
    run_at = None if outcome.kind is OutcomeKind.RELEASED else now + outcome.delay
    return run_at, outcome.charged, int(outcome.kind is OutcomeKind.SNOOZED), outcome.suspicion
