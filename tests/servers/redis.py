"""A real Redis that loses nothing: each write is on the disk before it is answered."""

from __future__ import annotations

import subprocess
import tempfile

from redis import Redis
from redis.exceptions import ConnectionError

from tests.eventually import eventually
from tests.servers.postgres import free_port
from tests.servers.programs import find_program
from tests.servers.watch import Watch

SETTINGS = ["--appendonly", "yes", "--appendfsync", "always", "--save", "", "--bind", "127.0.0.1"]
WATCH = 'while read -r pid; do last=$pid; done; kill -KILL "$last"; rm -rf "$0"'


class RedisServer:
    """`with RedisServer() as server:` then connect to `server.url`."""

    def __init__(self) -> None:
        self._port = free_port()
        self.url = f"redis://127.0.0.1:{self._port}/0"

    def __enter__(self) -> RedisServer:
        self._program = find_program("redis-server")
        self._folder = tempfile.mkdtemp(prefix="treadle-redis-")
        self._watch = Watch(WATCH, self._folder)
        self.client = Redis.from_url(self.url, decode_responses=True)
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.kill()
        self._watch.finish()

    def start(self) -> None:
        """Start it, again perhaps, with what it has on its disk."""
        self._process = subprocess.Popen(
            [self._program, "--port", str(self._port), "--dir", self._folder, *SETTINGS],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._watch.send(str(self._process.pid))
        eventually(self._answers, every=0.02)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _answers(self) -> bool:
        assert self._process.poll() is None, "redis-server does not start"
        try:
            return bool(self.client.ping())
        except ConnectionError:
            return False
