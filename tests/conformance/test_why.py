"""Why a job is not running: for every reason, a situation in which it applies."""

from __future__ import annotations

import msgspec
import pytest

from tests.conformance.helpers import (
    FAILED,
    MINUTE,
    RETRIED,
    enlist,
    everything,
    finish,
    ids,
    limit,
    new_job,
    put,
    put_and_take,
    put_many,
    settle_one,
    snapshot,
    take,
)
from treadle import Limit, Rate
from treadle.clock import SECOND, from_datetime
from treadle.codec import as_json
from treadle.diagnosis import MOST_AHEAD, explain
from treadle.ids import new_id
from treadle.job import Status
from treadle.limits import LimitChange
from treadle.outcome import CANCELLED, COMPLETED, Outcome, OutcomeKind
from treadle.pauses import NewPause, Target
from treadle.reasons import ReasonCode
from treadle.stores.base import TypePolicy


def why(store, id):
    return explain(store.job_facts(id))


def codes(store, id):
    return [reason.code for reason in why(store, id).reasons]


def deciding(store, id):
    return why(store, id).reasons[0]


def a_worker(store, name="w1", *, types=("noop",), **options):
    return enlist(store, name, types=types, **options)


def test_nothing_blocks_the_job(store):
    a_worker(store)
    job = put(store)

    assert [ReasonCode.NEXT_LOOK] == codes(store, job.id)


def test_it_is_not_due_yet(store):
    a_worker(store)
    job = put(store, delay=5 * MINUTE)

    reason = deciding(store, job.id)

    assert [ReasonCode.NOT_DUE] == codes(store, job.id)
    assert "in 5m" in reason.text
    assert 300 == reason.data["seconds"]


def test_it_waits_to_be_retried(store):
    worker = a_worker(store)
    claimed = put_and_take(store, worker=worker)
    settle_one(store, claimed, Outcome(OutcomeKind.RETRIED, delay=40 * SECOND, error="ValueError: not today"))

    text = deciding(store, claimed.id).text

    assert "in 40s" in text
    assert "after 1 attempt: ValueError: not today" in text


@pytest.mark.parametrize("target", [Target(queue="mail"), Target(type="noop"), Target(tenant="acme")], ids=str)
def test_it_is_paused(store, clock, target):
    a_worker(store)
    job = put(store, queue="mail", tenant="acme")
    pause = NewPause(target=target, by="ann", reason="provider down", until=clock() + 5 * MINUTE)
    store.pause(pause)
    take(store)

    [reason] = why(store, job.id).reasons

    assert ReasonCode.PAUSED == reason.code
    assert f"its {target.kind} '{target.name}' is paused by ann since" in reason.text
    assert reason.text.endswith(": provider down")
    assert f"to resume it: {target.resume_command}" == reason.way_out
    assert (target.name, "ann") == (reason.data[target.kind], reason.data["by"])
    store.resume(target)
    assert [ReasonCode.NEXT_LOOK] == codes(store, job.id)


def test_a_paused_queue_is_not_ahead(store):
    a_worker(store)
    put_many(store, 3, queue="mail", priority=5)
    job = put(store)
    store.pause(NewPause(target=Target(queue="mail"), by="ann"))

    assert [ReasonCode.NEXT_LOOK] == codes(store, job.id)


def test_every_worker_is_quiet(store):
    worker = a_worker(store)
    job = put(store)
    store.set_quiet(worker, True)

    reason = deciding(store, job.id)

    assert ReasonCode.WORKERS_QUIET == reason.code
    assert f"treadle workers resume {worker}" in reason.way_out
    a_worker(store, "w2")
    assert [ReasonCode.NEXT_LOOK] == codes(store, job.id)


def test_no_worker_is_alive(store):
    job = put(store)

    assert [ReasonCode.NO_WORKER] == codes(store, job.id)
    assert "treadle worker" in deciding(store, job.id).way_out


@pytest.mark.parametrize(
    ("seconds", "code"), [(20, ReasonCode.NEXT_LOOK), (21, ReasonCode.NO_WORKER), (61, ReasonCode.NO_WORKER)]
)
def test_a_worker_that_has_missed_its_beats_is_not_alive(store, clock, seconds, code):
    a_worker(store)
    job = put(store)
    clock.advance(seconds)

    assert [code] == codes(store, job.id)


def test_no_worker_takes_from_its_queue(store):
    a_worker(store, queues=("mail", "video"))
    job = put(store)

    reason = deciding(store, job.id)

    assert ReasonCode.NO_WORKER_FOR_QUEUE == reason.code
    assert "'default'" in reason.text
    assert "mail, video" in reason.text


def test_no_worker_knows_its_type(store):
    a_worker(store, types=("resize", "send"))
    a_worker(store, "w2", types=("noop",), queues=("another",))
    job = put(store)

    reason = deciding(store, job.id)

    assert [ReasonCode.NO_WORKER_FOR_TYPE] == codes(store, job.id)
    assert "resize, send" in reason.text


def test_its_type_is_at_its_limit(store):
    worker = a_worker(store)
    limit(store, "noop", 2)
    put_many(store, 3)
    take(store, worker=worker)
    (waiting,) = [job for job in everything(store) if job.status is Status.PENDING]

    reason = deciding(store, waiting.id)

    assert [ReasonCode.LIMIT_FULL] == codes(store, waiting.id)
    assert "2 of 2" in reason.text
    assert {worker: 2} == reason.data["holders"]
    assert "2 by host-w1" in reason.text


# Limits


def declare(store, *limits, types=("noop",)):
    store.publish([TypePolicy(type=type, limits=as_json(limits)) for type in types])


def limited(store, id):
    """The reasons that are about limits: their codes, and the names of the limits."""
    found = (ReasonCode.LIMIT_FULL, ReasonCode.RATE_LIMITED, ReasonCode.HELD_BACK)
    return [(reason.code, reason.data["name"]) for reason in why(store, id).reasons if reason.code in found]


def test_a_key_of_a_limit_is_full(store):
    worker = a_worker(store)
    declare(store, Limit("api", concurrency=2, per="tenant"))
    running = put_many(store, 2, tenant="acme")
    waiting = put(store, tenant="acme")
    take(store, worker=worker)
    later, other = put(store, tenant="acme"), put(store, tenant="umbrella")

    for id in (waiting.id, later.id):  # the first is parked, and no claim has met the second
        reason = deciding(store, id)
        assert ReasonCode.LIMIT_FULL == reason.code
        assert "its limit 'api' is full for tenant='acme', 2 of 2: 2 by host-w1" in reason.text
        assert "treadle limits set api, with --key KEY --concurrency N" in reason.way_out
        assert ("api", {"tenant": "acme"}, {worker: 2}) == tuple(reason.data[x] for x in ("name", "key", "holders"))
        assert sorted(ids(running)) == sorted(reason.data["jobs"])
        assert all(job.id in reason.text for job in running)
    assert [] == limited(store, other.id)


def test_no_more_than_three_jobs_that_hold_a_limit_are_named(store):
    declare(store, Limit("api", concurrency=9, per="subject"))
    for name in ("w1", "w2", "w3", "w4"):
        put_many(store, 2, subject="s")
        take(store, worker=a_worker(store, name))
    waiting = put_many(store, 2, subject="s")[1]
    take(store, worker="w1")
    reason = deciding(store, waiting.id)
    assert "9 of 9" in reason.text
    assert 3 == len(reason.data["jobs"])
    assert 9 == sum(reason.data["holders"].values())


def test_jobs_of_another_type_fill_a_shared_limit(store):
    declare(store, Limit("gpu", concurrency=1), types=("noop", "other"))
    running = put(store, "other")
    take(store)
    reason = deciding(store, put(store).id)
    a_worker(store)
    assert [(ReasonCode.LIMIT_FULL, "gpu")] == limited(store, put(store).id)
    assert reason.code is ReasonCode.NO_WORKER
    reason = deciding(store, put(store).id)
    assert "its limit 'gpu' is full, 1 of 1: 1 by hand" in reason.text
    assert ({}, (running.id,)) == (reason.data["key"], reason.data["jobs"])
    assert "limits set gpu, with --concurrency N" in reason.way_out


def test_all_limits_that_are_full_are_named(store):
    declare(store, Limit("a", concurrency=1, per="payload.to.id"), Limit("b", concurrency=1), Limit("c", concurrency=9))
    put(store, payload='{"to":{"id":7}}')
    take(store)
    same, other = put(store, payload='{"to":{"id":7}}'), put(store, payload='{"to":"nobody"}')
    assert {(ReasonCode.LIMIT_FULL, "a"), (ReasonCode.LIMIT_FULL, "b")} == set(limited(store, same.id))
    assert [(ReasonCode.LIMIT_FULL, "b")] == limited(store, other.id)


def test_a_change_at_run_time_decides(store):
    declare(store, Limit("api", concurrency=1, per="tenant"))
    put(store, tenant="acme")
    take(store)
    waiting = put(store, tenant="acme")
    assert [(ReasonCode.LIMIT_FULL, "api")] == limited(store, waiting.id)
    store.change_limit(LimitChange(name="api", key="acme", concurrency=2))
    assert [] == limited(store, waiting.id)
    store.change_limit(LimitChange(name="type:noop", concurrency=1))
    assert [(ReasonCode.LIMIT_FULL, "type:noop")] == limited(store, waiting.id)


def test_a_rate_is_used_up(store, clock):
    a_worker(store)
    declare(store, Limit("api", rate=Rate(1, per=10, burst=1), per="tenant"))
    put_many(store, 2, tenant="acme")
    take(store)
    clock.advance(4)
    waiting = next(job for job in everything(store) if job.status is Status.PENDING)

    reason = deciding(store, waiting.id)

    assert ReasonCode.RATE_LIMITED == reason.code
    assert "its limit 'api' starts no more for tenant='acme' now, 1 in 10 s, burst 1: the next at" in reason.text
    assert reason.text.endswith("UTC, in 6.0s")
    assert clock() + 6 * SECOND == from_datetime(reason.data["next_at"])
    assert "treadle limits set api, with --key KEY --rate" in reason.way_out
    clock.advance(6)
    assert [] == limited(store, waiting.id)


def test_a_key_is_held_back(store, clock):
    a_worker(store)
    declare(store, Limit("api", concurrency=5, per="tenant"))
    put_many(store, 2, tenant="acme")
    held, *_ = take(store, 1)
    assert settle_one(store, held, Outcome(OutcomeKind.SNOOZED, delay=30 * SECOND, charged=0, holds=""))
    waiting = next(job for job in everything(store) if job.id != held.id)

    reason = deciding(store, waiting.id)

    assert ReasonCode.HELD_BACK == reason.code
    assert "its limit 'api' is held back for tenant='acme': a job was rate limited, and the next starts" in reason.text
    assert clock() + 30 * SECOND == from_datetime(reason.data["until"])
    assert [ReasonCode.NOT_DUE, ReasonCode.HELD_BACK] == codes(store, held.id)
    clock.advance(30)
    assert [] == limited(store, waiting.id)


def test_jobs_come_first(store):
    a_worker(store, types=("noop", "other"))
    put_many(store, 3, priority=5)
    put_many(store, 2, "other")
    put_many(store, 4, "stranger", priority=9)  # no worker takes them, so they block nothing
    put(store, priority=5, delay=MINUTE)  # not due
    job = put(store)
    put_many(store, 2)  # behind it

    reason = deciding(store, job.id)

    assert [ReasonCode.JOBS_AHEAD] == codes(store, job.id)
    assert 5 == reason.data["ahead"]
    assert "5 jobs come first" in reason.text


def test_one_job_comes_first(store):
    a_worker(store)
    put(store, priority=5)
    job = put(store)

    reason = deciding(store, job.id)

    assert "1 job comes first" in reason.text
    assert reason.way_out.startswith("wait for it")


def test_more_are_ahead_than_are_counted(store):
    a_worker(store)
    store.insert([new_job(priority=1) for _ in range(MOST_AHEAD + 5)])
    job = put(store)

    reason = deciding(store, job.id)

    assert "more than 10,000 jobs" in reason.text
    assert (MOST_AHEAD, True) == (reason.data["ahead"], reason.data["more"])


def test_it_is_running(store, clock):
    worker = a_worker(store)
    claimed = put_and_take(store, worker=worker)
    clock.advance(12)

    reason = deciding(store, claimed.id)

    assert [ReasonCode.RUNNING] == codes(store, claimed.id)
    assert "attempt 1 of 5, for 12s, by worker host-w1" in reason.text


def test_it_was_claimed_by_hand(store):
    claimed = put_and_take(store, lease_for=MINUTE)

    assert [ReasonCode.RUNNING] == codes(store, claimed.id)
    assert "by hand" in deciding(store, claimed.id).text


def test_its_worker_is_lost(store, clock):
    worker = a_worker(store)
    claimed = put_and_take(store, worker=worker)
    clock.advance(90)

    reason = deciding(store, claimed.id)

    assert [ReasonCode.WORKER_LOST] == codes(store, claimed.id)  # and not that it runs: nobody knows
    assert "host-w1" in reason.text
    assert "silent for 1m 30s" in reason.text
    assert "start a worker, which returns its jobs" in reason.way_out
    a_worker(store, "w2")
    assert "another worker returns its jobs" in deciding(store, claimed.id).way_out


def test_it_is_past_its_deadline(store, clock):
    claimed = put_and_take(store, lease_for=MINUTE)
    clock.advance(70)

    assert [ReasonCode.OVERDUE, ReasonCode.RUNNING] == codes(store, claimed.id)
    assert "10s ago" in deciding(store, claimed.id).text


def test_it_is_stuck_only_after_its_living_worker_has_had_its_turn(store, clock):
    """Everything that says "stuck" uses one condition: here, in a rescue and in the limits."""
    worker = a_worker(store)
    put(store)
    (claimed,) = take(store, worker=worker, types={"noop": MINUTE})
    clock.advance(70)
    assert ReasonCode.OVERDUE not in codes(store, claimed.id)

    store.beat(worker)

    assert [ReasonCode.OVERDUE, ReasonCode.RUNNING] == codes(store, claimed.id)


def test_a_stuck_job_does_not_fill_the_limit(store, clock):
    worker = a_worker(store)
    limit(store, "noop", 1)
    put(store)
    take(store, worker=worker, types={"noop": MINUTE})
    waiting = put(store)
    assert ReasonCode.LIMIT_FULL in codes(store, waiting.id)

    clock.advance(70)
    store.beat(worker)

    assert ReasonCode.LIMIT_FULL not in codes(store, waiting.id)


def test_it_is_being_cancelled(store):
    worker = a_worker(store)
    claimed = put_and_take(store, worker=worker)
    store.cancel(claimed.id)

    assert [ReasonCode.CANCELLING, ReasonCode.RUNNING] == codes(store, claimed.id)


def test_it_is_out_of_attempts(store):
    job = finish(store, FAILED, max_attempts=1)

    reason = deciding(store, job.id)

    assert [ReasonCode.OUT_OF_ATTEMPTS] == codes(store, job.id)
    assert "after 1 of 1 attempt: Fail: no use" in reason.text
    assert f"treadle jobs retry {job.id}" in reason.way_out


@pytest.mark.parametrize("outcome", [COMPLETED, FAILED, CANCELLED], ids=lambda outcome: outcome.kind)
def test_it_has_ended(store, outcome):
    job = finish(store, outcome)

    assert [ReasonCode.FINISHED] == codes(store, job.id)
    assert outcome.kind in deciding(store, job.id).text


def test_all_reasons_are_listed_with_the_deciding_one_first(store):
    worker = a_worker(store)
    limit(store, "noop", 1)
    put(store)
    take(store, worker=worker)
    job = put(store, delay=MINUTE)

    assert [ReasonCode.NOT_DUE, ReasonCode.LIMIT_FULL] == codes(store, job.id)


def test_an_unknown_job_has_no_reasons(store):
    assert store.job_facts(new_id()) is None
    assert store.job_facts("no id") is None


def test_the_answer_can_be_written_as_json(store):
    job = put(store)

    answer = msgspec.json.decode(msgspec.json.encode(why(store, job.id)))

    assert {"id", "status", "reasons"} == answer.keys()
    assert {"code", "text", "way_out", "data"} == answer["reasons"][0].keys()


def test_asking_changes_nothing(store):
    a_worker(store)
    claimed = put_and_take(store)
    settle_one(store, claimed, RETRIED)
    before = snapshot(store)

    why(store, claimed.id)

    assert before == snapshot(store)
