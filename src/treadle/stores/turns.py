"""Tenants take turns: `fair="tenant"`.

Due jobs of such a type wait in an index by tenant. A claim walks it from tenant to tenant, from the one after the last
that this process has served, and takes one job of each; if there are fewer tenants than free slots, in several turns.

The index has due jobs only, so that no walk meets tenants in vain. What is for later waits in order, as do jobs whose
producer did not know that the type is fair, and what comes back from a retry, a pause or a limit. The claim that reads
a range by turns first moves its due jobs there.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Sequence

import msgspec

from treadle.stores.claim_order import ClaimOrder
from treadle.stores.parking import MOST_PARKED
from treadle.stores.ranges import START, Candidate, Found, Head, Position, RangeStart, ReadyRange
from treadle.stores.transaction import Rows, Transaction

MOST_TENANTS = 1_000
"""A process begins with one of that many tenants, by chance: else each short-lived one would begin with the same."""
AFTER_ALL = "\U0010ffff"
"""After the name of every tenant, or as good as."""
Tenants = list[tuple[str, list[Position]]]
"""Tenants in the order of their turns, each with its first due jobs."""
_decode = msgspec.json.Decoder(Tenants).decode


def by_turns(tenants: Iterable[tuple[str, list[Position]]]) -> list[tuple[str, Position]]:
    """One job of each tenant, then the second one of each that has two, and so on."""
    turns: list[tuple[str, Position]] = []
    left, turn = [one for one in tenants if one[1]], 0
    while left:
        turns += [(tenant, theirs[turn]) for tenant, theirs in left]
        turn += 1
        left = [one for one in left if len(one[1]) > turn]
    return turns


def found_by_turns(in_order: Iterable[Found], by_turns: Iterable[Found], fair: Collection[str]) -> list[Found]:
    """One range by turns for each queue and fair type, wherever its jobs wait. `fair`: the types that are, by now."""
    pairs: dict[tuple[str, str, bool], Found] = {}
    for found, is_fair in [*((one, one.range.type in fair) for one in in_order), *((one, True) for one in by_turns)]:
        one = found._replace(range=found.range._replace(fair=is_fair))
        key = one.range.queue, one.range.type, is_fair
        pairs[key] = min(one, pairs.get(key, one), key=lambda one: (-one.range.priority, one.first))
    return list(pairs.values())


def served(order: ClaimOrder, jobs: Iterable[Candidate], last: dict[ReadyRange, str]) -> list[Candidate]:
    """The same number of jobs of each range; but of a range by turns those whose turn it is."""
    taken: list[Candidate] = []
    for job in jobs:
        if (range := job[2]).fair:
            last[range], position = order.turns[range].pop()
            job = (*position, range)
            order.served.add(position[1])
        taken.append(job)
    return taken


class TurnReader:
    """Reads the starts of ranges by turns: as many jobs as `order` wants, by age. `served` says which of them go."""

    def __init__(
        self, tx: Transaction, order: ClaimOrder, last: dict[ReadyRange, str], paused: Collection[str]
    ) -> None:
        self._tx, self._order, self._last, self._paused = tx, order, last, paused
        self._wanted = order.rows + len(order.served)

    def starts(self, heads: Sequence[Head], in_order: Iterable[RangeStart], *, reads_only: bool) -> list[RangeStart]:
        """The starts of all these ranges, some of which are in order. `reads_only`: move no rows."""
        asked = {head.range: self._ask(head.range) for head in heads if head.range.fair}
        turns = {range: self._start(range, rows, reads_only) for range, rows in asked.items()}
        others = iter(in_order)
        return [turns[head.range] if head.range.fair else next(others) for head in heads]

    def _start(self, range: ReadyRange, rows: Rows, reads_only: bool) -> RangeStart:
        found, *lower, left_in_order = rows.fetchone()
        if left_in_order and reads_only:
            return RangeStart([START], None)
        if left_in_order and self._move(range):
            found, *lower, _ = self._ask(range).fetchone()
        tenants, each, order = _decode(found), 1, self._order
        while len(turns := self._fresh(tenants)) < order.rows:
            each = max(each, -(-self._wanted // max(len(tenants), 1)))
            if not any(len(theirs) >= each for tenant, theirs in tenants if tenant not in self._paused):
                break
            each *= 2  # some have fewer jobs than their share: the others get more
            tenants = _decode(self._ask(range, each).fetchone()[0])
        order.turns[range] = turns[::-1]
        due = sorted(position for _, position in turns[: order.rows])
        below = max((priority for priority in lower if priority is not None), default=None)
        return RangeStart(due, below if len(due) < order.rows else None)

    def _fresh(self, tenants: Tenants) -> list[tuple[str, Position]]:
        """Whose turn it is. What this claim has taken may still be there: on SQLite it is leased at the end."""
        turns = by_turns(one for one in tenants if one[0] not in self._paused)
        return [one for one in turns if one[1][1] not in self._order.served] if self._order.served else turns

    def _ask(self, range: ReadyRange, each: int = 1) -> Rows:
        if range not in self._last and (first := _decode(self._read(range, 1, MOST_TENANTS, 1).fetchone()[0])):
            self._last[range] = random.choice(first)[0]
        return self._read(range, self._wanted, self._wanted + len(self._paused), each)

    def _read(self, range: ReadyRange, wanted: int, tenants: int, each: int) -> Rows:
        row = {"last": self._last.get(range, AFTER_ALL), "tenants": tenants, "wanted": wanted, "each": each}
        return self._tx.execute(self._tx.sql.READ_TURNS, {**range._asdict(), **row, "now": self._order.now})

    def _move(self, range: ReadyRange) -> int:
        row = {**range._asdict(), "now": self._order.now, "most": MOST_PARKED}
        moved = self._tx.execute(self._tx.sql.START_TURNS, row).rowcount
        self._order.more = self._order.more or moved >= MOST_PARKED
        return moved
