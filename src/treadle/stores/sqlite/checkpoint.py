"""Checkpoints: one process at a time moves the write-ahead log into the database.

SQLite up to 3.51.2 can corrupt a database if one connection commits, and so restarts the log, while another one
checkpoints a log that was already checkpointed to its end (the WAL-reset race). So none of treadle's connections
checkpoints automatically. A process that commits while the log is long takes a lock on a file next to the database,
without waiting, and checkpoints for all while it holds the write lock, so that no other connection can commit.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from treadle.errors import TreadleError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

FIXED = ((3, 44, 6), (3, 45, 0)), ((3, 50, 7), (3, 51, 0))
"""Versions, from and before, in which the WAL-reset race is fixed besides 3.51.3 and later."""
MAGIC = b"\x37\x7f\x06"
"""A log begins with it."""
LONG = 4 << 20
"""Bytes of log that are worth a checkpoint."""
MOST = 2 * LONG
"""Bytes to which a restarted log is cut. It usually keeps its size: to write over a file takes half the time of fsync
that it takes to let it grow."""
USUAL = LONG + LONG // 4
"""Bytes that a log has come to when it is restarted."""
LOOK = 0.005
"""Seconds between two looks at its length."""
PATIENCE = 1.0
"""Seconds that a checkpoint waits at most while other processes write: the threads of its own process wait for it."""
LONGEST_PAUSE = 0.001
"""Seconds between two attempts to take SQLite's lock. A writer makes longer pauses: meanwhile the log grows."""
PAUSE = 0.25
"""Seconds between two tries while readers keep the log from being reset."""
log = logging.getLogger("treadle")


def wal_reset_race(version: tuple[int, ...]) -> bool:
    """Whether this SQLite can corrupt a database when one connection commits while another checkpoints."""
    return (3, 7, 0) <= version <= (3, 51, 2) and not any(since <= version < before for since, before in FIXED)


def open_lock(path: str, database: Path) -> int:
    """Open the lock file, which is for those who may write the database: whoever can open it can hold the lock.

    It is created with mode 0600, and open to the group and to others only if the database may be written by them. As
    SQLite's own files next to a database, it has the database's group, and its owner if root creates it. A symbolic
    link is not followed.
    """
    lock = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0), 0o600)
    try:
        _share(lock, os.stat(database))
    except BaseException:
        os.close(lock)
        raise
    return lock


def lock_now(lock: int) -> None:
    """Lock an open file until it is closed. Raises BlockingIOError if another process has locked it."""
    if sys.platform == "win32":
        try:
            msvcrt.locking(lock, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            raise BlockingIOError(*error.args) from None
    else:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _share(lock: int, database: os.stat_result) -> None:
    if sys.platform == "win32":
        return  # who may write a file is inherited from its folder
    found, user = os.fstat(lock), os.geteuid()
    mode = 0o600 | (0o060 if database.st_mode & 0o020 else 0) | (0o006 if database.st_mode & 0o002 else 0)
    is_right = (found.st_mode & 0o777, found.st_gid) == (mode, database.st_gid)
    if is_right or user not in (found.st_uid, 0) or found.st_nlink > 1:  # a second name could be any file's
        return
    with suppress(PermissionError):  # this user is not a member of that group
        os.fchown(lock, -1 if user else database.st_uid, database.st_gid)
    os.fchmod(lock, mode)


def is_long(log: str) -> bool:
    """Whether the log has LONG bytes that are in use. A restarted log has a new salt, and what it has not written over
    has the old one. (No process locks this file, so that closing it drops nobody's lock.)"""
    with suppress(OSError), open(log, "rb", buffering=0) as file:
        header = file.read(24)
        frame = 24 + int.from_bytes(header[8:12])  # a header of its own, and a page
        file.seek(32 + LONG // frame * frame + 8)
        return header[:3] == MAGIC and header[16:] == file.read(8)
    return False


def lengthen(log: str, writing: AbstractContextManager[object]) -> None:
    """Give a new log its usual size at once. A commit that lets it grow also waits for the file system to store that,
    at times 10 ms. `writing` is the write lock: nobody appends while zeros are, which no reader takes for a commit."""
    with suppress(OSError, sqlite3.Error, TreadleError), open(log, "r+b", buffering=0) as file:
        with writing:
            file.write(bytes(max(0, USUAL - file.seek(0, os.SEEK_END))))
        os.fsync(file)


class Checkpointer:
    """Keeps the log short."""

    def __init__(
        self, path: Path, connect: Callable[[], sqlite3.Connection], begin: Callable[[sqlite3.Connection], None]
    ) -> None:
        """`begin` begins a transaction that writes. Raises StoreBusy after PATIENCE."""
        self._path = path
        self._log = f"{path}-wal"
        self._lock_file = f"{path}-checkpoint"
        self._connect = connect
        self._begin = begin
        self._connections: tuple[sqlite3.Connection, sqlite3.Connection] | None = None
        self.busy = threading.Lock()
        self._not_before = 0.0
        self._has_warned = False

    def after_commit(self) -> None:
        """Checkpoint if the log has grown long and no other process does it."""
        now = time.monotonic()
        if now < self._not_before:
            return
        self._not_before = now + LOOK
        try:
            may_be_long = os.stat(self._log).st_size >= LONG
        except OSError:
            return
        if may_be_long and is_long(self._log) and self.busy.acquire(blocking=False):
            try:
                self._checkpoint()
            finally:
                self.busy.release()

    def close(self) -> None:
        """To be called with `busy` held."""
        for connection in self._connections or ():
            connection.close()
        self._connections = None

    def _checkpoint(self) -> None:
        try:
            lock = open_lock(self._lock_file, self._path)
            try:
                lock_now(lock)
                self._run()
            finally:
                os.close(lock)
        except (BlockingIOError, sqlite3.Error, TreadleError):
            pass  # another process does it, or has the database locked: the next commit tries again. This one is safe.
        except OSError as error:
            if not self._has_warned:
                log.warning("%s cannot be locked, so this process lets the log grow: %s", self._lock_file, error)
            self._has_warned = True

    def _run(self) -> None:
        holder, copier = self._connections = self._connections or (self._connect(), self._connect())
        self._begin(holder)
        try:
            # All that no reader still needs. The next commit then starts the log again from its beginning.
            _, frames, copied = copier.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        finally:
            holder.execute("ROLLBACK")
        if copied < frames:
            self._not_before = time.monotonic() + PAUSE
