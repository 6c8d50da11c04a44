"""The probes of a worker: /livez, /readyz and /metrics."""

from __future__ import annotations

import asyncio
import http.client
import os
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.eventually import eventually
from tests.worker.helpers import Background, ended, running, working
from treadle import Treadle
from treadle.errors import BadOption, StoreUnusable
from treadle.prometheus import BUCKETS, Histogram, histograms
from treadle.worker import health
from treadle.worker.health_server import Address, parse
from treadle.worker.worker import Worker

LINE = re.compile(r'# (HELP|TYPE) treadle_\w+ .+|treadle_\w+(\{\w+="[^"\n]*"(,\w+="[^"\n]*")*\})? [\d.e+-]+')


def free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        port: int = listening.getsockname()[1]
        return port


class Probe:
    def __init__(self) -> None:
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"

    def get(self, path: str, method: str = "GET") -> tuple[int, str]:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)) as connection:
            connection.request(method, path)
            response = connection.getresponse()
            return response.status, response.read().decode()

    def status(self, path: str) -> int:
        return self.get(path)[0]


@pytest.fixture
def probe() -> Probe:
    return Probe()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop counts as blocked after half a second."""
    monkeypatch.setattr(health, "BLOCKED", 0.5)
    monkeypatch.setattr(health, "EVERY", 0.05)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    opened = threading.Event()
    yield opened
    opened.set()


def test_a_worker_is_live_and_ready_and_has_metrics(td: Treadle, probe: Probe) -> None:
    @td.job
    def good() -> None: ...

    @td.job(max_attempts=1)
    async def bad() -> None:
        raise ValueError("no")

    with working(td, concurrency=7, health=probe.address):
        for job in (good.enqueue(), good.enqueue(), bad.enqueue()):
            ended(td, job)
        assert probe.get("/livez") == (200, "ok\n")
        assert probe.get("/readyz") == (200, "ok\n")
        status, text = probe.get("/metrics?format=text")
        assert status == 200
        assert probe.get("/metrics", "HEAD") == (200, "")
        assert probe.get("/elsewhere")[0] == 404
    assert [line for line in text.splitlines() if not LINE.fullmatch(line)] == []
    assert 'treadle_process_attempts_total{process="1",type="good",outcome="completed"} 2\n' in text
    assert 'treadle_process_attempts_total{process="1",type="bad",outcome="failed"} 1\n' in text
    for name in ("duration", "pickup"):
        assert f'treadle_process_{name}_seconds_count{{process="1",type="good"}} 2\n' in text
        assert f'treadle_process_{name}_seconds_bucket{{process="1",type="good",le="+Inf"}} 2\n' in text
        assert f'treadle_process_{name}_seconds_sum{{process="1",type="good"}} ' in text
        assert f'treadle_process_{name}_seconds_count{{process="1",type="bad"}} 1\n' in text  # async, without a timeout
    assert 'treadle_process_slots{process="1"} 7\n' in text
    assert 'treadle_process_slots_busy{process="1"} 0\n' in text
    assert 'treadle_process_ready{process="1"} 1\n' in text
    with pytest.raises(ConnectionRefusedError):
        probe.get("/livez")


@pytest.mark.sqlite_only
@pytest.mark.usefixtures("impatient")
def test_a_blocked_event_loop_is_not_live_until_it_goes_on(td: Treadle, probe: Probe, gate: threading.Event) -> None:
    @td.job
    async def block() -> None:
        gate.wait(60)

    with working(td, health=probe.address):
        job = block.enqueue()
        eventually(lambda: probe.status("/livez") == 503)
        assert re.fullmatch(r"process 1: its event loop has been blocked for \d+ s\n", probe.get("/livez")[1])
        assert probe.status("/readyz") == 503
        assert 'treadle_process_slots_busy{process="1"} 1\n' in probe.get("/metrics")[1]
        gate.set()
        eventually(lambda: probe.status("/livez") == 200)
        ended(td, job)
        assert probe.status("/readyz") == 200


@pytest.mark.sqlite_only
@pytest.mark.usefixtures("impatient")
def test_a_worker_whose_jobs_fail_and_wait_in_threads_stays_live(
    td: Treadle, probe: Probe, gate: threading.Event
) -> None:
    @td.job(max_attempts=1)
    def fails() -> None:
        raise ValueError("no")

    @td.job
    def waits() -> None:
        gate.wait(60)

    with working(td, concurrency=2, health=probe.address):
        waiting = [waits.enqueue() for _ in range(2)]
        eventually(lambda: 'slots_busy{process="1"} 2' in probe.get("/metrics")[1])
        seen = {probe.status("/livez") for _ in range(100)}
        gate.set()
        for job in [*waiting, *(fails.enqueue() for _ in range(5))]:
            ended(td, job)
        assert seen | {probe.status("/livez")} == {200}
        assert probe.status("/readyz") == 200


def test_a_quiet_worker_is_live_and_not_ready(td: Treadle, probe: Probe) -> None:
    with working(td, beat=0.05, health=probe.address):
        [worker] = td.workers()
        td.quiet(worker.id)
        eventually(lambda: probe.get("/readyz") == (503, "process 1: it is quiet\n"))
        assert probe.status("/livez") == 200
        td.unquiet(worker.id)
        eventually(lambda: probe.status("/readyz") == 200)


@pytest.mark.sqlite_only
def test_a_stopping_worker_is_live_and_not_ready(td: Treadle, probe: Probe, gate: threading.Event) -> None:
    @td.job
    def waits() -> None:
        gate.wait(60)

    background = Background(td, health=probe.address)
    with running(background):
        waits.enqueue()
        eventually(lambda: 'slots_busy{process="1"} 1' in probe.get("/metrics")[1])
        background.stop_soon()
        eventually(lambda: probe.get("/readyz") == (503, "process 1: it is stopping\n"))
        assert probe.status("/livez") == 200
        gate.set()


@pytest.mark.sqlite_only
def test_a_worker_without_its_database_is_live_and_not_ready(
    td: Treadle, probe: Probe, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unusable(*_: object) -> None:
        raise StoreUnusable("secret-host", "it is gone", "wait")

    with working(td, beat=0.05, health=probe.address):
        with monkeypatch.context() as broken:
            broken.setattr(td.store, "beat", unusable)
            eventually(lambda: probe.get("/readyz") == (503, "process 1: the database cannot be used\n"))
            assert probe.status("/livez") == 200
        eventually(lambda: probe.status("/readyz") == 200)


@pytest.mark.sqlite_only
def test_clients_that_say_nothing_do_not_hold_up_the_probes(td: Treadle, probe: Probe) -> None:
    with working(td, health=probe.address):
        silent = [socket.create_connection(("127.0.0.1", probe.port)) for _ in range(40)]
        assert probe.status("/livez") == 200
        for connection in silent:
            connection.close()


@pytest.mark.sqlite_only
def test_a_process_that_has_stopped_is_not_taken_for_a_blocked_one(
    td: Treadle, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports = health.ReportFile.create()
    assert reports.read() is None

    async def work() -> None:
        async with Worker(td, health=health.Health(report_to=reports)):
            found = await asyncio.to_thread(eventually, reports.read)
            assert health.not_ready([found]) == []

    asyncio.run(work())
    monkeypatch.setattr(health, "BLOCKED", 0.0)
    assert reports.read() is None
    assert health.not_live([reports.read()]) == []
    assert health.not_ready([reports.read()]) == ["process 1: it has not registered"]
    os.close(reports.fd)


@pytest.mark.parametrize(
    "address",
    ["", "8081", ":8081", "127.0.0.1", "127.0.0.1:", "127.0.0.1:http", "::1:80", "a:65536", "a:-1", "a:٣", 8081],
)
@pytest.mark.sqlite_only
def test_an_invalid_address_is_refused_with_an_example(td: Treadle, address: str) -> None:
    with pytest.raises(BadOption, match=r"127\.0\.0\.1:8081"):
        td.worker(health=address)


@pytest.mark.sqlite_only
def test_an_address_that_cannot_be_used_is_refused(td: Treadle) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(BadOption, match=f"{address}.*free port"):
            td.worker(health=address)
    with pytest.raises(BadOption, match=r"192\.0\.2\.1:0"):  # reserved for documentation
        td.worker(health="192.0.2.1:0")


def test_addresses_of_both_kinds_are_read() -> None:
    assert parse("0.0.0.0:8081") == Address("0.0.0.0", 8081)
    assert parse("[::1]:80") == Address("::1", 80)


def test_a_histogram_adds_up() -> None:
    one = Histogram()
    for seconds in (0.0, 0.005, 0.0051, 3.0, 10_000.0):
        one.observe(seconds)
    text = histograms("h", "help", [({"type": 'a"b\\c\nd'}, one)])
    counts = [int(line.rsplit(" ", 1)[1]) for line in text.splitlines() if "_bucket" in line]
    assert counts == sorted(counts)
    assert counts[:2] == [2, 3]
    assert (len(counts), counts[-1]) == (len(BUCKETS) + 1, 5)
    assert text.splitlines()[2] == r'h_bucket{type="a\"b\\c\nd",le="0.005"} 2'
    assert text.splitlines()[-1] == r'h_count{type="a\"b\\c\nd"} 5'
