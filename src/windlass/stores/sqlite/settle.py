"""Settle: leases become finished jobs, or wait again. Every way out of a lease goes through here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from windlass import codec
from windlass.clock import SECOND
from windlass.job import Claimed, Status
from windlass.outcome import Kind, Outcome
from windlass.stores.sqlite import statements as sql
from windlass.stores.sqlite.connection import Transaction
from windlass.stores.sqlite.insert import insert, tally

MINUTE = 60 * SECOND

Ended = tuple[Claimed, Outcome]

_decode_held = msgspec.json.Decoder(list[tuple[int, int]]).decode


def settle(tx: Transaction, ended: Sequence[Ended]) -> list[Claimed]:
    """Write down what is still ours to write. The rest is returned, unless it was written before."""
    rest = settle_held(tx, ended)
    return _lost(tx, rest) if rest else []


def settle_held(tx: Transaction, ended: Sequence[Ended]) -> list[Ended]:
    """Write down what is still ours to write. The rest is returned, even if it was written before."""
    all_final = all(outcome.kind is Kind.COMPLETED or outcome.kind.final for _, outcome in ended)
    if all_final and _finish(tx, ended) == len(ended):  # as nearly always: the fence has let all of them through
        _leave(tx, ended)
        return []
    held = dict(_decode_held(tx.value(sql.HELD, (_json([(c.id, c.number) for c, _ in ended]),))))
    ours = [(c, _minding_cancel(outcome, held[c.number])) for c, outcome in ended if c.number in held]
    if ours:
        if not all_final:
            _finish(tx, [e for e in ours if e[1].kind.final])
            _give_back(tx, [e for e in ours if not e[1].kind.final])
        _leave(tx, ours)
    return [(c, outcome) for c, outcome in ended if c.number not in held]


def _minding_cancel(outcome: Outcome, cancelled: int) -> Outcome:
    """A completion that came first wins; a cancelled job does not go back to wait."""
    if cancelled and outcome.kind.final is None:
        return Outcome(Kind.CANCELLED, error=outcome.error or "cancelled", charged=0)
    return outcome


def _lost(tx: Transaction, ended: Sequence[Ended]) -> list[Claimed]:
    rows = _json([(c.id, c.number, outcome.kind.final) for c, outcome in ended])
    before = {row[0] for row in tx.execute(sql.WRITTEN_BEFORE, (rows,))}
    return [c for c, _ in ended if c.number not in before]


def _finish(tx: Transaction, ended: Sequence[Ended]) -> int:
    """Write how jobs have ended, as far as their leases are held. How many."""
    plain = {c.id: c.number for c, o in ended if o.kind is Kind.COMPLETED and o.result is None}
    written = tx.execute(sql.COMPLETE, {"now": tx.now, "rows": _json(plain)}).rowcount if plain else 0
    if len(plain) < len(ended):
        others = [(c, o) for c, o in ended if c.id not in plain]
        rows = _json([(c.id, c.number, o.kind, o.charged, o.result, o.error) for c, o in others])
        written += tx.execute(sql.FINISH, {"now": tx.now, "rows": rows}).rowcount
    return written


def _give_back(tx: Transaction, ended: Sequence[Ended]) -> None:
    """Let jobs wait again."""
    rows = _json([_waiting_again(tx.now, c, o) for c, o in ended])
    tx.execute(sql.GIVE_BACK, {"now": tx.now, "rows": rows})


def _leave(tx: Transaction, ended: Sequence[Ended]) -> None:
    """All that goes with the end of these leases, and the leases themselves."""
    failures = [(c, o) for c, o in ended if o.kind in (Kind.RETRIED, Kind.FAILED)]
    if failures:
        rows = _json([(c.id, o.kind, o.error, o.traceback) for c, o in failures])
        tx.execute(sql.INSERT_ATTEMPTS, {"now": tx.now, "rows": rows})
    tx.execute(sql.DELETE_LEASES, (_json([c.id for c, _ in ended]),))
    if keyed := [c.id for c, o in ended if c.keyed and o.kind.final]:
        tx.execute(sql.DROP_KEYS, (_json(keyed),))
    _count(tx, ended)
    if follow_ups := [job for _, outcome in ended if outcome.follow_ups for job in outcome.follow_ups]:
        insert(tx, follow_ups)
    tx.execute(sql.TICK, {"now": tx.now})


def _waiting_again(now: int, claimed: Claimed, outcome: Outcome) -> tuple[Any, ...]:
    run_at = None if outcome.kind is Kind.RELEASED else now + outcome.delay
    return claimed.id, run_at, outcome.charged, int(outcome.kind is Kind.SNOOZED), outcome.suspicion


def _count(tx: Transaction, ended: Iterable[Ended]) -> None:
    """Tallies and usage, from what was just written. This runs for every job, so it adds up first."""
    now = tx.now
    sums: dict[tuple[Kind, str, str, str], list[int]] = {}
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
        if kind is not Kind.RELEASED:
            failures = runs if kind in (Kind.RETRIED, Kind.FAILED) else 0
            usage.append((now // MINUTE * 60, type, queue, tenant, runs, failures, max(0, busy), max(0, waiting)))
    tally(tx, [(*place, n) for place, n in moved.items()])
    if usage:
        tx.execute(sql.USE, (_json(usage),))


def _json(rows: Any) -> str:
    return codec.encode(rows).decode()
