"""Which jobs are the most urgent, without a scan.

A type that is at its limit, unknown to the worker, or not yet due must cost the others nothing. So each (queue, type,
priority) is a range of the index, which is read from its start. The ranges are merged here.

The n oldest jobs of a priority are in the n ranges with the oldest heads. So only these are read, a few jobs of each,
and more only of a range whose jobs are all older than those of the others: the cost follows the number of jobs that are
claimed, not the number of ranges.

Of very many ranges, a claim finds jobs for the next claims, too: a range costs more than its jobs.
"""

from __future__ import annotations

import heapq
import math
import time
from bisect import bisect_right
from collections.abc import Callable, Container, Iterator, Sequence
from itertools import islice, takewhile

from treadle.clock import SECOND
from treadle.limits import Key, Limits
from treadle.stores.base import ClaimRequest
from treadle.stores.ranges import NO_SLOTS, START, Candidate, Found, Head, Position, RangeStart, ReadyRange, Slots
from treadle.stores.rows import NOTHING_PAUSED, Due, Paused

_LAST_ID = "ffffffff-ffff-ffff-ffff-ffffffffffff"
_FOREVER: Position = (1 << 63, _LAST_ID)
_DIGITS = "0123456789abcdef"
_ONE_LESS = dict(zip(_DIGITS[1:], _DIGITS, strict=False))
_LAST_RANGE = ReadyRange("\U0010ffff", "", 0)


class ClaimOrder:
    """Ranges in the order in which jobs are claimed: by priority, then run_at, then id.

    For each claim, iterate over `batches`, read `rows` jobs of each range, and `merge` them. What was not taken stays
    for the next claim.
    """

    def __init__(self, found: Sequence[Found], request: ClaimRequest, paused: Paused = NOTHING_PAUSED) -> None:
        types, queues, some_paused = request.types, request.queues, paused is not NOTHING_PAUSED
        self._heap = [
            Head(-range.priority, first, before(first), range)
            for range, first in found
            if (types is None or range.type in types)
            and (not queues or range.queue in queues)
            and not (some_paused and paused.holds(range.queue, range.type))
        ]
        heapq.heapify(self._heap)
        self.missing = 0
        """How many jobs are still to be found."""
        self.rows = 0
        """How many jobs to read of each range."""
        self.now = 0
        """The moment at which jobs must be due."""
        self.claims_ahead = 0
        """For how many later claims jobs are found, too."""
        self.ahead: list[Candidate] = []
        """Jobs that were found for the next claims, in order. They are in no range any more, and others may take them
        before this process does."""
        self._more_ahead = 0
        self._behind = False
        """Whether ranges may begin later than was known."""
        self._limited: Container[str] = ()
        self._slots = NO_SLOTS
        self._full: list[Head] = []
        """Ranges whose type has no free place."""
        self.turns: dict[ReadyRange, list[tuple[str, Position]]] = {}
        """Of ranges by turns: tenants and their next jobs, in the reverse order of their turns."""
        self.served: set[str] = set()
        """The jobs that this claim has taken by turns."""
        self.more = False
        """Whether another claim is to follow, which finds more jobs by turns."""

    @property
    def types(self) -> set[str]:
        """The types of which jobs may be found."""
        return {head.range.type for heads in (self._heap, self._full) for head in heads}

    def take_ahead(self, limit: int, slots: Slots) -> list[Candidate]:
        """Of what an earlier claim has found for this one; nothing, if a more urgent job has a free place now."""
        if not self.ahead:
            return []
        run_at, id, range = self.ahead[0]
        if any((h.urgency, h.at) < (-range.priority, (run_at, id)) and slots.has(h.range.type) for h in self._full):
            self.put_back_ahead()
        taken, self.ahead = self.ahead[:limit], self.ahead[limit:]
        return taken

    def put_back_ahead(self) -> None:
        """What was found for later claims is to be found again: something else comes first, or some of it is gone."""
        if not self.ahead:
            return
        first = {range: (run_at, id) for run_at, id, range in reversed(self.ahead)}
        again = {(range.queue, range.type) for range in first}
        self._heap = [head for head in self._heap if head.range[:2] not in again or head.range.fair]
        self._heap += [Head(-range.priority, at, before(at), range) for range, at in first.items()]
        heapq.heapify(self._heap)
        self.ahead = []

    def batches(self, limit: int, slots: Slots, now: int, limited: Container[str] = ()) -> Iterator[list[Head]]:
        """Some ranges of one priority, those with the oldest jobs first, until `limit` jobs are found. What is found
        for later claims comes before the first job of a `limited` type: a limit is met job by job."""
        self.missing, self.rows, self.now, self._slots = limit, 0, now, slots
        self._more_ahead, self._limited, self._behind = min(self.claims_ahead * limit, MOST_AHEAD), limited, False
        self.turns, self.served, self.more = {}, set(), False
        if self._full or slots.any:
            heads, self._heap, self._full = [*self._heap, *self._full], [], []
            for head in heads:
                self._push(head)
        while self._heap and self.missing > 0:
            if slots.any and not slots.has(self._heap[0].range.type):  # others had the last place of a shared limit
                self._full.append(heapq.heappop(self._heap))
            else:
                yield self._next_batch()

    def _next_batch(self) -> list[Head]:
        """Read twice as many jobs as needed if all ranges had equally many, and one to see what comes after it. If
        that was too few, read twice as many again, of half as many ranges: up to all that is needed, of one range."""
        heap, wanted = self._heap, 2 * self.missing
        if self._behind:
            wanted = max(wanted, min(2 * len(heap), MOST_AHEAD))
        if self._more_ahead:
            n = self.missing + self._more_ahead
            wanted = max(wanted, n + min(n, len(heap)))
        each = self.missing if len(heap) == 1 else max(2, -(-wanted // len(heap)))
        self.rows, self._behind = max(each, min(2 * self.rows, wanted)), False
        most = len(heap) if self.rows == each > 2 else -(-wanted // self.rows)
        batch = [heapq.heappop(heap)]
        if batch[0].at[0] > self.now:  # none of this priority is due: only what is below them is of interest
            most = len(heap) + 1
        while heap and heap[0].urgency == batch[0].urgency and len(batch) < most:
            batch.append(heapq.heappop(heap))
        return batch

    def has_others(self, head: Head) -> bool:
        """Whether other ranges of the same priority are still to be read."""
        return bool(self._heap) and self._heap[0].urgency == head.urgency

    def merge(self, batch: Sequence[Head], starts: Sequence[RangeStart]) -> list[Candidate]:
        """The most urgent jobs of these ranges that have a free slot. The rest of the ranges comes later."""
        rows = self.rows
        candidates = [(at, id, h.range) for h, start in zip(batch, starts, strict=True) for at, id in start.due[:rows]]
        more = [len(start.due) >= rows and h.at[0] <= self.now for h, start in zip(batch, starts, strict=True)]
        unread = [start.due[rows - 1] for start, has_more in zip(starts, more, strict=True) if has_more]
        others = [head.at for head in self._heap[:1] if head.urgency == batch[0].urgency]
        certain = min([*unread, *others], default=_FOREVER)
        if len(batch) > 1:
            candidates.sort()
        known = candidates[: bisect_right(candidates, (*certain, _LAST_RANGE))]
        taken, rest = self._with_slots(known) if self._slots.any else (known[: self.missing], known[self.missing :])
        self.missing -= len(taken)
        if not known:
            self.read_widely()
        found = taken
        if self._more_ahead and rest and not self.missing and not self.turns:
            ahead = [*islice(takewhile(lambda job: job[2].type not in self._limited, rest), self._more_ahead)]
            self._more_ahead -= len(ahead)
            self.ahead += ahead
            found = taken + ahead
        some = found if len(batch) > 1 else found[-1:]
        passed = {range: (run_at, id) for run_at, id, range in some}
        for head, start, has_more in zip(batch, starts, more, strict=True):
            after = passed.get(head.range, head.after)
            if has_more or start.lower is not None or start.due[-1:] > [after]:
                self._keep(head, start, after, has_more)
        return taken

    def _keep(self, head: Head, start: RangeStart, after: Position, has_more: bool) -> None:
        """Keep what is left of a range: from the first job on that was not taken, or the priority below it."""
        taken = bisect_right(start.due, after)
        if taken < len(start.due):
            after = START if head.range.fair else after  # who is next is not a matter of age
            self._push(Head(head.urgency, start.due[taken], after, head.range))
        elif has_more:
            self.passed(head, after)
        elif start.lower is not None:
            self.below(head, start.lower)

    def places(self, type: str) -> int:
        """How many jobs of the type this claim may still take."""
        return self._slots.places(type, self.missing)

    def take(self, type: str, jobs: int) -> None:
        """These were taken without `merge`."""
        self._slots.take(type, jobs)

    def passed(self, head: Head, last: Position) -> None:
        """All jobs of this range up to the last one were taken."""
        self._push(Head(head.urgency, last, START if head.range.fair else last, head.range))

    def leave(self, range: ReadyRange) -> None:
        """Take no more jobs of this range."""
        self._heap = [head for head in self._heap if head.range != range]
        heapq.heapify(self._heap)

    def below(self, head: Head, lower: int) -> None:
        """No more jobs of this range can be taken now. `lower` is the next priority below it."""
        self._push(Head(-lower, START, START, head.range._replace(priority=lower)))

    def read_widely(self) -> None:
        """Others have taken the first jobs of some ranges, so probably of more of them: read the next of many."""
        self.put_back_ahead()
        self.rows, self._behind = 0, True

    def give_back(self, types: Sequence[str]) -> None:
        """Jobs of these types that were found are not taken."""
        if types:
            self.put_back_ahead()  # the next jobs may be among them
        self.missing += len(types)
        for type in types:
            self._slots.take(type, -1)
        full, self._full = self._full, []
        for head in full:
            self._push(head)

    def _push(self, head: Head) -> None:
        if not self._slots.any or self._slots.has(head.range.type):
            heapq.heappush(self._heap, head)
        else:
            self._full.append(head)

    def _with_slots(self, candidates: list[Candidate]) -> tuple[list[Candidate], list[Candidate]]:
        """As many as are missing and have a free place, and what comes after them."""
        jobs: list[Candidate] = []
        for place, candidate in enumerate(candidates):
            if len(jobs) == self.missing:
                return jobs, candidates[place:]
            if self._slots.has(candidate[2].type):
                jobs.append(candidate)
                self._slots.take(candidate[2].type)
        return jobs, []


def before(job: Position) -> Position:
    """The position just before this job."""
    run_at, id = job
    if (last := _ONE_LESS.get(id[-1:])) and len(id) == len(_LAST_ID):  # nearly always
        return run_at, id[:-1] + last
    kept = id.rstrip("0-")
    if not kept or kept[-1] not in _DIGITS or len(id) != len(_LAST_ID):  # broken by hand
        return run_at - 1, _LAST_ID
    return run_at, kept[:-1] + _DIGITS[_DIGITS.index(kept[-1]) - 1] + _LAST_ID[len(kept) :]


LOOKED_AT = 100
"""How many of the jobs that are due next are looked at."""


def next_due(
    rows: Sequence[tuple[int, str, str]], request: ClaimRequest, now: int, paused: Paused = NOTHING_PAUSED
) -> Due:
    """When the next job of the claimer is due, or until when none is. `rows` has the run_at, queue and type of the
    LOOKED_AT jobs of any type that are due next."""
    next_at = rows[-1][0] if len(rows) == LOOKED_AT else None
    for run_at, queue, type in rows:
        wanted = (request.types is None or type in request.types) and (not request.queues or queue in request.queues)
        if wanted and not paused.holds(queue, type):
            next_at = run_at
            break
    return Due(False, next_at, None if next_at is None else max(0.0, (next_at - now) / SECOND))


def due_with_arrival(due: Due, at: int, now: int) -> Due:
    """What may let waiting jobs go at a known moment is a reason to claim then."""
    if due.in_seconds is not None and due.in_seconds <= (at - now) / SECOND:
        return due
    return Due(due.now or at <= now, at, max(0.0, (at - now) / SECOND))


# From one claim to the next

CHEAP = 0.002
"""A look that takes at most this many seconds is made before every claim."""
EXPENSIVE = 0.02
"""After a look that took longer than this, the next waits for nine times as long."""
EVERY = 1.0
"""Seconds after which a claim looks anyway."""
CLAIMS_AHEAD = 31
"""For how many more claims a claim of very many ranges finds jobs."""
MOST_AHEAD = 16_000
"""Jobs that it finds for them at most."""
MOST_LIMITED = 200
"""With more limited types than this, no claim is one statement: each claim would have to send all their names."""


class KnownLimits:
    """The limits as this process has read them."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.version = 0
        """They are read again when it has changed. In the first one, nothing was published yet."""
        self.full: set[Key] = set()
        """The limits without a key that had no free place at the last claim."""


class Cursors:
    """How far a process has claimed, so that it does not look at everything before each claim. Its claims take turns.

    A full look finds every (queue, type) in which jobs wait. With very many of them it takes long. And in PostgreSQL a
    row that was deleted stays in the index until vacuum may remove it, which it cannot while a transaction holds an old
    snapshot: a claim that begins at the start of a range would step over more and more of them. So a claim goes on
    where the last one ended. What falls behind that (late commits, released jobs, rows that were skipped because a
    claim that was rolled back had them, types that had no jobs) is found by a full look: before every claim while looks
    are cheap, else after a claim that found too little, when this process has enqueued a job, and once a second; but if
    looks are expensive, never for more than a tenth of the time.
    """

    def __init__(
        self, clock: Callable[[], float] | None = None, known: KnownLimits | None = None, *, finds_ahead: bool = True
    ) -> None:
        """`clock`: measures what a look costs, in seconds of CPU; None: time, of which one look may take long by
        chance. `finds_ahead`: whether a claim is to find jobs for later ones, which have these cursors then."""
        self._finds_ahead = finds_ahead
        self._clock = clock or (lambda: time.monotonic())
        self._order: ClaimOrder | None = None
        self._request: ClaimRequest | None = None
        self._looked = -1e9
        self._weight = 1 if clock is None else 2  # on a server, most of a look is a wait
        self._cost, self._last_cost = 0.0, 0.0 if clock is None else math.inf
        self.stale = True
        """Whether there may be a job before our positions."""
        self.paused = NOTHING_PAUSED
        """What was paused at the last look."""
        self.turn: dict[ReadyRange, str] = {}
        """Of ranges by turns: the tenant that had its turn last."""
        self.known = known or KnownLimits()
        self._ahead_from = self._at_once_from = -1e9
        self.version = 0
        """Of the limits, at the last look."""
        self._hindered_by = -1
        """The version of the limits when something was in the way of a claim by one statement."""

    def may_claim_at_once(self) -> bool:
        """Whether one statement should look and claim: looks are cheap, and for a second nothing was in its way, except
        for limits that were not known yet."""
        if len(self.known.limits.types) > MOST_LIMITED or self._cost > CHEAP:
            return False
        return self.known.version != self._hindered_by or time.monotonic() >= self._at_once_from

    def claimed_at_once(self, seconds: float, *, succeeded: bool) -> None:
        """Such a claim has looked for that long."""
        self._cost, self._last_cost = min(seconds, self._last_cost), seconds
        if not succeeded:
            self._at_once_from, self._hindered_by = time.monotonic() + EVERY, self.known.version

    def look_first(self) -> bool:
        """Whether the next claim should begin with a full look."""
        return self._cost <= CHEAP or self.next_look() <= 0

    def next_look(self) -> float:
        """Seconds until a claim begins with a full look."""
        since = time.monotonic() - self._looked
        wait = 0.0 if self.stale else EVERY - since
        return wait if self._cost <= EXPENSIVE else max(wait, 9 * self._cost - since)

    def others_were_faster(self, order: ClaimOrder) -> None:
        """Some jobs that were found are no longer there. For a second, find none for later claims."""
        order.read_widely()
        order.claims_ahead, self._ahead_from = 0, time.monotonic() + EVERY

    def may_look(self) -> bool:
        """Whether a claim that found too little after its position should look at everything."""
        return self._cost <= EXPENSIVE or time.monotonic() - self._looked >= 9 * self._cost

    def unsure(self, due: Due) -> Due:
        """The same after a claim that found too little, and may not look yet: there may be something that it missed."""
        soon = max(0.0, self.next_look())
        return Due(True, due.next_at, soon if due.in_seconds is None else min(soon, due.in_seconds))

    def kept(self, request: ClaimRequest) -> ClaimOrder | None:
        """The order that claims for the same types and queues go on with; None: look first."""
        last = self._request
        if last is None or self._cost <= CHEAP or self.look_first() or self.known.version != self.version:
            return None
        same = (last.types is request.types or last.types == request.types) and last.queues == request.queues
        return self._order if same else None

    def looked(self, look: Callable[[], list[Found]], request: ClaimRequest) -> ClaimOrder:
        """Look at everything. Claims for the same types and queues go on with this order."""
        began = self._clock()
        self.stale = False
        found = look()
        seconds = self._weight * (self._clock() - began)
        self._looked = time.monotonic()
        self._cost, self._last_cost = min(seconds, self._last_cost), seconds
        self._order, self._request, self.version = ClaimOrder(found, request, self.paused), request, self.known.version
        may_find = self._finds_ahead and self._cost > CHEAP and self._looked >= self._ahead_from
        if may_find and not self.paused.tenants:  # whose jobs may be in between
            self._order.claims_ahead = CLAIMS_AHEAD
        return self._order
