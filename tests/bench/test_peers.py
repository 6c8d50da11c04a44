"""Treadle beside other queues: a tiny run against the one that needs no server, and what becomes of the results."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.peers.catalog import ITSELF, PEERS
from bench.peers.figures import FIGURES, Figure, Row
from bench.peers.measure import Lab, Sizes
from bench.peers.peer import Peer, PeerFailed, Store
from bench.peers.place import Places
from bench.peers.redis import RedisServer
from bench.peers.report import Result, markdown, merged
from bench.peers.rounds import Round, measure
from tests.servers.programs import find_program

ROOT = Path(__file__).parents[2]
SIZES = Sizes(drain=100, bulk=100, seconds=0.1, pickups=1, idle=1.0)
GRAPHILE = next(peer for peer in PEERS if peer.name == "graphile-worker")


def bench(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "bench.peers", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, cwd=ROOT)


def test_a_quick_run_measures_both_queues_and_leaves_nothing(tmp_path: Path) -> None:
    wanted = ("drain-sqlite-1", "enqueue-sqlite", "pickup-sqlite")
    ran = bench("--quick", "--n", "200", "--json", "--dir", str(tmp_path), "--only", ",".join(wanted))

    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["problems"] == {}
    assert [found["figure"] for found in found["rounds"]] == list(wanted)
    for one in found["rounds"]:
        for values in one["values"].values():
            assert set(values) == {"treadle", "Huey"}
    assert set(found["about"]) == {"treadle", "Huey"}
    assert list(tmp_path.iterdir()) == []

    (tmp_path / "found.json").write_text(ran.stdout)
    shown = bench(str(tmp_path / "found.json"))
    assert "| Huey | 3.5.4 | " in shown.stdout
    assert "### SQLite: pickup by another process, p99" in shown.stdout


def test_an_unknown_name_is_refused_with_those_that_exist() -> None:
    ran = bench("--only", "sidekiq")

    assert ran.returncode == 2
    assert "'sidekiq' is neither a figure nor a queue" in ran.stderr
    assert "PgQueuer" in ran.stderr


def _result(*values: dict[str, float]) -> Result:
    rounds = [Round("drain-async-1", {"": one}) for one in values]
    return Result("2 cores", [SIZES], 60.0, rounds, {}, {}, {})


def test_only_what_was_measured_in_the_same_round_is_divided() -> None:
    alone = _result({"treadle": 1000.0})
    together = _result({"treadle": 300.0, "PgQueuer": 150.0}, {"treadle": 200.0, "PgQueuer": 200.0})

    shown = markdown(merged([alone, together, _result({"treadle": 600.0, "PgQueuer": 200.0})]))

    assert "| treadle | **450** (200 to 1,000) |  | runs again" in shown
    assert "| PgQueuer | **200** (150 to 200) | **2.00** (1.00 to 3.00) | runs again after 30 s |" in shown
    assert "All together took 3 minutes." in shown


def test_a_queue_that_fails_is_named_and_the_others_are_measured() -> None:
    def fails(lab: Lab, peer: Peer, store: Store) -> dict[str, float]:
        if peer.name == GRAPHILE.name:
            raise PeerFailed("it ended")
        return {"": 1.0}

    said: list[str] = []
    lab = Lab(Places(Path(), None), SIZES, {}, {}, said.append)
    figure = Figure("any", "PostgreSQL", (), fails, {"": Row("any", "jobs/s", True)})

    rounds = list(measure(lab, figure, [ITSELF, GRAPHILE], 2))

    assert [one.values for one in rounds] == [{"": {"treadle": 1.0}}] * 2
    assert lab.problems == {"graphile-worker, any": "it ended"}
    assert "any: left out graphile-worker: it ended" in said


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.key)
def test_every_figure_has_queues_of_the_catalog(figure: Figure) -> None:
    assert set(figure.peers) <= {peer.name for peer in PEERS}
    assert figure.peers


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    find_program("redis-server")
    with RedisServer(tmp_path) as server:
        yield server


def test_redis_writes_every_command_to_the_disk(redis: RedisServer, tmp_path: Path) -> None:
    assert "appendfsync=always" in redis.about()
    assert redis.call("SET", "a", "b", database=1) == "OK"
    assert redis.call("GET", "a", database=1) == "b"
    assert list(tmp_path.glob("**/*.incr.aof"))


def test_a_redis_database_is_empty_when_it_is_used(redis: RedisServer) -> None:
    redis.call("SET", "a", "b", database=1)

    assert redis.empty_database() == 1
    assert redis.call("DBSIZE", database=1) == "0"
