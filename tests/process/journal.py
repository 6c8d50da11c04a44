"""What the handlers note about their runs, so that no check has to trust the database under test.

Each process appends to a file of its own. One write per line: a kill -9 leaves whole lines or none.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from treadle import Context

FOLDER = "TREADLE_TEST_JOURNAL"

_numbers = itertools.count()
_file: tuple[int, int] = (0, 0)  # its process, and its descriptor


class Run(NamedTuple):
    """One execution of a handler. Times are nanoseconds of CLOCK_MONOTONIC, which all processes share."""

    id: str
    attempt: int
    pid: int
    token: str
    started: int
    ended: int | None
    raised: int | None = None
    worker: int = 0
    """The process of its worker: its own, or its parent."""

    @property
    def last_seen(self) -> int:
        return self.ended or self.raised or self.started


@contextmanager
def journalled(ctx: Context) -> Generator[str]:
    """Note that a run starts and how it ends. Yields a token that no other run has."""
    token = f"{os.getpid()}:{next(_numbers)}"
    if multiprocessing.parent_process() is not None:
        note("child", os.getppid())
    note("start", ctx.id, ctx.attempt, token)
    try:
        yield token
    except BaseException:
        note("raised", ctx.id, ctx.attempt, token)
        raise
    note("end", ctx.id, ctx.attempt, token)


def note(*words: object) -> None:
    """One line, with the time."""
    global _file
    if _file[0] != os.getpid():
        path = f"{os.environ[FOLDER]}/{os.getpid()}"
        _file = os.getpid(), os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC)
    line = " ".join(map(str, (*words, time.monotonic_ns())))
    os.write(_file[1], f"{line}\n".encode())


def lines(folder: Path) -> list[list[str]]:
    """Everything noted so far, each with its pid in front, in order of time. Without a line that is being written."""
    written = [(file.name, file.read_text().rpartition("\n")[0]) for file in folder.iterdir()]
    found = [[name, *line.split()] for name, text in written for line in text.splitlines()]
    return sorted(found, key=lambda words: int(words[-1]))


def runs(folder: Path) -> list[Run]:
    """All runs, in the order in which they started."""
    found: dict[str, Run] = {}
    parents: dict[str, int] = {}
    for pid, what, *words in lines(folder):
        if what == "child":
            parents[pid] = int(words[0])
        if what not in ("start", "end", "raised"):
            continue
        id, attempt, token, at = words
        if what == "start":
            found[token] = Run(id, int(attempt), int(pid), token, int(at), None, worker=parents.get(pid, int(pid)))
        else:
            found[token] = found[token]._replace(**{"ended" if what == "end" else "raised": int(at)})
    return list(found.values())
