"""Every enqueue is stored once: in forked children, in threads, on an event loop and at exit."""

from __future__ import annotations

import http.client
import socket
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from tests.eventually import eventually
from tests.process.handlers import td
from tests.process.harness import Place, end, size


def assert_each_is_stored_once(place: Place) -> int:
    acked = [words[2] for words in place.noted("acked")]
    assert Counter(str(id) for (id,) in place.sql("SELECT id FROM treadle_jobs")) == Counter(acked)
    assert td.counts() == [{"status": "pending", "count": len(acked)}]
    assert place.is_sound()
    return len(acked)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def test_enqueues_under_gunicorn_that_loads_the_app_and_then_forks(place: Place) -> None:
    requests = size("REQUESTS", 200)
    port = free_port()
    options = "--preload", "--workers", "4", "--worker-tmp-dir", str(place.folder), "--bind", f"127.0.0.1:{port}"
    gunicorn = place.python("-m", "gunicorn", *options, "tests.process.web_app:application")
    eventually(lambda: place.said("Booting worker") == 4)
    pids = set()

    def get(path: str) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", path)
        answer = connection.getresponse()
        assert answer.status == 200
        pid, id = answer.read().decode().split()
        pids.add(pid)
        return id

    def ask(number: int) -> str:
        return get(("/plain", "/thread", "/loop", "/await")[number % 4])

    with ThreadPoolExecutor(8) as clients:
        ids = list(clients.map(ask, range(requests)))
    eventually(lambda: ids.append(ask(len(ids))) or len(pids) == 4)
    assert len(set(ids)) == len(ids)
    assert end(gunicorn) == 0
    assert assert_each_is_stored_once(place) == 1 + len(ids) + 4  # one by the parent, one by each child at its exit


def test_enqueues_in_children_forked_while_threads_enqueue(place: Place) -> None:
    script = place.python("-m", "tests.process.fork_app")
    assert script.wait(100) == 0, place.log.read_text()
    stored = assert_each_is_stored_once(place)
    by_pid = Counter(words[0] for words in place.noted("acked"))
    assert sorted(by_pid.values())[:-1] == [3] * 29  # 20 forked, 9 by multiprocessing
    print(f"{stored} enqueues in {len(by_pid)} processes")
