"""A Redis, a database of the app, and workers of both sides in processes of their own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.eventually import eventually
from tests.servers.fixtures import cannot
from tests.servers.programs import ROOT
from tests.servers.redis import RedisServer
from treadle.contrib.bullmq.translate import SNOOZES

PROGRAMS = Path(__file__).parent / "node"


class Bench:
    """A clean Redis, and what a test does around it."""

    def __init__(self, server: RedisServer, url: str, folder: Path) -> None:
        server.client.flushall()
        self.server, self.redis, self.url = server, server.url, url
        self.environment = {"TREADLE_URL": url, "REDIS": server.url, "JOURNAL": str(folder / "journal")}
        self.processes: list[subprocess.Popen[str]] = []

    def worker(self, *flags: str, module: str = "tests.contrib.bullmq.app:td") -> subprocess.Popen[str]:
        return self.start("bullmq-worker", module, "--redis", self.redis, "--lock", "2s", *flags)

    def start(self, *command: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "treadle", *command],
            cwd=ROOT,
            env={**os.environ, **self.environment},
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.processes.append(process)
        return process

    def stop(self, process: subprocess.Popen[str]) -> str:
        """Ask it to stop. What it has logged."""
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
        assert process.returncode == 0, log
        return log

    def kill_all(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                self.kill(process)

    def kill(self, process: subprocess.Popen[str]) -> None:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()

    def journal(self) -> list[list[str]]:
        path = Path(self.environment["JOURNAL"])
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def ids(self, state: str, queue: str = "default") -> set[str]:
        return set(self.server.client.zrange(f"bull:{queue}:{state}", 0, -1))

    def hash(self, id: str, queue: str = "default") -> dict[str, str]:
        return self.server.client.hgetall(f"bull:{queue}:{id}")

    def returned(self, id: str) -> Any:
        return json.loads(self.hash(id)["returnvalue"])

    def snoozes(self, id: str) -> int:
        return int(self.hash(id).get(SNOOZES, 0))

    def ended(self, count: int, within: float = 60) -> None:
        eventually(lambda: len(self.ids("completed")) + len(self.ids("failed")) >= count, within, every=0.05)


@pytest.fixture
def bench(redis_server: RedisServer, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(redis_server, f"sqlite:///{tmp_path}/app.db", tmp_path)
    yield made
    made.kill_all()


class Node:
    """npm's bullmq, installed once beside the environment of the tests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, program: str, *arguments: str, given: str = "") -> str:
        command = ["node", str(PROGRAMS / program), *arguments]
        done = subprocess.run(command, cwd=self.folder, input=given, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="session")
def node() -> Node:
    if not (shutil.which("node") and (npm := shutil.which("npm"))):
        pytest.skip("node and npm are needed, and are not installed by these tests")
    folder, wanted = ROOT / ".venv" / "bullmq-npm", (PROGRAMS / "package.json").read_text()
    manifest = folder / "package.json"
    if not (folder / "installed").exists() or manifest.read_text() != wanted:
        folder.mkdir(exist_ok=True)
        manifest.write_text(wanted)
        flags = ["--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts"]
        done = subprocess.run([npm, "install", *flags], cwd=folder, capture_output=True, text=True)
        if done.returncode:
            cannot(f"npm's bullmq cannot be installed: {done.stderr[-300:]}")
        (folder / "installed").touch()
    return Node(folder)
