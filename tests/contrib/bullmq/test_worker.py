"""treadle's handlers as a worker of BullMQ, on a real Redis: what each outcome becomes."""

from __future__ import annotations

import json
import re

import pytest

from tests.contrib.bullmq.conftest import Bench
from tests.eventually import eventually
from treadle import Job, Treadle
from treadle.contrib.bullmq import Bull
from treadle.job import NewJob


@pytest.fixture
def td(bench: Bench) -> Treadle:
    """A producer without the handlers' code."""
    return Treadle(bench.url)


def request(td: Treadle, type: str, **payload: object) -> NewJob:
    return td.request(type, payload, max_attempts=1 if "sleepy" in type or "ing" in type else 3)


def test_each_outcome_is_what_it_is_in_treadle(bench: Bench, td: Treadle) -> None:
    bull = Bull(bench.redis)
    jobs: dict[str, Job] = {
        how or "plain": bull.enqueue(request(td, "work", n=n, how=how))
        for n, how in enumerate(("", "fail", "retry", "never", "snooze", "slow"))
    }
    jobs["async"] = bull.enqueue(request(td, "sleepy"))
    jobs["thread"] = bull.enqueue(request(td, "sleepy_thread"))
    for type in ("stepping", "committing", "signalling"):
        jobs[type] = bull.enqueue(request(td, type))
    bull.close()
    process = bench.worker()
    bench.ended(len(jobs))
    bench.stop(process)

    ids = {name: job.id for name, job in jobs.items()}
    runs = [line[0] for line in bench.journal()]
    assert bench.ids("completed") == {ids[name] for name in ("plain", "retry", "slow")}
    assert bench.returned(ids["plain"]) == {"n": 0}
    assert {name: runs.count(ids[name]) for name in ("fail", "retry", "never", "snooze")} == {
        "fail": 1,
        "retry": 2,
        "never": 3,
        "snooze": 3,
    }
    reasons = {name: bench.hash(id).get("failedReason") for name, id in ids.items()}
    assert reasons["fail"] == "not this one"
    assert reasons["never"] == "ValueError: never"
    assert "in work" in json.loads(bench.hash(ids["never"])["stacktrace"])[-1]
    assert reasons["snooze"] == "still not ready after 2 snoozes"
    assert reasons["async"] == reasons["thread"] == "timed out after 0.2 s"
    for name in ("stepping", "committing", "signalling"):
        assert re.match("UnsupportedByBullMQ: .+; ", reasons[name] or "")
    assert [line[2] for line in bench.journal() if line[0] == ids["snooze"]] == ["1", "1", "1"]
    assert json.loads(bench.hash(ids["slow"])["progress"]) == 50
    assert bench.server.client.lrange(f"bull:default:{ids['slow']}:logs", 0, -1) == ["halfway"]


def test_a_cancelled_job_is_removed_or_stopped(bench: Bench, td: Treadle) -> None:
    bull, client = Bull(bench.redis), bench.server.client
    waits, later = bull.enqueue(request(td, "work", n=1)), bull.enqueue(td.request("work", {"n": 2}, delay=3600))
    assert (bull.cancel(waits), bull.cancel(later.id, "default")) == (True, True)
    assert (bench.hash(waits.id), bench.hash(later.id)) == ({}, {})
    assert (bull.cancel(waits), bull.cancel("unknown")) == (False, False)

    bench.environment["SLOW"] = "1000"
    process = bench.worker()
    running = [bull.enqueue(td.request(type)) for type in ("waiting", "patient")]
    eventually(lambda: len(bench.journal()) == 2)
    assert [bull.cancel(job) for job in running] == [True, True]
    bench.ended(2)
    assert bench.ids("failed") == {job.id for job in running}
    assert {bench.hash(job.id)["failedReason"] for job in running} == {"cancelled"}

    done = bull.enqueue(request(td, "work", n=3))
    bench.ended(3)
    assert not bull.cancel(done)
    assert bench.returned(done.id) == {"n": 3}
    assert len(bench.journal()) == 3
    bench.stop(process)
    assert client.keys("*treadle-cancel*") == []
    bull.close()


def test_log_lines_are_json(bench: Bench, td: Treadle) -> None:
    bull = Bull(bench.redis)
    job = bull.enqueue(request(td, "work", n=1, how="retry"))
    bull.close()
    process = bench.worker("--log-format", "json", "-v")
    bench.ended(1)
    lines = [json.loads(line) for line in bench.stop(process).splitlines()]
    assert any(line["message"].startswith("a worker of BullMQ: ") for line in lines)
    assert job.id in bench.ids("completed")


def test_follow_ups_go_to_redis_once(bench: Bench, td: Treadle) -> None:
    bull = Bull(bench.redis)
    parent = bull.enqueue(td.request("first", {"n": 1}, tenant="acme"))
    process = bench.worker()
    bench.ended(2)
    [child] = bench.ids("completed") - {parent.id}
    assert bench.returned(child) == "acme/s/2"

    client = bench.server.client  # as if the worker had died before it completed the parent
    client.zrem("bull:default:completed", parent.id)
    client.hdel(f"bull:default:{parent.id}", "finishedOn", "returnvalue")
    client.lpush("bull:default:wait", parent.id)
    client.zadd("bull:default:marker", {"0": 0})
    eventually(lambda: parent.id in bench.ids("completed"))
    bench.stop(process)
    bull.close()
    assert [line[1] for line in bench.journal()].count("first") == 2
    assert bench.ids("completed") == {parent.id, child}


def test_a_job_whose_child_has_failed_fails_and_does_not_run(bench: Bench, td: Treadle) -> None:
    """As BullMQ notes it in the parent of a flow with failParentOnFailure."""
    bull = Bull(bench.redis)
    job = bull.enqueue(request(td, "work", n=1))
    bull.close()
    bench.server.client.hset(f"bull:default:{job.id}", "defa", "child bull:mail:7 failed")
    process = bench.worker()
    bench.ended(1)
    bench.stop(process)
    assert bench.ids("failed") == {job.id}
    assert bench.hash(job.id)["failedReason"] == "child bull:mail:7 failed"
    assert bench.journal() == []


def test_a_job_of_unknown_type_waits_with_the_reason(bench: Bench, td: Treadle) -> None:
    bull = Bull(bench.redis)
    job = bull.enqueue(td.request("of_tomorrow", {"n": 1}))
    bull.close()
    process = bench.worker()
    eventually(lambda: job.id in bench.ids("delayed"))
    assert "no handler for type 'of_tomorrow'" in bench.stop(process)
    assert bench.hash(job.id)["failedReason"] == "no handler for type 'of_tomorrow' in this worker"
    assert bench.hash(job.id).get("atm", "0") == "0"


def test_a_stop_lets_running_jobs_end_and_takes_no_more(bench: Bench, td: Treadle) -> None:
    bull = Bull(bench.redis)
    jobs = bull.enqueue_many([request(td, "work", n=n, how="slow") for n in range(4)])
    process = bench.worker("-c", "2")
    eventually(lambda: len(bench.journal()) == 2)
    bench.stop(process)
    assert len(bench.ids("completed")) == 2
    assert bench.server.client.llen("bull:default:active") == 0
    assert bench.server.client.zcard("bull:default:prioritized") == 2

    again = bench.worker()
    bench.ended(4)
    bench.stop(again)
    bull.close()
    assert bench.ids("completed") == {job.id for job in jobs}
    assert len(bench.journal()) == 4


def test_after_the_grace_a_job_is_given_back_without_an_attempt(bench: Bench, td: Treadle) -> None:
    bench.environment["SLOW"] = "1000"
    bull = Bull(bench.redis)
    job = bull.enqueue(request(td, "waiting"))
    bull.close()
    process = bench.worker("--grace", "0.1s")
    eventually(lambda: len(bench.journal()) == 1)
    bench.stop(process)
    assert bench.ids("delayed") == {job.id}

    bench.environment["SLOW"] = "0"
    again = bench.worker()
    bench.ended(1)
    bench.stop(again)
    assert bench.ids("completed") == {job.id}
    assert [line[2:] for line in bench.journal()] == [["1", "0"], ["1", "0"]]


def test_a_thread_that_does_not_end_is_left_behind(bench: Bench, td: Treadle) -> None:
    bench.environment["SLOW"] = "1000"
    bull = Bull(bench.redis)
    bull.enqueue(request(td, "work", n=1, how="slow"))
    bull.close()
    process = bench.worker("--grace", "0.1s")
    eventually(lambda: len(bench.journal()) == 1)
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode == 1
    assert bench.server.client.llen("bull:default:active") == 1  # until its lock has expired


def test_a_killed_worker_loses_nothing_and_costs_an_attempt(bench: Bench, td: Treadle) -> None:
    bench.environment["SLOW"] = "1000"
    bull = Bull(bench.redis)
    jobs = bull.enqueue_many([request(td, "work", n=n, how="slow") for n in range(3)])
    process = bench.worker()
    eventually(lambda: len(bench.journal()) == 3)
    bench.kill(process)

    bench.environment["SLOW"] = "0"
    again = bench.worker()
    bench.ended(3)
    bench.stop(again)
    bull.close()
    assert bench.ids("completed") == {job.id for job in jobs}
    assert sorted(line[2] for line in bench.journal()) == ["1", "1", "1", "2", "2", "2"]


@pytest.mark.torture
def test_workers_that_are_killed_again_and_again_lose_nothing(bench: Bench, td: Treadle) -> None:
    bench.environment["SLOW"] = "0.02"
    bull = Bull(bench.redis)
    ids = {
        job.id
        for job in bull.enqueue_many(
            [td.request("work", {"n": n, "how": "slow"}, max_attempts=50) for n in range(1000)]
        )
    }
    bull.close()
    for kill in range(8):
        process = bench.worker()
        wanted = 100 * (kill + 1)
        eventually(lambda wanted=wanted: len(bench.ids("completed")) >= wanted, every=0.02)
        bench.kill(process)
    process = bench.worker()
    bench.ended(len(ids), within=120)
    bench.stop(process)
    assert bench.ids("completed") == ids
    assert len(bench.journal()) <= len(ids) + 8 * 10  # what was in hand at a kill
