"""An empty folder, and `treadle` commands that run in it."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from treadle import Treadle
from treadle.cli import cli

_numbers = itertools.count()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, and no setting from outside it."""
    for name in [name for name in os.environ if name.startswith("TREADLE_")]:
        monkeypatch.delenv(name)
    for name in ("FORCE_COLOR", "NO_COLOR", "COLUMNS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TREADLE_URL", "")  # counts as unset, and is restored after the test
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.fixture
def treadle(folder: Path) -> Callable[..., Result]:
    """Run a command in this process. An exception that is not a message is a bug, and is raised."""

    def run(*words: str, input: str | None = None, env: dict[str, str] | None = None) -> Result:
        result = CliRunner().invoke(cli, list(words), prog_name="treadle", input=input, env=env)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


@pytest.fixture
def as_json(treadle: Callable[..., Result]) -> Callable[..., Any]:
    """Run a command with --json, and read what it prints."""

    def run(*words: str, code: int = 0) -> Any:
        result = treadle(*words, "--json")
        assert code == result.exit_code, result.output
        return json.loads(result.stdout)

    return run


@pytest.fixture
def td(folder: Path) -> Iterator[Treadle]:
    """The default database of the folder."""
    app = Treadle("sqlite:///treadle.db")
    app.store.open()
    yield app
    app.close()


@pytest.fixture
def write_app(folder: Path) -> Callable[[str], str]:
    """Write a module with an app; returns its name, which is unique."""

    def write(body: str = "") -> str:
        name = f"app_{next(_numbers)}"
        (folder / f"{name}.py").write_text(f"from treadle import *\ntd = Treadle()\n{body}\n")
        return name

    return write


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a command in a process; after the test, none is left."""
    started: list[subprocess.Popen[str]] = []

    def run(*words: str, **env: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "treadle", *words],
            cwd=folder,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.terminate()
        process.communicate()
