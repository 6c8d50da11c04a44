"""The order of claims: that of a sort, and read from few jobs of few ranges."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.stores import claim_order
from treadle.stores.base import ClaimRequest
from treadle.stores.claim_order import LOOKED_AT, ClaimOrder, Cursors, before, next_due
from treadle.stores.ranges import NO_SLOTS, Found, Head, Position, RangeStart, ReadyRange
from treadle.stores.rows import Due

NOW = 1_000
ANY = ClaimRequest(limit=1)


def new_id(n: int) -> str:
    return f"01900000-0000-7000-8000-{n:012x}"


class Index:
    """Jobs in memory: (priority, run_at, id) by queue and type."""

    def __init__(self, jobs: Sequence[tuple[str, int, int]]) -> None:
        self.waiting: defaultdict[ReadyRange, list[Position]] = defaultdict(list)
        self.rows_read = 0
        for n, (type, priority, run_at) in enumerate(jobs):
            self.waiting[ReadyRange("q", type, priority)].append((run_at, new_id(n)))
        for range in self.waiting.values():
            range.sort()

    def look(self) -> list[Found]:
        tops: dict[str, ReadyRange] = {}
        for range in self.waiting:
            if range.type not in tops or range.priority > tops[range.type].priority:
                tops[range.type] = range
        return [Found(range, self.waiting[range][0]) for range in tops.values()]

    def read(self, head: Head, rows: int) -> RangeStart:
        due = [job for job in self.waiting[head.range] if head.after < job and job[0] <= NOW][:rows]
        self.rows_read += len(due)
        below = [r.priority for r in self.waiting if r.type == head.range.type and r.priority < head.range.priority]
        return RangeStart(due, max(below, default=None) if len(due) < rows else None)

    def claim(self, order: ClaimOrder, limit: int) -> list[str]:
        found = [id for _, id, _ in order.take_ahead(limit, NO_SLOTS)]
        for batch in order.batches(limit - len(found), NO_SLOTS, NOW):
            found += [id for _, id, _ in order.merge(batch, [self.read(head, order.rows) for head in batch])]
        return found


@given(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 2), st.integers(990, 1_005)), max_size=60),
    st.lists(st.integers(1, 12), max_size=8),
    st.integers(0, 3),
)
def test_claims_that_go_on_with_an_order_take_what_a_sort_would(
    jobs: list[tuple[str, int, int]], limits: list[int], claims_ahead: int
) -> None:
    index = Index(jobs)
    wanted = [id for _, _, id in sorted((-p, at, new_id(n)) for n, (_, p, at) in enumerate(jobs) if at <= NOW)]
    order, claimed = ClaimOrder(index.look(), ANY), list[str]()
    order.claims_ahead = claims_ahead
    for limit in limits:
        claimed += index.claim(order, limit)
    assert claimed == wanted[: sum(limits)]


@pytest.mark.parametrize("skewed", [False, True])
def test_a_claim_reads_few_jobs_however_many_types_wait(skewed: bool) -> None:
    """In the skewed case, the oldest jobs are all of one type. Then each round reads twice as many of it."""
    first = -100_000 if skewed else 0
    index = Index([(f"t{n % 500}", 0, n - 50_000 + (first if n % 500 == 7 else 0)) for n in range(20_000)])
    assert len(index.claim(ClaimOrder(index.look(), ANY), 20)) == 20
    assert index.rows_read <= (12 if skewed else 3) * 20


@pytest.mark.parametrize("types", [10, 500, 5_000])
def test_a_claim_that_finds_jobs_for_later_ones_reads_few_jobs_for_each(types: int) -> None:
    index = Index([(f"t{n % types}", 0, n - 50_000) for n in range(20_000)])
    order = ClaimOrder(index.look(), ANY)
    order.claims_ahead = 7
    assert [new_id(n) for n in range(800)] == [id for _ in range(40) for id in index.claim(order, 20)]
    assert index.rows_read <= 4 * 800


@pytest.mark.parametrize("finds_ahead", [True, False])
def test_cursors_that_do_not_last_find_nothing_for_later_claims(
    finds_ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_order, "CHEAP", -1)
    cursors = Cursors(finds_ahead=finds_ahead)
    orders = [cursors.looked(list, ANY) for _ in range(2)]
    assert [order.claims_ahead > 0 for order in orders] == [finds_ahead] * 2


@pytest.mark.parametrize(
    ("id", "previous"),
    [
        (new_id(1), new_id(0)),
        (new_id(16), new_id(15)),
        ("01900000-0000-7000-8000-000000000000", "01900000-0000-7000-7fff-ffffffffffff"),
        ("00000000-0000-0000-0000-000000000010", "00000000-0000-0000-0000-00000000000f"),
    ],
)
def test_the_position_just_before_a_job(id: str, previous: str) -> None:
    assert before((5, id)) == (5, previous)


@pytest.mark.parametrize("broken", ["", "Ü", "0", "01900000-0000-7000-8000-00000000000x"])
def test_the_position_before_a_job_whose_id_was_broken_by_hand(broken: str) -> None:
    assert before((5, broken)) < (5, broken)


def test_the_next_due_job_is_one_that_the_claimer_takes() -> None:
    rows = [(1, "q", "a"), (2, "r", "b"), (3, "q", "b")]
    assert next_due(rows, ANY, 0) == Due(False, 1, 1e-6)
    assert next_due(rows, ClaimRequest(limit=1, types={"b": None}), 0).next_at == 2
    assert next_due(rows, ClaimRequest(limit=1, types={"b": None}, queues=("q",)), 0).next_at == 3
    assert next_due(rows, ClaimRequest(limit=1, types={"c": None}), 0) == Due(False)
    many = rows[:1] * LOOKED_AT
    assert next_due(many, ClaimRequest(limit=1, types={"c": None}), 0).next_at == 1, "not before the last one"
