"""Enqueues in threads while it forks, and in every child, of os.fork and of multiprocessing."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading

from tests.process.handlers import quick
from tests.process.journal import note


def enqueue(times: int = 1) -> None:
    for _ in range(times):
        note("acked", quick.enqueue().id)


def fork(children: int) -> list[int]:
    """Each child enqueues, and then exits as any program does, with the parent's connections still in its memory."""
    pids = []
    for _ in range(children):
        if (pid := os.fork()) == 0:
            enqueue(3)
            sys.exit(0)
        pids.append(pid)
    return pids


def main() -> None:
    enqueue()
    stop = threading.Event()

    def enqueue_repeatedly() -> None:
        while not stop.is_set():
            enqueue()

    threads = [threading.Thread(target=enqueue_repeatedly) for _ in range(3)]
    for thread in threads:
        thread.start()
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in fork(20)]
    for method in ("fork", "spawn", "forkserver"):
        processes = [multiprocessing.get_context(method).Process(target=enqueue, args=(3,)) for _ in range(3)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        codes += [process.exitcode or 0 for process in processes]
    stop.set()
    for thread in threads:
        thread.join()
    enqueue()
    sys.exit(any(codes))


if __name__ == "__main__":
    main()
