"""What statistics and `why` say of jobs that wait by turns."""

from __future__ import annotations

import pytest

from tests.conformance.fairness.helpers import put_fair
from tests.conformance.helpers import MINUTE, enlist, new_job, put, take
from treadle.diagnosis import MOST_TENANTS, Turns, explain, for_tenant
from treadle.reasons import ReasonCode


def test_fair_jobs_are_counted_as_queued_with_the_oldest(fair, clock):
    oldest = clock()
    put_fair(fair, "b", 3)
    clock.advance(1)
    put_fair(fair, "a", 2, delay=MINUTE)
    put_fair(fair, "a", 2)
    put_fair(fair, "a", 1, priority=4)

    [found] = fair.queue_stats()

    assert (6, 2) == (found.counts["queued"], found.counts["scheduled"])
    assert (oldest, clock() + MINUTE, True) == (found.oldest_due, found.next_due, found.exact)


def test_a_job_is_ahead_of_another_type_wherever_it_waits(fair, clock):
    enlist(fair, types=("fair", "plain"))
    put_fair(fair, "a", 3, priority=1)
    put_fair(fair, "a", 2)
    put_fair(fair, "b", 2, fair="")
    clock.advance(1)
    job = put(fair, "plain").id

    assert 7 == fair.job_facts(job).ahead


def test_a_fair_job_knows_who_takes_turns_with_it(fair, clock):
    enlist(fair, types=("fair",))
    put_fair(fair, "a", 3, priority=1)
    for tenant in "abc":
        put_fair(fair, tenant, 4)
    clock.advance(1)
    [job] = put_fair(fair, "b")

    facts = fair.job_facts(job)

    assert (Turns(3, 4), 3) == (facts.turns, facts.ahead)
    assert fair.job_facts(put(fair, "plain").id).turns is None


def test_why_says_who_takes_turns(fair):
    enlist(fair, types=("fair",))
    for tenant in ("a", "b", "b"):
        [job] = put_fair(fair, tenant)
    [reason] = explain(fair.job_facts(job)).reasons

    data = {"tenants": 2, "more": False, "before": 1, "last": None, "next": None}
    assert (ReasonCode.TURNS, data) == (reason.code, reason.data)
    assert (
        "the tenants of type 'fair' take turns: 2 tenants with due jobs, and 1 of its own jobs comes first"
        == reason.text
    )
    [later] = put_fair(fair, "a", delay=MINUTE)
    assert [ReasonCode.NOT_DUE] == [reason.code for reason in explain(fair.job_facts(later)).reasons]


@pytest.mark.parametrize(("last", "next"), [("a", "b"), ("b", "d"), ("c", "d"), ("d", "a")])
def test_why_says_whose_turn_is_next(fair, last, next):
    enlist(fair, types=("fair",))
    put_fair(fair, last)
    take(fair, 1)
    for tenant in "abd":
        ids = put_fair(fair, tenant, 2)

    [reason] = explain(fair.job_facts(ids[1])).reasons

    assert reason.text.endswith(f"; tenant {last!r} was served last, and the next turn is that of {next!r}")
    assert (last, next) == (reason.data["last"], reason.data["next"])


def test_very_many_tenants_are_not_all_counted(fair):
    enlist(fair, types=("fair",))
    first, *_ = fair.insert([new_job("fair", tenant=f"t{n:05}", fair="tenant") for n in range(MOST_TENANTS)])
    [job] = put_fair(fair, "z")
    [reason] = explain(fair.job_facts(job)).reasons
    assert "take turns: more than 1,000 tenants with due jobs" in reason.text
    fair.cancel(first.id)
    [reason] = explain(fair.job_facts(job)).reasons
    assert "take turns: 1,000 tenants with due jobs" in reason.text


def test_nothing_is_in_the_way_of_the_only_job(fair):
    enlist(fair, types=("fair",))
    [job] = put_fair(fair, "a")

    assert [ReasonCode.NEXT_LOOK] == [reason.code for reason in explain(fair.job_facts(job)).reasons]


def test_why_tells_a_tenant_nothing_of_the_others(fair):
    enlist(fair, types=("fair",))
    put_fair(fair, "a", 3)
    [job] = put_fair(fair, "b")
    [reason] = for_tenant(explain(fair.job_facts(job)), fair.get(job)).reasons

    assert (ReasonCode.TURNS, {}) == (reason.code, reason.data)
    assert not any(character.isdigit() for character in reason.text + reason.way_out)
