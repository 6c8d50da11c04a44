"""Checks of a SQLite file, and of a libSQL server."""

from __future__ import annotations

import os
import shutil
import statistics
import timeit
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from treadle.cli.doctor import Finding, Level
from treadle.cli.output import clean
from treadle.program import program
from treadle.stores.base import Store
from treadle.stores.sqlite.checkpoint import wal_reset_race
from treadle.stores.sqlite.store import SQLiteStore
from treadle.stores.sqlite.url import NETWORK_FILE_SYSTEMS
from treadle.units import format_bytes
from treadle.worker.watch import POLL

LONG_LOG = 64 << 20
LITTLE_DISK, TOO_LITTLE_DISK = 1 << 30, 100 << 20
SAMPLES, FAR = 5, 0.1
"""Seconds, between treadle and a libSQL server. A claim takes four round trips, and other writers wait for it."""


def checks(store: SQLiteStore, status: Mapping[str, Any], *, quick: bool) -> Iterator[Finding]:
    """All that concerns the file. `quick`: without reading the whole of it."""
    if not quick:
        yield _integrity(store.check())
    yield _journal(status)
    yield _file_system(status["file_system"])
    yield _sqlite(str(status["sqlite_version"]), left_to_treadle=_is_checkpointed(str(status["where"])))
    yield _log(status["log_bytes"])
    yield _disk(shutil.disk_usage(Path(status["where"]).parent).free)


def _integrity(answer: str) -> Finding:
    if answer == "ok":
        return Finding("integrity", "ok", "the file is intact")
    way_out = "stop the workers, copy the file with its -wal, and recover what you can: sqlite3 FILE .recover"
    return Finding("integrity", "problem", f"the file is damaged: {clean(answer)}", way_out)


def _journal(status: Mapping[str, Any]) -> Finding:
    if status["journal_mode"] == "wal":
        return Finding("journal", "ok", f"WAL on, synchronous {status['synchronous']} for treadle's own connections")
    text = f"journal mode is {status['journal_mode']}, so readers and writers wait for each other"
    way_out = "another program turned WAL off: find it; the next worker turns WAL on again"
    return Finding("journal", "problem", text, way_out)


def _file_system(kind: str | None) -> Finding:
    if kind in NETWORK_FILE_SYSTEMS:
        return Finding("disk", "problem", f"the file is on a network file system ({kind})", "move it to a local disk")
    known = f"local file system ({kind})" if kind else "file system unknown: the system does not report it"
    return Finding("disk", "ok", known)


def _is_checkpointed(where: str) -> bool:
    """Whether the program, such as a Django project, leaves the checkpoints of this file to treadle."""
    named = program().checkpointed
    return bool(named) and os.path.realpath(where) == os.path.realpath(named)


def _sqlite(version: str, *, left_to_treadle: bool) -> Finding:
    if not wal_reset_race(tuple(int(part) for part in version.split("."))):
        return Finding("sqlite", "ok", f"SQLite {version}")
    race = f"SQLite {version} has the WAL-reset race: a commit during a checkpoint can corrupt a file"
    if left_to_treadle:
        return Finding("sqlite", "ok", f"{race}. Your connections leave checkpoints to treadle, as they should")
    text = f"{race}. treadle checkpoints while no other connection can commit; your own connections do not"
    way_out = "on your own connections: PRAGMA wal_autocheckpoint=0; or a Python with SQLite 3.51.3, 3.50.7 or 3.44.6"
    return Finding("sqlite", "warning", text, way_out)


def _log(size: int) -> Finding:
    text = f"write-ahead log of {format_bytes(size)}"
    if size < LONG_LOG:
        return Finding("log", "ok", text)
    way_out = "end it: a forgotten transaction, a database browser, a backup that hangs"
    return Finding("log", "warning", f"{text}: a long-running reader keeps it from being reset", way_out)


def _disk(free: int) -> Finding:
    text = f"{format_bytes(free)} free on its disk"
    if free >= LITTLE_DISK:
        return Finding("space", "ok", text)
    level: Level = "problem" if free < TOO_LITTLE_DISK else "warning"
    return Finding("space", level, f"only {text}", "make room: treadle db prune --older-than 1d")


def libsql_checks(store: Store, status: Mapping[str, Any]) -> Iterator[Finding]:
    """The server answers: with which SQLite, and how soon."""
    yield Finding("server", "ok", f"libSQL server with SQLite {clean(status['sqlite_version'])}")
    yield round_trip(statistics.median(timeit.repeat(store.policies, number=1, repeat=SAMPLES)))
    every = "second" if POLL == 1 else f"{POLL:g} s"
    yield Finding("watch", "ok", f"the server sends no notifications: a worker polls for jobs once a {every}")


def round_trip(seconds: float) -> Finding:
    text = f"it answers in {1000 * seconds:.1f} ms"
    if seconds < FAR:
        return Finding("round_trip", "ok", text)
    text += ", and a claim takes four round trips"
    return Finding("round_trip", "warning", text, "run workers near the server")
