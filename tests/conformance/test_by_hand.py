"""Rows that were broken by hand: only that job is affected, and nothing loops."""

from __future__ import annotations

import pytest

from tests.conformance.helpers import (
    EVERY_OUTCOME,
    FAILED,
    HOUR,
    RETRIED,
    SNOOZED,
    check_consistency,
    enlist,
    everything,
    finish,
    ids,
    limit,
    new_job,
    on_postgres,
    put,
    put_and_take,
    put_many,
    settle_one,
    take,
)
from tests.conformance.keyed_jobs import REPLACE, STARTED, call
from treadle.diagnosis import explain
from treadle.errors import JobNotFound
from treadle.filters import Filter
from treadle.job import Status
from treadle.outcome import COMPLETED, RELEASED
from treadle.problems import problems
from treadle.reasons import ReasonCode
from treadle.stores.base import ClaimRequest
from treadle.stores.rows import Token
from treadle.worker.chores import declare_local_dead
from treadle.worker.host import identity as host_of_this_process

pytestmark = pytest.mark.by_hand

BROKEN = {
    "no object": "[1, 2]",
    "a lone surrogate": '{"a":"\\ud800"}',
    "a NUL": '{"a":"\\u0000"}',
    "too deep": "[" * 2000 + "]" * 2000,
    "a number too large": '{"a":1e999}',
}


@pytest.mark.parametrize("payload", BROKEN.values(), ids=BROKEN)
def test_a_broken_payload_is_claimed_and_other_jobs_run(store, by_hand, payload):
    """Its attempt fails and says why. If claims skipped it, it would stay there forever, unseen."""
    neighbors = put_many(store, 2, payload='{"a":1}')
    broken = put(store)
    by_hand("UPDATE treadle_jobs SET payload = ? WHERE id = ?", payload, broken.id)

    claimed = take(store)

    assert ids([*neighbors, broken]) == ids(claimed)
    assert ['{"a":1}'] * 2 == [c.payload for c in claimed[:2]]
    assert not store.settle([(claimed[0], COMPLETED), (claimed[1], COMPLETED), (claimed[2], RETRIED)]).lost
    check_consistency(store)


@pytest.mark.parametrize("payload", BROKEN.values(), ids=BROKEN)
def test_a_broken_payload_is_shown_as_it_is(store, by_hand, payload):
    whole, broken = put_many(store, 2, tenant="t")
    by_hand("UPDATE treadle_jobs SET payload = ? WHERE id = ?", payload, broken.id)

    assert isinstance(store.get(broken.id).payload, dict)
    for wanted in (Filter(), Filter(tenants=("t",)), Filter(statuses=(Status.PENDING,))):
        assert ids([broken, whole]) == ids(store.jobs(wanted, 10).jobs)


@pytest.mark.parametrize("at", [1 << 62, -(1 << 62)], ids=["far ahead", "far back"])
def test_a_time_beyond_all_dates_does_not_hide_the_other_jobs(store, by_hand, at):
    whole, broken = put_many(store, 2)
    by_hand("UPDATE treadle_ready SET run_at = ? WHERE id = ?", at, broken.id)

    assert ids([broken, whole]) == ids(everything(store))


# A row of treadle_jobs deleted by hand


def delete_job(by_hand, id):
    by_hand("DELETE FROM treadle_jobs WHERE id = ?", id)


def test_a_waiting_job_deleted_by_hand_is_skipped_once_and_removed(store, by_hand):
    gone, there = put_many(store, 2)
    delete_job(by_hand, gone.id)

    assert [there.id] == ids(take(store))

    assert [] == by_hand("SELECT id FROM treadle_ready")
    assert [(there.id,)] == by_hand("SELECT CAST(id AS text) FROM treadle_leases")
    check_consistency(store)


def test_a_claim_that_finds_only_deleted_jobs_finds_nothing(store, by_hand):
    delete_job(by_hand, put(store).id)

    assert [] == take(store)
    assert [] == store.counts(()).rows


def test_a_running_job_deleted_by_hand_does_not_use_a_slot_forever(store, by_hand):
    limit(store, "noop", 1)
    enlist(store, "w1")
    gone = put_and_take(store, worker="w1")
    put(store)
    delete_job(by_hand, gone.id)
    store.declare_dead("w1", "the process died")

    store.rescue()

    assert 1 == len(take(store))
    check_consistency(store)


@pytest.mark.parametrize("outcome", [RETRIED, RELEASED], ids=lambda outcome: outcome.kind.value)
def test_a_running_job_deleted_by_hand_is_removed_when_it_would_wait_again(store, by_hand, outcome):
    gone = put_and_take(store)
    delete_job(by_hand, gone.id)

    assert settle_one(store, gone, outcome)
    assert [] == take(store)
    assert [] == store.counts(()).rows


def test_a_running_job_deleted_by_hand_can_be_completed(store, by_hand):
    gone, there = put_many(store, 2)
    claimed = take(store)
    delete_job(by_hand, gone.id)

    assert not store.settle([(c, COMPLETED) for c in claimed]).lost
    assert Status.COMPLETED == store.get(there.id).status


def test_the_dedupe_key_of_a_job_deleted_by_hand_is_free(store, by_hand):
    """Otherwise, nothing could ever be enqueued with that key again."""
    delete_job(by_hand, put(store, dedupe="k", delay=HOUR).id)

    first, second = store.insert([new_job(dedupe="k"), new_job(dedupe="k")])

    assert first == second
    assert first == put(store, dedupe="k")


def test_a_retry_can_take_the_dedupe_key_of_a_job_deleted_by_hand(store, by_hand):
    ended = finish(store, COMPLETED, dedupe="k")
    delete_job(by_hand, put(store, dedupe="k").id)

    assert Status.PENDING == store.retry(ended.id).status
    assert ended.id == put(store, dedupe="k").id


@pytest.mark.parametrize("rule", ["{", "", "replace", "[1]", '{"mode":"replace","until":"star'])
def test_a_key_passes_on_to_a_successor_whose_rule_is_broken(store, by_hand, rule):
    """The jobs that are settled with its holder must not wait for somebody to repair it. It holds the key as if it had
    a key alone."""
    other, first = put(store), call(store)
    ended = take(store)
    successor = call(store, REPLACE | STARTED)
    by_hand("UPDATE treadle_jobs SET dedupe_rule = ? WHERE id = ?", rule, successor.id)

    assert not store.settle([(claimed, COMPLETED) for claimed in ended]).lost

    assert {Status.COMPLETED} == {store.get(job.id).status for job in (other, first)}
    assert [successor.id] == ids(take(store))
    assert successor.id == put(store, dedupe="k").id


# A job in two tables, or in none

INTO_READY = """
INSERT INTO treadle_ready (id, queue, type, tenant, priority, run_at, attempts, snoozes, suspicion, updated_at)
SELECT id, queue, type, tenant, priority, created_at + ?, 0, 0, 0, created_at
  FROM treadle_jobs WHERE id = ?
"""
INTO_FINISHED = """
INSERT INTO treadle_finished (id, lease, token, status, queue, type, tenant, attempts, worker, run_at, completed_at)
SELECT id, 0, 0, 'failed', queue, type, tenant, 1, '', created_at, created_at FROM treadle_jobs WHERE id = ?
"""


def places(by_hand, id):
    return [
        table
        for table in ("ready", "leases", "finished")
        if by_hand(f"SELECT 1 FROM treadle_{table} WHERE CAST(id AS text) = ?", id)
    ]


def nothing_is_due(store):
    """Otherwise, a worker would claim in vain, again and again."""
    return not store.due(ClaimRequest(limit=1)).now


def test_a_claim_finds_a_job_that_is_leased_already(store, by_hand, caplog):
    """It has one lease at a time. The other jobs are claimed."""
    enlist(store, "w1")
    leased = put_and_take(store, worker="w1")
    others = put_many(store, 2)
    by_hand(INTO_READY, 0, leased.id)

    assert ids(others) == ids(take(store))

    assert nothing_is_due(store)
    assert ["leases"] == places(by_hand, leased.id)
    assert f"job {leased.id} was broken by hand" in caplog.text
    assert settle_one(store, leased, COMPLETED)


def test_leased_jobs_that_also_wait_are_settled_with_the_others(store, by_hand):
    other, *broken = put_many(store, 1 + len(EVERY_OUTCOME))
    first, *claimed = take(store)
    for job in broken:
        by_hand(INTO_READY, HOUR, job.id)

    assert not store.settle([(first, COMPLETED), *zip(claimed, EVERY_OUTCOME, strict=True)]).lost

    assert Status.COMPLETED == store.get(other.id).status
    for job, outcome in zip(broken, EVERY_OUTCOME, strict=True):
        assert ["finished" if outcome.kind.final else "ready"] == places(by_hand, job.id)


def test_jobs_that_wait_though_they_have_ended_run_once_more_at_most(store, by_hand):
    """Their first end counts."""
    ended = [finish(store, COMPLETED) for _ in EVERY_OUTCOME]
    for job in ended:
        by_hand(INTO_READY, 0, job.id)
    other = put(store)
    *claimed, last = take(store)

    store.settle([*zip(claimed, EVERY_OUTCOME, strict=True), (last, COMPLETED)])
    store.settle([(c, COMPLETED) for c in take(store)])

    assert Status.COMPLETED == store.get(other.id).status
    for job in ended:
        assert (Status.COMPLETED, ["finished"]) == (store.get(job.id).status, places(by_hand, job.id))
    assert Status.PROCESSING not in [row["status"] for row in store.counts(("status",)).rows]
    assert nothing_is_due(store)


@pytest.mark.parametrize("into", ["ready", "finished", "attempts"])
def test_the_death_of_a_worker_returns_all_of_its_jobs_but_the_broken_one(store, by_hand, into):
    enlist(store, "w1")
    put_many(store, 3)
    broken, *others = take(store, worker="w1")
    if into == "ready":
        by_hand(INTO_READY, HOUR, broken.id)
    elif into == "finished":
        by_hand(INTO_FINISHED, broken.id)
    else:
        columns = "id, lease, attempt, worker, started_at, " + ("tenant, " if on_postgres(store) else "")
        by_hand(
            f"INSERT INTO treadle_attempts ({columns} ended_at, outcome) SELECT {columns} 0, 'retried'"
            " FROM treadle_leases WHERE CAST(id AS text) = ?",
            broken.id,
        )

    store.declare_dead("w1", "it crashed")

    assert {Status.PENDING} == {store.get(c.id).status for c in others}
    assert [] == by_hand("SELECT id FROM treadle_leases")
    assert places(by_hand, broken.id)


def why(store, id):
    return [reason.code for reason in explain(store.job_facts(id)).reasons]


def test_why_says_that_a_job_is_in_two_tables(store, by_hand):
    job = put(store)
    assert ReasonCode.BROKEN not in why(store, job.id)

    by_hand(INTO_FINISHED, job.id)

    assert [ReasonCode.BROKEN, ReasonCode.FINISHED] == why(store, job.id)


def test_a_job_that_waits_though_it_has_ended_can_be_retried(store, by_hand):
    ended = finish(store, COMPLETED)
    by_hand(INTO_READY, HOUR, ended.id)

    assert Status.PENDING == store.retry(ended.id).status
    assert ["ready"] == places(by_hand, ended.id)


def test_a_job_whose_row_was_deleted_can_be_found_and_runs_again(store, by_hand):
    job = put(store)
    by_hand("DELETE FROM treadle_ready")
    assert ReasonCode.BROKEN == why(store, job.id)[0]

    store.run_now(job.id)

    assert ReasonCode.BROKEN not in why(store, job.id)
    assert [job.id] == ids(take(store))


def test_a_job_whose_row_was_deleted_can_be_deleted(store, by_hand):
    job = put(store)
    by_hand("DELETE FROM treadle_ready")

    store.delete(job.id)

    assert None is store.get(job.id)
    with pytest.raises(JobNotFound):
        store.delete(job.id)


# Numbers


def extremes(store, column):
    """The largest and the smallest number that a column holds, and one below zero."""
    bits = 31 if on_postgres(store) and column in ("attempts", "attempt", "snoozes", "suspicion", "concurrency") else 63
    return [(1 << bits) - 1, -(1 << bits), -1]


@pytest.mark.parametrize(
    ("table", "column"),
    [
        *(("ready", column) for column in ("attempts", "snoozes", "suspicion", "run_at")),
        *(("leases", column) for column in ("attempt", "snoozes", "started_at", "deadline")),
    ],
)
def test_a_number_that_is_impossible_does_not_stop_the_other_jobs(store, by_hand, clock, table, column):
    """One job for each outcome has it, and one whose worker dies."""
    for number in extremes(store, column):
        worker = enlist(store, f"w{number}")
        whole, *broken = put_many(store, 2 + len(EVERY_OUTCOME))
        claimed = take(store, worker=worker) if table == "leases" else []
        for job in broken:
            by_hand(f"UPDATE treadle_{table} SET {column} = ? WHERE id = ?", number, job.id)
        claimed = claimed or take(store, worker=worker)
        lease = {c.id: c for c in claimed}
        assert whole.id in lease

        store.beat(worker)
        for job in broken:
            explain(store.job_facts(job.id))
        some = [
            (lease[job.id], outcome) for job, outcome in zip(broken, EVERY_OUTCOME, strict=False) if job.id in lease
        ]
        assert not store.settle([(lease[whole.id], COMPLETED), *some]).lost
        store.declare_dead(worker, "it crashed")
        store.rescue()

        assert [] == by_hand("SELECT id FROM treadle_leases")
        by_hand("DELETE FROM treadle_ready")


def test_a_limit_that_is_impossible_does_not_stop_the_other_types(store, by_hand):
    limit(store, "limited", 5)
    put_and_take(store, type="limited")
    for number in extremes(store, "concurrency"):
        by_hand("UPDATE treadle_types SET concurrency = ?", number)
        jobs = put(store, "limited"), put(store)

        assert jobs[1].id in ids(take(store))
        explain(store.job_facts(jobs[0].id))


@pytest.mark.parametrize("sign", [1, -1], ids=["too many", "too few"])
def test_a_count_that_would_overflow_does_not_stop_its_type(store, by_hand, sign):
    put_many(store, 2)
    by_hand("UPDATE treadle_tallies SET count = ?", sign * ((1 << 63) - 1))

    for claimed in take(store):
        assert settle_one(store, claimed, SNOOZED)
    store.compact()

    assert 2 == len(take(store))
    assert store.counts(("status",)).rows


@pytest.mark.parametrize("column", ["started_at", "run_at"])
def test_a_time_that_is_impossible_does_not_stop_jobs_that_complete_together(store, by_hand, column):
    for number in extremes(store, column):
        put_many(store, 3)
        claimed = take(store)
        by_hand(f"UPDATE treadle_leases SET {column} = ? WHERE id = ?", number, claimed[0].id)

        assert not store.settle([(c, COMPLETED) for c in claimed]).lost
        assert {Status.COMPLETED} == {store.get(c.id).status for c in claimed}


def test_usage_that_would_overflow_does_not_stop_its_type(store, by_hand, clock):
    for number in extremes(store, "busy"):
        finish(store, COMPLETED)
        finish(store, COMPLETED, type="other")
        by_hand("UPDATE treadle_usage SET runs = ?, completed = ?, failures = ?, busy = ?, waiting = ?", *[number] * 5)

        for outcome in (COMPLETED, FAILED):
            put(store)
            clock.advance(1)
            (claimed,) = take(store)
            clock.advance(1)
            assert settle_one(store, claimed, outcome)
        assert store.usage(0, 1 << 40, 1 << 40, ())
        store.compact()
        assert store.usage(0, 1 << 40, 60, ("type",))
        assert store.latency_sample()


def test_the_counter_of_leases_is_restored(store, by_hand, caplog):
    """If its row is gone, no number is issued again. If it is at its end, the tokens of the claims still differ."""
    fences = {put_and_take(store).fence}
    last = (1 << 63) - 1
    broken = (
        [f"SELECT setval('treadle_lease', {last})"]
        if on_postgres(store)
        else [
            "DELETE FROM treadle_meta WHERE key = 'lease'",
            f"UPDATE treadle_meta SET value = {last} WHERE key = 'lease'",
        ]
    )
    for statement in broken:
        by_hand(statement)
        assert store.status()["leases_given"] is not None
        claimed = put_and_take(store)
        assert settle_one(store, claimed, COMPLETED)
        fences |= {claimed.fence, put_and_take(store).fence}

    assert 1 + 2 * len(broken) == len(fences)
    assert on_postgres(store) or "treadle_meta was broken by hand" in caplog.text


@pytest.mark.only("sqlite", "libsql")
def test_the_clock_of_the_database_is_restored(store, by_hand):
    put(store)
    by_hand("DELETE FROM treadle_meta WHERE key = 'clock'")

    assert store.due(ClaimRequest(limit=1)).now
    assert 1 == len(take(store))
    assert [(1,)] == by_hand("SELECT count(*) FROM treadle_meta WHERE key = 'clock' AND value > 0")


# Workers


@pytest.mark.parametrize("column", ["host", "queues", "types"])
def test_a_worker_whose_row_is_broken_hides_no_other(store, by_hand, column, caplog):
    """New workers look at all of them before they register."""
    enlist(store, "broken", types=("noop",))
    enlist(store, "whole", types=("noop",), host={"pid": 7})
    job = put(store)
    for value in ("[5]", "5", "null", "[null]", "[1", "", '"text"'):
        by_hand(f"UPDATE treadle_workers SET {column} = ? WHERE id = 'broken'", value)

        found = {worker.id: worker for worker in store.workers()}
        assert 0 == declare_local_dead(store)

        assert ({"broken", "whole"}, (column,)) == (found.keys(), found["broken"].broken)
        assert ((), {"pid": 7}) == (found["whole"].broken, found["whole"].host)
        assert ReasonCode.NEXT_LOOK in why(store, job.id)
        [problem] = problems([], list(found.values()), [], store.now())
        assert ("broken_worker", True) == (problem.code, column in problem.text)
    assert "the row of worker broken was broken by hand" in caplog.text


def test_a_worker_whose_host_does_not_say_enough_is_not_declared_dead(store):
    here = host_of_this_process()
    broken = {"pid": "x"}, {"pid": None}, {"pid": [1]}, {"boot": 5}, {"boot": None}, {"supervisor": [1]}
    for n, host in enumerate(({}, {"a": 1}, *({**here, **part} for part in broken))):
        enlist(store, f"w{n}", host=host)

    assert 0 == declare_local_dead(store)
    assert 8 == len(store.workers())


@pytest.mark.parametrize("column", ["beats", "seen_at", "started_at", "concurrency"])
def test_a_number_of_a_worker_stops_nobody(store, by_hand, column):
    enlist(store, "broken")
    enlist(store, "whole")
    claimed = put_and_take(store, worker="broken")
    for number in extremes(store, column):
        by_hand(f"UPDATE treadle_workers SET {column} = ? WHERE id = 'broken'", number)
        explain(store.job_facts(claimed.id))
        first, second = (store.beat("broken").workers["broken"] for _ in range(2))
        assert first != second
        store.beat("whole")
        store.rescue()


def test_a_token_whose_scopes_are_broken_allows_nothing(store, by_hand):
    for name in ("broken", "whole"):
        store.add_token(Token(name, name, ("read",)))
    by_hand("UPDATE treadle_tokens SET scopes = '5' WHERE name = 'broken'")

    assert {"broken": (), "whole": ("read",)} == {token.name: token.scopes for token in store.tokens()}


# doctor


def codes(store, **options):
    return {defect.code: defect.rows for defect in store.defects(**options)}


def test_every_defect_is_found(store, by_hand):
    enlist(store, "w1")
    assert {} == codes(store)
    leased, gone = put_and_take(store, worker="w1"), put_and_take(store, worker="w1")
    by_hand(INTO_READY, HOUR, leased.id)
    by_hand("UPDATE treadle_leases SET attempt = -1 WHERE id = ?", gone.id)
    assert {"several": 1, "number": 1} == codes(store, quick=True)

    waiting = put_many(store, 4)
    by_hand(INTO_FINISHED, waiting[0].id)
    by_hand("DELETE FROM treadle_ready WHERE id = ?", waiting[1].id)
    by_hand("DELETE FROM treadle_jobs WHERE id = ?", waiting[2].id)
    by_hand("UPDATE treadle_jobs SET payload = '[]' WHERE id = ?", waiting[3].id)
    by_hand("UPDATE treadle_ready SET snoozes = 2000000000 WHERE id = ?", waiting[3].id)
    by_hand("UPDATE treadle_tallies SET count = -count - 1 WHERE status = 'all'")

    found = codes(store)
    assert found.pop("count") >= 1
    assert {"several": 2, "number": 2, "nowhere": 1, "orphaned": 1, "payload": 1} == found


def test_the_rows_of_whole_jobs_have_no_defect(store):
    put_many(store, len(EVERY_OUTCOME), payload='{"a": 1}', tenant="t")
    store.settle(list(zip(take(store), EVERY_OUTCOME, strict=True)))
    take(store, 1)

    assert {} == codes(store)
