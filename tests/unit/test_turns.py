"""Whose turn it is: one job of each tenant, again and again."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.stores.base import ClaimRequest
from treadle.stores.claim_order import ClaimOrder
from treadle.stores.ranges import NO_SLOTS, START, Candidate, Found, Position, RangeStart, ReadyRange
from treadle.stores.turns import by_turns, found_by_turns, served

NOW = 1_000


def positions(*moments: int) -> list[Position]:
    return [(at, str(at)) for at in moments]


JOBS = st.lists(st.integers(), max_size=20).map(lambda moments: positions(*moments))
TENANTS = st.lists(st.tuples(st.text(max_size=3), JOBS), max_size=20)


def test_each_tenant_has_one_job_per_turn() -> None:
    tenants = [("a", positions(1, 2, 3)), ("b", positions(4)), ("c", []), ("d", positions(5, 6))]

    assert ["a1", "b4", "d5", "a2", "d6", "a3"] == [f"{tenant}{at}" for tenant, (at, _) in by_turns(tenants)]


@given(TENANTS)
def test_nothing_is_lost_and_nobody_is_more_than_one_turn_ahead(tenants: list[tuple[str, list[Position]]]) -> None:
    numbered = [(str(n), jobs) for n, (_, jobs) in enumerate(tenants)]
    order = by_turns(numbered)

    assert sorted((tenant, job) for tenant, jobs in numbered for job in jobs) == sorted(order)
    had: Counter[str] = Counter()
    for tenant, _ in order:
        assert had[tenant] <= min(had[other] for other, jobs in numbered if had[other] < len(jobs))
        had[tenant] += 1


@given(TENANTS, st.integers(1, 9))
def test_more_jobs_of_each_begin_with_the_same_turns(tenants: list[tuple[str, list[Position]]], each: int) -> None:
    """So a claim that needs more reads them again, and goes on behind those that it has taken."""
    few = by_turns((tenant, jobs[:each]) for tenant, jobs in tenants)
    turns = min((len(jobs) for _, jobs in tenants if len(jobs) < each), default=each)

    assert few[: turns * len(tenants)] == by_turns(tenants)[: turns * len(tenants)]


def found(priority: int, run_at: int, queue: str = "q", type: str = "t") -> Found:
    return Found(ReadyRange(queue, type, priority), (run_at, "1"))


@pytest.mark.parametrize(
    ("in_order", "waiting", "expected"),
    [
        ([found(0, 5)], [], [(0, 5)]),
        ([], [found(0, 5)], [(0, 5)]),
        ([found(0, 5)], [found(0, 3)], [(0, 3)]),
        ([found(1, 5)], [found(0, 3)], [(1, 5)]),
        ([found(-1, 5)], [found(0, 3)], [(0, 3)]),
        ([found(0, 5, "q"), found(0, 6, "r")], [found(0, 7, "r")], [(0, 5), (0, 6)]),
    ],
)
def test_a_fair_type_has_one_range_wherever_its_jobs_wait(
    in_order: list[Found], waiting: list[Found], expected: list[tuple[int, int]]
) -> None:
    ranges = found_by_turns(in_order, waiting, {"t"})

    assert expected == [(one.range.priority, one.first[0]) for one in ranges]
    assert all(one.range.fair for one in ranges)


def test_a_type_that_is_no_longer_fair_has_both_ranges() -> None:
    ranges = found_by_turns([found(0, 5)], [found(0, 3)], ())

    assert [False, True] == [one.range.fair for one in ranges]


def test_whose_turn_it_is_goes_in_the_place_of_the_oldest() -> None:
    fair, plain = ReadyRange("q", "fair", 0, fair=True), ReadyRange("q", "plain", 0)
    order = ClaimOrder([Found(fair, START), Found(plain, (5, "p"))], ClaimRequest(limit=9))
    turns: list[tuple[str, Position]] = [("new", (9, "n")), ("old", (1, "a")), ("old", (2, "b"))]
    jobs: list[Candidate] = []
    for batch in order.batches(9, NO_SLOTS, NOW):
        starts = {
            fair: RangeStart(sorted(job for _, job in turns), None),
            plain: RangeStart([(5, "p"), (6, "q")], None),
        }
        order.turns[fair] = turns[::-1]
        jobs += served(order, order.merge(batch, [starts[head.range] for head in batch]), last := {})

    assert ["n", "a", "p", "q", "b"] == [id for _, id, _ in jobs]
    assert ({fair: "old"}, {"n", "a", "b"}) == (last, order.served)
