"""A worker as `treadle worker` starts it: a supervisor, whose children are this module again.

Its options are in $TREADLE_TEST_WORKER; with 0 processes it is a worker without a supervisor.
"""

from __future__ import annotations

import asyncio
import faulthandler
import importlib
import json
import logging
import os
import signal
import sys
from typing import Any

from treadle.errors import WorkerLost
from treadle.stores.base import ClaimRequest
from treadle.worker import heartbeat, supervisor
from treadle.worker.inflight import VARIABLE, Inflight
from treadle.worker.supervisor import Supervisor
from treadle.worker.worker import Worker

OPTIONS = "TREADLE_TEST_WORKER"


class DeafWorker(Worker):
    """Registers again only when all its jobs are settled, so that every stale write reaches the store."""

    async def _register_again(self, worker: str) -> None:
        from tests.process.journal import note

        for _ in range(50):
            try:
                request = ClaimRequest(limit=1, types=self._timeouts, queues=self.queues)
                await asyncio.to_thread(self.store.claim, worker, request)
                note("claimed")
            except WorkerLost:
                note("refused")
        while not self._attempts.none_left:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await super()._register_again(worker)


def end_once(path: str) -> None:
    """Have a method raise in the first process that calls it: 'module:Class.method'."""
    if not path:
        return
    module, _, name = path.partition(":")
    cls, method = name.split(".")
    owner = getattr(importlib.import_module(module), cls)
    original = getattr(owner, method)

    def once(*args: Any, **kwargs: Any) -> Any:
        try:
            os.close(os.open(f"{os.environ['TREADLE_TEST_JOURNAL']}-ended", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return original(*args, **kwargs)
        raise RuntimeError("injected")

    setattr(owner, method, once)


def main() -> int:
    options = json.loads(os.environ[OPTIONS])
    processes, deaf = options.pop("processes"), options.pop("deaf", False)
    module = options.pop("module", "tests.process.handlers")
    supervisor.KILL_MARGIN = options.pop("kill_margin", supervisor.KILL_MARGIN)
    heartbeat.BLOCKED_SECONDS = options.pop("blocked_seconds", heartbeat.BLOCKED_SECONDS)
    end_once(options.pop("ends_once", ""))
    if processes and VARIABLE not in os.environ:
        command = [sys.executable, "-m", "tests.process.run"]
        return Supervisor(command, processes, 2 * options["concurrency"], options.get("grace", 30.0)).run()
    inflight = Inflight.inherited()
    app = importlib.import_module(module).td
    return (DeafWorker if deaf else Worker)(app, inflight=inflight, **options).run()


if __name__ == "__main__":
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # `kill -USR1` shows where it hangs
    logging.basicConfig(level=logging.WARNING, format="%(process)d %(message)s")
    code = main()
    sys.stderr.flush()
    os._exit(code)  # as `treadle worker` does: do not wait for threads that handlers have left behind
