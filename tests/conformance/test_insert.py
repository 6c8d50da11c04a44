"""Enqueue: all or none, once per id, and an error affects only its own caller."""

from __future__ import annotations

import pytest

from tests.conformance.helpers import (
    CANNOT_BE_STORED,
    HOUR,
    UNSTORABLE,
    everything,
    ids,
    new_job,
    on_postgres,
    place_of,
    put,
    put_many,
    settle_one,
    take,
)
from treadle.clock import SECOND, to_datetime
from treadle.errors import StoreBusy
from treadle.ids import new_id
from treadle.job import Job, NewJob, Status
from treadle.outcome import COMPLETED
from treadle.stores.base import TypePolicy


def test_get_returns_the_same_job_as_insert(store):
    new = new_job(
        "podcast_import",
        queue="slow",
        tenant="acme",
        subject="p1",
        payload='{"podcast_id":"p1"}',
        priority=7,
        max_attempts=3,
    )

    (job,) = store.insert([new])

    assert job == store.get(new.id)
    assert (new.id, "podcast_import", "slow", "acme", "p1") == (job.id, job.type, job.queue, job.tenant, job.subject)
    assert ({"podcast_id": "p1"}, 7, 3) == (job.payload, job.priority, job.max_attempts)


def test_a_new_job_is_pending_and_due_at_once(store, clock):
    job = put(store)

    now = to_datetime(clock())
    assert (Status.PENDING, 0) == (job.status, job.attempts)
    assert [now] * 3 == [job.run_at, job.created_at, job.updated_at]
    assert [None] * 6 == [job.worker_id, job.started_at, job.completed_at, job.error, job.result, job.progress]


def test_a_delay_counts_from_the_databases_now(store, clock):
    job = put(store, delay=90 * SECOND)

    assert to_datetime(clock() + 90 * SECOND) == job.run_at
    assert job == store.get(job.id)


def test_run_at_is_kept_to_the_microsecond(store, clock):
    job = put(store, run_at=clock() + HOUR + 1)

    assert to_datetime(clock() + HOUR + 1) == store.get(job.id).run_at


def test_inserted_jobs_are_returned_in_the_order_of_the_request(store):
    new = [new_job(priority=i) for i in (3, 1, 2)]

    jobs = store.insert(new)

    assert ids(new) == ids(jobs)


def test_inserting_no_jobs_changes_nothing(store):
    assert [] == store.insert([])
    assert [] == store.insert_groups([])
    assert [] == store.counts(("status",)).rows


def test_a_batch_with_one_bad_job_stores_none_of_them(store):
    with pytest.raises(CANNOT_BE_STORED):
        store.insert([new_job(), new_job(priority=UNSTORABLE), new_job()])

    assert [] == everything(store)


def test_the_same_id_twice_is_one_job(store):
    """The reply to the first try may have been lost: repeating it must not double the job."""
    new = new_job()

    first = store.insert([new])
    second = store.insert([new])

    assert first == second
    assert [{"count": 1}] == store.counts(()).rows


def test_a_repeated_insert_returns_the_current_state_of_the_job(store):
    new = new_job()
    store.insert([new])
    (claimed,) = take(store)
    settle_one(store, claimed, COMPLETED)

    (again,) = store.insert([new])

    assert Status.COMPLETED == again.status


def test_a_repeated_batch_stores_what_is_missing(store):
    old, young = new_job(), new_job()
    store.insert([old])
    take(store)

    jobs = store.insert([young, old])

    assert [young.id, old.id] == ids(jobs)
    assert [Status.PENDING, Status.PROCESSING] == [job.status for job in jobs]


def test_one_id_twice_in_a_batch_is_one_job(store):
    new = new_job()

    jobs = store.insert([new, new])

    assert [new.id, new.id] == ids(jobs)
    assert [{"count": 1}] == store.counts(()).rows


def test_if_one_group_cannot_be_stored_the_others_are(store):
    """Independent callers share a commit: only the caller with the bad job may get an error."""
    good, bad, late = [new_job(), new_job()], [new_job(), new_job(priority=UNSTORABLE)], [new_job()]

    answers = store.insert_groups([good, bad, late])

    assert [ids(good), ids(late)] == [ids(answers[0]), ids(answers[2])]
    assert isinstance(answers[1], CANNOT_BE_STORED)
    assert sorted(ids(good) + ids(late)) == sorted(ids(everything(store)))


@pytest.mark.parametrize(
    "culprit",
    [
        pytest.param({"priority": UNSTORABLE}, id="a number too large"),
        pytest.param({"tenant": "\ud800"}, id="a lone surrogate"),
        pytest.param({"tenant": None}, id="a missing tenant"),
        pytest.param({"payload": "{"}, id="no JSON"),
        pytest.param({"delay": 1 << 62}, id="a delay beyond all dates"),
    ],
)
def test_a_bad_job_of_any_kind_fails_only_its_own_group(store, culprit):
    answers = store.insert_groups([[new_job()], [new_job(**culprit)], [new_job()]])

    assert [list, True, list] == [type(answers[0]), isinstance(answers[1], Exception), type(answers[2])]
    assert [{"count": 2}] == store.counts(()).rows


def test_a_group_whose_ids_are_already_stored_does_not_fail(store):
    there, new = [new_job()], [new_job()]
    store.insert(there)

    answers = store.insert_groups([there, new])

    assert [ids(there), ids(new)] == [ids(answer) for answer in answers]
    assert [{"count": 2}] == store.counts(()).rows


def test_groups_that_meet_a_busy_store_wait_once_together(store, monkeypatch):
    """If each group waited on its own, the last caller would wait for the time limits of all."""
    tries = []

    def busy(*_):
        tries.append(1)
        raise StoreBusy(store.where, 10)

    store.open()
    monkeypatch.setattr(store, "_insert_now", busy)
    answers = store.insert_groups([[new_job()], [new_job()], [new_job()]])

    assert [StoreBusy] * 3 == [type(answer) for answer in answers]
    assert [store.joins_transactions] * 3 == ["pass it as connection=…" in str(answer) for answer in answers]
    assert 1 == len(tries)


def test_jobs_of_all_groups_are_stored_in_one_commit(open_store, by_hand):
    ours, watcher = open_store(), open_store()
    before = watcher.changes()

    ours.insert_groups([[new_job()] for _ in range(5)])

    assert [{"count": 5}] == watcher.counts(()).rows
    if on_postgres(ours):
        assert [(1,)] == by_hand("SELECT count(DISTINCT CAST(xmin AS text)) FROM treadle_jobs")
    elif ours.notices_commits:
        assert before + 1 == watcher.changes()


def test_another_handle_sees_a_job_when_insert_has_returned(open_store):
    ours, theirs = open_store(), open_store()

    job = put(ours)

    assert job == theirs.get(job.id)


def test_a_payload_of_one_mebibyte_is_read_back_unchanged(store):
    payload = '{"text":"' + "ü" * ((1 << 19) - 6) + '"}'

    put(store, payload=payload)

    assert payload == take(store)[0].payload


def test_text_of_any_alphabet_is_read_back_unchanged(store):
    words = "naïve 日本語 🦆 'quoted' \"double\" \\ \n {}[]"
    job = put(store, tenant=words, subject=words, type=words, queue=words)

    (claimed,) = take(store)

    assert job == store.get(job.id).__class__(**{**_fields(store.get(job.id)), **_waiting(job)})
    assert (words,) * 4 == (claimed.tenant, claimed.subject, claimed.type, claimed.queue)


def _fields(job: Job) -> dict:
    return {name: getattr(job, name) for name in job.__struct_fields__}


def _waiting(job: Job) -> dict:
    return {name: getattr(job, name) for name in ("status", "attempts", "started_at", "updated_at", "worker_id")}


def test_the_store_keeps_the_id_that_the_client_made(store):
    id = new_id()

    store.insert([NewJob(id=id, type="noop")])

    assert (Status.PENDING, 0) == place_of(store, id)


def test_published_type_policies_are_visible_on_every_handle(open_store):
    ours, theirs = open_store(), open_store()
    numbers = {"priority": 3, "max_attempts": 9, "concurrency": 2, "timeout": 300 * SECOND}
    policy = TypePolicy(type="noop", queue="slow", redact='["iban"]', **numbers)

    ours.publish([policy, TypePolicy(type="other")])

    assert {"noop": policy, "other": TypePolicy(type="other")} == theirs.policies()


def test_the_policy_published_last_wins(store):
    store.publish([TypePolicy(type="noop", concurrency=1, timeout=5)])

    store.publish([TypePolicy(type="noop")])

    assert {"noop": TypePolicy(type="noop")} == store.policies()


def test_a_store_that_was_closed_opens_again_when_it_is_used(store):
    job = put(store)

    store.close()

    assert job == store.get(job.id)
    store.close()
    store.close()
    assert 3 == len(put_many(store, 3))


def test_the_arguments_of_a_type_are_published(store):
    assert "" == store.arguments("noop")
    store.publish([TypePolicy(type="noop", arguments='{"type":"object"}')])

    assert '{"type":"object"}' == store.arguments("noop")
    assert "" == store.policies()["noop"].arguments
    store.publish([TypePolicy(type="noop")])
    assert "" == store.arguments("noop")
