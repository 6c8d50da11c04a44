"""Beside npm's bullmq: its producer and treadle's handlers, treadle's producer and its worker."""

from __future__ import annotations

import json
import random

import pytest

from tests.contrib.bullmq.conftest import Bench, Node
from treadle import Treadle, fixed
from treadle.contrib.bullmq import Bull
from treadle.registry import Registry

HOW = ("", "", "", "", "", "", "fail", "retry", "never", "snooze")
RUNS = {"": 1, "fail": 1, "retry": 2, "never": 3, "snooze": 3}


@pytest.mark.parametrize("count", [20, pytest.param(1000, marks=pytest.mark.torture)])
def test_what_node_produces_treadle_runs(bench: Bench, node: Node, count: int) -> None:
    """With failures, delays and priorities. The producer's attempts count; without any, the type's do."""
    ways = [HOW[n % len(HOW)] for n in range(count)]
    jobs = [
        ("work", {"n": n, "how": how}, {"priority": n % 5, "delay": n % 3 * 100, **({"attempts": 3} if n % 2 else {})})
        for n, how in enumerate(ways)
    ]
    ids = json.loads(node.run("produce.mjs", bench.redis, "default", given=json.dumps(jobs)))
    process = bench.worker("-c", "4")
    bench.ended(count, within=240)
    bench.stop(process)
    runs = [line[0] for line in bench.journal()]
    assert {id: runs.count(id) for id in ids} == {id: RUNS[how] for id, how in zip(ids, ways, strict=True)}
    assert bench.ids("completed") == {id for id, how in zip(ids, ways, strict=True) if how in ("", "retry")}


@pytest.mark.parametrize("count", [20, pytest.param(1000, marks=pytest.mark.torture)])
def test_what_treadle_produces_node_runs(bench: Bench, node: Node, count: int) -> None:
    """With failures, delays and priorities: higher numbers first, although theirs are the other way round."""
    td, jobs = Treadle(bench.url), Registry()

    @jobs.job(type="of_node", max_attempts=2, backoff=fixed(0.05))
    def of_node(n: int, fail: bool = False, never: bool = False) -> None: ...

    td.include(jobs)
    bull, chance = Bull(bench.redis, td), random.Random(1)
    requests = [
        of_node.using(tenant=f"t{n}", priority=chance.randint(-9, 9), **({"delay": 0.3} if n % 4 == 0 else {})).request(
            n=n, fail=n % 5 == 1, never=n % 5 == 2
        )
        for n in range(count)
    ]
    bull.enqueue_many(requests)
    bull.enqueue_many(requests[:5])  # again, as after an answer that was lost
    bull.close()
    lines = [json.loads(line) for line in node.run("work.mjs", bench.redis, "default", str(count)).splitlines()]

    assert {line["id"] for line in lines} == {request.id for request in requests}
    for line in lines:
        n = line["data"]["n"]
        assert (line["name"], line["tenant"]) == ("of_node", f"t{n}")
        assert line["data"] == {"n": n, "fail": n % 5 == 1, "never": n % 5 == 2}
    made = sorted((line["id"], line["made"]) for line in lines)
    assert made == sorted((r.id, run) for n, r in enumerate(requests) for run in range(2 if n % 5 in (1, 2) else 1))
    at_once = [line["id"] for line in lines if line["made"] == 0 and line["data"]["n"] % 4]
    wanted = sorted((r for n, r in enumerate(requests) if n % 4), key=lambda r: -r.priority)
    assert at_once == [request.id for request in wanted]
    assert bench.ids("failed") == {request.id for n, request in enumerate(requests) if n % 5 == 2}
