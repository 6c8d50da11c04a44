"""Real servers, in processes of their own: `treadle dashboard`, and a web app that mounts the dashboard."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from tests.stores import make_tables

SECONDS = 20


class Dashboard:
    """Started when it has printed its link; stopped with the signal that a person or a platform sends."""

    def __init__(self, folder: Path, *words: str, port: int = 0, **environment: str) -> None:
        make_tables(f"sqlite:///{folder}/jobs.db")
        self.process = start(folder, "--port", str(port), *words, **environment)
        assert self.process.stdout is not None
        self.login = self.process.stdout.readline().strip()
        assert self.login.startswith("http"), self.process.communicate(timeout=SECONDS)

    @property
    def url(self) -> str:
        """Its URL, without a slash at the end."""
        return re.sub(r"/\?login=.*", "", self.login)

    @property
    def port(self) -> int:
        return urlsplit(self.login).port or 0

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Stop it, and return the exit code."""
        self.process.send_signal(how)
        return self.process.wait(SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=SECONDS)


def start(folder: Path, *words: str, **environment: str) -> subprocess.Popen[str]:
    clean: Mapping[str, str] = {k: v for k, v in os.environ.items() if not k.startswith("TREADLE")}
    return subprocess.Popen(
        [sys.executable, "-m", "treadle", "dashboard", *words],
        cwd=folder,
        env={**clean, "TREADLE_URL": f"sqlite:///{folder}/jobs.db", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


SITE = """
from contextlib import asynccontextmanager
from starlette.applications import Starlette
from starlette.routing import Mount
from treadle import Treadle
dashboard = Treadle({url!r}).asgi()
@asynccontextmanager
async def lifespan(app):
    async with dashboard:
        yield
app = Starlette(routes=[Mount("/jobs", dashboard)], lifespan=lifespan)
"""


class Site:
    """A web app under uvicorn, with a dashboard at /jobs that has no `auth` of its own."""

    def __init__(self, folder: Path, url: str, processes: int = 1) -> None:
        (folder / "mounted.py").write_text(SITE.format(url=url))
        self.port, self.logins = free_port(), list[str]()
        command = [
            sys.executable,
            "-m",
            "uvicorn",
            "mounted:app",
            "--port",
            f"{self.port}",
            "--workers",
            f"{processes}",
        ]
        self.process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        is_up = False
        for line in self.process.stderr:
            is_up = is_up or "running on" in line
            self.logins += re.findall(r"\?login=\S+", line)
            if is_up and len(self.logins) == processes:
                return
        raise AssertionError("it ended by itself")

    @property
    def url(self) -> str:
        """The dashboard's URL, without a slash at the end."""
        return f"http://127.0.0.1:{self.port}/jobs"

    @property
    def login(self) -> str:
        return f"{self.url}/{self.logins[0]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.communicate(timeout=SECONDS)
