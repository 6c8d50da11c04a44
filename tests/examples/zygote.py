"""Starts workers quickly: imports an example once, and forks for each start.

    python -m tests.examples.zygote examples.podcast_import.web 8000    its web server, on that port
    python -m tests.examples.zygote examples.weather_tiles.jobs         a worker of its `td`

Each line on stdin starts a process, and its pid is printed. It is a real process, and can be killed like any other.
"""

from __future__ import annotations

import importlib
import logging
import os
import signal
import sys
from types import ModuleType


def run(module: ModuleType, port: str | None) -> None:
    if port is None:
        module.td.worker(concurrency=2, grace=1).run()
        return
    import uvicorn

    uvicorn.run(module.app, port=int(port), log_level="warning")


def main() -> None:
    logging.basicConfig(level=logging.ERROR)
    module = importlib.import_module(sys.argv[1])
    port = sys.argv[2] if len(sys.argv) > 2 else None
    if port is not None:
        import uvicorn  # noqa: F401  (imported once, not in each start)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # a killed child leaves no zombie
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            try:
                run(module, port)
            finally:
                os._exit(0)
        print(pid, flush=True)


if __name__ == "__main__":
    main()
