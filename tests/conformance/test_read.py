"""Reading: one job, pages of them, counts, and what went wrong."""

from __future__ import annotations

import pytest

from tests.conformance.helpers import (
    FAILED,
    HOUR,
    RETRIED,
    enlist,
    everything,
    finish,
    ids,
    new_job,
    put,
    put_and_take,
    put_many,
    settle_one,
    take,
    writing,
)
from treadle.filters import Filter
from treadle.ids import ids_from, new_id
from treadle.job import Progress, Status
from treadle.outcome import CANCELLED, COMPLETED, Outcome, OutcomeKind
from treadle.stores.shared import read


def one_of_each(store, **options):
    """A job in each status, by that status."""
    take(store)  # so that jobs left over from others are not claimed instead
    jobs = {
        Status.COMPLETED: finish(store, Outcome(OutcomeKind.COMPLETED, result='{"n":1}'), **options),
        Status.FAILED: finish(store, FAILED, **options),
        Status.CANCELLED: finish(store, CANCELLED, **options),
        Status.PROCESSING: put_and_take(store, **options),
        Status.PENDING: (pending := put(store, **options)),
        Status.BLOCKED: put(store, after=(pending.id,), **options),
    }
    return {status: store.get(job.id) for status, job in jobs.items()}


def test_an_unknown_id_is_no_job(store):
    assert None is store.get(new_id())
    assert None is store.get("no id at all")
    assert [] == store.attempts(new_id())


def test_a_job_shows_its_status(store):
    for status, job in one_of_each(store).items():
        assert status == job.status


def test_jobs_are_listed_newest_first(store):
    made = put_many(store, 5)

    assert ids(reversed_(made)) == ids(everything(store))


def reversed_(things):
    return list(reversed(things))


@pytest.mark.parametrize("status", list(Status))
def test_a_list_by_status_has_only_those_jobs(store, status):
    jobs = one_of_each(store)

    assert [jobs[status]] == list(store.jobs(Filter(statuses=(status,)), 10))


def test_a_list_by_several_statuses_is_in_one_order(store):
    jobs = one_of_each(store)
    wanted = (Status.FAILED, Status.PENDING, Status.COMPLETED)

    listed = store.jobs(Filter(statuses=wanted), 10)

    assert sorted((jobs[s].id for s in wanted), reverse=True) == ids(listed)


def test_a_status_named_twice_is_listed_once(store):
    job = put(store)

    assert [job] == list(store.jobs(Filter(statuses=(Status.PENDING, Status.PENDING)), 10))


@pytest.mark.parametrize("column", ["type", "queue", "tenant", "subject"])
@pytest.mark.parametrize("statuses", [(), (Status.PENDING,), (Status.COMPLETED, Status.PENDING)], ids=len)
def test_a_list_has_only_the_jobs_that_match(store, column, statuses):
    wanted = put(store, **{column: "this"})
    put(store, **{column: "that"})

    assert [wanted] == list(store.jobs(Filter(statuses=statuses, **{f"{column}s": ("this",)}), 10))


def test_all_conditions_of_a_filter_must_match(store):
    wanted = put(store, "a", tenant="t", subject="s", queue="q")
    for other in ({"type": "b"}, {"tenant": "x"}, {"subject": "x"}, {"queue": "x"}):
        put(store, **{"type": "a", "tenant": "t", "subject": "s", "queue": "q", **other})

    full = Filter(statuses=(Status.PENDING,), types=("a",), tenants=("t",), subjects=("s",), queues=("q",))

    assert [wanted] == list(store.jobs(full, 10))


def test_a_tenants_jobs_are_listed_by_status(store):
    one_of_each(store, tenant="other")
    jobs = one_of_each(store, tenant="acme")

    for status in Status:
        assert [jobs[status]] == list(store.jobs(Filter(statuses=(status,), tenants=("acme",)), 10))


def test_jobs_without_a_tenant_can_be_listed(store):
    put(store, tenant="acme")
    nobodys = put(store)

    assert [nobodys] == list(store.jobs(Filter(tenants=("",)), 10))


@pytest.mark.parametrize(
    "wanted",
    [Filter(), Filter(tenants=("t",)), Filter(subjects=("s",)), Filter(statuses=(Status.PENDING, Status.COMPLETED))],
    ids=["all", "by tenant", "by subject", "by status"],
)
def test_pages_follow_each_other_without_gaps_or_repeats(store, wanted):
    made = store.insert([new_job(tenant="t", subject="s") for _ in range(7)])
    for claimed in take(store, 3):
        settle_one(store, claimed, COMPLETED)

    seen, sizes, before = [], [], None
    while True:
        page = store.jobs(wanted, 3, before)
        seen += ids(page.jobs)
        sizes.append(len(page))
        before = page.next
        if before is None:
            break

    assert ids(reversed_(made)) == seen
    assert [3, 3, 1] == sizes


def test_the_last_page_has_no_next_page_even_if_it_is_full(store):
    put_many(store, 4)

    first = store.jobs(Filter(), 2)
    second = store.jobs(Filter(), 2, first.next)

    assert (2, None) == (len(second), second.next)


def test_a_new_job_does_not_disturb_the_pages(store):
    made = put_many(store, 4)
    first = store.jobs(Filter(), 2)

    put(store)

    assert ids(reversed_(made))[2:] == ids(store.jobs(Filter(), 2, first.next).jobs)


def test_counts_are_grouped_by_the_requested_fields(store):
    put_many(store, 3, "a")
    put_many(store, 2, "b", queue="slow")
    settle_one(store, take(store, 1, types={"a": None})[0], COMPLETED)

    assert [{"count": 5}] == store.counts(()).rows
    assert [{"status": "completed", "count": 1}, {"status": "pending", "count": 4}] == store.counts(("status",)).rows
    assert [{"queue": "default", "count": 3}, {"queue": "slow", "count": 2}] == store.counts(("queue",)).rows
    assert [
        {"type": "a", "status": "completed", "count": 1},
        {"type": "a", "status": "pending", "count": 2},
        {"type": "b", "status": "pending", "count": 2},
    ] == store.counts(("type", "status")).rows


def test_counts_by_tenant_and_subject(store):
    put_and_take(store, tenant="acme", subject="s2")
    put_many(store, 2, tenant="acme", subject="s1")
    put(store, delay=HOUR)

    by_tenant = store.counts(("tenant",)).rows
    by_both = store.counts(("tenant", "subject")).rows

    assert [{"tenant": "", "count": 1}, {"tenant": "acme", "count": 3}] == by_tenant
    assert [("", "", 1), ("acme", "s1", 2), ("acme", "s2", 1)] == [tuple(row.values()) for row in by_both]


@pytest.mark.parametrize("extra", [(), ("tenant",)], ids=["tallied", "counted"])
def test_counts_show_each_status(store, extra):
    one_of_each(store)

    rows = store.counts(("status", *extra)).rows

    assert sorted(Status) == sorted(row["status"] for row in rows)
    assert {1} == {row["count"] for row in rows}


def test_a_count_has_no_row_for_jobs_that_are_gone(store):
    store.delete(put(store).id)

    assert [] == store.counts(("status", "type")).rows


def test_progress_is_shown_while_the_job_runs(store):
    claimed = put_and_take(store)

    store.save_progress([(claimed, Progress(0.25, "a quarter"))])

    assert Progress(0.25, "a quarter") == store.jobs(Filter(statuses=(Status.PROCESSING,)), 1)[0].progress


def test_the_last_error_is_shown_while_the_job_waits(store):
    claimed = put_and_take(store)
    settle_one(store, claimed, Outcome(OutcomeKind.RETRIED, error="first"))
    settle_one(store, take(store)[0], Outcome(OutcomeKind.RETRIED, error="second"))

    assert "second" == store.get(claimed.id).error
    assert "second" == store.jobs(Filter(statuses=(Status.PENDING,)), 1)[0].error


def test_a_list_shows_the_same_as_get(store):
    jobs = one_of_each(store, tenant="t", subject="s")

    for wanted in (Filter(), Filter(tenants=("t",)), Filter(subjects=("s",)), Filter(statuses=tuple(Status))):
        assert sorted(ids(list(jobs.values()))) == sorted(ids(store.jobs(wanted, 10).jobs))
        assert [store.get(job.id) for job in store.jobs(wanted, 10)] == list(store.jobs(wanted, 10))


def test_reading_does_not_wait_for_writers(open_store):
    ours, theirs = open_store(), open_store()
    job = put(ours)

    with writing(ours):
        assert job == theirs.get(job.id)
        assert [job] == list(theirs.jobs(Filter(), 10))
        assert [{"count": 1}] == theirs.counts(()).rows


def test_a_list_by_several_statuses_misses_no_job_whose_status_changes_meanwhile(open_store, monkeypatch):
    ours, theirs = open_store(), open_store()
    ended = finish(ours, COMPLETED)
    moving = put(ours)
    to_job, moved = read.to_job, []

    def claim_it_meanwhile(row):
        if not moved:
            moved.append(take(theirs))
        return to_job(row)

    monkeypatch.setattr(read, "to_job", claim_it_meanwhile)
    statuses = (Status.PROCESSING, Status.COMPLETED, Status.PENDING)
    listed = ours.jobs(Filter(statuses=statuses), 10)

    assert [moving.id, ended.id] == [job.id for job in listed]


@pytest.mark.needs("notices_commits")
def test_changes_differ_after_another_commit(open_store):
    ours, theirs = open_store(), open_store()
    first = ours.changes()

    put(theirs)

    assert first != ours.changes()


@pytest.mark.needs("notices_commits")
def test_reading_changes_nothing(open_store):
    ours, theirs = open_store(), open_store()
    put(ours)

    def changed():
        before = ours.changes()
        everything(theirs)
        theirs.counts(("tenant",))
        theirs.workers()
        theirs.policies()
        return before != ours.changes()

    # Usually nothing else changes either, but a server sometimes cleans up.
    assert not all(changed() for _ in range(10))


def test_the_status_of_a_store_names_the_database_and_its_schema(store):
    put_and_take(store)

    status = store.status()

    assert store.where == status["where"]
    assert status["newest_schema"] == status["schema"]
    assert 1 == status["leases_given"]


def test_attempts_are_those_of_the_requested_job(store):
    enlist(store, "w1")
    one = put_and_take(store, worker="w1")
    settle_one(store, one, RETRIED)
    other = put(store)

    assert 1 == len(store.attempts(one.id))
    assert [] == store.attempts(other.id)


# The start of an id


def test_ids_are_found_by_their_start_newest_first(store):
    jobs = [put(store, tenant=tenant) for tenant in ("", "acme", "")]
    [one, *_] = jobs
    first, last = ids_from(one.id[:6])
    assert [job.id for job in reversed(jobs)] == store.ids_between(first, last, 10)
    assert [job.id for job in jobs[:0:-1]] == store.ids_between(first, last, 2)
    assert [one.id] == store.ids_between(*ids_from(one.id), 10)
    assert [] == store.ids_between(*ids_from("ffff"), 10)
