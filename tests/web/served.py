"""A real `treadle dashboard`, in a process of its own."""

from __future__ import annotations

import os
import re
import signal
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
