"""What the doctor looks at where the jobs are in a SQLite file."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from treadle.cli.finding import Finding, Level
from treadle.cli.output import clean
from treadle.stores.sqlite.url import NETWORK_FILE_SYSTEMS
from treadle.units import format_bytes

if TYPE_CHECKING:
    from treadle.app import Treadle

LONG_LOG = 64 << 20
LITTLE_DISK, TOO_LITTLE_DISK = 1 << 30, 100 << 20
MENDED = ((3, 44, 6), (3, 45, 0)), ((3, 50, 7), (3, 51, 0))
"""Versions, from and before, in which the WAL-reset race was mended besides 3.51.3 and later."""


def checks(app: Treadle, status: Mapping[str, Any], *, quick: bool) -> Iterator[Finding]:
    """All of the file."""
    if not quick:
        yield integrity(app)
    yield _journal(status)
    yield _file_system(status)
    yield _sqlite(str(status["sqlite_version"]))
    yield _log(status)
    yield _disk(status)


def integrity(app: Treadle) -> Finding:
    """SQLite's own check, which reads the whole file."""
    check = getattr(app.store, "check", None)
    answer = check() if check else "ok"
    if answer == "ok":
        return Finding("integrity", Level.OK, "the file is intact")
    way_out = "stop the workers, copy the file with its -wal, and rescue what can be: sqlite3 FILE .recover"
    return Finding("integrity", Level.PROBLEM, f"the file is damaged: {clean(answer)}", way_out)


def wal_reset_race(version: tuple[int, ...]) -> bool:
    """Whether this SQLite can corrupt a database when somebody commits while another connection checkpoints."""
    return (3, 7, 0) <= version <= (3, 51, 2) and not any(since <= version < before for since, before in MENDED)


def _journal(status: Mapping[str, Any]) -> Finding:
    if status["journal_mode"] == "wal":
        return Finding(
            "journal", Level.OK, f"WAL on, synchronous {status['synchronous']} for treadle's own connections"
        )
    text = f"journal mode is {status['journal_mode']}, so readers and writers wait for each other"
    return Finding("journal", Level.PROBLEM, text, "somebody turned WAL off; the next worker turns it on: find who did")


def _file_system(status: Mapping[str, Any]) -> Finding:
    kind = status["file_system"]
    if kind in NETWORK_FILE_SYSTEMS:
        return Finding(
            "disk", Level.PROBLEM, f"the file is on a network file system ({kind})", "move it to a local disk"
        )
    return Finding("disk", Level.OK, f"local file system ({kind})" if kind else "file system: the system does not tell")


def _sqlite(version: str) -> Finding:
    if not wal_reset_race(tuple(int(part) for part in version.split("."))):
        return Finding("sqlite", Level.OK, f"SQLite {version}")
    text = (
        f"SQLite {version} has the WAL-reset race: a commit during a checkpoint can corrupt a file. treadle "
        "checkpoints while nobody can commit; connections of your own do not"
    )
    way_out = "on your own connections: PRAGMA wal_autocheckpoint=0; or a Python with SQLite 3.51.3, 3.50.7 or 3.44.6"
    return Finding("sqlite", Level.WARNING, text, way_out)


def _log(status: Mapping[str, Any]) -> Finding:
    length = format_bytes(status["log_bytes"])
    if status["log_bytes"] < LONG_LOG:
        return Finding("log", Level.OK, f"write-ahead log of {length}")
    way_out = "end it: a forgotten transaction, a database browser, a backup that hangs"
    return Finding(
        "log", Level.WARNING, f"write-ahead log of {length}: a long reader keeps it from being reset", way_out
    )


def _disk(status: Mapping[str, Any]) -> Finding:
    free = shutil.disk_usage(Path(status["where"]).parent).free
    if free >= LITTLE_DISK:
        return Finding("space", Level.OK, f"{format_bytes(free)} free on its disk")
    level = Level.PROBLEM if free < TOO_LITTLE_DISK else Level.WARNING
    text = f"only {format_bytes(free)} free on its disk"
    return Finding("space", level, text, "make room: treadle db prune --older-than 1d")
