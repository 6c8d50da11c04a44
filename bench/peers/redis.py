"""A real Redis server that writes every command to the disk before it answers."""

from __future__ import annotations

import socket
import subprocess
import tempfile
import time
from pathlib import Path

from bench.peers.peer import ROOT, PeerFailed

DURABLE = {"appendonly": "yes", "appendfsync": "always", "save": ""}
"""Its default, `appendfsync everysec`, loses a second of jobs when the machine fails."""

DATABASES = 16


class RedisFailed(PeerFailed):
    pass


class RedisServer:
    """`with RedisServer(folder) as server:` starts a server there, and ends it afterwards."""

    def __init__(self, folder: Path) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="redis-", dir=folder))
        self._last = 0
        self._log = self._folder / "log"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.url = f"redis://127.0.0.1:{self.port}"

    def __enter__(self) -> RedisServer:
        found = subprocess.run(
            [ROOT / "script" / "server", "redis-server"], capture_output=True, text=True, check=False
        )
        if found.returncode:
            raise RedisFailed(found.stderr.strip())
        options = {"port": str(self.port), "bind": "127.0.0.1", "dir": str(self._folder), **DURABLE}
        command = [found.stdout.strip(), *(word for name, value in options.items() for word in (f"--{name}", value))]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        self._wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def empty_database(self) -> int:
        """The number of a database with nothing in it."""
        self._last = (self._last + 1) % DATABASES
        self.call("FLUSHDB", database=self._last)
        return self._last

    def about(self) -> str:
        info = dict(line.split(":", 1) for line in self.call("INFO", "server").splitlines() if ":" in line)
        return f"{info['redis_version']}: " + ", ".join(f"{name}={value}" for name, value in DURABLE.items() if value)

    def call(self, *words: str, database: int = 0) -> str:
        """The reply to a command, without a client that would have to be installed."""
        with socket.create_connection(("127.0.0.1", self.port), 5) as connection, connection.makefile("rwb") as lines:
            lines.write(_encoded("SELECT", str(database)) + _encoded(*words))
            lines.flush()
            lines.readline()
            head = lines.readline().decode().strip()
            return lines.read(int(head[1:])).decode() if head.startswith("$") else head[1:]

    def _wait(self) -> None:
        for _ in range(200):
            if self._process.poll() is not None:
                break
            try:
                self.call("PING")
            except OSError:
                time.sleep(0.05)
            else:
                return
        raise RedisFailed(f"Redis does not start: {self._log.read_text(errors='replace')[-1000:]}")


def _encoded(*words: str) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word.encode()) for word in words)
