"""A process of the benchmark: the dashboard of the database in $TREADLE_URL, on a free port."""

from __future__ import annotations

import socket
import sys

import uvicorn

from treadle import Treadle


def main() -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        Treadle().asgi(auth=lambda request: "read"), log_level="warning", access_log=False, lifespan="on"
    )
    print("ready", flush=True)
    sys.stdin.readline()
    print(listening.getsockname()[1], flush=True)
    uvicorn.Server(config).run([listening])


main()
