"""A process that enqueues: `python -m bench.postgres.produce THREADS SECONDS notifying|silent`.

It says "ready", starts on a line from its parent, and answers with the milliseconds of every enqueue, as JSON.
"""

from __future__ import annotations

import sys
import threading
import time

import msgspec

from treadle import Treadle
from treadle.stores.postgres import notify


def main(threads: int, seconds: float, how: str) -> None:
    if how == "silent":
        notify.BURST = 0
    app = Treadle()
    app.enqueue("elsewhere")
    print("ready", flush=True)
    if not sys.stdin.readline():
        return
    found: list[list[float]] = [[] for _ in range(threads)]
    until = time.perf_counter() + seconds
    running = [threading.Thread(target=_produce, args=(app, until, mine)) for mine in found]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    print(msgspec.json.encode([took for mine in found for took in mine]).decode(), flush=True)
    app.close()


def _produce(app: Treadle, until: float, found: list[float]) -> None:
    while (began := time.perf_counter()) < until:
        app.enqueue("elsewhere")
        found.append((time.perf_counter() - began) * 1e3)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3])
